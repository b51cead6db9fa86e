"""What a final table is declared to be, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from lake_assets.final.column_selection import Computed, Star
from lake_assets.lake import TableId
from lake_assets.tables.audits.audit_declarations import Audit
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
        key: columns that identify a row; empty: taken from the stream, and where the stream has none, rows are
            appended.
        keys: several that may be it, of which staging has taken one.
        format: wire format of the stream: what its sequences say.
        mode: `scd1` one row a key, as the source holds it; `scd2` one row a version; `append` one row an insert.
        deletes: what a delete does to an scd1 table's row.
        on_change: what an update or delete does to a table that rows are appended to.
        track: columns whose change opens a new version (scd2); None: all.
        columns: the table's columns, made of those of staging; empty: these.
        partition_by: Iceberg partition transforms over the table's columns, as `days(ts)`.
        partitions: what Dagster knows as its partitions; `partition_by` has the field for them then.
        sort_by: columns that the rows of a file are sorted by.
        horizon: seconds of source time that events are expected to come late by, at most: older ones are absorbed as
            well, and told of; None: any lateness is expected.
        by_row: whether rows have no key, and are told apart by a hash of all of their values.
        on_gap: what is done when the snapshot of staging that was absorbed has expired.
        on_replaced: what is done when staging is another table than the one that was absorbed.
        order_by: columns (of staging, by the names that they have in the lake) whose values are the order of changes;
            empty: what the stream says is.
        write: how an scd1 table's changes are written: MERGE, or all partitions that they touch are rewritten.
        batch: how much of staging a step takes.
        shown: its asset.
        audits: what has to hold of the table before a batch is published.
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
    columns: tuple[Star | Computed, ...] = ()
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
    landing: ClassVar[Path | None] = None

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The lake tables that it is made of."""
        return (self.staging,)

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
