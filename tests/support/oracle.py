"""What a history of change events leads to, in plain Python: events applied one by one, in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from lake_assets.lake import quote
from tests.support.debezium import Event

Rows = Counter[tuple[Any, ...]]


def final_rows(delivered: Sequence[Event], columns: Sequence[str]) -> Rows:
    """The rows of a table with a key after `delivered`, in the source's order (ties: as they came).

    Args:
        delivered: every event so far, repeated ones as often as they came.
        columns: which columns, in which order.
    """
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, event in sorted(enumerate(delivered), key=lambda e: (e[1].sequence, e[0])):
        match event.op:
            case "t":
                state.clear()
            case "d":
                state.pop(event.key, None)
            case _:
                before = state.get(event.key, {})
                after = {c: (before if c in event.absent else event.row).get(c) for c in event.table.columns}
                # An update says nothing of a column that its schema does not have.
                state[event.key] = {**before, **after} if event.op == "u" else after
    return Counter(tuple(row.get(c) for c in columns) for row in state.values())


def rows_of(frame: DataFrame, columns: Sequence[str] | None = None) -> Rows:
    """The rows of a DataFrame as a multiset."""
    return bag(frame.select(*(quote(c) for c in columns or frame.columns)).collect())


def bag(rows: Iterable[Iterable[Any]]) -> Rows:
    return Counter(tuple(r) for r in rows)
