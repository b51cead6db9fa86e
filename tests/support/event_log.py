"""Events of one table in ever greater sequences, one transaction each, and the rows of its final table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.oracle import rows_of
from tests.support.streams import Feed

T = Table({"id": BIGINT, "n": INT, "name": TEXT})
COLUMNS = list(T.columns)


class Log:
    """Writes events with ever greater sequences, one transaction each."""

    def __init__(self, table: Table = T) -> None:
        self.table, self.at = table, 0

    def __call__(self, op: Any, absent: tuple[str, ...] = (), **row: Any) -> Event:
        self.at += 10
        return Event(self.table, op, (self.at, self.at + 1), row, frozenset(absent))


def final(feed: Feed, columns: list[str] = COLUMNS) -> Counter[Any]:
    return rows_of(feed.rows("final.t"), columns)
