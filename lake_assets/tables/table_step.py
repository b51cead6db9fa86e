"""One protocol for the steps of every table: find pending changes, absorb them, rebuild the table, replay rejects.

Each kind of table has a class of its own, beside the code that computes its rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pyiceberg.table import Table

from lake_assets.errors import LOST_FILE_ADVICE, DefinitionChangedError
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.working_copies import REVIEW_PROPERTY
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.pending_windows import Window, missing_sources, rebuild_advice
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.writing.table_ddl import check_owner_in


class Declared(Protocol):
    """The declaration of a table."""

    @property
    def table(self) -> TableId:
        """The table."""
        ...

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The tables whose changes it absorbs."""
        ...

    @property
    def pipeline(self) -> str:
        """The pipeline that owns the table."""
        ...


class Pins(Protocol):
    """The snapshots that the steps of a run read, so that all of them read the same ones."""

    def pin(
        self, lake: LakeBase, windows: Mapping[TableId, Window], tables: Mapping[TableId, Table], size: BatchSize
    ) -> dict[TableId, Window]:
        """Return the windows of a table's sources with the heads to read, and pin those heads."""
        ...

    def release_on_failure(self) -> AbstractContextManager[None]:
        """Release the pins of a step that fails within the block."""
        ...


S = TypeVar("S", bound=Declared)
P = TypeVar("P", bound=Pins, contravariant=True)

EmptySources = Literal["always", "emptied", "ignored"]
REQUESTED = "a rebuild was requested"


def review_of(table: Table | None) -> str:
    """Return the open backfill that brings a table's new definition; empty: there is none."""
    return table.properties.get(REVIEW_PROPERTY, "") if table is not None else ""


def in_review(table: TableId, backfill: str) -> DefinitionChangedError:
    """Return the error of a table that is declared otherwise while a backfill with the new declaration is open."""
    return DefinitionChangedError(
        f"{table} stays as it is, because the open backfill {backfill} brings its new declaration: publish it "
        f"(`lake-assets publish {backfill}`) or discard it (`lake-assets discard {backfill}`)"
    )


@dataclass(frozen=True)
class ChangedSetting:
    """A setting that is declared otherwise than when the rows of a table were computed.

    Attributes:
        name: the setting.
        before, after: its values as text, the SQL of a query in full; empty: there is none, or it is not stored.
    """

    name: str
    before: str
    after: str


def setting_text(value: object) -> str:
    """Return the value of a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value else ""


def differing_settings(pairs: Mapping[str, tuple[str, str]]) -> tuple[ChangedSetting, ...]:
    """Return the settings whose two values differ."""
    return tuple(ChangedSetting(name, before, after) for name, (before, after) in pairs.items() if before != after)


@dataclass(frozen=True)
class StepTables:
    """The tables of a step, as they are when it begins.

    Attributes:
        table: the written table; None: it does not exist yet.
        sources: the tables that it reads.
    """

    table: Table | None
    sources: Mapping[TableId, Table]


def tables_of(
    lake: LakeBase, spec: Declared, lookups: Iterable[TableId] = (), *, is_owned: bool = True
) -> StepTables | Outcome:
    """Load the tables of a step, or return the outcome of one whose sources are missing.

    Raises:
        TableClaimedError: the table belongs to another pipeline.
    """
    table, sources = lake.find(spec.table), {s: lake.find(s) for s in (*spec.sources, *lookups)}
    if missing := [s for s, found in sources.items() if found is None]:
        return Outcome(str(spec.table), "waiting", why=missing_sources(table, missing))
    if table is not None and is_owned:
        check_owner_in(table, spec.table, spec.pipeline)
    return StepTables(table, {s: found for s, found in sources.items() if found is not None})


@dataclass(frozen=True)
class TableStep(ABC, Generic[S, P]):
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
    def keeps_source_snapshots(self) -> bool:
        """Whether the next step starts from the snapshots of the sources that this one has absorbed."""
        return True

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

    def new_files(self, lake: LakeBase) -> list[RecordFile]:
        """Return the files of a landing folder that are due."""
        return []

    def check(self) -> None:
        """Raise the error with which each step of the table fails, whatever is pending."""
        return

    @abstractmethod
    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the pending window of each existing source of a table (None: it does not exist yet). Reads
        metadata only.

        Raises:
            HistoryError: the history of a source is lost, and the table is declared to stop.
        """

    @abstractmethod
    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: P) -> list[Window]:
        """Return the part of `windows` that the next step absorbs, if batches are limited.

        `pins` are the snapshots that earlier models of the run have fixed; this step adds its own.
        """

    @abstractmethod
    def absorb(self, lake: LakeBase, pins: P, *, rebuild: bool = False) -> Outcome:
        """Absorb pending changes, in one commit that moves the watermark.

        `rebuild`: compute the table from the current contents of its sources.
        """

    @property
    def past_options(self) -> tuple[str, ...]:
        """What can become of rows that cannot be computed again, if a rebuild is asked for: `keep`, `discard`."""
        return ()

    def why_not_rebuilt(self, table: Table | None) -> str:
        """Return why a table (None: it does not exist) is not rebuilt from its sources; empty: it can be."""
        return ""

    def after_redeclaration(self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]) -> str:
        """Return what the next step does with an existing table because its declaration has changed, as a sentence;
        empty: it has not. Reads metadata only."""
        return ""

    def changed_settings(
        self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]
    ) -> tuple[ChangedSetting, ...]:
        """Return what is declared otherwise than when an existing table was computed, as far as the table stores it.
        Reads metadata only."""
        return ()

    def recovery(self, option: str = "") -> str:
        """Return how to go on after lost history; `option` is the setting by which the next run does so by itself."""
        return rebuild_advice(self.spec.table, *self.spec.sources, option=option)

    def replay(self, lake: LakeBase) -> Outcome:
        """Read rejected records again, and insert those that can be read now."""
        return Outcome(str(self.spec.table), "nothing")

    def lost_file_advice(self, table: TableId) -> str:
        """Return how to recover from a lost file of a table that the step reads or writes."""
        return LOST_FILE_ADVICE.replace("the table that it belongs to", str(table)).replace(
            "rebuild` that table", f"rebuild {table}`"
        )
