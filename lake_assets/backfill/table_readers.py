"""Who reads a table: tables of any pipeline in the lake, and the consumers that other programs have registered."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pyiceberg.table import Table

from lake_assets.capture.consumers import Consumers
from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.refs import BACKFILL_TAG
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.snapshot_retention import consumer_name

# Tags with a long life that are no consumer's.
_OTHER_TAGS = (BACKFILL_TAG, "capture.")


@dataclass(frozen=True)
class Reader:
    """A reader of a table.

    Attributes:
        name: the table, or the name under which a program is registered.
        kind: what it is.
        pipeline: the pipeline of the table; empty: none.
    """

    name: str
    kind: Literal["table", "consumer"]
    pipeline: str = ""


class Readers:
    """The readers of the tables of a lake, from the metadata of all tables, each of which is loaded once."""

    def __init__(self, lake: LakeBase) -> None:
        self._lake = lake

    @cached_property
    def _tables(self) -> dict[TableId, Table]:
        tables: dict[TableId, Table] = {}
        for name in self._lake.all_tables():
            try:
                if (table := self._lake.find(name)) is not None:
                    tables[name] = table
            except LakeError:
                continue  # a table that nobody can read; `lake-assets status` says why
        return tables

    @cached_property
    def _by_source(self) -> dict[str, list[Reader]]:
        found: dict[str, list[Reader]] = defaultdict(list)
        for name, table in self._tables.items():
            try:
                marks = known_marks(table)
            except LakeError:
                continue
            for source in marks:
                found[source].append(Reader(str(name), "table", table.properties.get(PIPELINE_PROPERTY, "")))
        return found

    def tables_of(self, pipeline: str) -> dict[TableId, Table]:
        """Return the tables of the lake that a pipeline owns."""
        return {n: t for n, t in self._tables.items() if t.properties.get(PIPELINE_PROPERTY) == pipeline}

    def of(self, table: TableId) -> tuple[Reader, ...]:
        """Return the readers of a table."""
        if table not in self._tables:
            return ()
        tables = self._by_source.get(str(table), [])
        known = {consumer_name(TableId.parse(r.name)) for r in tables}
        others = (c.name for c in Consumers(self._lake).list(table) if not c.name.startswith(_OTHER_TAGS))
        return (*tables, *(Reader(name, "consumer") for name in sorted(set(others) - known)))
