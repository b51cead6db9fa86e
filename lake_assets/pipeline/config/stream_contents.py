"""What a pipeline's tables depend on in the lake: the source tables of its streams, and who made a staging table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from lake_assets.errors import CorruptMetadataError
from lake_assets.formats import SourceTable
from lake_assets.ingest.raw_tables import routes
from lake_assets.ingest.staging.staging_columns import source_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.tables.pending_windows import known_marks


class Maker(TypedDict):
    """Which records a staging table was made from.

    Attributes:
        source: its source table.
        raw: its raw tables.
    """

    source: str | None
    raw: Sequence[str]


class _Answers(TypedDict):
    sources: dict[str, list[str]]
    makers: dict[str, Maker | None]


class StreamContents:
    """Reads the lake, and remembers its answers as text: with it, the list of tables is the same in another process."""

    def __init__(self, lake: LakeBase, recorded: str | None = None) -> None:
        """
        Args:
            lake: the lake.
            recorded: the text of former answers, which are given again.
        """
        self._lake = lake
        self._answers: _Answers = json.loads(recorded) if recorded else {"sources": {}, "makers": {}}

    @property
    def text(self) -> str:
        """All answers so far."""
        return json.dumps(self._answers)

    def sources(self, raw: TableId) -> list[SourceTable]:
        """Return the source tables that have records in a raw table."""
        name, answers = str(raw), self._answers["sources"]
        if name not in answers:
            try:
                answers[name] = [str(s) for s in routes(self._lake, raw)]
            except CorruptMetadataError:
                answers[name] = []  # its own step reports the error, and tables of other streams continue
        return [SourceTable.parse(s) for s in answers[name]]

    def maker(self, staging: TableId) -> Maker | None:
        """Return what a staging table was made from; None: there is no such table, or it cannot be read."""
        name, answers = str(staging), self._answers["makers"]
        if name not in answers:
            try:
                table = self._lake.find(staging)
            except CorruptMetadataError:
                table = None  # its own step reports the error
            answers[name] = {"source": source_of(table), "raw": list(known_marks(table))} if table is not None else None
        return answers[name]
