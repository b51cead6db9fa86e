"""Records of what differs between two dumps: a change feed, from which the rows of the last dump follow again.

    {"@types":{"id":"bigint"},"row":{"_change_type":"insert","_commit_version":"17","_commit_timestamp":"…","id":"1"}}

An update is two records, its old row and its new one, so that a key may be declared otherwise later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame

from lake_assets.formats.flat_rows import TEXT, TYPES
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.names import literal
from lake_assets.sources.dump_differences import Change
from lake_assets.sources.dump_rows import RowFormat

_DELETE, _BEFORE, _INSERT, _AFTER = "delete", "update_preimage", "insert", "update_postimage"
# The members that a record has before those of its row. In names and values, quotes are escaped.
_MEMBERS = r'"_change_type":"([a-z_]+)","_commit_version":"[0-9]+","_commit_timestamp":"[^"]*",?'
_PATTERN = re.compile(_MEMBERS)
_NESTED = tuple(f'{{"{name}":' for name in (TYPES, TEXT))


@dataclass(frozen=True)
class DumpRecords:
    """Writes the records of a dump.

    Attributes:
        version: their order.
        at: the time of the dump.
        before, after: what the rows of the last dump and of this one are read by.
    """

    version: int
    at: datetime
    before: RowFormat
    after: RowFormat

    def of(self, change: Change) -> Iterator[tuple[str, str]]:
        """Yield the records of a change, each with its schema."""
        old, new = change.before, change.after
        for _ in range(change.copies):
            if old is not None:
                yield self._record(_DELETE if new is None else _BEFORE, old, self.before)
            if new is not None:
                yield self._record(_INSERT if old is None else _AFTER, new, self.after)

    def _record(self, kind: str, row: str, read_by: RowFormat) -> tuple[str, str]:
        members = (
            f'"_change_type":"{kind}","_commit_version":"{self.version}","_commit_timestamp":"{self.at.isoformat()}"'
        )
        start, end = read_by.around(members)
        return f"{start}{',' if row != '{}' else ''}{row[1:-1]}{end}", read_by.schema


def row_in(record: str) -> str | None:
    """Return the row in a record; None: it is no record of a dump."""
    match = _PATTERN.search(record)
    return "{" + record[match.end() : -2 if record.startswith(_NESTED) else -1] + "}" if match else None


def rows_after(lake: LakeBase, raw: TableId, snapshot: int) -> DataFrame:
    """Return the rows of the last dump in a raw table, `row`, from all of its records as of a snapshot."""
    members = literal(_MEMBERS)
    end = f"IF({' OR '.join(f'startswith(record, {literal(n)})' for n in _NESTED)}, 2, 1)"
    records = lake.rows_at(raw, snapshot)
    split = records.where("problem IS NULL").selectExpr(
        f"regexp_extract(record, {members}, 1) AS kind",
        f"instr(record, regexp_extract(record, {members}, 0)) + length(regexp_extract(record, {members}, 0)) AS at",
        f"length(record) - {end} AS until",
        "record",
    )
    rows = split.selectExpr(
        "concat('{', substring(record, at, until - at + 1), '}') AS row",
        f"IF(kind IN ('{_INSERT}', '{_AFTER}'), 1, -1) AS sign",
    )
    counted = rows.groupBy("row").agg({"sign": "sum"}).withColumnRenamed("sum(sign)", "copies").where("copies > 0")
    return counted.selectExpr("explode(array_repeat(row, CAST(copies AS INT))) AS row")
