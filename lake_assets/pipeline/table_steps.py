"""One protocol for the steps of every table: find pending changes, absorb them, rebuild the table, replay rejects.

`step_of` picks the class for a table's layer; nothing else in the pipeline depends on the layer.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pyiceberg.table import Table

from lake_assets.errors import LOST_FILE_ADVICE, ModelError
from lake_assets.final.declaration import pending_of as pending_of_final
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_tables import absorb_changes
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.ingest.raw.landing import land, new_files
from lake_assets.ingest.raw.landing_folder import nothing_arrived
from lake_assets.ingest.raw.source_tables import pending_of_table
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.ingest.records.routing import replay as replay_records
from lake_assets.ingest.staging.raw_windows import pending_of as pending_of_staging
from lake_assets.ingest.staging.staging import absorb_events
from lake_assets.ingest.staging.staging import replay as replay_events
from lake_assets.jobs.job_runs import run_job
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.step_windows import pending_windows
from lake_assets.lake import LakeBase, TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python import python_model_runs
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.sql_errors import located
from lake_assets.models.steps.model_runs import absorb_sources, next_of, windows_of
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.batch_limits import cut
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, continues, missing_sources
from lake_assets.tables.specs import BatchSize

S = TypeVar("S", bound=Spec)

EmptySources = Literal["always", "emptied", "ignored"]
_REQUESTED = "a rebuild was requested"


@dataclass(frozen=True)
class TableStep(ABC, Generic[S]):
    """The operations of a pipeline on one table.

    Attributes:
        spec: the table.
        is_only_writer: whether only a pipeline's steps write the table. Landing appends through PyIceberg.
        has_rejects: whether records can be rejected by the step, and read again later.
        brings_tables: whether a step may find new source tables that match a pattern of the pipeline.
        empty_sources: when a source without a snapshot is absorbed: `always`; if it was `emptied` since the last step;
            or never (`ignored`), for the pipeline's own raw and staging tables.
    """

    spec: S
    is_only_writer: ClassVar[bool] = True
    has_rejects: ClassVar[bool] = False
    brings_tables: ClassVar[bool] = False
    empty_sources: ClassVar[EmptySources] = "always"

    def is_due(self, window: Window) -> bool:
        """Whether a step has something to absorb from a source."""
        if window.head.snapshot is not None or self.empty_sources == "always":
            return not window.is_absorbed
        return self.empty_sources == "emptied" and bool(window.start or window.lost)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The engines that a step needs in addition to PyIceberg, for Dagster."""
        return ("spark",)

    @property
    def code(self) -> tuple[str, int] | None:
        """The file and line of code that computes the rows, if it is not the pipeline's YAML."""
        return None

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The tables that a step commits to."""
        return (self.spec.table,)

    def new_files(self, lake: LakeBase) -> list[Path]:
        """Return the files of a landing folder that are due."""
        return []

    def check(self) -> None:
        """Raise the error with which each step of the table fails, whatever is pending."""
        return

    @abstractmethod
    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the pending window of each source. Reads metadata only.

        Args:
            lake: the lake.
            table: the table; None: it does not exist yet.
            sources: its existing sources.

        Raises:
            HistoryError: the history of a source is lost, and the table is declared to stop.
        """

    @abstractmethod
    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the part of `windows` that the next step absorbs, if batches are limited.

        Args:
            lake: the lake.
            table: the table; None: it does not exist yet.
            sources: all of its sources.
            pins: snapshots that earlier models of the run have fixed; this step adds its own.
        """

    @abstractmethod
    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Absorb pending changes, in one commit that moves the watermark.

        Args:
            lake: the lake.
            pins: snapshots that earlier models of the run have fixed.
            rebuild: whether to compute the table from the current contents of its sources.
        """

    @property
    def why_not_rebuilt(self) -> str:
        """The reason why the table cannot be rebuilt from its sources; empty: it can."""
        return ""

    def replay(self, lake: LakeBase) -> Outcome:
        """Read rejected records again, and insert those that can be read now."""
        return Outcome(str(self.spec.table), "nothing")

    def lost_file_advice(self, table: TableId) -> str:
        """Return how to recover from a lost file of a table that the step reads or writes."""
        return LOST_FILE_ADVICE


@dataclass(frozen=True)
class RawStep(TableStep[RawSpec]):
    """Landing: records of new files, or of a source table, as they arrived."""

    is_only_writer: ClassVar[bool] = False
    has_rejects: ClassVar[bool] = True
    brings_tables: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "emptied"

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: landing appends through PyIceberg."""
        return ()

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The raw table, the ledger of its files, and its rejects."""
        return self.spec.table, ledger_of(self.spec.table), rejected_of(self.spec.table)

    def new_files(self, lake: LakeBase) -> list[Path]:
        """Return the files that are missing from the raw table and have waited long enough for more."""
        return new_files(lake, self.spec)

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the source table, if it has one."""
        return [pending_of_table(self.spec, table, name, loaded) for name, loaded in sources.items()]

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return all new files, which one step lands in several commits, or a batch of a source table's snapshots."""
        windows = self.windows(lake, table, sources)
        return [cut(w, sources[w.source], self.spec.batch) for w in windows]

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Land new files, or new records of the source table."""
        began, spec, name = time.monotonic(), self.spec, str(self.spec.table)
        if spec.source and not lake.exists(spec.source):
            return Outcome(name, "waiting", why=missing_sources(lake.find(spec.table), [spec.source]))
        landed = land(lake, spec)
        if not landed.files and not landed.why:
            if spec.landing and (landed.snapshot is None or not spec.landing.exists()):
                status, why = nothing_arrived(spec.landing, lake.config.home)
                return Outcome(name, status, why=why)
            return Outcome(name, "nothing")
        return Outcome(
            name,
            "absorbed",
            (Absorbed(str(spec.source or spec.landing), None, None, landed.files, landed.bytes),),
            inserted=landed.records,
            strategy="land",
            why=landed.why or ("new snapshots of the source" if spec.source else "new files of the landing folder"),
            seconds=time.monotonic() - began,
            snapshot=landed.snapshot,
            details=landed.details,
        )

    @property
    def why_not_rebuilt(self) -> str:
        """The reason: a raw table may be the only copy of its records."""
        return (
            f"{self.spec.table} is a raw table: it holds records as they arrived, and may be their only copy, so it is "
            "not rebuilt. To read its records again, `lake-assets rebuild` its staging tables"
        )

    def replay(self, lake: LakeBase) -> Outcome:
        """Route records again that could not be routed."""
        name = str(self.spec.table)
        if not (routed := replay_records(lake, self.spec)):
            return Outcome(name, "nothing")
        return Outcome(name, "absorbed", updated=routed, strategy="replay", why=f"{routed} records can be routed now")

    def lost_file_advice(self, table: TableId) -> str:
        """Return the advice; a ledger is derived from the commits of its raw table."""
        if table != ledger_of(self.spec.table):
            return LOST_FILE_ADVICE
        return f"Restore the file from a backup; or drop {table}: the next run creates it again from {self.spec.table}"


@dataclass(frozen=True)
class StagingStep(TableStep[StagingSpec]):
    """Parsing: the typed change events of one source table."""

    has_rejects: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "ignored"

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The staging table, and the rejects of its raw table."""
        return self.spec.table, rejected_of(self.spec.raw)

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the raw table, from the first commit with records for this table."""
        return [pending_of_staging(self.spec, table, raw)[0] for raw in sources.values()]

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the batch, or the whole window if every record is read again."""
        windows = [(pending_of_staging(self.spec, table, raw), raw) for raw in sources.values()]
        return [_unless_rebuilt(window, why, raw, self.spec.batch) for (window, why), raw in windows]

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Append the events of new records."""
        return absorb_events(lake, self.spec, rebuild=rebuild)

    def replay(self, lake: LakeBase) -> Outcome:
        """Read rejected records again."""
        return replay_events(lake, self.spec)


@dataclass(frozen=True)
class FinalStep(TableStep[FinalSpec]):
    """Merging: the rows that result from the events of a source table."""

    empty_sources: ClassVar[EmptySources] = "ignored"

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the staging table."""
        return [pending_of_final(lake, self.spec, table, staging)[0] for staging in sources.values()]

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the batch, or the whole window for a rebuild, so the table never has fewer rows than before."""
        windows = [(pending_of_final(lake, self.spec, table, staging), staging) for staging in sources.values()]
        return [_unless_rebuilt(window, why, staging, self.spec.batch) for (window, why), staging in windows]

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Merge the changed keys."""
        return absorb_changes(lake, self.spec, rebuild=_REQUESTED if rebuild else "")


def _unless_rebuilt(window: Window, rebuilt: str | None, source: Table, size: BatchSize) -> Window:
    return window if rebuilt else cut(window, source, size)


@dataclass(frozen=True)
class ModelStep(TableStep[ModelSpec]):
    """Maintaining the result of a query."""

    def check(self) -> None:
        """Raise ModelError if the query cannot be used."""
        self.spec.check()

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source."""
        return list(windows_of(self.spec, table, sources).values())

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with other models of the run."""
        return list(next_of(lake, self.spec, table, sources, pins)[0].values())

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Absorb the changes of all sources."""
        self.check()
        pins = pins or SnapshotPins()
        try:
            with pins.release_on_failure():
                return absorb_sources(lake, self.spec, pins, rebuild=_REQUESTED if rebuild else "")
        except ModelError as e:
            raise located(e, self.spec.origin) from e
        finally:
            pins.changes.release(lake.spark, self.spec.table)


@dataclass(frozen=True)
class PythonModelStep(TableStep[PythonModelSpec]):
    """Calling a function with the changes of its inputs, and applying the returned rows."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Spark, and Python unless the function is SQL over changes."""
        return ("spark", "python") if self.spec.place else ("spark",)

    @property
    def code(self) -> tuple[str, int] | None:
        """The file and line of the function."""
        return self.spec.place

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source."""
        return list(python_model_runs.windows_of(self.spec, table, sources).values())

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with other models of the run."""
        return list(python_model_runs.next_of(lake, self.spec, table, sources, pins)[0].values())

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Call the function with the changes of all sources."""
        pins = pins or SnapshotPins()
        with pins.release_on_failure():
            return python_model_runs.absorb_inputs(lake, self.spec, pins, rebuild=_REQUESTED if rebuild else "")


@dataclass(frozen=True)
class JobStep(TableStep[JobSpec]):
    """Running a user's job over what changed."""

    is_only_writer: ClassVar[bool] = False
    empty_sources: ClassVar[EmptySources] = "emptied"

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: the job's own kind is declared with it."""
        return ()

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source."""
        return list(pending_windows(self.spec.settings, table, sources).values())

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with the models of the run."""
        windows = pending_windows(self.spec.settings, table, sources)
        return list(self._chosen(lake, pins, windows, sources).values())

    def absorb(self, lake: LakeBase, pins: SnapshotPins | None = None, *, rebuild: bool = False) -> Outcome:
        """Run the job."""
        pins = pins or SnapshotPins()
        with pins.release_on_failure():
            return run_job(lake, self.spec, lambda w, sources: self._chosen(lake, pins, w, sources), rebuild=rebuild)

    def _chosen(
        self, lake: LakeBase, pins: SnapshotPins, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]
    ) -> dict[TableId, Window]:
        size = self.spec.batch if continues(windows.values()) else BatchSize()
        return pins.pin(lake, windows, sources, size)


def step_of(spec: Spec) -> TableStep[Any]:
    """Return the step of a table."""
    match spec:
        case RawSpec():
            return RawStep(spec)
        case StagingSpec():
            return StagingStep(spec)
        case FinalSpec():
            return FinalStep(spec)
        case ModelSpec():
            return ModelStep(spec)
        case PythonModelSpec():
            return PythonModelStep(spec)
        case JobSpec():
            return JobStep(spec)
