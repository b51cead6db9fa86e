"""The settings of a pipeline, as pydantic models; the same for the Dagster component and for plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ByteSize, Field, field_validator

from lake_assets.formats import SourceTable
from lake_assets.formats.files.limited_files import Limits
from lake_assets.ingest.landing_places import has_placeholder, landing_text
from lake_assets.lake.object_stores import is_store
from lake_assets.lake.paths import LocalPath
from lake_assets.models.model_spec import Span
from lake_assets.models.python.python_model import WriteMode
from lake_assets.pipeline.config.asset_settings import AssetSettings, TableSettings
from lake_assets.pipeline.config.audit_settings import ModelAudits
from lake_assets.pipeline.config.dump_settings import SNAPSHOT, DumpSettings, dump_mistakes
from lake_assets.pipeline.config.external_tables import ExternalTable
from lake_assets.pipeline.config.flag_settings import Flag
from lake_assets.pipeline.config.job_settings import CapturedJobConfig, JobSettings
from lake_assets.pipeline.config.partition_settings import Partitioning
from lake_assets.pipeline.config.report_settings import ReportSettings
from lake_assets.pipeline.config.setting_types import (
    ColumnName,
    Columns,
    Duration,
    Names,
    OrText,
    Strict,
    checked,
    combination,
    seconds_of,
    table_to_write,
    text_as,
)
from lake_assets.pipeline.config.source_settings import StreamSource
from lake_assets.pipeline.config.stream_tables import Batches, OnMisfit, StreamTable
from lake_assets.pipeline.config.upkeep_settings import PipelineUpkeep, PipelineUpkeepSettings
from lake_assets.tables.specs import Limit


def _landing_text(value: object) -> object:
    # A component's template ({{ env.LANDING }}) is checked once it is resolved.
    is_template = isinstance(value, str) and ("{{" in value or "{%" in value)
    return landing_text(value) if isinstance(value, str | Path) and not is_template else value


LandingText = Annotated[str, BeforeValidator(_landing_text)]
"""Where files of records arrive, see `Landing`."""


class Stream(Batches, TableSettings, DumpSettings):
    """A stream of change events: where its records arrive, their format, and its tables."""

    name: str = Field(description="name of the stream; its raw table is raw.<name>", pattern=r"^\w+$")
    format: Literal["debezium", "wal2json-v1", "wal2json-v2", "simplified", "change-set", "change-feed", "snapshot"] = (
        Field(
            default="debezium",
            description="wire format of the records; snapshot: dumps of a whole table, each of which is compared with "
            "the one before",
        )
    )
    flag: Flag = Field(
        default=None,
        description="change sets: the column of the operation and its values (column, insert, update, delete, "
        "missing), or the name of a tool that writes known ones (aws-dms); default: FLAG with I, U, D",
    )
    time: Columns = Field(
        default_factory=list,
        description="change sets: the column whose time or number orders the changes; of several columns, the "
        "first with a value counts; default: CDC_TIMESTAMP or, with flag, the order of the stream",
    )
    unavailable_value: str | None = Field(
        default=None,
        description="debezium: the placeholder of an unchanged TOAST value, if the connector sets "
        "unavailable.value.placeholder; default: the connector's default",
        min_length=1,
    )
    databases: Names = Field(
        default_factory=list,
        description="debezium: databases whose tables of the same schema and name become one table; default: a "
        "table takes records of the first database only, and those of other databases are rejected",
    )
    landing: LandingText | None = Field(
        default=None,
        description="where files of records arrive: a local folder, relative to the lake's home, or one of an object "
        "store (s3://bucket/folder, gs://, abfss://). With {table}, or {schema} and {table}, in the names of folders, "
        "each table has a folder, and records that name no table are about that of their folder; default: "
        "landing/<name>",
    )
    landing_order: Literal["any", "by-name"] = Field(
        default="any",
        description="by-name: new files have names after those of all earlier files of their folder, so that a "
        "listing begins behind the last landed one (and once an hour at the beginning). any: each listing is whole",
    )
    source: StreamSource | None = Field(
        default=None, description="a table or a live server to read records from, instead of a folder"
    )
    namespace: str | None = Field(
        default=None,
        description="the tables are staging.<namespace>.<table> and final.<namespace>.<table>; default: no namespace",
        pattern=r"^\w+$",
    )
    prefix: str = Field(default="", description="prefix of the tables' names in the lake", pattern=r"^\w*$")
    max_rejected: Annotated[str | int, checked(Limit.parse)] | None = Field(
        default=None,
        description="how many records of a batch may be rejected, as a number (100) or a share (1%), before the "
        "table stops; default: any number",
    )
    max_record: ByteSize = Field(
        default=ByteSize(Limits.record),
        gt=0,
        description="largest size of a record (64MiB); larger records are rejected",
    )
    max_file: ByteSize = Field(
        default=ByteSize(Limits.file),
        gt=0,
        description="largest size of a file, uncompressed; a larger file is an error",
    )
    max_depth: int = Field(
        default=Limits.depth,
        gt=0,
        le=Limits.depth,
        description="how deeply a record may be nested (default and maximum: 200); deeper records are rejected",
    )
    on_conflict: Literal["stop", "new-column", "reject"] = Field(
        default="stop", description="the on_conflict of all tables of the stream that do not set it"
    )
    on_misfit: OnMisfit = Field(
        default="reject", description="the on_misfit of all tables of the stream that do not set it"
    )
    tables: list[Annotated[StreamTable, text_as("table"), OrText()]] = Field(
        default_factory=list,
        description="schema.table, a pattern, or a mapping with more settings; the first match applies, but exact "
        "names win over patterns",
    )
    exclude: Names = Field(default_factory=list, description="tables or patterns to leave out")

    @field_validator("name")
    @classmethod
    def _is_free(cls, value: str) -> str:
        beside = (("_files", "landed files"), ("_rejected", "rejected records"), ("_dump", "rows of the last dump"))
        for end, what in beside:
            if value.lower().endswith(end):
                raise ValueError(
                    f"{value}: raw.{value} would be the list of {what} of a stream called {value[: -len(end)]}: "
                    f"choose a name that does not end in {end}"
                )
        return value

    @combination
    def _one_source(self) -> Iterator[str]:
        if self.source and self.landing:
            yield "records come from a folder (`landing`) or from a `source`, not from both"
        if self.source and self.landing_order != "any":
            yield "`landing_order` is for files, and the records come from a `source`"

    @combination
    def _of_live_source(self) -> Iterator[str]:
        # Topics may hold records of any format, and of tables that they name themselves.
        if self.source and (name := self.source.live_name) and name != "kafka":
            if self.format != "debezium":
                yield f"`source: {name}` gives records of `format: debezium`, and the format is {self.format}"
            if not self.tables:
                yield f"`source: {name}` needs the `tables` to read: names or patterns (public.*)"

    @combination
    def _tables_of_folders(self) -> Iterator[str]:
        if self.has_folders and not has_placeholder(str(self.landing), "schema") and not self.folder_schema:
            yield (
                f"landing: {self.landing} does not tell the schema of its tables: write {{schema}}/{{table}} or "
                "{schema}.{table}, as the folders are called, or declare `tables` of one schema (shop.orders, shop.*)"
            )

    @combination
    def _of_change_sets(self) -> Iterator[str]:
        declared = [name for name, value in (("flag", self.flag), ("time", self.time)) if value]
        if declared and self.format != "change-set":
            yield (
                f"`{'` and `'.join(declared)}` {'is' if len(declared) == 1 else 'are'} for `format: change-set`, and "
                f"the format is {self.format}"
            )

    @combination
    def _of_dumps(self) -> Iterator[str]:
        yield from dump_mistakes(self, self.format, self.tables, is_table=self.source is not None)
        if self.format == SNAPSHOT and self.landing and (is_store(self.landing) or self.has_folders):
            yield f"landing: {self.landing}: the dumps of `format: snapshot` are read from one folder of this machine"
        if self.format == SNAPSHOT and self.source is not None:
            of_records = {"value", "key", "order", "on_gap", "on_replaced"} & self.source.model_fields_set
            if of_records:
                yield (
                    f"`{'` and `'.join(sorted(of_records))}` in `source` are about a table of records; with `format: "
                    "snapshot`, the table itself is read whole: leave them out, and declare `key` under `tables`"
                )

    @combination
    def _of_debezium(self) -> Iterator[str]:
        settings = (("unavailable_value", self.unavailable_value), ("databases", self.databases))
        for name, value in settings:
            if value and self.format != "debezium":
                yield f"`{name}` is for `format: debezium`, and the format is {self.format}"

    @property
    def has_folders(self) -> bool:
        """Whether each table has a folder of its own."""
        return self.landing is not None and has_placeholder(self.landing, "table")

    @property
    def folder_schema(self) -> str | None:
        """The schema of tables whose folders do not name one: that of all declared tables."""
        schemas = {SourceTable.parse(t.table).schema for t in self.tables}
        schema = schemas.pop() if len(schemas) == 1 else ""
        return schema if schema and not any(c in schema for c in "*?[") else None

    @property
    def about(self) -> str | None:
        """The stream's only table, which gets records without a table name; None if it declares several, or if folders
        tell the table."""
        if self.has_folders:
            return None
        return self.tables[0].table if len(self.tables) == 1 and not self.tables[0].is_pattern else None


class RangeOfModel(Strict):
    """The column by which a model is recomputed in ranges, and the range of source rows of a result row."""

    column: ColumnName = Field(description="output column: a date, timestamp or whole number")
    back: Duration = Field(
        default=0,
        description="how far before its own value of the column a result row reads source rows (7d, 12h; for numbers, "
        "a number)",
    )
    forward: Duration = Field(
        default=0, description="how far after its own value of the column a result row reads source rows"
    )
    cumulative: bool = Field(
        default=False,
        description="a result row reads all earlier source rows, so everything from the earliest "
        "change on is recomputed",
    )


class ModelSettings(Batches, TableSettings):
    """Settings of SQL models and Python models."""

    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties")
    partitions: Partitioning = Field(
        default=None,
        description="partitions of the table, in Iceberg and in Dagster: by time (by, every, timezone, start), by "
        "listed values (by, values), or by each value of a column (its name)",
    )
    on_gap: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="if the absorbed snapshot of a source has expired: stop the table, or rebuild it from its sources' "
        "current snapshots",
    )
    on_replaced: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="if a source was dropped and created again, or a column of it with another type: stop the table, "
        "or rebuild it from its sources' current snapshots",
    )


class SqlModel(ModelSettings):
    """A SELECT over tables of the lake, maintained as a table."""

    name: Annotated[str, table_to_write("created by lake_assets itself: put the model into")] = Field(
        description="layer.table, for example agg.city_population"
    )
    write: WriteMode | None = Field(
        default=None,
        description="how the rows of a SELECT over changes, such as {{ changes('raw.playback') }}, are applied: "
        "append them, merge them by key, replace the affected keys or range, or overwrite the table; "
        "default: the result of the query is maintained",
    )
    replace: Columns | dict[ColumnName, str | dict[str, str]] | None = Field(
        default=None,
        description="with write: columns whose affected values are replaced: account. {day: to_date(started_at)} "
        "computes the value from a changed row; {day: {raw.playback: to_date(started_at)}} by table; "
        "default: the key, or the column of range",
    )
    on_lookup_change: Literal["ignore", "rebuild"] = Field(
        default="ignore",
        description="with write: if a table that the SELECT reads as a lookup changes: keep the rows, or recompute "
        "everything",
    )
    sql: str = Field(default="", description="one SELECT in Spark SQL; tables are named with their layer")
    sql_file: LocalPath | None = Field(
        default=None, description="a file with the SELECT, instead of sql; relative to the YAML's folder"
    )
    key: Columns = Field(
        default_factory=list, description="columns that identify a row; default: derived from the query"
    )
    range: RangeOfModel | None = Field(default=None, description="recompute ranges of a column instead of keys")
    on_query_change: Literal["rebuild", "stop", "keep"] = Field(
        default="rebuild",
        description="if the query has changed: rebuild the table on the next run, or stop it; with write also keep: "
        "its rows stay, and the new query applies to later changes. Default: rebuild; stop for rows that cannot be "
        "computed again (write: append, a feed, the time of the run)",
    )
    audits: ModelAudits = Field(
        default_factory=list,
        description="conditions that the table must meet before a batch is published: unique, not_null, ...; and "
        "equals_query, on a schedule",
    )
    full_above: float | None = Field(
        default=None,
        description="recompute everything if at least this share of the rows has changed (0 to 1); default: "
        "estimated from the number of rows and past runs",
        ge=0,
        le=1,
    )

    @combination
    def _one_text(self) -> Iterator[str]:
        if ("sql" in self.model_fields_set) == (self.sql_file is not None):
            yield (f"{self.name}: set exactly one of `sql` (the SELECT) and `sql_file` (a file with the SELECT)")

    @combination
    def _changes(self) -> Iterator[str]:
        maintained = {"full_above": self.full_above}
        applied = {
            "replace": self.replace,
            "on_lookup_change": self.on_lookup_change == "rebuild",
            "on_query_change: keep": self.on_query_change == "keep",
        }
        wrong = [setting for setting, used in (applied if self.write is None else maintained).items() if used]
        if wrong:
            kind = "models with `write`" if self.write is None else "models without `write`"
            yield f"{self.name}: {', '.join(wrong)}: for {kind}"

    @property
    def span(self) -> Span | None:
        """The declared range as a `Span`."""
        r = self.range
        return Span(r.column, seconds_of(r.back), seconds_of(r.forward), r.cumulative) if r else None


class PipelineConfig(Batches, AssetSettings):
    """A pipeline: streams, models and jobs."""

    name: str = Field(description="name of the pipeline, which owns its tables", pattern=r"^\w+$")
    interval: str | float = Field(
        default="15s", description="shortest time between two checks of the capture sensor for pending changes"
    )
    report: ReportSettings | None = Field(
        default=None, description="a page about the lake that Dagster writes on a schedule; see `lake-assets report`"
    )
    upkeep: PipelineUpkeep = Field(
        default_factory=PipelineUpkeepSettings,
        description="how the files, deletes and snapshots of all tables are kept few; false: not at all",
    )
    streams: list[Stream] = Field(default_factory=list, description="streams of records, and the tables made of them")
    models: list[SqlModel] = Field(
        default_factory=list, description="SELECTs over tables of the lake, each kept up to date as a table"
    )
    jobs: list[JobSettings] = Field(
        default_factory=list, description="programs of your own over what changed in their inputs"
    )
    external_tables: list[Annotated[ExternalTable, text_as("table"), OrText()]] = Field(
        default_factory=list,
        description="tables that the pipeline reads and somebody else writes, to show them in Dagster: layer.table, or "
        "a mapping with more settings",
    )
    python: list[LocalPath] = Field(
        default_factory=list,
        description="Python files that declare models with @lake_assets.model, relative to the YAML's folder; default: "
        "models.py beside it, if it exists",
    )

    @field_validator("interval")
    @classmethod
    def _interval(cls, value: str | float) -> str | float:
        if seconds_of(value) < 1:
            raise ValueError(f"{value!r}: a sensor runs at most once a second")
        return value


def pipeline_of_job(job: CapturedJobConfig) -> PipelineConfig:
    """Return the pipeline that consists of one job."""
    given = job.model_dump(exclude_unset=True, exclude={"name", "interval"})
    return PipelineConfig(name=job.pipeline_name, interval=job.interval, jobs=[JobSettings.model_validate(given)])
