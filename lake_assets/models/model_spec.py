"""A declared model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from pyiceberg.table import Table

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, read_marks
from lake_assets.models.sql.sql_errors import Origin
from lake_assets.tables.audits.audit_declarations import Audit, EqualsQuery
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import BatchSize, Shown

FINGERPRINT_PROPERTY = "lake-assets.model"
DECLARED_PROPERTY = "lake-assets.declared"


@dataclass(frozen=True)
class Span:
    """The source rows on which a result row depends, by a column of times or numbers.

    Attributes:
        column: the output column.
        back, forward: how far before and after its own value: in seconds, or units of a numeric column.
        cumulative: whether it depends on all earlier rows.
    """

    column: str
    back: float = 0
    forward: float = 0
    cumulative: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """One SQL model: its table, its SELECT, and where it is written.

    Attributes:
        on_query_change: whether a changed query rebuilds the table, or is an error.
        full_above: the share of changed rows from which everything is recomputed; None: the strategy's default.
        span: the column by which it is recomputed in ranges.
        batch: limits of a step.
        shown: attributes of its asset.
        audits: conditions that the table must meet before a batch is published.
        comparisons: scheduled comparisons of the table with its query.
        partitions: its partitions, in Iceberg and in Dagster.
        on_gap: what to do if the absorbed snapshot of a source has expired.
        on_replaced: what to do if a source was replaced by another table.
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
    landing: ClassVar[Path | None] = None

    @property
    def names_columns_in(self) -> list[str]:
        """The settings in use that name columns of the table."""
        used = {"key": self.key, "partitions": self.partitions, "range": self.span, "audits": self.audits}
        return [setting for setting, value in used.items() if value]

    @property
    def summary(self) -> str:
        """The contents of the table in a sentence and its query, for asset descriptions."""
        return f"Kept up to date from the changes in its tables:\n\n```sql\n{self.sql.strip()}\n```"


def declared(spec: ModelSpec) -> dict[str, str]:
    """Return the table properties that store a model's declaration."""
    said = {
        "sql": spec.sql,
        "sources": [list(s.parts) for s in spec.sources],
        "key": list(spec.key),
        "on_query_change": spec.on_query_change,
        "full_above": spec.full_above,
        "span": asdict(spec.span) if spec.span else None,
        "partitions": _written(spec.partitions) if spec.partitions else None,
    }
    return {DECLARED_PROPERTY: json.dumps(said, ensure_ascii=False)}


def spec_of(name: TableId, table: Table) -> ModelSpec:
    """Return the model that last built a table.

    Raises:
        ModelError: no model built it.
    """
    if table.properties.get(FINGERPRINT_PROPERTY, "").startswith("python:"):
        raise ModelError(f"{name} is computed by code, which the table does not hold: name its pipeline (--pipeline)")
    said = table.properties.get(DECLARED_PROPERTY)
    if said is None:
        kind = "a table that a stream fills" if read_marks(table) else "no pipeline's table"
        raise ModelError(f"{name} is no SQL model: it is {kind}")
    found = json.loads(said)
    return ModelSpec(
        name,
        found["sql"],
        tuple(TableId.parse(tuple(s)) for s in found["sources"]),
        table.properties.get(PIPELINE_PROPERTY, ""),
        tuple(found["key"]),
        on_query_change=found["on_query_change"],
        full_above=found["full_above"],
        span=Span(**found["span"]) if found["span"] else None,
        partitions=_read(found["partitions"]) if found.get("partitions") else None,
    )


def _written(partitions: Partitions) -> dict[str, Any]:
    return asdict(partitions) | {"start": partitions.start.isoformat() if partitions.start else None}


def _read(said: dict[str, Any]) -> Partitions:
    start, values = said["start"], said["values"]
    return Partitions(
        said["by"],
        said["every"],
        said["timezone"],
        datetime.fromisoformat(start) if start else None,
        tuple(values) if values is not None else None,
    )
