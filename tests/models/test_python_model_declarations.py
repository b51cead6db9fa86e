"""Declarations of Python models: a changed one computes everything, and a wrong one is refused with a reason."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame

from lake_assets import Affected, Changes, Lake, Lookup, Pipeline, model
from lake_assets.errors import ModelError, PipelineError
from lake_assets.models.python.python_model import PythonModel
from tests.support.pipeline_files import yaml_of
from tests.support.python_models import insert, make, refusal, rows_in, step


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
    key = () if write == "append" else "id"

    def declared(version: int) -> PythonModel:
        @model("agg.rows", write=write, version=version, key=key, on_query_change="rebuild")
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
        ("DOUBLE", {}, "`replace: k` has type double, whose ranges cannot be replaced"),
        ("BINARY", {}, "`replace: k` has type binary, whose ranges cannot be replaced"),
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
        (
            one,
            {"write": "append", "full": two},
            "`full` has other parameters than the function: declare them as t: Changes",
        ),
        (one, {"write": "append", "full": "two"}, "`full`: str is not a function"),
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


def test_a_column_in_a_file_outside_of_its_functions_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    (tmp_path / "models.py").write_text("from pyspark.sql import functions as F\n\nA = F.col('a')\n")
    with pytest.raises(PipelineError, match=r"\(line 3\)\. A file is imported before Spark is started"):
        Pipeline.load(yaml_of(tmp_path, []))
