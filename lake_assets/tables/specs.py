"""What each table of the first three layers is declared to be, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from lake_assets.errors import PipelineError
from lake_assets.final.column_selection import Computed, Star
from lake_assets.formats import SourceTable
from lake_assets.formats.file_records import DEFAULT_LIMITS, Limits
from lake_assets.lake import TableId
from lake_assets.tables.audit_specs import Audit
from lake_assets.tables.partition_fields import PartitionField
from lake_assets.tables.table_partitions import Partitions


@dataclass(frozen=True)
class Limit:
    """How many of some records are too many: a number, or a share of them.

    Attributes:
        records: the greatest number; None: no number was declared.
        share: the greatest share, 1 being all; None: no share was declared.
    """

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | int, most: float = 100) -> Self:
        """`100`, or `1%`.

        Args:
            text: the number or share.
            most: the greatest share, in percent.

        Raises:
            PipelineError: neither.
        """
        if match := re.fullmatch(r"(\d+)(\.\d+)?\s*(%?)", str(text).strip()):
            number = float(match[1] + (match[2] or ""))
            if match[3] and number <= most:
                return cls(share=number / 100)
            if not match[3] and not match[2]:
                return cls(records=int(match[1]))
        raise PipelineError(f"{text!r} is no limit: write a number of records (100) or a share of them (1%)")

    def is_exceeded(self, rejected: int, records: int) -> bool:
        """Whether `rejected` of `records` are too many."""
        if self.records is not None:
            return rejected > self.records
        return self.share is not None and rejected > self.share * records

    def __str__(self) -> str:
        return str(self.records) if self.records is not None else f"{(self.share or 0) * 100:g}%"


@dataclass(frozen=True)
class BatchSize:
    """How much a step takes at once of what is pending.

    Attributes:
        files, rows: so many new data files, or changed rows, are enough: they wait for no others, and a step takes no
            more than up to the snapshot that reaches the number; None: any number.
        wait: seconds that less than that waits for more before a run is asked for; 0: none.
    """

    files: int | None = None
    rows: int | None = None
    wait: float = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether a step may have to leave something for the next one."""
        return self.files is not None or self.rows is not None

    @property
    def doubled(self) -> BatchSize:
        """Twice as much."""
        return replace(self, files=self.files and 2 * self.files, rows=self.rows and 2 * self.rows)

    def is_full(self, files: int, rows: int) -> bool:
        """Whether these are enough."""
        return (self.files is not None and files >= self.files) or (self.rows is not None and rows >= self.rows)


@dataclass(frozen=True)
class Freshness:
    """When an asset counts as stale; in seconds.

    Attributes:
        fail, warn: the age of its last materialization from which on it is stale, or warned of.
        cron, within, timezone: instead: by when it has to be materialized, and how long before that counts.
    """

    fail: float | None = None
    warn: float | None = None
    cron: str | None = None
    within: float | None = None
    timezone: str = "UTC"


@dataclass(frozen=True)
class Shown:
    """How a table shows up as an asset; no step reads it.

    Attributes:
        group: None: the pipeline's.
        kinds: beside those that say how it is made.
        depends_on: keys of assets that are no tables of the pipeline, with slashes.
    """

    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    kinds: tuple[str, ...] = ()
    description: str | None = None
    freshness: Freshness | None = None
    depends_on: tuple[str, ...] = ()


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
    batch: BatchSize = BatchSize()
    limits: Limits = DEFAULT_LIMITS
    shown: Shown = field(default_factory=Shown, repr=False)


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
    batch: BatchSize = BatchSize()
    shown: Shown = field(default_factory=Shown, repr=False)


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
    batch: BatchSize = BatchSize()
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: tuple[Audit, ...] = ()
    partitions: Partitions | None = None
