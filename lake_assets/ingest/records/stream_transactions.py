"""Which transaction the records of a stream belong to, where only the lines around them say it.

Landing follows the lines in their order, over the ends of files and commits: staging reads the records of one table,
and not in that order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from pyiceberg.table import Table

from lake_assets.formats.event_model import Boundary
from lake_assets.lake.metadata.watermark import find_property

# Of a raw table's commit, by source: the transaction that its last record belongs to, if it may go on.
PROPERTY = "lake-assets.open-transactions"


@dataclass(frozen=True)
class Open:
    """A transaction that more records may belong to.

    Attributes:
        start: position of its first record.
        commit: LSN of its commit, where the stream says it beforehand.
        xid: its number, where the stream says it.
    """

    start: int
    commit: str | None = None
    xid: str | None = None


def follow(current: Open | None, said: Boundary, position: int) -> tuple[Open | None, str | None]:
    """What is open after a record, and the record's transaction: the LSN of its commit, or, in a stream without LSNs,
    the position of its first record; None: unknown, or the record says it itself.

    Args:
        current: what was open before it.
        said: what the record says.
        position: of the record.
    """
    if said.kind == "begin":
        return Open(position, said.lsn, said.xid), None
    if said.kind == "commit":
        return None, None
    if current and not _may_hold(current, said):
        current = None
    if current is None:
        current = Open(position, None, said.xid) if said.xid else None
    if current is None:
        return None, None
    return current, current.commit if said.lsn else str(current.start)


def _may_hold(current: Open, said: Boundary) -> bool:
    """Whether a change can belong to a transaction: where lines are missing, it may be another one's."""
    if said.xid and current.xid:
        return said.xid == current.xid
    return not (said.lsn and current.commit) or _number(said.lsn) <= _number(current.commit)


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


def read_open(raw: Table) -> dict[str, Open]:
    """What was open at the end of the raw table's last landing, by source."""
    found = find_property(raw, PROPERTY)
    return {name: Open(*of) for name, of in json.loads(found[0]).items()} if found else {}


def to_properties(current: Mapping[str, Open | None]) -> dict[str, str]:
    """The summary property that records what is open."""
    return {PROPERTY: json.dumps({name: astuple(of) for name, of in current.items() if of})}
