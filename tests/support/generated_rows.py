"""The rows that generated events leave in a table: the oracle for readers of the events."""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.examples.event_generator import KEY, Row, Transaction


def replay(transactions: Iterable[Transaction]) -> dict[int, Row]:
    """Return the rows after these transactions, in any order and with duplicates: the oracle for readers."""
    rows: dict[int, Row] = {}
    changes = {change.lsn: change for t in transactions for change in t.changes}
    for lsn in sorted(changes):
        change = changes[lsn]
        old = rows.pop(change.before[KEY], {}) if change.before is not None else {}
        if change.after is not None:
            unchanged = {c: old.get(c) for c in change.absent}
            rows[change.after[KEY]] = {**change.after, **unchanged}
    return rows
