"""The shape of a pipeline's YAML, as pydantic models; the same for the Dagster component and for plain Python."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from lake_assets.final.column_selection import read_columns
from lake_assets.formats import SourceTable
from lake_assets.formats.file_records import Limits
from lake_assets.formats.text_types import normal
from lake_assets.lake import TableId
from lake_assets.lake.paths import LocalPath
from lake_assets.models.model_spec import Span
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.pipeline.asset_settings import AssetSettings, TableSettings
from lake_assets.pipeline.audit_settings import Audits, ModelAudits
from lake_assets.pipeline.partition_settings import PartitionSettings, by_column
from lake_assets.pipeline.setting_types import Names, OrText, Strict, said, seconds_of
from lake_assets.tables.partition_fields import PartitionField
from lake_assets.tables.specs import Limit


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


def _table_entry(value: object) -> object:
    return {"table": value} if isinstance(value, str) else value


class SourceOfRecords(Strict):
    """An Iceberg table that another system appends records to."""

    table: str = Field(description="namespace.table in the lake's catalog")
    value: str = Field(default="value", description="its column that holds the record, as text or bytes")
    key: str | None = Field(default=None, description="its column that holds the record's key, where that is apart")
    order: Names = Field(
        default_factory=list,
        description="its columns that order the records of one snapshot, for example [partition, offset]; default: as "
        "they are stored",
    )

    @field_validator("table")
    @classmethod
    def _table(cls, value: str) -> str:
        with said():
            TableId.parse(value)
        return value


class Stream(Batches, TableSettings):
    """A stream of change events: where its records arrive, their format, and the tables made of it."""

    name: str = Field(description="the raw table is raw.<name>", pattern=r"^\w+$")
    format: Literal["debezium", "wal2json-v1", "wal2json-v2", "simplified", "change-set", "change-feed"] = Field(
        default="debezium", description="wire format of the records"
    )
    landing: LocalPath | None = Field(
        default=None,
        description="local folder where files of records arrive; relative: to the lake's home; default landing/<name>",
    )
    source: SourceOfRecords | None = Field(
        default=None, description="an Iceberg table that records come from, instead of a folder"
    )
    namespace: str | None = Field(
        default=None,
        description="the tables are staging.<namespace>.<table> and final.<namespace>.<table>; default: no namespace",
        pattern=r"^\w+$",
    )
    prefix: str = Field(default="", description="what the tables' names in the lake begin with", pattern=r"^\w*$")
    max_rejected: str | int | None = Field(
        default=None,
        description="how many records of a batch may be rejected: a number (100) or a share (1%); beyond, the table "
        "stops; default: any number",
    )
    max_record: ByteSize = Field(
        default=ByteSize(Limits.record), gt=0, description="the largest record; a larger one is rejected (64MiB)"
    )
    max_file: ByteSize = Field(
        default=ByteSize(Limits.file), gt=0, description="the largest file, uncompressed; a larger one is an error"
    )
    max_depth: int = Field(
        default=Limits.depth,
        gt=0,
        le=Limits.depth,
        description="how deeply a record may be nested; a deeper one is rejected (200, which is the most)",
    )
    on_conflict: Literal["stop", "new-column", "reject"] = Field(
        default="stop", description="what tables do that do not say it themselves"
    )
    on_misfit: OnMisfit = Field(default="reject", description="what tables do that do not say it themselves")
    tables: list[Annotated[LayerTables, BeforeValidator(_table_entry), OrText()]] = Field(
        default_factory=list,
        description="schema.table, a pattern, or a mapping with more settings; the first that fits",
    )
    exclude: Names = Field(default_factory=list, description="tables or patterns to leave out")

    @field_validator("name")
    @classmethod
    def _is_free(cls, value: str) -> str:
        for end, what in (("_files", "files that were taken in"), ("_rejected", "rejected records")):
            if value.lower().endswith(end):
                raise ValueError(
                    f"{value}: raw.{value} is where a stream {value[: -len(end)]} would list its {what}: choose a name "
                    f"that does not end in {end}"
                )
        return value

    @field_validator("max_rejected")
    @classmethod
    def _limit(cls, value: str | int | None) -> str | int | None:
        with said():
            if value is not None:
                Limit.parse(value)
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Stream:
        if self.source and self.landing:
            raise ValueError("records come from a folder (`landing`) or from a table (`source`), not from both")
        return self

    @model_validator(mode="after")
    def _one_order(self) -> Stream:
        own = self.format not in ("simplified", "change-set", "change-feed")
        if own and (tables := [t.table for t in self.tables if t.order_by]):
            raise ValueError(
                f"{', '.join(tables)}: `order_by` is for formats that say no order, and {self.format} does"
            )
        return self

    @property
    def about(self) -> str | None:
        """The one table that the stream is about, where it is about one: of records that do not name theirs."""
        return self.tables[0].table if len(self.tables) == 1 and not self.tables[0].is_pattern else None


class RangeOfModel(Strict):
    """By which column a model is recomputed in ranges, and of which rows around its own a row is computed."""

    column: str = Field(description="output column: a date, timestamp or whole number")
    back: str | float = Field(default=0, description="how far before (7d, 12h; units where it is a number)")
    forward: str | float = Field(default=0, description="how far after")
    cumulative: bool = Field(default=False, description="all rows before count: recomputed from the earliest change on")

    @field_validator("back", "forward")
    @classmethod
    def _span(cls, value: str | float) -> str | float:
        seconds_of(value)
        return value


class SqlModel(Batches, TableSettings):
    """A SELECT over tables of the lake, kept as a table."""

    name: str = Field(description="layer.table, for example agg.city_population")
    sql: str = Field(default="", description="one SELECT in Spark SQL; tables with their layer")
    sql_file: LocalPath | None = Field(
        default=None, description="a file that holds the SELECT, instead; relative: to the YAML's folder"
    )
    key: Names = Field(default_factory=list, description="columns that identify a row; default: what it groups by")
    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties")
    partitions: Annotated[PartitionSettings | None, BeforeValidator(by_column), OrText()] = Field(
        default=None,
        description="partitions of the table, in Iceberg and in Dagster: by time (by, every, timezone, start), by "
        "listed values (by, values), or by each value of a column (its name)",
    )
    range: RangeOfModel | None = Field(default=None, description="recompute ranges of a column instead of keys")
    on_query_change: Literal["rebuild", "stop"] = Field(
        default="rebuild", description="another query makes the table again, or is an error"
    )
    on_gap: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="what is done when the snapshot of a source that the table has absorbed is gone (expired): stop "
        "it, or rebuild it from what its sources hold now",
    )
    on_replaced: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="what is done when a source was dropped and made again: stop the table, or rebuild it from what "
        "its sources hold now",
    )
    audits: ModelAudits = Field(
        default_factory=list,
        description="what has to hold of the table before a batch is published: unique, not_null, ...; equals_query",
    )
    full_above: float | None = Field(
        default=None,
        description="share of changed rows (0 to 1) from which on everything is recomputed; default: as past runs tell",
        ge=0,
        le=1,
    )

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        with said():
            table = TableId.parse(value)
        if table.namespace[0].lower() in ("icdc", "raw"):
            raise ValueError(
                f"{value}: tables in {table.namespace[0]} are made by lake_assets itself: name the model in another "
                "namespace, for example agg"
            )
        return value

    @field_validator("sql")
    @classmethod
    def _sql(cls, value: str, info: ValidationInfo) -> str:
        name = str(info.data.get("name", ""))
        with said():
            sources_of(name, parse(name, value))
        return value

    @model_validator(mode="after")
    def _one_text(self) -> SqlModel:
        if ("sql" in self.model_fields_set) == (self.sql_file is not None):
            raise ValueError(
                f"{self.name}: its SELECT is in `sql` or in a file that `sql_file` names: exactly one of them"
            )
        return self

    @property
    def span(self) -> Span | None:
        """The declared range as models take it."""
        r = self.range
        return Span(r.column, seconds_of(r.back), seconds_of(r.forward), r.cumulative) if r else None


class PipelineConfig(Batches, AssetSettings):
    """A pipeline: streams and models."""

    name: str = Field(description="the pipeline's name: its tables belong to it", pattern=r"^\w+$")
    interval: str | float = Field(
        default="15s", description="how often the capture sensor looks for something to absorb, at most"
    )
    streams: list[Stream] = Field(default_factory=list)
    models: list[SqlModel] = Field(default_factory=list)

    @field_validator("interval")
    @classmethod
    def _interval(cls, value: str | float) -> str | float:
        if seconds_of(value) < 1:
            raise ValueError(f"{value!r}: a sensor looks once a second at most")
        return value
