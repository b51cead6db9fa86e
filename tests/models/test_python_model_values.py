"""Python models over unusual types, values and names: their rows are right, or are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Changes, Lake, model
from lake_assets.errors import KeyMissingError
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, pipeline, refusal, rows_in, step

# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("write", ["replace-keys", pytest.param("replace-ranges", marks=pytest.mark.long)])
def test_two_rows_of_one_key_are_refused_and_nothing_is_written(lake: Lake, write: Any) -> None:
    make(lake, "a INT, d DOUBLE, copies INT", "(1, 10, 1)", "(1, 20, 1)", "(2, 10, 1)")

    @model("agg.rows", write=write, key=["a", "d"], replace="a", inputs={"t": "src.t"})
    def listed(t: Changes) -> DataFrame:
        return t.affected().selectExpr("a", "d", "explode(sequence(1, copies)) AS copy").drop("copy")

    p = pipeline(listed)
    run(lake, p)
    before = rows_in(lake, "agg.rows")
    # The first one doubles a row that the table holds: neither copy differs from it.
    for row in ("1, 10, 2", "3, 30, 2", "1, NULL, 2", "1, double('NaN'), 2"):
        insert(lake, f"({row})")
        if row == "1, 10, 2":
            lake.spark().sql(f"DELETE FROM {lake.sql_name('src.t')} WHERE a = 1 AND d = 10 AND copies = 1")
        (outcome,) = p.run(lake)
        assert isinstance(outcome.exception, KeyMissingError), outcome
        assert "returned 2 rows for (" in str(outcome.exception)
        assert rows_in(lake, "agg.rows") == before
        lake.spark().sql(f"UPDATE {lake.sql_name('src.t')} SET copies = IF(a = 1 AND d = 10, 1, 0) WHERE copies = 2")
        lake.spark().sql(f"DELETE FROM {lake.sql_name('src.t')} WHERE copies = 0")
    run(lake, p)
    assert rows_in(lake, "agg.rows") == before


@pytest.mark.parametrize("write", [pytest.param("replace-keys", marks=pytest.mark.long), "replace-ranges"])
def test_affected_rows_are_found_by_values_of_the_type_of_the_replaced_column(lake: Lake, write: Any) -> None:
    make(lake, "at TIMESTAMP, seconds BIGINT", "(TIMESTAMP '2026-03-01 10:00', 5)", "(NULL, 1)")

    @model("agg.days", write=write, key="day", replace={"day": "at"})
    def days(t: Changes) -> DataFrame:
        return t.affected().groupBy(F.to_date("at").alias("day")).agg(F.sum("seconds").alias("seconds"))

    step(lake, days)
    insert(lake, "(TIMESTAMP '2026-03-01 11:00', 7)", "(NULL, 1)")
    assert step(lake, days).strategy == write
    assert sum(seconds for _, seconds in rows_in(lake, "agg.days")) == 14


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(id AS TINYINT)",
        pytest.param("array(CAST(id AS SMALLINT))", marks=pytest.mark.long),
        "named_struct('a b', CAST(id AS TINYINT))",
        pytest.param("map(1, CAST(id AS SMALLINT))", marks=pytest.mark.long),
        pytest.param("CAST(id AS STRING) COLLATE UTF8_LCASE", marks=pytest.mark.long),
    ],
)
def test_types_that_iceberg_stores_as_another_do_not_rebuild_a_table(lake: Lake, expression: str) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.log", write="append")
    def log(t: Changes) -> DataFrame:
        return t.rows.selectExpr("id", f"{expression} AS value")

    step(lake, log)
    lake.spark().sql(f"DELETE FROM {lake.sql_name('src.t')}")
    insert(lake, "(2)")
    assert step(lake, log, verified=False).strategy == "append"
    assert lake.spark().table("agg.log").count() == 2


@pytest.mark.parametrize(
    ("kind", "low", "high", "back"),
    [
        pytest.param("INT", "2147483640", "2147483647", 10, marks=pytest.mark.long),
        pytest.param("BIGINT", "1", "9223372036854775807", 5, marks=pytest.mark.long),
        pytest.param("DECIMAL(4, 2)", "-99.99", "99.99", 0.5, marks=pytest.mark.long),
        pytest.param("DATE", "DATE '1969-12-25'", "DATE '9999-12-31'", "6d", marks=pytest.mark.long),
        ("TIMESTAMP", "TIMESTAMP '2026-01-01'", "timestamp_seconds(1767225600000)", "6d"),
        pytest.param(
            "TIMESTAMP_NTZ", "TIMESTAMP_NTZ '1969-01-01'", "TIMESTAMP_NTZ '2026-01-05'", "6d", marks=pytest.mark.long
        ),
    ],
)
def test_ranges_at_the_ends_of_a_type(lake: Lake, kind: str, low: str, high: str, back: Any) -> None:
    make(lake, f"id INT, k {kind}", f"(1, {low})", f"(2, {high})")

    @model("agg.ranges", write="replace-ranges", replace="k", back=back, forward=back)
    def ranges(t: Changes) -> DataFrame:
        return t.affected().select("id", "k")

    step(lake, ranges)
    insert(lake, f"(3, {high})", f"(4, {low})", "(5, NULL)")
    assert step(lake, ranges).strategy == "replace-ranges"


def test_a_range_reaches_exactly_as_far_as_declared(lake: Lake) -> None:
    make(lake, "k INT", "(0)", "(1234561)", "(2469122)")

    @model("agg.counted", write="replace-ranges", replace="k", back=1234561)
    def counted(t: Changes) -> DataFrame:
        return t.affected().selectExpr("k", "count(*) OVER (ORDER BY k RANGE 1234561 PRECEDING) AS n")

    step(lake, counted)
    insert(lake, "(0)")
    assert step(lake, counted).strategy == "replace-ranges"


@pytest.mark.long
def test_rows_without_a_value_come_before_all_others_in_cumulative_ranges(lake: Lake) -> None:
    make(lake, "k INT", "(0)", "(2)", "(NULL)")

    @model("agg.counted", write="replace-ranges", replace="k", cumulative=True)
    def counted(t: Changes) -> DataFrame:
        return t.affected().selectExpr("k", "count(*) OVER (ORDER BY k) AS n")

    step(lake, counted)
    for row in ("(1)", "(NULL)"):
        insert(lake, row)
        assert step(lake, counted).strategy == "replace-ranges"


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["merge", pytest.param("replace-keys", marks=pytest.mark.long)])
def test_a_key_can_be_called_count(lake: Lake, write: Any) -> None:
    make(lake, "`count` INT, n INT", "(1, 1)")

    @model("agg.counts", write=write, key="count")
    def counts(t: Changes) -> DataFrame:
        return t.rows

    step(lake, counts)
    insert(lake, "(2, 2)")
    assert step(lake, counts).strategy == write
    run(lake, pipeline(counts))


def test_names_of_icebergs_own_columns_are_refused(lake: Lake) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.log", write="append")
    def log(t: Changes) -> DataFrame:
        return t.rows.selectExpr("id", "false AS _deleted")

    assert "_deleted: Iceberg has columns of this name itself: rename them" in refusal(lake, log)


def test_pending_changes_are_absorbed_after_a_column_is_renamed(lake: Lake) -> None:
    make(lake, "id INT, g INT", "(1, 1)", "(2, 2)")

    @model("agg.groups", write="replace-keys", replace="g")
    def groups(t: Changes) -> DataFrame:
        return t.affected()

    step(lake, groups)
    insert(lake, "(3, 1)")
    lake.spark().sql(f"ALTER TABLE {lake.sql_name('src.t')} RENAME COLUMN g TO h")
    step(lake, groups)
