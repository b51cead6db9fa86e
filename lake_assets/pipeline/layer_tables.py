"""One table of a stream as the YAML declares it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from lake_assets.final.column_selection import read_columns
from lake_assets.formats import SourceTable
from lake_assets.formats.text_types import normal
from lake_assets.pipeline.asset_settings import TableSettings
from lake_assets.pipeline.audit_settings import Audits
from lake_assets.pipeline.partition_settings import PartitionSettings, by_column
from lake_assets.pipeline.setting_types import Names, OrText, Strict, said, seconds_of
from lake_assets.tables.partition_fields import PartitionField


class Batches(Strict):
    """How much is absorbed at once, and how long little waits for more."""

    max_files: int | None = Field(
        default=None,
        description="so many new files are enough for a batch: they wait for no others, and a step takes no more than "
        "up to the snapshot with which it has them; default: what is declared around it, else any number",
        gt=0,
    )
    max_rows: int | None = Field(
        default=None, description="about so many rows are enough for a batch, as for max_files", gt=0
    )
    max_wait: str | float | None = Field(
        default=None, description="how long less than a batch waits for more (30s, 5m, 1h); default: not at all"
    )

    @field_validator("max_wait")
    @classmethod
    def _max_wait(cls, value: str | float | None) -> str | float | None:
        if value is not None:
            seconds_of(value)
        return value


def _one_or_several(value: object) -> object:
    """Columns as one key, a list of keys as it is."""
    if isinstance(value, list) and any(isinstance(v, list) for v in value):
        if not all(isinstance(v, list) and v for v in value):
            raise ValueError(
                "write the columns of one key (`key: [tenant, id]`), or a list of keys, each of them a list"
            )
        return value
    return [value] if isinstance(value, str) else value


def _null(value: object) -> object:
    """In YAML, `null` without quotes is no text."""
    return "null" if value is None else value


OnMisfit = Annotated[
    Literal["reject", "null"], BeforeValidator(_null), WithJsonSchema({"enum": ["reject", "null", None]})
]


class LayerTables(Batches, TableSettings):
    """One table of a stream, or all that a pattern matches: a `staging` table and a `final` one each."""

    table: str = Field(description="source table as schema.table; * and ? match any name: public.*")
    name: str | None = Field(default=None, description="name in the lake; default: the source table's name")
    key: Annotated[list[str] | list[list[str]], BeforeValidator(_one_or_several), OrText()] = Field(
        default_factory=list,
        description="key columns; default: what the stream says; a list of lists: the first of these keys whose "
        "columns the table has; *: rows without a key are told apart by a hash of all of their values, and "
        "copies of equal rows are counted",
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="columns that the source renamed, old name: new name (no stream reports a rename); old name: old "
        "name says of a column that it was dropped, where that looks like a rename",
    )
    types: dict[str, str] = Field(
        default_factory=dict,
        description="types of columns (names in the lake) that win over what the records say, as decimal(12,2)",
    )
    start_position: int = Field(
        default=0,
        description="the first record that counts, as its `position` in the raw table: for a source table that was "
        "dropped and made again, the first one about the new table; default: all records count",
        ge=0,
    )
    on_conflict: Literal["stop", "new-column", "reject"] | None = Field(
        default=None,
        description="values of a type that their column cannot become: stop the table, put them into a column of "
        "their own (<column>__<type>; those of a key are rejected), or reject their records; default: the stream's",
    )
    on_misfit: Annotated[OnMisfit | None, BeforeValidator(_null)] = Field(
        default=None,
        description="a value that does not fit its column's type (a number of more than 38 digits, a date beyond "
        "9999-12-31): reject its event, or make the value null and say why in the staging table's column _misfits; "
        "values of the key and of order_by are rejected; default: the stream's",
    )
    final: bool = Field(default=True, description="false: staging only")
    mode: Literal["scd1", "scd2", "append"] = Field(
        default="scd1",
        description="what the final table holds: each row as the source holds it now (scd1), all versions of each row "
        "(scd2), or each insert (append)",
    )
    deletes: Literal["hard", "soft", "ignore"] = Field(
        default="hard",
        description="what a delete does to the row of an scd1 table: remove it, set its column `__deleted`, or nothing",
    )
    on_change: Literal["stop", "ignore"] = Field(
        default="stop",
        description="what an update, delete or truncate does to a table that rows are appended to: stop it, or nothing",
    )
    track: Names | None = Field(
        default=None,
        description="columns whose change opens a new version of an scd2 table's row; others are updated in place; "
        "default: all",
    )
    columns: Names = Field(
        default_factory=list,
        description="columns of the final table, as the list of a SELECT over those of staging: `* EXCEPT (photo)`, "
        "`lower(email) AS email` (in the place of the star's); default: all",
    )
    partition_by: Names = Field(
        default_factory=list,
        description="partition fields of the final table: a column, years(c), months(c), days(c), hours(c), "
        "bucket(16, c), truncate(4, c)",
    )
    partitions: Annotated[PartitionSettings | None, BeforeValidator(by_column), OrText()] = Field(
        default=None,
        description="partitions of the final table, in Iceberg and in Dagster: by time (by, every, timezone, start), "
        "by listed values (by, values), or by each value of a column (its name)",
    )
    write: Literal["merge", "overwrite-partitions"] = Field(
        default="merge",
        description="how an scd1 table's changes are written: by MERGE, or by rewriting the partitions that they touch",
    )
    sort_by: Names = Field(default_factory=list, description="columns that rows are sorted by within a file")
    order_by: Names = Field(
        default_factory=list,
        description="columns whose values are the order of changes, the first first, for formats that say none of "
        "their own (simplified, change-set, change-feed): [updated_at, version]; ties stay in the order of the stream",
    )
    horizon: str | float | None = Field(
        default="7d",
        description="how much later than newer events (by the source's time) an event may come without being told of; "
        "it is absorbed in any case",
    )
    on_gap: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="what is done when the snapshot of staging that the final table has absorbed is gone (expired), so "
        "that new events cannot be told from old ones: stop it, or rebuild it from what staging holds now",
    )
    on_replaced: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="what is done when the staging table was dropped and made again, so that rows of the final table "
        "may have no events any more: stop it, or rebuild it from what staging holds now",
    )
    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties of the final table")
    audits: Audits = Field(
        default_factory=list,
        description="what has to hold of the final table before a batch is published: unique, not_null, ...",
    )

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: list[str]) -> list[str]:
        with said():
            read_columns(value)
        return value

    @field_validator("partition_by")
    @classmethod
    def _partition_by(cls, value: list[str]) -> list[str]:
        with said():
            for text in value:
                PartitionField.parse(text)
        return value

    @field_validator("horizon")
    @classmethod
    def _horizon(cls, value: str | float | None) -> str | float | None:
        if value is not None:
            seconds_of(value)
        return value

    @field_validator("table")
    @classmethod
    def _table(cls, value: str) -> str:
        with said():
            SourceTable.parse(value)
        return value

    @field_validator("types")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        with said():
            return {name: normal(kind) for name, kind in value.items()}

    @model_validator(mode="after")
    def _audited(self) -> LayerTables:
        if self.audits and not self.final:
            raise ValueError(f"{self.table}: `audits` are of the final table, and `final: false` makes none")
        return self

    @model_validator(mode="after")
    def _one_partitioning(self) -> LayerTables:
        if self.partitions and self.partition_by:
            raise ValueError(
                f"{self.table}: `partitions` says the fields of Iceberg's partitions as well: leave `partition_by` out"
            )
        if self.partitions and not self.final:
            raise ValueError(f"{self.table}: `partitions` are of the final table, and `final: false` makes none")
        return self

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for the tables that the stream turns out to have."""
        return any(c in self.table for c in "*?[")

    @model_validator(mode="after")
    def _one_name(self) -> LayerTables:
        if self.is_pattern and self.name:
            raise ValueError(f"{self.table} may match several tables: give `name` to single ones")
        if self.is_pattern and self.start_position:
            raise ValueError(f"{self.table} may match several tables: give `start_position` to single ones")
        return self

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The declared keys; none: that of the stream, or `by_row`."""
        if self.by_row or not self.key:
            return ()
        return tuple(tuple(k) for k in self.key) if isinstance(self.key[0], list) else (tuple(map(str, self.key)),)

    @model_validator(mode="after")
    def _several_keys(self) -> LayerTables:
        keys = self.keys
        if len(keys) > 1 and any("*" in k for k in keys):
            raise ValueError(f"{self.table}: `key: '*'` stands alone, not among other keys")
        if len({frozenset(k) for k in keys}) < len(keys) or any(len(set(k)) < len(k) for k in keys):
            raise ValueError(f"{self.table}: `key` names a column, or the same columns, twice")
        return self

    @model_validator(mode="after")
    def _waits(self) -> LayerTables:
        if self.max_wait is not None and not self.final:
            raise ValueError(f"{self.table}: `max_wait` is for the final table, and `final: false` says there is none")
        return self

    @property
    def by_row(self) -> bool:
        """Whether rows are told apart by all of their values."""
        return self.key == ["*"]

    @model_validator(mode="after")
    def _whole_rows(self) -> LayerTables:
        if "*" not in self.key:
            return self
        if len(self.key) > 1:
            raise ValueError(f"{self.table}: `key: '*'` stands for all columns: no other can stand beside it")
        if self.mode != "scd1" or self.columns:
            raise ValueError(f"{self.table}: `key: '*'` goes with `mode: scd1` and without `columns`")
        return self

    @model_validator(mode="after")
    def _options_of_mode(self) -> LayerTables:
        if self.deletes != "hard" and self.mode != "scd1":
            raise ValueError(
                f"{self.table}: `deletes: {self.deletes}` is for `mode: scd1`: "
                + ("scd2 keeps deleted rows anyway" if self.mode == "scd2" else "of `append`, `on_change` says it")
            )
        if self.track is not None and self.mode != "scd2":
            raise ValueError(f"{self.table}: `track` is for `mode: scd2`, which keeps versions")
        if self.write == "overwrite-partitions" and (self.mode != "scd1" or not (self.partition_by or self.partitions)):
            raise ValueError(
                f"{self.table}: `write: overwrite-partitions` is for `mode: scd1`, and for tables with `partition_by` "
                "or `partitions`"
            )
        return self


def table_entry(value: object) -> object:
    """A table's name alone as a mapping."""
    return {"table": value} if isinstance(value, str) else value
