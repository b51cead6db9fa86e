"""What raw and staging tables are declared to be, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from lake_assets.formats import SourceTable
from lake_assets.formats.files.file_streams import DEFAULT_LIMITS, Limits
from lake_assets.lake import TableId
from lake_assets.tables.audits.audit_declarations import Audit
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import UNLIMITED, BatchSize, Limit, Shown


@dataclass(frozen=True)
class RawSpec:
    """A raw table and where it is filled from.

    Attributes:
        landing: the folder that files arrive in; None: it is filled from a table.
        source: the Iceberg table that another system appends records to, instead of a folder.
        column: the column of that table that holds the record.
        key_column: the column that holds the record's key, as Kafka has it apart.
        order: columns of that table by which the records of one snapshot are ordered.
        about: the source table that all records are about, for formats that do not say.
        max_rejected: how many records of a batch may be unroutable; None: any number.
        batch: what one commit takes in, in whole files, and how long less than that waits.
        limits: what is read of what arrives.
        shown: its asset.
    """

    table: TableId
    landing: Path | None
    format: str
    pipeline: str
    source: TableId | None = None
    column: str = "value"
    key_column: str | None = None
    order: tuple[str, ...] = ()
    about: SourceTable | None = None
    max_rejected: Limit | None = None
    batch: BatchSize = UNLIMITED
    limits: Limits = DEFAULT_LIMITS
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: ClassVar[tuple[Audit, ...]] = ()
    names_columns_in: ClassVar[tuple[str, ...]] = ()
    partitions: ClassVar[Partitions | None] = None

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The lake tables that it is made of."""
        return (self.source,) if self.source else ()

    @property
    def summary(self) -> str:
        """What the table holds, in a sentence."""
        where = f"the table `{self.source}`" if self.source else f"the files in `{self.landing}`"
        return f"Records as they arrived ({self.format}), from {where}."


OnConflict = Literal["stop", "new-column", "reject"]
OnMisfit = Literal["reject", "null"]


@dataclass(frozen=True)
class StagingSpec:
    """The typed changes of one source table of a stream.

    Attributes:
        rename: source names of columns to names in the lake.
        not_renamed: columns that the source dropped, however much it looks like a rename.
        types: types of columns (names in the lake) that win over what the records say.
        key: the key of records that do not say one.
        keys: several that may be it: the first whose columns are all there is taken when the table is made.
        start: `position` in the raw table of the first record that counts.
        by_row: whether rows have no key, and are told apart by all of their values.
        on_conflict: what to do with values of a type that their column cannot become.
        on_misfit: what to do with single values that do not fit their column's type: reject their events, or make the
            values null.
        order_by: columns whose values are the order of changes, instead of what the records say; see `FinalSpec`.
        max_rejected: how many records of a batch may be rejected; None: any number.
        refused: why it cannot have a table, since its name belongs to something else; the steps fail with that.
        batch: how much of the raw table a step takes.
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
    refused: str = ""
    batch: BatchSize = UNLIMITED
    shown: Shown = field(default_factory=Shown, repr=False)
    landing: ClassVar[Path | None] = None
    audits: ClassVar[tuple[Audit, ...]] = ()
    names_columns_in: ClassVar[tuple[str, ...]] = ()
    partitions: ClassVar[Partitions | None] = None

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The lake tables that it is made of."""
        return (self.raw,)

    @property
    def summary(self) -> str:
        """What the table holds, in a sentence."""
        return f"Every change of `{self.source_table}`, typed and in order, from `{self.raw}`."
