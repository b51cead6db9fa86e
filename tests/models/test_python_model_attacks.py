"""Python models over unusual types, names and declarations: their rows are right, or are refused with a reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Affected, Changes, Lake, Lookup, model
from lake_assets.errors import ModelError
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome
from lake_assets.pipeline.verification import verify
from tests.models.test_python_models import pipeline, rows_in, run


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


# --- declarations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed", [{"back": "2d"}, {"forward": "2d"}, {"cumulative": True}, {"on_lookup_change": "rebuild"}]
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
