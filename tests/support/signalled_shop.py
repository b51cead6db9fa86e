"""A model over one table, whose steps are carried out by PyIceberg, so that what is told of them needs no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Snapshot

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, read_marks, to_properties
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import INEXACT, Absorbed, Outcome
from lake_assets.tables.pending_windows import head_of

ORDERS, CITIES = TableId.parse("final.orders"), TableId.parse("agg.cities")
MODEL = {"name": "agg.cities", "sql": "SELECT city, count(*) AS n FROM final.orders GROUP BY city"}
_ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "city": pa.array(["a", "b"])})
_COUNTS = pa.table({"city": pa.array(["a", "b"]), "n": pa.array([1, 1], pa.int64())})


class Shop:
    """The lake, its pipeline, and how its next step ends.

    Attributes:
        error: what the next steps raise; None: they absorb the orders.
        audits: their findings.
    """

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake = lake
        self.error: BaseException | None = None
        self.audits: tuple[Finding, ...] = ()
        self.during: Callable[[], None] = lambda: None
        monkeypatch.setattr(SqlModelStep, "absorb", lambda step, lake, pins, rebuild=False: self._absorb(lake))
        lake.ensure_namespace(ORDERS.namespace)
        lake.ensure_namespace(CITIES.namespace)
        lake.catalog.create_table(ORDERS.parts, _ROWS.schema)
        self.order()

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [MODEL]}))

    @property
    def spec(self) -> ModelSpec:
        (spec,) = self.pipeline.specs(self.lake)
        assert isinstance(spec, ModelSpec)
        return spec

    def order(self) -> None:
        """Let two orders come."""
        self.lake.table(ORDERS).append(_ROWS)

    def step(self) -> Outcome:
        return absorb(self.lake, self.spec)

    def fail(self, error: BaseException) -> None:
        """Let a step fail."""
        self.error = error
        with pytest.raises(type(error)):
            self.step()
        self.error = None

    def _absorb(self, lake: Any) -> Outcome:
        self.during()
        if self.error is not None:
            raise self.error
        source, target = lake.table(ORDERS), lake.find(CITIES)
        head = head_of(source)
        if target is None:
            target = lake.catalog.create_table(CITIES.parts, _COUNTS.schema, properties={PIPELINE_PROPERTY: "shop"})
            start = None
        else:
            start = read_marks(target)[str(ORDERS)].snapshot
        if start == head.snapshot:
            return Outcome(str(CITIES), "nothing")
        target.append(_COUNTS, snapshot_properties=to_properties({str(ORDERS): head}))
        snapshot = lake.table(CITIES).metadata.current_snapshot_id
        window = Absorbed.of(str(ORDERS), lake.capture(ORDERS, start))
        return Outcome(
            str(CITIES), "absorbed", (window,), inserted=2, strategy="keys", why="two keys", snapshot=snapshot,
            details={INEXACT: []}, audits=self.audits,
        )  # fmt: skip


def newest(lake: Lake, table: str | TableId) -> Snapshot:
    """Return the current snapshot of a table that has one."""
    snapshot = lake.table(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot


def signalled(lake: Lake, **signals: Any) -> Lake:
    """Return the lake with signals declared."""
    return Lake(LakeConfig(home=lake.config.home, signals=signals))


def age(table: Any, seconds: float) -> None:
    """Let all snapshots of a table be older."""

    def older(metadata: dict[str, Any]) -> dict[str, Any]:
        return {
            **metadata,
            **{
                name: [{**e, "timestamp-ms": e["timestamp-ms"] - int(seconds * 1000)} for e in metadata[name]]
                for name in ("snapshots", "snapshot-log")
            },
        }

    commit(table, older)


def soon(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until a condition holds; return whether it does."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()
