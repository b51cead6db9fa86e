"""The settings of one table of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator

from lake_assets.final.column_selection import read_columns
from lake_assets.formats import SourceTable
from lake_assets.formats.types.text_types import normal
from lake_assets.pipeline.config.asset_settings import TableSettings
from lake_assets.pipeline.config.audit_settings import Audits
from lake_assets.pipeline.config.partition_settings import Partitioning
from lake_assets.pipeline.config.setting_types import (
    ColumnName,
    Columns,
    Duration,
    Names,
    OrText,
    Strict,
    as_value_errors,
    checked,
    combination,
    seconds_of,
)
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.schema_changes import whole_chains
from lake_assets.tables.specs import BatchSize


class Batches(Strict):
    """Size of a batch, and how long a small batch waits for more changes."""

    max_files: int | None = Field(
        default=None,
        description="size of a batch in files: once so many are pending, a step starts without waiting for "
        "max_wait, and absorbs whole snapshots up to this size; default: the enclosing setting, else "
        "any number",
        gt=0,
    )
    max_rows: int | None = Field(
        default=None, description="size of a batch in rows, approximately; see max_files", gt=0
    )
    max_wait: Duration | None = Field(
        default=None, description="how long a smaller batch waits for more changes (30s, 5m, 1h); default: not at all"
    )


def batch_size(wait: str | float | None, *declared: Batches) -> BatchSize:
    """Combine declared limits, innermost first.

    Args:
        wait: how long a small batch waits; None: not at all.
        declared: the settings of a table and of those that enclose it.
    """
    files, rows = (
        next((n for d in declared if (n := getattr(d, what)) is not None), None) for what in ("max_files", "max_rows")
    )
    return BatchSize(files, rows, seconds_of(wait or 0))


def _one_or_several(value: object) -> object:
    """Wrap a single column as a key; return a list of keys unchanged."""
    if isinstance(value, list) and any(isinstance(v, list) for v in value):
        if not all(isinstance(v, list) and v for v in value):
            raise ValueError(
                "write the columns of one key (`key: [tenant, id]`), or a list of keys, each of them a list"
            )
        return value
    return [value] if isinstance(value, str) else value


def _null(value: object) -> object:
    """Return "null" for YAML's unquoted `null`."""
    return "null" if value is None else value


OnMisfit = Annotated[
    Literal["reject", "null"], BeforeValidator(_null), WithJsonSchema({"enum": ["reject", "null", None]})
]


class StreamTable(Batches, TableSettings):
    """One table of a stream, or all that a pattern matches: one `staging` and one `final` table each."""

    table: Annotated[str, checked(SourceTable.parse)] = Field(
        description="source table as schema.table; * and ? match any name: public.*"
    )
    name: str | None = Field(default=None, description="name in the lake; default: the source table's name")
    key: Annotated[list[ColumnName] | list[list[ColumnName]], BeforeValidator(_one_or_several), OrText()] = Field(
        default_factory=list,
        description="key columns; default: the stream's key. A list of keys ([[id], [tenant, email]]): the first "
        "key whose columns the table has. *: a hash of all values identifies a row, and copies of "
        "equal rows are counted",
    )
    rename: Annotated[dict[ColumnName, ColumnName], AfterValidator(whole_chains)] = Field(
        default_factory=dict,
        description="columns that the source renamed, as {old: new}, because no stream reports renames. "
        "{old: old}: the column was dropped, although it looks like a rename",
    )
    types: dict[ColumnName, str] = Field(
        default_factory=dict,
        description="types of columns, by name in the lake, such as decimal(12,2); they override the records' types",
    )
    start_position: int = Field(
        default=0,
        description="position in the raw table of the first record that counts, such as the first record about a "
        "source table that was created again; default: all records count",
        ge=0,
    )
    on_conflict: Literal["stop", "new-column", "reject"] | None = Field(
        default=None,
        description="if the source changes a column's type and the column cannot be widened to it: stop the table, "
        "write the new values to a separate column (<column>__<type>; values of a key are rejected), "
        "or reject their records; default: the stream's",
    )
    on_misfit: Annotated[OnMisfit | None, BeforeValidator(_null)] = Field(
        default=None,
        description="if a value does not fit its column's type (a number of more than 38 digits, a date after "
        "9999-12-31): reject the event, or set the value to null and write the reason to staging's "
        "column _misfits. Values of the key and of order_by are always rejected; default: the stream's",
    )
    final: bool = Field(default=True, description="false: staging only")
    mode: Literal["scd1", "scd2", "append"] = Field(
        default="scd1",
        description="contents of the final table: the current rows (scd1), all versions of each row (scd2), or one row "
        "per insert (append)",
    )
    deletes: Literal["hard", "soft", "ignore"] = Field(
        default="hard",
        description="what a delete does to the row of an scd1 table: hard removes the row, soft sets its column "
        "`__deleted`, ignore keeps it",
    )
    on_change: Literal["stop", "ignore"] = Field(
        default="stop",
        description="what an update, delete or truncate does to an append-only table: stop stops the table, ignore "
        "skips the event",
    )
    track: Columns | None = Field(
        default=None,
        description="columns whose changes open a new version of an scd2 table's row; other columns are updated in "
        "the existing version; default: all columns",
    )
    columns: Annotated[Names, checked(read_columns)] = Field(
        default_factory=list,
        description="columns of the final table, as a SELECT list over staging's columns: `* EXCEPT (photo), "
        "lower(email) AS email`, which replaces the star's email; default: all",
    )
    partition_by: Annotated[Names, checked(lambda fields: list(map(PartitionField.parse, fields)))] = Field(
        default_factory=list,
        description="partition fields of the final table: a column, years(c), months(c), days(c), hours(c), "
        "bucket(16, c), truncate(4, c)",
    )
    partitions: Partitioning = Field(
        default=None,
        description="partitions of the final table, in Iceberg and in Dagster: by time (by, every, timezone, start), "
        "by listed values (by, values), or by each value of a column (its name)",
    )
    write: Literal["merge", "overwrite-partitions"] = Field(
        default="merge",
        description="how changes of an scd1 table are written: by MERGE, or by rewriting the partitions they touch",
    )
    sort_by: Columns = Field(default_factory=list, description="sort order of the rows within a file")
    order_by: Columns = Field(
        default_factory=list,
        description="columns that order the changes, if the source reports no order: [updated_at, version]; equal "
        "values stay in the order of the stream. _position: the order of arrival; default: the "
        "position in the source's log, which the events hold",
    )
    horizon: Duration | None = Field(
        default="7d",
        description="warn of events that arrive more than this behind newer ones, by the source's time. They are "
        "always absorbed",
    )
    on_gap: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="if the absorbed snapshot of staging has expired, so that new events cannot be identified: "
        "stop the table, or rebuild it from the current staging table",
    )
    on_replaced: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="if staging was dropped and created again, so that it may lack events of the table's rows: "
        "stop the table, or rebuild it from the current staging table",
    )
    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties of the final table")
    audits: Audits = Field(
        default_factory=list,
        description="conditions that the final table must meet before a batch is published: unique, not_null, ...",
    )

    @field_validator("types")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        with as_value_errors():
            return {name: normal(kind) for name, kind in value.items()}

    @combination
    def _of_the_final_table(self) -> Iterator[str]:
        if self.partitions and self.partition_by:
            yield f"{self.table}: `partitions` also defines the Iceberg partitions: leave `partition_by` out"
        apply = {
            "`audits` apply": bool(self.audits),
            "`partitions` apply": self.partitions is not None,
            "`max_wait` applies": self.max_wait is not None,
        }
        for settings in (text for text, is_set in apply.items() if is_set and not self.final):
            yield f"{self.table}: {settings} to the final table, and with `final: false` there is no final table"

    @property
    def is_pattern(self) -> bool:
        """Whether the name is a pattern, which matches tables as they appear in the stream."""
        return any(c in self.table for c in "*?[")

    @combination
    def _one_name(self) -> Iterator[str]:
        if self.is_pattern and self.name:
            yield f"{self.table} may match several tables: give `name` to single ones"
        if self.is_pattern and self.start_position:
            yield f"{self.table} may match several tables: give `start_position` to single ones"

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The declared keys; empty for the stream's key, or with `by_row`."""
        if self.by_row or not self.key:
            return ()
        return tuple(tuple(k) for k in self.key) if isinstance(self.key[0], list) else (tuple(map(str, self.key)),)

    @combination
    def _several_keys(self) -> Iterator[str]:
        keys = self.keys
        if len(keys) > 1 and any("*" in k for k in keys):
            yield f"{self.table}: `key: '*'` cannot be combined with other keys"
        if len({frozenset(k) for k in keys}) < len(keys) or any(len(set(k)) < len(k) for k in keys):
            yield f"{self.table}: `key` names a column, or the same columns, twice"

    @property
    def by_row(self) -> bool:
        """Whether all values of a row identify it."""
        return self.key == ["*"]

    @combination
    def _whole_rows(self) -> Iterator[str]:
        if "*" not in self.key:
            return
        if len(self.key) > 1:
            yield (f"{self.table}: `key: '*'` stands for all columns, and cannot be combined with other columns")
        if self.mode != "scd1" or self.columns:
            yield f"{self.table}: `key: '*'` needs `mode: scd1`, and no `columns`"

    @combination
    def _options_of_mode(self) -> Iterator[str]:
        if self.deletes != "hard" and self.mode != "scd1":
            yield (
                f"{self.table}: `deletes: {self.deletes}` is for `mode: scd1`: "
                + ("scd2 keeps deleted rows anyway" if self.mode == "scd2" else "for `append`, use `on_change`")
            )
        if self.track is not None and self.mode != "scd2":
            yield f"{self.table}: `track` is for `mode: scd2`, which keeps versions"
        if self.write == "overwrite-partitions" and (self.mode != "scd1" or not (self.partition_by or self.partitions)):
            yield (
                f"{self.table}: `write: overwrite-partitions` is for `mode: scd1`, and for tables with `partition_by` "
                "or `partitions`"
            )
