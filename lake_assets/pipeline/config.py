"""The shape of a pipeline's YAML, as pydantic models; the same for the Dagster component and for plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lake_assets.errors import LakeError
from lake_assets.events import SourceTable
from lake_assets.lake import TableId
from lake_assets.models.plan import parse, sources_of


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _OrText:
    """In the JSON schema: text, or else what the annotated type says.

    By `if` instead of `anyOf`: a validator then says which setting of a mapping is wrong, and on which line, instead of
    that the whole fits none of two schemas.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"if": {"type": "string"}, "then": {"type": "string"}, "else": handler(core_schema)}


Names = Annotated[list[str], BeforeValidator(_listed), _OrText()]
"""One name or a list of them."""


class LayerTables(_Strict):
    """One table of a stream, or all that a pattern matches: a `staging` table and a `final` one each."""

    table: str = Field(description="source table as schema.table; * and ? match any name: public.*")
    name: str | None = Field(default=None, description="name in the lake; default: the source table's name")
    key: Names = Field(default_factory=list, description="key columns; default: what the stream says")
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="columns that the source renamed, old name: new name (no stream reports a rename)",
    )
    final: bool = Field(default=True, description="false: staging only")
    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties of the final table")

    @field_validator("table")
    @classmethod
    def _table(cls, value: str) -> str:
        try:
            SourceTable.parse(value)
        except LakeError as e:
            raise ValueError(str(e)) from e
        return value

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for the tables that the stream turns out to have."""
        return any(c in self.table for c in "*?[")

    @model_validator(mode="after")
    def _one_name(self) -> LayerTables:
        if self.is_pattern and self.name:
            raise ValueError(f"{self.table} may match several tables: give `name` to single ones")
        return self


def _table_entry(value: object) -> object:
    return {"table": value} if isinstance(value, str) else value


class Stream(_Strict):
    """A stream of change events: where its files land, their format, and the tables made of it."""

    name: str = Field(description="the raw table is raw.<name>", pattern=r"^\w+$")
    format: Literal["debezium"] = Field(default="debezium", description="wire format of the records")
    landing: Path | None = Field(
        default=None,
        description="folder where files of records arrive; relative: to the lake's home; default landing/<name>",
    )
    tables: list[Annotated[LayerTables, BeforeValidator(_table_entry), _OrText()]] = Field(
        default_factory=list,
        description="schema.table, a pattern, or a mapping with more settings; the first that fits",
    )
    exclude: Names = Field(default_factory=list, description="tables or patterns to leave out")


class SqlModel(_Strict):
    """A SELECT over tables of the lake, kept as a table."""

    name: str = Field(description="layer.table, for example agg.city_population")
    sql: str = Field(description="one SELECT in Spark SQL; tables with their layer")
    key: Names = Field(default_factory=list, description="columns that identify a row; default: what it groups by")
    properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        try:
            TableId.parse(value)
        except LakeError as e:
            raise ValueError(str(e)) from e
        return value

    @field_validator("sql")
    @classmethod
    def _sql(cls, value: str, info: ValidationInfo) -> str:
        name = str(info.data.get("name", ""))
        try:
            sources_of(name, parse(name, value))
        except LakeError as e:
            raise ValueError(str(e)) from e
        return value


class PipelineConfig(_Strict):
    """A pipeline: streams and models."""

    name: str = Field(description="the pipeline's name: its tables belong to it", pattern=r"^\w+$")
    streams: list[Stream] = Field(default_factory=list)
    models: list[SqlModel] = Field(default_factory=list)
