"""Changed rows of a source, computed once for all models of a run that read them.

All models of a run read a source up to the same snapshot (`snapshot_pins`). So those that have absorbed it up to the
same snapshot absorb the same change. The first of them computes it, with every column that any of them reads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lake_assets.lake import LakeBase, TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Bounds, Frame
from lake_assets.models.steps.planned_models import columns_read
from lake_assets.tables.spark_frames import new_name

_PREFIX = "lake_assets_shared"
# A view that a killed run has left on a Spark Connect server is dropped after so many seconds.
_LIFETIME = 24 * 3600


@dataclass(frozen=True)
class ChangeId:
    """What changed in a table between two snapshots.

    Attributes:
        uuid: its uuid, which a replaced table does not share.
        start, end: the two snapshots.
        schema: the schema in which its rows are read.
    """

    table: TableId
    uuid: str
    start: int | None
    end: int | None
    schema: int


@dataclass(frozen=True)
class SharedRows:
    """The rows of a change, with `SIGN`.

    Attributes:
        view: the name of their view in SQL, the same in all sessions.
        bounds: see `Frame`.
    """

    view: str
    columns: frozenset[str]
    count: int
    bounds: Mapping[str, Bounds]


@dataclass
class SharedChanges:
    """The changes that several models of one run read. Models may run in several threads."""

    models: Collection[ModelSpec] = ()
    _rows: dict[ChangeId, SharedRows] = field(default_factory=dict[ChangeId, SharedRows])
    _readers: dict[ChangeId, dict[TableId, frozenset[str]]] = field(
        default_factory=dict[ChangeId, dict[TableId, frozenset[str]]]
    )
    _finished: set[TableId] = field(default_factory=set[TableId])
    _locks: dict[ChangeId, threading.Lock] = field(default_factory=dict[ChangeId, threading.Lock])
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def rows(
        self, lake: LakeBase, model: TableId, change: ChangeId, compute: Callable[[frozenset[str]], Frame]
    ) -> SharedRows | None:
        """Return the rows of a change; None if the model is the only one to read them.

        Args:
            compute: computes its rows with the given columns.
        """
        with self._lock:
            lock = self._locks.setdefault(change, threading.Lock())
        # Models that ask while the first one computes the rows wait for it.
        with lock:
            if change not in self._readers:
                self._readers[change] = columns_read(lake, self.models, change.table)
            readers = self._readers[change]
            if model not in readers or not readers.keys() - {model} - self._finished:
                return self._rows.get(change) if model in readers else None
            if change not in self._rows:
                columns = frozenset[str]().union(*readers.values())
                frame = compute(columns)
                self._rows[change] = SharedRows(_published(lake, frame), columns, frame.rows, frame.bounds)
            return self._rows[change]

    def readers_of(self, table: TableId) -> int:
        """Return the number of models of the run that read a table; at least 1."""
        return max(1, sum(table in m.sources for m in self.models))

    def release(self, spark: Callable[[], SparkSession], model: TableId) -> None:
        """Drop the rows that no other model of the run will read, now that a model has ended.

        Args:
            spark: returns the session; not called if there is nothing to drop.
        """
        with self._lock:
            self._finished.add(model)
            unread = [c for c in self._rows if self._readers[c].keys() <= self._finished]
            views = [self._rows.pop(c).view for c in unread]
        # If Spark has ended, so have its views; the error of the model says so.
        with contextlib.suppress(Py4JError, PySparkException, ConnectionError):
            for view in views:
                spark().catalog.dropGlobalTempView(view.partition(".")[2])


def _published(lake: LakeBase, frame: Frame) -> str:
    """Register rows as a view that all sessions see, and return its name in SQL."""
    if lake.config.spark.remote:
        _drop_outdated(lake.spark())
    name = f"{_PREFIX}_{int(time.time())}_{new_name()}"
    frame.frame.createGlobalTempView(name)
    return f"global_temp.{name}"


def _drop_outdated(spark: SparkSession) -> None:
    for (name,) in spark.sql(f"SHOW VIEWS IN global_temp LIKE '{_PREFIX}_*'").select("viewName").collect():
        if int(name.removeprefix(_PREFIX).split("_")[1]) < time.time() - _LIFETIME:
            spark.catalog.dropGlobalTempView(name)
