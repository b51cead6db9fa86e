"""Find the transaction of records that do not name it, from the BEGIN and COMMIT lines around them.

Landing reads the lines in order, across files and commits. Staging could not: it reads the records of one table, in
another order.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from pyiceberg.table import Table

from lake_assets.formats.event_model import Boundary
from lake_assets.ingest.raw_tables import stored

# Snapshot property of a raw table, by source: the transaction of the last record, if it may continue.
PROPERTY = "lake-assets.open-transactions"


@dataclass(frozen=True)
class Open:
    """A transaction that more records may belong to.

    Attributes:
        start: position of its first record.
        commit: LSN of its commit, if BEGIN carries it.
        xid: its number, if the stream carries it.
    """

    start: int
    commit: str | None = None
    xid: str | None = None


def follow(current: Open | None, boundary: Boundary, position: int) -> tuple[Open | None, str | None]:
    """Return the open transaction after a record, and the transaction of the record itself.

    A transaction is named by the LSN of its commit or, in a stream without LSNs, by the position of its first record;
    None: it is unknown, or the record names it itself.
    """
    if boundary.kind == "begin":
        return Open(position, boundary.lsn, boundary.xid), None
    if boundary.kind == "commit":
        return None, None
    if current and not _may_hold(current, boundary):
        current = None
    if current is None:
        current = Open(position, None, boundary.xid) if boundary.xid else None
    if current is None:
        return None, None
    return current, current.commit if boundary.lsn else str(current.start)


def _may_hold(current: Open, boundary: Boundary) -> bool:
    """Whether a change can belong to a transaction. If lines are missing, it may belong to another one."""
    if boundary.xid and current.xid:
        return boundary.xid == current.xid
    return not (boundary.lsn and current.commit) or _number(boundary.lsn) <= _number(current.commit)


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


class OpenTransactions:
    """The transactions that the last record of each source belongs to, if they may continue."""

    def __init__(self, raw: Table) -> None:
        # Closed ones stay as None: the commit has to store that they are closed.
        self._of: dict[str, Open | None] = {source: Open(*fields) for source, fields in stored(raw, PROPERTY).items()}

    def follow(self, source: str, boundary: Boundary, position: int) -> str | None:
        """Take the next record of a source into account; return its transaction (see `follow`)."""
        self._of[source], transaction = follow(self._of.get(source), boundary, position)
        return transaction

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties that the next landing starts from."""
        continued = {source: astuple(open_) for source, open_ in self._of.items() if open_}
        return {PROPERTY: json.dumps(continued)} if self._of else {}
