"""Python models over unusual types, names and declarations: their rows are right, or are refused with a reason."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Affected, Changes, Lake, Lookup, Pipeline, model
from lake_assets.errors import KeyMissingError, ModelError, PipelineError
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome
from lake_assets.pipeline.verification import verify
from tests.models.test_python_models import pipeline, rows_in, run
from tests.models.test_sql_templates import yaml_of


def make(lake: Lake, columns: str, *rows: str, name: str = "src.t", mode: str = "merge-on-read") -> None:
    lake.ensure_namespace(("src",))
    modes = ", ".join(f"'write.{w}.mode'='{mode}'" for w in ("delete", "update", "merge"))
    lake.spark().sql(f"CREATE TABLE {lake.sql_name(name)} ({columns}) USING iceberg TBLPROPERTIES ({modes})")
    insert(lake, *rows, name=name)


def insert(lake: Lake, *rows: str, name: str = "src.t") -> None:
    if rows:
        lake.spark().sql(f"INSERT INTO {lake.sql_name(name)} VALUES {', '.join(rows)}")


def step(lake: Lake, declared: PythonModel, *, verified: bool = True) -> Outcome:
    """Run a model's next step, and compare its table with a plain computation."""
    p = pipeline(declared)
    (outcome,) = run(lake, p).values()
    if verified:
        compared = verify(lake, p.specs(lake)[0])
        assert compared.equal, compared.differences
    return outcome


def refusal(lake: Lake, declared: PythonModel) -> str:
    (outcome,) = pipeline(declared).run(lake)
    assert isinstance(outcome.exception, ModelError), outcome
    assert not lake.exists(str(declared.table))
    return str(outcome.exception)


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
        ("INT", "2147483640", "2147483647", 10),
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


# --- declarations --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "changed",
    [
        {"back": "2d"},
        pytest.param({"forward": "2d"}, marks=pytest.mark.long),
        pytest.param({"cumulative": True}, marks=pytest.mark.long),
        pytest.param({"on_lookup_change": "rebuild"}, marks=pytest.mark.long),
    ],
)
def test_other_settings_of_the_decorator_compute_everything(lake: Lake, changed: dict[str, Any]) -> None:
    make(lake, "id INT, day DATE", "(1, DATE '2026-03-01')")
    make(lake, "id INT, name STRING", "(1, 'a')", name="src.names")

    def declared(**more: Any) -> PythonModel:
        @model("agg.named", write="replace-ranges", replace="day", **more)
        def named(t: Changes, names: Lookup) -> DataFrame:
            return t.affected().join(names.table, "id", "left").select("id", "day", "name")

        return named

    step(lake, declared())
    lake.spark().sql(f"UPDATE {lake.sql_name('src.names')} SET name = 'b'")
    insert(lake, "(2, DATE '2026-03-09')")
    step(lake, declared(), verified=False)
    assert step(lake, declared(**changed)).why == "its declaration changed"


@pytest.mark.long
def test_a_lookup_that_becomes_an_input_computes_everything(lake: Lake) -> None:
    make(lake, "id INT", "(1)")
    make(lake, "id INT, name STRING", "(1, 'a')", name="src.names")

    @model("agg.named", write="replace-keys", key="id")
    def before(t: Changes, names: Lookup) -> DataFrame:
        return t.affected().join(names.table, "id", "left").select("id", "name")

    @model("agg.named", write="replace-keys", key="id")
    def after(t: Changes, names: Changes, changed: Affected) -> DataFrame:
        return changed.of(t.table).join(names.table, "id", "left").select("id", "name")

    step(lake, before)
    lake.spark().sql(f"UPDATE {lake.sql_name('src.names')} SET name = 'b'")
    insert(lake, "(2)")
    step(lake, before, verified=False)
    assert step(lake, after).why == "its declaration changed"
    assert rows_in(lake, "agg.named") == Counter([(1, "b"), (2, None)])


@pytest.mark.long
@pytest.mark.parametrize("is_pending", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("write", [pytest.param("append", marks=pytest.mark.long), "merge"])
def test_a_new_version_of_a_model_over_changed_rows_computes_everything(
    lake: Lake, write: Any, is_pending: bool
) -> None:
    make(lake, "id INT", "(1)", "(2)")

    def declared(version: int) -> PythonModel:
        @model("agg.rows", write=write, version=version, key=() if write == "append" else "id")
        def copied(t: Changes) -> DataFrame:
            return t.rows if t.is_initial else t.feed(["id"]).select("id")

        return copied

    step(lake, declared(1))
    insert(lake, *(["(3)"] if is_pending else []))
    assert step(lake, declared(2)).why == "its declaration changed"
    insert(lake, "(4)")
    assert step(lake, declared(2)).strategy == write


@pytest.mark.parametrize(
    ("kind", "declared", "told"),
    [
        ("DOUBLE", {}, "`replace: k` has type double, which has no order"),
        ("BINARY", {}, "`replace: k` has type binary, which has no order"),
        ("STRING", {"back": 3}, "`back` is for dates, times and numbers, not for string"),
        ("DATE", {"back": 6}, "`back` is 6, and k of type date: write a duration"),
        ("TIMESTAMP", {"forward": "6"}, "`forward` is 6, and k of type timestamp: write a duration"),
        ("INT", {"back": "6d"}, "`back` is 6d, and k of type int: write a number"),
    ],
)
def test_a_range_that_cannot_be_replaced_is_refused_by_the_first_run(
    lake: Lake, kind: str, declared: dict[str, Any], told: str
) -> None:
    make(lake, f"k {kind}", "(NULL)")

    @model("agg.ranges", write="replace-ranges", replace="k", **declared)
    def ranges(t: Changes) -> DataFrame:
        return t.affected()

    assert told in refusal(lake, ranges)


@pytest.mark.parametrize("expression", ["INTERVAL 1 DAY", "array()", "named_struct('a', NULL)", "parse_json('1')"])
def test_types_that_a_table_cannot_have_are_refused(lake: Lake, expression: str) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.log", write="append")
    def log(t: Changes) -> DataFrame:
        return t.rows.selectExpr("id", f"{expression} AS value")

    assert "a table cannot have columns of the type of value" in refusal(lake, log)


@pytest.mark.parametrize(("write", "setting"), [("merge", "key"), ("replace-keys", "replace")])
def test_maps_are_refused_as_keys(lake: Lake, write: Any, setting: str) -> None:
    make(lake, "id INT, m MAP<STRING, INT>", "(1, map('a', 1))")

    @model("agg.maps", write=write, **{setting: "m"})
    def maps(t: Changes) -> DataFrame:
        return t.rows

    assert f"`{setting}` names m: values of MAP cannot be compared" in refusal(lake, maps)


def test_a_flag_of_deleted_rows_has_to_be_a_boolean(lake: Lake) -> None:
    make(lake, "id INT", "(1)")

    @model("agg.merged", write="merge", key="id")
    def merged(t: Changes) -> DataFrame:
        return t.rows.selectExpr("id", "0 AS _deleted")

    assert "_deleted marks rows to delete, and is of type int: make it a BOOLEAN" in refusal(lake, merged)


# --- mistakes ------------------------------------------------------------------------------------------------------


def one(t: Changes) -> DataFrame:
    return t.rows


def two(t: Changes, names: Lookup) -> DataFrame:
    return t.rows.join(names.table, "id")


def starred(*t: Changes) -> DataFrame:
    return t[0].rows


@pytest.mark.parametrize(
    ("function", "declared", "told"),
    [
        (one, {"write": "merge", "key": 5}, "5 is not the name of a column"),
        (one, {"write": "merge", "key": ""}, "'' is not the name of a column"),
        (one, {"write": "replace-keys", "replace": {"id": 5}}, "`replace`: 5 is not the SQL expression of id"),
        (one, {"write": "append", "full": two}, "`full` has other parameters than the function: t"),
        (one, {"write": "append", "full": "two"}, "'two' is not a function"),
        (partial(one), {"write": "append"}, "is not a function"),
        (one, {"write": "append", "table": None}, "None is not a table name"),
        (one, {"write": "append", "inputs": {"t": None}}, "None is not a table name"),
        (one, {"write": "append", "inputs": "src.t"}, "`inputs` is 'src.t'"),
        (one, {"write": "replace-ranges", "replace": "g", "cumulative": "no"}, "`cumulative` is 'no'"),
        (starred, {"write": "append"}, "make 't' an ordinary parameter"),
    ],
)
def test_a_mistake_in_a_declaration_is_told(function: Any, declared: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        model(**{"table": "agg.a", **declared})(function)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT {{ 1 / 0 }} FROM {{ changes('src.t') }}", "line 1: .*ZeroDivisionError"),
        ("SELECT {{ range(10 ** 9) }} FROM {{ changes('src.t') }}", "The sandbox blocks ranges"),
        ("SELECT * FROM {{ changes(5) }}", r"changes\(\) takes texts, and 5 is not a text"),
    ],
)
def test_a_template_that_cannot_be_computed_is_told_with_its_line(
    plain_lake: Lake, tmp_path: Path, sql: str, told: str
) -> None:
    (tmp_path / "a.sql").write_text(sql)
    models = [{"name": "agg.a", "write": "append", "sql_file": "a.sql"}]
    (spec,) = Pipeline.load(yaml_of(tmp_path, models)).specs(plain_lake)
    assert isinstance(spec, ModelSpec)
    assert re.search(f"a.sql, .*{told}", spec.refused)


def test_a_template_in_a_model_without_write_is_told_of_it(plain_lake: Lake, tmp_path: Path) -> None:
    models = [{"name": "agg.a", "sql": "SELECT * FROM {{ changes('src.t') }}"}]
    (spec,) = Pipeline.load(yaml_of(tmp_path, models)).specs(plain_lake)
    assert isinstance(spec, ModelSpec)
    assert re.search("templates are for models that declare .*`write`", spec.refused)


def test_a_column_in_a_file_outside_of_its_functions_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    (tmp_path / "models.py").write_text("from pyspark.sql import functions as F\n\nA = F.col('a')\n")
    with pytest.raises(PipelineError, match=r"\(line 3\)\. A file is imported before Spark is started"):
        Pipeline.load(yaml_of(tmp_path, []))
