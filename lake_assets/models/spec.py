"""A model as it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lake_assets.lake import TableId
from lake_assets.models.errors_at import Origin


@dataclass(frozen=True)
class ModelSpec:
    """One SQL model: its table, its SELECT, and where it is written."""

    table: TableId
    sql: str
    sources: tuple[TableId, ...]
    pipeline: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
