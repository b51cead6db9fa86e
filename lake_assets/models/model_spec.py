"""A declared model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

from pyiceberg.table import Table

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, read_marks
from lake_assets.models.sql.model_plan import fingerprint, parse
from lake_assets.models.sql.sql_errors import Origin
from lake_assets.tables.audits.audit_kinds import Audit, EqualsQuery
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import BatchSize, Shown
from lake_assets.tables.table_step import ChangedSetting, differing_settings
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY

DECLARED_PROPERTY = "lake-assets.declared"


@dataclass(frozen=True)
class Span:
    """The source rows on which a result row depends, by a column of times or numbers.

    Attributes:
        column: the output column.
        back, forward: how far before and after its own value it reads: in seconds, or units of a numeric column.
        cumulative: whether it depends on all earlier rows.
    """

    column: str
    back: float = 0
    forward: float = 0
    cumulative: bool = False

    @property
    def reaches(self) -> bool:
        """Whether a row depends on source rows with other values than its own."""
        return bool(self.back or self.forward or self.cumulative)


@dataclass(frozen=True)
class ModelSpec:
    """One SQL model: its table, its SELECT, and where it is written.

    Attributes:
        on_query_change: whether a changed query rebuilds the table or is an error.
        full_above: the share of changed rows above which everything is recomputed; None for the strategy's default.
        span: the column by which the table is recomputed in ranges.
        comparisons: scheduled comparisons of the table with its query.
        on_gap: what to do if the absorbed snapshot of a source has expired.
        on_replaced: what to do if a source was replaced by another table.
        refused: why its query cannot be used, with file and line. Its steps fail with this reason.
        is_read: whether another table of the pipeline is computed from it.
    """

    table: TableId
    sql: str
    sources: tuple[TableId, ...]
    pipeline: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    on_query_change: Literal["rebuild", "stop"] = "rebuild"
    full_above: float | None = None
    span: Span | None = None
    batch: BatchSize = field(default_factory=BatchSize)
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: tuple[Audit, ...] = ()
    comparisons: tuple[EqualsQuery, ...] = ()
    partitions: Partitions | None = None
    on_gap: Literal["stop", "rebuild"] = "stop"
    on_replaced: Literal["stop", "rebuild"] = "stop"
    refused: str = ""
    is_read: bool = True
    landing: ClassVar[None] = None

    @property
    def names_columns_in(self) -> list[str]:
        """The settings in use that name columns of the table."""
        used = {"key": self.key, "partitions": self.partitions, "range": self.span, "audits": self.audits}
        return [setting for setting, value in used.items() if value]

    @property
    def summary(self) -> str:
        """Description of the table in one sentence, and its query; for asset descriptions."""
        how = (
            f"Not kept up to date: {self.refused}"
            if self.refused
            else "Kept up to date from the changes in its tables:"
        )
        return f"{how}\n\n```sql\n{self.sql.strip()}\n```"

    @property
    def definition(self) -> str:
        """A fingerprint of the query and its declaration."""
        text = fingerprint(parse(str(self.table), self.sql), self.sql)
        text = text if not self.key else f"{text}:{','.join(self.key)}"
        # Files are written by the fields of Iceberg's partition spec: a changed spec rebuilds the table.
        return f"{text}:{self.partitions.field.sql}" if self.partitions else text

    def check(self) -> None:
        """Raise ModelError if the query cannot be used."""
        if self.refused:
            raise ModelError(self.refused, model=str(self.table), is_located=True)


def declared(spec: ModelSpec) -> dict[str, str]:
    """Return the table properties that store a model's declaration."""
    declaration = {
        "sql": spec.sql,
        "sources": [list(s.parts) for s in spec.sources],
        "key": list(spec.key),
        "on_query_change": spec.on_query_change,
        "full_above": spec.full_above,
        "span": asdict(spec.span) if spec.span else None,
        "partitions": _partitions_json(spec.partitions) if spec.partitions else None,
    }
    return {DECLARED_PROPERTY: json.dumps(declaration, ensure_ascii=False)}


def is_of_query(table: Table) -> bool:
    """Whether a query built a table: then its properties hold the model."""
    is_of_code = table.properties.get(FINGERPRINT_PROPERTY, "").startswith("python:")
    return DECLARED_PROPERTY in table.properties and not is_of_code


def spec_of(name: TableId, table: Table) -> ModelSpec:
    """Return the model that last built a table, from the table's properties.

    Raises:
        ModelError: no SQL model built it.
    """
    if table.properties.get(FINGERPRINT_PROPERTY, "").startswith("python:"):
        raise ModelError(
            f"{name} is computed by code, which the table does not hold: name its pipeline (--pipeline), or set "
            "LAKE_PIPELINES to its folder"
        )
    stored = table.properties.get(DECLARED_PROPERTY)
    if stored is None:
        kind = "filled from a stream, or by a job" if read_marks(table) else "not the table of a pipeline"
        raise ModelError(f"{name} is not a SQL model: it is {kind}")
    declaration = json.loads(stored)
    return ModelSpec(
        name,
        declaration["sql"],
        tuple(TableId.parse(tuple(s)) for s in declaration["sources"]),
        table.properties.get(PIPELINE_PROPERTY, ""),
        tuple(declaration["key"]),
        on_query_change=declaration["on_query_change"],
        full_above=declaration["full_above"],
        span=Span(**declaration["span"]) if declaration["span"] else None,
        partitions=_partitions_of(declaration["partitions"]) if declaration.get("partitions") else None,
    )


def changed_settings(spec: ModelSpec, table: Table) -> tuple[ChangedSetting, ...]:
    """Return what a model declares otherwise than the model that built a table; empty: the table does not say."""
    if not is_of_query(table):
        return (ChangedSetting("computed by", "code", "a query"),)
    built = spec_of(spec.table, table)
    if built.definition != table.properties.get(FINGERPRINT_PROPERTY):
        return ()  # the fingerprint of another version, or the stored query is not the one that built the table
    is_same_query = _query_of(built) == _query_of(spec)
    return differing_settings({
        "sql": ("", "") if is_same_query else (built.sql.strip(), spec.sql.strip()),
        "key": (", ".join(built.key), ", ".join(spec.key)),
        "partitions": (_partition_text(built), _partition_text(spec)),
    })  # fmt: skip


def _query_of(spec: ModelSpec) -> str:
    return fingerprint(parse(str(spec.table), spec.sql), spec.sql)


def _partition_text(spec: ModelSpec) -> str:
    return spec.partitions.field.sql if spec.partitions else ""


def _partitions_json(partitions: Partitions) -> dict[str, Any]:
    times = {name: at.isoformat() for name in ("start", "end") if (at := getattr(partitions, name))}
    # A table of an earlier version has no `end`.
    return {n: v for n, v in (asdict(partitions) | times).items() if n != "end" or v is not None}


def _partitions_of(stored: dict[str, Any]) -> Partitions:
    start, values = stored["start"], stored["values"]
    return Partitions(
        stored["by"],
        stored["every"],
        stored["timezone"],
        datetime.fromisoformat(start) if start else None,
        tuple(values) if values is not None else None,
        datetime.fromisoformat(stored["end"]) if stored.get("end") else None,
    )
