"""The change events of a row: which of them each commit of its final table absorbed, and their raw records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lake_assets.final.folded_staging import folded_until
from lake_assets.formats.event_model import (
    ARRIVED_AT,
    DELETE,
    EVENT_TIME,
    INDEX,
    INSERT,
    OP,
    POSITION,
    READ,
    SEQUENCE,
    TECHNICAL,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.history.file_rows import Row
from lake_assets.history.snapshot_rows import SnapshotRows
from lake_assets.history.timeline import Moment
from lake_assets.history.wanted_rows import Wanted, wanted
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import POSITION_PROPERTY, kept_since
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.tables.schema_changes import formers, is_former

# A delete and the insert of its row under another key are at most this many records apart: a tombstone may be between.
_NEAR = 2
EventId = tuple[int, int]


@dataclass(frozen=True)
class RawRecord:
    """A record of a raw table.

    Attributes:
        snapshot: the snapshot that landed it; None: it has expired.
    """

    table: str
    position: int
    file: str
    line: int
    arrived_at: datetime | None
    snapshot: int | None
    text: str


@dataclass(frozen=True)
class Event:
    """A change event of a row.

    Attributes:
        position, index: its place in the stream: the record, and the event in it.
        values: the columns of its source table, by their names in staging.
        unavailable: columns that the source left out.
        moved: the key of the event beside it in the source's log, if that is the same change of a row with another key.
        record: the record; None if raw does not hold it any more.
    """

    position: int
    index: int
    op: str
    sequence: str | None
    event_time: datetime | None
    arrived_at: datetime | None
    values: Mapping[str, Any]
    unavailable: tuple[str, ...] = ()
    moved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    record: RawRecord | None = None

    @property
    def id(self) -> EventId:
        """What identifies it in its stream."""
        return self.position, self.index


class RowEvents:
    """The events of one key in a staging table.

    Args:
        spec: the staging table.
        key: a value for each key column, by its name in staging.
        is_key: whether these columns are the key; else they are some columns of rows without one.
    """

    def __init__(self, lake: LakeBase, spec: StagingSpec, key: Mapping[str, Any], *, is_key: bool) -> None:
        self._lake, self._spec, self._key, self._is_key = lake, spec, dict(key), is_key
        self.table: Table = lake.table(spec.table)
        self.types = schema_to_pyarrow(self.table.schema())
        self._names = [f.name for f in self.table.schema().fields]
        self._rows = SnapshotRows(lake, spec.table, self.table, self._wanted(self._key))
        # A truncate has no key, which the bounds of few files allow for.
        empty = self._wanted(dict.fromkeys(self._key))
        op = wanted(self.types, {OP: [TRUNCATE]})
        self._truncates = SnapshotRows(
            lake, spec.table, self.table, Wanted({**empty.values, **op.values}, empty.others)
        )

    def _wanted(self, key: Mapping[str, Any]) -> Wanted:
        """Return the rows with a key, also under earlier types and names of its columns."""
        has, rename = self._names, self._spec.rename
        # A column that was renamed in the lake, and has no event with the new name yet, is there by the old one.
        stored = {c: c if c in has else next((o for o, n in rename.items() if n == c and o in has), c) for c in key}
        values = wanted(self.types, {stored[c]: [v] for c, v in key.items()}).values
        others: dict[str, tuple[str, ...]] = {}
        for name in stored.values():
            aliases = [name, *(o for o, n in rename.items() if n == name and o in has)]
            if more := tuple(c for a in aliases for c in (a, *formers(a, has)) if c != name):
                others[name] = more
        return Wanted(values, others)

    def knows(self, mark: Watermark | None) -> bool:
        """Whether the staging table still has the snapshot of a watermark."""
        if mark is None or mark.uuid != str(self.table.metadata.table_uuid):
            return False
        return mark.snapshot is None or self.table.snapshot_by_id(mark.snapshot) is not None

    def at(self, snapshot: int | None) -> dict[EventId, Event]:
        """Return the events of a snapshot of staging, in the order of the stream; those of truncates among them."""
        rows = (*self._rows.at(snapshot).values(), *self._truncates.at(snapshot).values())
        events = (self.event(row) for row in rows)
        return {e.id: e for e in sorted(events, key=lambda e: e.id)}

    def event(self, row: Row) -> Event:
        """Return a row of staging as an event, without its record."""
        named: dict[str, Any] = {f.name: row.get(f.field_id) for f in self._rows.schema.fields}
        values = {n: v for n, v in named.items() if n not in TECHNICAL and not is_former(n, named)}
        for name in values:
            for former in formers(name, named):
                values[name] = named[former] if values[name] is None else values[name]
        return Event(
            named[POSITION], named.get(INDEX) or 0, named[OP], named.get(SEQUENCE), named.get(EVENT_TIME),
            named.get(ARRIVED_AT), values, tuple(named.get(UNAVAILABLE) or ()),
        )  # fmt: skip

    def absorbed(self, moments: Sequence[Moment]) -> dict[int, dict[EventId, Event]]:
        """Return the events that each moment of the final table absorbed, by its number; without the moments whose
        snapshot of staging is unknown. The first one has all that were there before, too."""
        found: dict[int, dict[EventId, Event]] = {}
        before: Mapping[EventId, Event] = {}
        for index, moment in enumerate(moments):
            mark = moment.marks.get(str(self._spec.table))
            if mark is None or not self.knows(mark):
                continue
            now = self.at(mark.snapshot)
            found[index] = {i: e for i, e in now.items() if i not in before}
            before = now
        return found

    def complete(self, events: Iterable[Event]) -> dict[EventId, Event]:
        """Return events with their records, and with the other key of a row whose key changed."""
        listed = list(events)
        records, moves = self._records({e.position for e in listed}), self._moves(listed)
        return {
            e.id: Event(
                e.position, e.index, e.op, e.sequence, e.event_time, e.arrived_at, e.values, e.unavailable,
                moves.get(e.id, {}), records.get(e.position),
            )
            for e in listed
        }  # fmt: skip

    def _moves(self, events: Sequence[Event]) -> dict[EventId, Mapping[str, Any]]:
        """Return the keys of the events beside deletes and inserts that are at the same place in the source's log."""
        ends = {e.id: e for e in events if e.op in (DELETE, INSERT, READ) and e.sequence is not None}
        near = {p for e in ends.values() for p in range(e.position - _NEAR, e.position + _NEAR + 1)}
        if not near or not self._is_key:
            return {}
        rows = SnapshotRows(self._lake, self._spec.table, self.table, wanted(self.types, {POSITION: sorted(near)}))
        beside = [self.event(r) for r in rows.at(self.table.metadata.current_snapshot_id).values()]
        found: dict[EventId, Mapping[str, Any]] = {}
        for e in ends.values():
            for other in beside:
                key = {c: other.values.get(c) for c in self._key}
                is_pair = other.sequence == e.sequence and {e.op, other.op} in ({DELETE, INSERT}, {DELETE, READ})
                if is_pair and key != self._key and abs(other.position - e.position) <= _NEAR:
                    found[e.id] = key
        return found

    def _records(self, positions: set[int]) -> dict[int, RawRecord]:
        raw = self._lake.find(self._spec.raw)
        return records_at(self._lake, self._spec.raw, raw, positions) if raw is not None else {}

    @cached_property
    def limits(self) -> list[str]:
        """What retention has removed of the events and records, for people."""
        texts: list[str] = []
        if until := folded_until(self.table):
            texts.append(
                f"{self._spec.table}: events from before {until:%Y-%m-%d %H:%M:%S} UTC that later ones had superseded "
                "may have been removed (`keep_events`)"
            )
        raw = self._lake.find(self._spec.raw)
        if raw is not None and (since := kept_since(raw)):
            texts.append(
                f"{self._spec.raw}: records from before {since:%Y-%m-%d %H:%M:%S} UTC may have been removed "
                "(`keep_records`)"
            )
        return texts


def records_at(lake: LakeBase, name: TableId, raw: Table, positions: set[int]) -> dict[int, RawRecord]:
    """Return the records of a raw table at some positions, as far as it has them."""
    if not positions:
        return {}
    rows = SnapshotRows(lake, name, raw, wanted(schema_to_pyarrow(raw.schema()), {"position": sorted(positions)}))
    landed = list(_landings(raw))
    found: dict[int, RawRecord] = {}
    for row in rows.at(raw.metadata.current_snapshot_id).values():
        at: dict[str, Any] = {f.name: row.get(f.field_id) for f in rows.schema.fields}
        position = at["position"]
        found[position] = RawRecord(
            str(name), position, at["source_file"], at["source_line"], at["arrived_at"],
            next((i for low, high, i in landed if low <= position < high), None), at["record"],
        )  # fmt: skip
    return found


def _landings(raw: Table) -> Iterator[tuple[int, int, int]]:
    """Yield the first position of each kept landing, the position after its last, and its snapshot."""
    before: tuple[int, int] | None = None
    for snapshot in ancestors(raw):
        if (text := summary_of(snapshot).get(POSITION_PROPERTY)) is not None:
            if before is not None:
                yield int(text), *before
            before = int(text), snapshot.snapshot_id
    if before is not None and not list(ancestors(raw))[-1].parent_snapshot_id:
        yield 0, *before
