"""A column of another program's table that is dropped and added again with another type: the models that read it stop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lake_assets import Changes, Lake, model
from lake_assets.errors import TableReplacedError
from lake_assets.health.lake_status import quick_status
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome, Pipeline, PipelineConfig
from tests.support.python_models import insert, make, rows_in

SQL = "SELECT g, sum(v) AS v FROM src.t GROUP BY g"


def declared(**more: Any) -> PipelineConfig:
    """A model of each way to compute it, and one that does not read the column."""
    sql = {"agg.changed": (SQL, 1), "agg.computed": (SQL, 0), "agg.others": ("SELECT id, g FROM src.t", 1)}
    models = [{"name": n, "sql": s, "full_above": share, **more} for n, (s, share) in sql.items()]
    return PipelineConfig.model_validate({"name": "p", "models": models})


def kept() -> PythonModel:
    @model("agg.kept", write="merge", key="id")
    def kept(t: Changes) -> DataFrame:
        return t.rows.select("id", "v")

    return kept


def run(lake: Lake, config: PipelineConfig) -> dict[str, Outcome]:
    return {o.table: o for o in Pipeline(config, models=[kept()]).run(lake)}


def replace_column(lake: Lake, kind: str, row: int) -> None:
    """Drop a column of the source and add it again, as its owner does."""
    for change in ("DROP COLUMN v", f"ADD COLUMN v {kind}"):
        lake.spark().sql(f"ALTER TABLE {lake.sql_name('src.t')} {change}")
    insert(lake, f"({row}, 'b', 7)")


def is_right(lake: Lake) -> bool:
    expected = Counter(map(tuple, lake.spark().sql(SQL).collect()))
    return rows_in(lake, "agg.changed") == rows_in(lake, "agg.computed") == expected


@pytest.mark.parametrize(
    "way",
    [
        "added again",
        pytest.param("rebuild", marks=pytest.mark.long),
        pytest.param("on_replaced", marks=pytest.mark.long),
    ],
)
def test_models_that_read_it_stop_and_each_way_on_works(lake: Lake, way: str) -> None:
    make(lake, "id INT, g STRING, v INT", "(1, 'a', 1)", "(2, 'a', 2)", "(3, 'b', 3)")
    assert [o.error for o in run(lake, declared()).values() if o.error] == []
    before = {t: rows_in(lake, t) for t in ("agg.changed", "agg.computed", "agg.kept")}
    replace_column(lake, "STRING", 4)

    renamed = {t.table: t.renamed for t in quick_status(lake)}["agg.changed"]
    assert "v was dropped and added again as string (it was int)" in renamed[0]
    outcomes = run(lake, declared())
    assert outcomes["agg.others"].status == "absorbed"
    for table, rows in before.items():
        assert isinstance(outcomes[table].exception, TableReplacedError), outcomes[table]
        assert f"`lake-assets rebuild {table}`" in str(outcomes[table].error)
        assert rows_in(lake, table) == rows

    if way == "added again":
        replace_column(lake, "BIGINT", 5)
        outcomes = run(lake, declared())
    elif way == "rebuild":
        for table in before:
            Pipeline(declared(), models=[kept()]).rebuild(lake, table)
        outcomes = run(lake, declared())
    else:
        outcomes = run(lake, declared(on_replaced="rebuild"))
        assert isinstance(outcomes.pop("agg.kept").exception, TableReplacedError)
    assert [o.error for o in outcomes.values() if o.error] == []
    assert is_right(lake)
