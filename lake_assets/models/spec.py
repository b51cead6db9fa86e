"""A model as it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lake_assets.lake import TableId


@dataclass(frozen=True)
class ModelSpec:
    """One SQL model: its table, its SELECT, and where it came from."""

    table: TableId
    sql: str
    sources: tuple[TableId, ...]
    pipeline: str
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
