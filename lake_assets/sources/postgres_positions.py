"""Where reading of Postgres's log goes on, to the record.

Debezium's offset names the position (LSN) of the last record, and it goes on behind that position. This leaves gaps:

- *Rows of one position.* A COPY writes many rows as one entry of the log. If a commit lies between them, the others
  would never arrive. So the offset before the last position is committed, with the number of records that have landed
  of that position: they arrive again, and are left out.
- *The first transaction after a snapshot* may have begun before it. Its changes have lower positions than the rows of
  the snapshot, and no commit before it that would tell that they are newer: the snapshot's position takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from lake_assets.formats.debezium_alike import WHOLE_SNAPSHOT
from lake_assets.sources.debezium_java import plain
from lake_assets.sources.live_source import Voiding

# What an offset says about snapshots. The state of an incremental one is independent of the position.
_OF_SNAPSHOT = ("snapshot", "snapshot_completed", "last_snapshot_record")
_INCREMENTAL = "incremental_snapshot"
_NO_COMMIT = b'"sequence":"[null,'

Position = dict[str, Any]


class LogPositions:
    """The positions of the records of one stream, as its batches are landed."""

    def __init__(self, offset: Any) -> None:
        """`offset`: what was committed last; None: nothing."""
        offset = offset or {}
        self.before: Position = next((p for _, p in offset.get("offsets", ())), {})
        self.previous = self.before
        # The last position, how many of its records have landed, and how many of them have arrived since the start.
        self.lsn, self.landed = offset.get("seen") or (None, 0)
        self.arrived = self._left_out = 0
        # The position of the snapshot, until a commit after it is known.
        self.floor: int | None = offset.get("floor")

    @property
    def committed(self) -> dict[str, object]:
        """What is committed beside the offset."""
        seen: dict[str, object] = {"seen": [self.lsn, self.landed]} if self.landed else {}
        return seen | ({"floor": self.floor} if self.floor is not None else {})

    @property
    def in_pieces(self) -> bool:
        """Whether a snapshot was not complete at the last record that reads tables in pieces, beside their changes."""
        return any(n.startswith(_INCREMENTAL) for n in self.previous)

    @property
    def in_whole(self) -> bool:
        """Whether the last record belongs to a snapshot that reads tables in whole."""
        return "snapshot" in self.previous

    def has_landed(self, event: Any) -> bool:
        """Whether a record is one of those that have landed of the last position; to be asked about each in turn."""
        if self.arrived >= self.landed or position_of(event).get("lsn") != self.lsn or not _is_change(event):
            return False
        self.arrived += 1
        self._left_out += 1
        return True

    def ordered(self, record: bytes, event: Any, earlier: Any) -> bytes:
        """Return a record with a position that sorts after the snapshot before it.

        Args:
            record: the record's text.
            event: Debezium's event of it.
            earlier: the event before it in its batch; None: it is the first one.
        """
        if self.floor is None and _NO_COMMIT not in record:
            return record
        whole = orjson.loads(record)
        value = whole["value"]
        source = value.get("payload", value).get("source") or {}
        sequence = orjson.loads(source.get("sequence") or "[0]")
        if str(source.get("snapshot")).lower() in WHOLE_SNAPSHOT or int(sequence[0] or 0) >= (self.floor or 1):
            return record
        if self.floor is None:
            self.floor = (position_of(earlier) if earlier is not None else self.previous).get("lsn")
        if self.floor is None:
            return record
        source["sequence"] = orjson.dumps([str(self.floor), *sequence[1:]]).decode()
        return orjson.dumps(whole)

    def pass_by(self, event: Any) -> None:
        """Take note of an event after which nothing is committed."""
        self.previous, self._left_out = position_of(event), 0

    def begin_snapshot(self, event: Any) -> int | None:
        """Take note of the first row of a snapshot between changes; return the position before it.

        Changes after it may have lower positions, of a transaction that was open then. None: it is another product's
        log, whose positions do not go back.
        """
        if (lsn := position_of(event).get("lsn")) is None:
            return None
        self.floor = int(lsn)
        return self.floor - 1

    def follow(self, events: Sequence[Any]) -> Position:
        """Return the offset to commit with a batch, all of whose records have landed then."""
        last, left_out, self._left_out = position_of(events[-1]), self._left_out, 0
        if "lsn" not in last or "snapshot" in last or not self.previous:
            # Another product's log, or a snapshot, which is taken again if it is not complete.
            self.before, self.previous, self.lsn, self.landed = last, last, None, 0
            return last
        before, count = None, 0
        for event in reversed(events):
            position = position_of(event)
            if position.get("lsn") != last["lsn"] or "snapshot" in position:
                before = position
                break
            count += _is_change(event)
        self._take(last, before, count, left_out)
        self.previous = last
        of_log = {n: v for n, v in self.before.items() if not n.startswith(_INCREMENTAL) and n not in _OF_SNAPSHOT}
        if self.floor is not None:
            known = [p.get("lsn_commit") or 0 for p in (of_log, last)]
            self.floor = None if known[0] >= self.floor else max(known[1], self.floor)
        return of_log | {n: v for n, v in last.items() if n.startswith(_INCREMENTAL)}

    def _take(self, last: Position, before: Position | None, count: int, left_out: int) -> None:
        """Count the records of the last position of a batch.

        Args:
            last: the offset after the batch.
            before: the offset before its last position; None: the batch has no other one.
            count: how many records of this position it has.
            left_out: how many records of the batch had landed before.
        """
        if count and last["lsn"] == self.lsn:
            self.before = before or self.before
            if count > left_out:
                self.landed += count - left_out
                self.arrived = self.landed
        elif count:
            self.before = before or self.previous
            self.lsn, self.landed, self.arrived = last["lsn"], count, count
        elif last["lsn"] != self.lsn and (self.arrived >= self.landed or last["lsn"] > self.lsn):
            # The last position is complete. (Otherwise, records that have landed are still to arrive again.)
            self.before, self.lsn, self.landed, self.arrived = last, None, 0, 0


def is_unfinished(offset: Any) -> bool:
    """Whether an offset was committed before the first snapshot was complete."""
    positions = [p for _, p in (offset or {}).get("offsets", ())]
    return any(str(p.get("snapshot")).upper() == "INITIAL" and not p.get("snapshot_completed") for p in positions)


def truncate_like(record: bytes, lsn: int) -> Voiding:
    """Return a record, like another one of its table, that deletes all rows that were read up to a position."""
    whole = orjson.loads(record)
    envelope = whole["value"].get("payload", whole["value"])
    envelope["source"] |= {"lsn": lsn, "sequence": orjson.dumps([str(lsn)] * 2).decode(), "snapshot": None}
    envelope |= {"op": "t", "before": None, "after": None}
    return Voiding(orjson.dumps({**whole, "key": None}))


def table_read(event: Any) -> str:
    """Return the table of which a snapshot has read the row of an event; empty: it is no such row."""
    schema = event.sourceRecord().valueSchema()
    if schema is None or schema.field("op") is None or schema.field("source") is None:
        return ""
    value = event.sourceRecord().value()
    source = value.get("source")
    # MariaDB and MySQL have databases in place of schemas.
    within = "schema" if source.schema().field("schema") is not None else "db"
    return f"{source.get(within)}.{source.get('table')}" if str(value.get("op")) == "r" else ""


def position_of(event: Any) -> Position:
    """Return the offset after an event."""
    return plain(event.sourceRecord().sourceOffset())


def _is_change(event: Any) -> bool:
    """Whether an event is a change that was read from the log: no row of a snapshot, and no sign of life."""
    schema = event.sourceRecord().valueSchema()
    if schema is None or schema.field("op") is None:
        return False
    return str(event.sourceRecord().value().get("op")) != "r"
