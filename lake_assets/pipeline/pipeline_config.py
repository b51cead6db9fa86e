"""The shape of a pipeline's YAML, as pydantic models; the same for the Dagster component and for plain Python."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lake_assets.formats.file_streams import Limits
from lake_assets.lake import TableId
from lake_assets.lake.paths import LocalPath
from lake_assets.models.model_spec import Span
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.pipeline.asset_settings import AssetSettings, TableSettings
from lake_assets.pipeline.audit_settings import ModelAudits
from lake_assets.pipeline.layer_tables import Batches, LayerTables, OnMisfit, table_entry
from lake_assets.pipeline.partition_settings import PartitionSettings, by_column
from lake_assets.pipeline.setting_types import Names, OrText, Strict, said, seconds_of
from lake_assets.tables.specs import Limit


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
    tables: list[Annotated[LayerTables, BeforeValidator(table_entry), OrText()]] = Field(
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
