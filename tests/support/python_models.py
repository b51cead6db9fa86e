"""Steps of Python models, each compared with a plain computation, over tables of others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lake_assets import Lake, Pipeline
from lake_assets.errors import ModelError
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome, PipelineConfig
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_runs import run


def pipeline(*models: PythonModel) -> Pipeline:
    return Pipeline(PipelineConfig(name="own"), models=models)


def rows_in(lake: Lake, table: str) -> Counter[Any]:
    return Counter(map(tuple, lake.spark().table(lake.sql_name(table)).collect()))


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
    if verified and not declared.past:
        compared = verify(lake, p.specs(lake)[0])
        assert compared.equal, compared.differences
    return outcome


def refusal(lake: Lake, declared: PythonModel) -> str:
    (outcome,) = pipeline(declared).run(lake)
    assert isinstance(outcome.exception, ModelError), outcome
    assert not lake.exists(str(declared.table))
    return str(outcome.exception)
