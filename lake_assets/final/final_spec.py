"""The declaration of a final table, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from lake_assets.final.column_selection import ColumnExpression, Star
from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.tables.audits.audit_kinds import Audit
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import UNLIMITED, BatchSize, Shown

Mode = Literal["scd1", "scd2", "append"]
Deletes = Literal["hard", "soft", "ignore"]
OnChange = Literal["stop", "ignore"]
Write = Literal["merge", "overwrite-partitions"]


@dataclass(frozen=True)
class FinalSpec:
    """The current state of one source table, its history, or its inserts.

    Attributes:
        key: columns that identify a row; empty: the key of the stream, and if the stream has none, rows are appended.
        keys: alternative keys; staging uses the first one whose columns it has.
        format: wire format of the stream; it defines the order of events.
        mode: `scd1` one row per key, as in the source; `scd2` one row per version; `append` one row per insert.
        deletes: what a delete does to an scd1 table's row.
        on_change: what an update or delete does to a table that rows are appended to.
        track: columns whose change opens a new version (scd2); None: all.
        columns: the table's columns as expressions over staging; empty: all columns of staging.
        partition_by: Iceberg partition transforms over the table's columns, such as `days(ts)`.
        partitions: its Dagster partitions; `partition_by` then contains their field.
        sort_by: columns that the rows of a file are sorted by.
        horizon: how late events may be, in seconds of source time; later ones are absorbed as well, with a warning.
            None: events of any age are expected.
        by_row: whether rows have no key, and are identified by a hash of all their values.
        on_gap: what a step does if the last absorbed snapshot of staging has expired.
        on_replaced: what a step does if staging is not the table that was absorbed.
        order_by: staging columns (by their names in the lake) whose values order the changes; `_position`: they are
            ordered as they arrived; empty: the order of the stream.
        write: how an scd1 table's changes are written: by MERGE, or by rewriting the partitions that they touch.
        batch: how much of staging one step absorbs.
        shown: its asset.
        audits: conditions that the table has to meet before a batch is published.
        key_at: file and line of its key, or of its declaration, for messages: `FILE, line N: `; empty: unknown.
    """

    table: TableId
    staging: TableId
    pipeline: str
    key: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    format: str = "debezium"
    mode: Mode = "scd1"
    deletes: Deletes = "hard"
    on_change: OnChange = "stop"
    track: tuple[str, ...] | None = None
    columns: tuple[Star | ColumnExpression, ...] = ()
    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[str, ...] = ()
    horizon: float | None = None
    on_gap: Literal["stop", "rebuild"] = "stop"
    on_replaced: Literal["stop", "rebuild"] = "stop"
    by_row: bool = False
    write: Write = "merge"
    keys: tuple[tuple[str, ...], ...] = ()
    order_by: tuple[str, ...] = ()
    batch: BatchSize = UNLIMITED
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: tuple[Audit, ...] = ()
    partitions: Partitions | None = None
    key_at: str = field(default="", repr=False, compare=False)
    landing: ClassVar[None] = None

    def spelled_as(self, source: Iterable[str]) -> Self:
        """Return the declaration with its columns spelled as the source, by its names in the lake, and the table do."""
        staged = list(source)
        own = [*(c.name for c in self.columns if isinstance(c, ColumnExpression)), *staged]

        def names(declared: Iterable[str], existing: Sequence[str]) -> tuple[str, ...]:
            return tuple(spelled(name, existing) for name in declared)

        return replace(
            self,
            key=names(self.key, staged),
            keys=tuple(names(key, staged) for key in self.keys),
            order_by=names(self.order_by, staged),
            track=names(self.track, own) if self.track is not None else None,
            sort_by=names(self.sort_by, own),
            partition_by=tuple(replace(p, column=spelled(p.column, own)) for p in self.partition_by),
            partitions=self.partitions.spelled_as(own) if self.partitions else None,
            audits=tuple(audit.spelled_as(own) for audit in self.audits),
        )

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The lake tables that it is computed from."""
        return (self.staging,)

    @property
    def partitioned_by(self) -> str:
        """SQL of its partition fields; empty: it is not partitioned."""
        return ", ".join(p.sql for p in self.partition_by)

    @property
    def summary(self) -> str:
        """The contents of the table in a sentence, for asset descriptions."""
        key = f"one per {', '.join(self.key)}" if self.key else "one per key if the source has one"
        if self.keys:
            key = f"one per {' or else '.join(', '.join(k) for k in self.keys)}"
        rows = {"scd1": f"The current rows, {key}", "scd2": "All versions of each row", "append": "Every insert"}
        return f"{rows[self.mode]}, kept up to date from `{self.staging}`."

    @property
    def names_columns_in(self) -> list[str]:
        """The settings in use that name columns of the table."""
        return [
            setting
            for setting, value in (
                ("key", self.key),
                ("columns", self.columns),
                ("order_by", self.order_by),
                ("track", self.track),
                ("partition_by", self.partition_by and not self.partitions),
                ("sort_by", self.sort_by),
                ("partitions", self.partitions),
                ("audits", self.audits),
            )
            if value
        ]
