"""What each table of the first three layers is declared to be, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lake_assets.events import SourceTable
from lake_assets.lake import TableId


@dataclass(frozen=True)
class RawSpec:
    """A raw table and the landing folder it is filled from."""

    table: TableId
    landing: Path
    format: str
    pipeline: str


@dataclass(frozen=True)
class StagingSpec:
    """The typed changes of one source table of a stream."""

    table: TableId
    raw: TableId
    source_table: SourceTable
    format: str
    pipeline: str
    rename: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FinalSpec:
    """The current state of one source table.

    Attributes:
        key: columns that identify a row; empty: taken from the stream, and where the stream has none, rows are
            appended.
    """

    table: TableId
    staging: TableId
    pipeline: str
    key: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
