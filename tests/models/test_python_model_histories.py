"""Python models over inputs whose columns, lookups and histories change between steps: the tables follow them."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Changes, Lake, Lookup, model
from lake_assets.models.python.python_model import PythonModel
from tests.support.python_models import insert, make, pipeline, refusal, rows_in, step


def alter(lake: Lake, *changes: str, table: str = "src.t") -> None:
    for change in changes:
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} {change}")


# --- columns of inputs ---------------------------------------------------------------------------------------------

SWAPPED = ("RENAME COLUMN v TO x", "RENAME COLUMN w TO v", "RENAME COLUMN x TO w")


@pytest.mark.long
@pytest.mark.parametrize(
    "changes", [SWAPPED, pytest.param(("DROP COLUMN v", "ADD COLUMN v INT"), marks=pytest.mark.long)]
)
def test_a_name_that_belongs_to_another_column_computes_everything(lake: Lake, changes: tuple[str, ...]) -> None:
    make(lake, "id INT, v INT, w INT", "(1, 1, 5)", "(2, 2, 6)")

    @model("agg.copied", write="merge", key="id")
    def copied(t: Changes) -> DataFrame:
        return t.rows.select("id", "v")

    step(lake, copied)
    alter(lake, *changes)
    assert step(lake, copied).status == "nothing"
    insert(lake, "(3, 3, 3)")
    assert step(lake, copied).why.endswith("now belongs to another column")
    insert(lake, "(4, 4, 4)")
    assert step(lake, copied).strategy == "merge"


def test_conditions_on_columns_that_were_swapped_skip_no_rows_of_pending_changes(lake: Lake) -> None:
    make(lake, "id INT, v INT, w INT", "(1, 1, 500)")

    @model("agg.small", write="overwrite")
    def small(t: Changes) -> DataFrame:
        return t.table.where("v < 100").select("id", "v")

    insert(lake, "(2, 2, 600)")
    alter(lake, *SWAPPED)
    step(lake, small, verified=False)
    assert rows_in(lake, "agg.small") == Counter([(1, 1), (2, 2)])


# --- lookups -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_lookup_that_is_an_input_too_computes_everything_if_declared(lake: Lake) -> None:
    make(lake, "id INT", "(1)", "(2)")
    make(lake, "id INT, name STRING", "(1, 'a')", name="src.names")

    @model(
        "agg.named",
        write="merge",
        key="id",
        on_lookup_change="rebuild",
        inputs={"names": "src.names", "new": "src.names"},
    )
    def named(t: Changes, names: Lookup, new: Changes) -> DataFrame:
        return t.rows.join(names.table, "id", "left").select("id", "name")

    step(lake, named)
    insert(lake, "(2, 'b')", name="src.names")
    assert step(lake, named).why == "a lookup changed"


@pytest.mark.long
def test_a_lookup_that_was_created_again_computes_everything_if_declared(lake: Lake) -> None:
    make(lake, "id INT", "(1)", "(2)")
    make(lake, "id INT, name STRING", "(1, 'a')", name="src.names")

    @model("agg.named", write="merge", key="id", on_lookup_change="rebuild")
    def named(t: Changes, names: Lookup) -> DataFrame:
        return t.rows.join(names.table, "id", "left").select("id", "name")

    step(lake, named)
    lake.spark().sql(f"DROP TABLE {lake.sql_name('src.names')}")
    make(lake, "id INT, name STRING", "(2, 'b')", name="src.names")
    assert "src.names was dropped and created again" in step(lake, named).why
    insert(lake, "(3)")
    assert step(lake, named).strategy == "merge"


# --- what functions return and declare -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["__sign", "__lake_key0"])
def test_names_of_columns_that_steps_add_are_refused(lake: Lake, name: str) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.rows", write="replace-keys", replace="id")
    def copied(t: Changes) -> DataFrame:
        return t.affected().select("id", F.lit(1).alias(name))

    assert f"{name}: steps add columns of this name" in refusal(lake, copied)


def test_columns_of_one_name_are_refused_in_later_steps_too(lake: Lake) -> None:
    make(lake, "id INT, v INT", "(1, 1)")

    def declared(*columns: str) -> PythonModel:
        @model("agg.rows", write="append")
        def copied(t: Changes) -> DataFrame:
            return t.rows.selectExpr(*columns)

        return copied

    step(lake, declared("id", "v"))
    insert(lake, "(2, 2)")
    (outcome,) = pipeline(declared("id", "v", "v + 1 AS v")).run(lake)
    assert "two columns are called v" in str(outcome.error)
    assert rows_in(lake, "agg.rows") == Counter([(1, 1)])


def test_a_function_that_exits_fails_only_its_table(lake: Lake) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.rows", write="append")
    def exits(t: Changes) -> DataFrame:
        sys.exit(3)

    assert "exits raised SystemExit: 3" in refusal(lake, exits)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("id +", "PARSE_SYNTAX_ERROR"),
        ("idd", "with name `idd` cannot be resolved"),
        ("sum(id)", "UNSUPPORTED_EXPR_FOR_OPERATOR"),
        ("row_number() OVER (ORDER BY id)", "UNSUPPORTED_EXPR_FOR_OPERATOR"),
        ("monotonically_increasing_id()", "INVALID_NON_DETERMINISTIC_EXPRESSIONS"),
    ],
)
def test_a_wrong_expression_of_a_replaced_column_is_told_by_the_first_run(
    lake: Lake, expression: str, told: str
) -> None:
    make(lake, "id INT, g INT", "(1, 1)")

    @model("agg.rows", write="replace-keys", replace={"g": expression})
    def copied(t: Changes) -> DataFrame:
        return t.affected()

    text = refusal(lake, copied)
    assert "`replace` over src.t: " in text
    assert told in text
