"""Declared raw and staging tables, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from lake_assets.formats import EventFormat, SourceTable, event_format
from lake_assets.formats.files.limited_files import DEFAULT_LIMITS, Limits
from lake_assets.formats.row_layouts import RowLayout
from lake_assets.ingest.landing_places import Landing
from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.sources.dump_folders import Completeness
from lake_assets.sources.dump_rows import KeyColumns
from lake_assets.sources.live_specs import LiveSpec
from lake_assets.tables.audits.audit_kinds import Audit
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import UNLIMITED, BatchSize, Limit, Shown

OnLostHistory = Literal["stop", "append"]


@dataclass(frozen=True)
class DumpRules:
    """How dumps of a whole table are read, and which are held back.

    Attributes:
        complete: when a dump in a folder is complete.
        key: the columns that identify a row.
        max_deleted: how many of the last dump's rows may be missing in the next; None: all.
        max_changed: how many of them may be missing, or have other values; None: all.
    """

    complete: Completeness = field(default_factory=Completeness)
    key: KeyColumns = field(default_factory=KeyColumns)
    max_deleted: Limit | None = None
    max_changed: Limit | None = None


@dataclass(frozen=True)
class RawSpec:
    """A raw table and the source of its records.

    Attributes:
        landing: where files arrive (a path is a folder of this machine); None if the table is filled from another
            source.
        source: the Iceberg table that another system appends records to, instead of a folder.
        live: the server that `lake-assets serve` reads, instead of a folder or a table.
        column: the column of that table that holds the record.
        key_column: the column that holds the record's key, as Kafka has it apart.
        order: columns of that table by which the records of one snapshot are ordered.
        on_gap: what to do if the landed snapshot of that table is no longer part of its history: stop, or append the
            records that the raw table lacks.
        on_replaced: the same if that table was dropped and created again.
        about: the source table of all records, for formats whose records do not name it.
        max_rejected: how many records of a batch may be unroutable; None: any number.
        batch: how much one commit lands, in whole files, and how long fewer files wait.
        limits: limits on the size of files and records.
        layout: the declared columns of a change set.
        tables: the source tables that its stream declares or excludes, and patterns of them; empty: any.
        databases: the databases whose tables of one name are one table; empty: the first one of each table.
        signal_tables: declared source tables whose rows count although they look like Debezium's signals.
        dumps: how dumps of a whole table are read; None: its source has records of changes.
        shown: its asset.
    """

    table: TableId
    landing: Landing | None
    format: str
    pipeline: str
    source: TableId | None = None
    live: LiveSpec | None = None
    column: str = "value"
    key_column: str | None = None
    order: tuple[str, ...] = ()
    on_gap: OnLostHistory = "stop"
    on_replaced: OnLostHistory = "stop"
    about: SourceTable | None = None
    max_rejected: Limit | None = None
    batch: BatchSize = UNLIMITED
    limits: Limits = DEFAULT_LIMITS
    layout: RowLayout | None = None
    databases: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    signal_tables: frozenset[SourceTable] = frozenset()
    dumps: DumpRules | None = None
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: ClassVar[tuple[Audit, ...]] = ()
    names_columns_in: ClassVar[tuple[str, ...]] = ()
    partitions: ClassVar[Partitions | None] = None

    def __post_init__(self) -> None:
        if isinstance(self.landing, Path):
            object.__setattr__(self, "landing", Landing.parse(self.landing))

    def about_of(self, file: str) -> SourceTable | None:
        """Return the source table of the records of a file that do not name one, by the file's name in tables."""
        return (self.landing.table_of(file) if self.landing else None) or self.about

    @property
    def reader(self) -> EventFormat:
        """The format of its records."""
        return event_format(self.format, self.layout)

    @property
    def sources(self) -> tuple[TableId, ...]:
        """Upstream lake tables."""
        return (self.source,) if self.source else ()

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of the source table that hold records, their keys and their order; each once."""
        if self.dumps:
            return ()
        key = (self.key_column,) if self.key_column else ()
        return tuple(dict.fromkeys((self.column, *key, *self.order)))

    def missing_columns_text(self, existing: Iterable[str]) -> str:
        """Return what is wrong with a source table without some of these columns; empty if it has all."""
        has = list(existing)
        missing = [c for c in self.record_columns if c not in has]
        if not missing:
            return ""
        listed = ", ".join(has)
        return f"{self.source} has no column {', '.join(missing)}; it has {listed}: correct `source` in the stream"

    @property
    def summary(self) -> str:
        """Description of the table in one sentence."""
        where = f"the table `{self.source}`" if self.source else f"the files in `{self.landing}`"
        where = self.live.where if self.live else where
        if self.dumps:
            return f"What differs between one dump of the whole table and the next, from {where}."
        return f"Records as they arrived ({self.format}), from {where}."


OnConflict = Literal["stop", "new-column", "reject"]
OnMisfit = Literal["reject", "null"]


@dataclass(frozen=True)
class StagingSpec:
    """The typed changes of one source table of a stream.

    Attributes:
        rename: source names of columns to names in the lake.
        not_renamed: columns that the source dropped, however much it looks like a rename.
        types: declared types by column (name in the lake); they override the types in the records.
        key: the key, for records that do not name one.
        keys: candidate keys; a new table takes the first whose columns all exist.
        start: `position` in the raw table of the first record to read; earlier ones are ignored.
        by_row: whether rows have no key and are identified by all of their values.
        on_conflict: what to do with values of a type that their column cannot become.
        on_misfit: what to do with single values that do not fit their column's type: reject their events, or make the
            values null.
        order_by: columns whose values order the changes, instead of the positions in the records; see `FinalSpec`.
        max_rejected: how many records of a batch may be rejected; None: any number.
        layout: the declared columns of a change set.
        placeholder: what stands for values that the source's log does not contain; None: the format's own.
        refused: why no table can be created: its name belongs to something else. Steps fail with this reason.
        batch: how much of the raw table one step absorbs.
        shown: its asset.
    """

    table: TableId
    raw: TableId
    source_table: SourceTable
    format: str
    pipeline: str
    rename: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    on_conflict: OnConflict = "stop"
    on_misfit: OnMisfit = "reject"
    order_by: tuple[str, ...] = ()
    max_rejected: Limit | None = None
    by_row: bool = False
    keys: tuple[tuple[str, ...], ...] = ()
    start: int = 0
    not_renamed: frozenset[str] = frozenset()
    layout: RowLayout | None = None
    placeholder: str | None = None
    refused: str = ""
    batch: BatchSize = UNLIMITED
    shown: Shown = field(default_factory=Shown, repr=False)
    landing: ClassVar[None] = None
    audits: ClassVar[tuple[Audit, ...]] = ()
    names_columns_in: ClassVar[tuple[str, ...]] = ()
    partitions: ClassVar[Partitions | None] = None

    @property
    def reader(self) -> EventFormat:
        """The format of its records."""
        return event_format(self.format, self.layout)

    def spelled_as(self, columns: Iterable[str]) -> Self:
        """Return the declaration with its columns spelled as the table with these columns spells them."""
        existing = [*dict.fromkeys(self.rename.get(c, c) for c in columns)]
        return replace(
            self,
            key=tuple(spelled(c, existing) for c in self.key),
            keys=tuple(tuple(spelled(c, existing) for c in key) for key in self.keys),
            order_by=tuple(spelled(c, existing) for c in self.order_by),
            types={spelled(c, existing): kind for c, kind in self.types.items()},
        )

    @property
    def sources(self) -> tuple[TableId, ...]:
        """Upstream lake tables."""
        return (self.raw,)

    @property
    def summary(self) -> str:
        """Description of the table in one sentence."""
        return f"Every change of `{self.source_table}`, typed and in order, from `{self.raw}`."
