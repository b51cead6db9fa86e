"""The table that a raw table is filled from: its pending window, and the records that were appended to it.

Rows that are removed from the source stay in the raw table, which may be the only copy of their records.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.capture import EMPTY, Point, capture
from lake_assets.capture.windows import resolve
from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.files.limited_files import Record
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing_folder import as_record
from lake_assets.ingest.raw.record_sources import Batch
from lake_assets.lake import LakeBase, TableId
from lake_assets.tables.pending_windows import LostHistory, Window, window_of

# Snapshot property of a commit that continued without the source's history: what may be missing.
GAP_PROPERTY = "lake-assets.gap"


def pending_of_table(spec: RawSpec, raw: Table | None, source: TableId, loaded: Table) -> Window:
    """Return the window that a raw table has not landed of its source table. Reads metadata only.

    If the history is lost, and the stream is declared to continue, the window starts at the beginning.

    Raises:
        TableReplacedError, SnapshotExpiredError: new records cannot be distinguished from landed ones, and the stream
            is declared to stop.
    """
    window = window_of(spec.table, raw, source, loaded)
    if window.lost:
        why = f"{window.lost.why}. {source} has lost snapshots that were not landed"
        window = replace(window, lost=replace(window.lost, why=why))
    elif window.start is not None and (why := _why_changes_unknown(spec, window, loaded)):
        window = replace(window, mark=None, lost=LostHistory("on_gap", why))
    if window.lost and getattr(spec, window.lost.option) == "stop":
        raise window.lost.error(
            f"With `{window.lost.option}: append` in the stream's `source`, the next run appends the records of "
            f"{source} that {spec.table} lacks, and continues from there. Records that were appended to {source} "
            f"since, and removed from it, cannot be landed. Keep {spec.table}: it may be the only copy of older "
            "records"
        )
    return window


def _why_changes_unknown(spec: RawSpec, window: Window, loaded: Table) -> str:
    """Return why the records appended since a window's start are unknown; empty if they are known."""
    source, start = window.source, loaded.snapshot_by_id(window.start or 0)
    landed = f"{spec.table} has landed {source} up to snapshot {window.start}"
    if start is None or window.is_absorbed:
        return ""
    if window.head.snapshot is None:
        lost = _appended_after(loaded, start)
        return f"{landed}. {source} was replaced by an empty table, after records that were not landed" if lost else ""
    between = resolve(loaded, source, window.start, window.head.snapshot)
    if between.divergence:
        return f"{landed}, and {source} has another history now ({between.divergence.reason})"
    return "" if between.is_complete else f"{landed}, and {source} has lost snapshots that were not landed"


def _appended_after(table: Table, start: Snapshot) -> bool:
    """Whether records may have been appended to a table after a snapshot, and before the table was emptied."""
    number = start.sequence_number or 0
    later = [
        s
        for s in table.metadata.snapshots
        if (s.sequence_number or 0) > number or s.parent_snapshot_id == start.snapshot_id
    ]
    # Each snapshot has a number of its own (not in format version 1).
    have_expired = getattr(table.metadata, "last_sequence_number", 0) - number > len(later)
    kept = (Operation.REPLACE, Operation.DELETE)
    return have_expired or any(s.summary is None or s.summary.operation not in kept for s in later)


class TableBatch(Batch):
    """Rows that another system appended to a table, in the order of its snapshots.

    Attributes:
        why: what was done, if the source was emptied or its history is lost; else empty.
    """

    def __init__(self, lake: LakeBase, spec: RawSpec, raw: Table, pending: Window) -> None:
        super().__init__()
        self.lake, self.spec, self.raw, self.pending, self.source = lake, spec, raw, pending, pending.source
        self.why = ""

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        if self.pending.end is EMPTY:
            self.why = f"{self.source} is empty now"
            return
        with capture(self.lake, self.source, self.pending.start, self.pending.end) as captured:
            steps = captured.window.steps
        landed = _files_of(self.raw) if self.pending.lost else set[str]()
        before = self.pending.start
        for step in steps:
            if self._name(step) in landed:
                pass  # the source was rolled back to it
            elif before is None and self.pending.lost:
                yield from self._lacking(step)
            elif before is None or step.operation != "replace":  # compaction appends nothing
                # At the first landing, the oldest remaining snapshot holds the rows of all earlier ones.
                yield from self._appended(before, step)
            before = step.snapshot_id

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        if lost := self.pending.lost:
            self.why = (
                f"{lost.why}. {sum(counts.values()):,} records of {self.source} that {self.spec.table} lacked were "
                f"appended. Records that were appended to {self.source} since, and removed from it, are missing"
            )
            self.properties[GAP_PROPERTY] = self.why

    def _lacking(self, oldest: Point) -> Iterator[tuple[str, Record]]:
        """Yield the records of the oldest remaining snapshot that the raw table lacks; copies are counted."""
        lacking = Counter(_digest(record.text) for _, record in self._appended(None, oldest))
        for rows in self.raw.scan(selected_fields=("record",)).to_arrow_batch_reader() if lacking else ():
            for text in rows["record"].to_pylist():
                digest = _digest(text)
                if lacking.get(digest):
                    lacking[digest] -= 1
        self.parts = self.bytes = 0  # counted again
        for name, record in self._appended(None, oldest):
            digest = _digest(record.text)
            if lacking.get(digest):
                lacking[digest] -= 1
                yield name, record

    def _name(self, step: Point) -> str:
        return f"{self.source}@{step.snapshot_id}"

    def _appended(self, start: int | None, end: Point) -> Iterator[tuple[str, Record]]:
        name = self._name(end)
        with capture(self.lake, self.source, start, end.snapshot_id) as step:
            before, after = ({f.path for f in step.files if f.side == side} for side in ("before", "after"))
            if not after or (end.operation == "delete" and after <= before):
                return  # rows were removed, as whole files or by delete files
            if before:
                raise UnsupportedEventError(
                    f"snapshot {end.snapshot_id} of {self.source} rewrote files ({end.operation}), so its new records "
                    "cannot be distinguished from old ones. Records can only be landed from a table that is appended "
                    "to (old rows may be removed as whole files or by merge-on-read deletes). Read such a table in "
                    "models instead"
                )
            if missing := self.spec.missing_columns_text(step.columns):
                raise UnsupportedEventError(missing)
            self.parts += 1
            self.bytes += sum(f.bytes for f in step.files)
            with step.icdc() as tables:
                assert tables.after is not None
                scan = self.lake.catalog.load_table(TableId.parse(tables.after).parts).scan(
                    selected_fields=self.spec.record_columns
                )
                number = 0
                for rows in self._ordered(scan):
                    for row in rows:
                        number += 1
                        yield name, self._record(number, row)

    def _ordered(self, scan: Any) -> Iterator[list[dict[str, Any]]]:
        if self.spec.order:
            yield scan.to_arrow().sort_by([(c, "ascending") for c in self.spec.order]).to_pylist()
            return
        for batch in scan.to_arrow_batch_reader():
            yield batch.to_pylist()

    def _record(self, number: int, row: Mapping[str, Any]) -> Record:
        value = _bytes(row[self.spec.column], self.source, self.spec.column)
        if self.spec.key_column:
            key = _as_json(_bytes(row[self.spec.key_column], self.source, self.spec.key_column))
            value = b'{"key":' + key + b',"value":' + value + b"}"
        return as_record(number, value, self.spec.limits)


def _as_json(key: bytes) -> bytes:
    """Return a key as JSON: one that is other text, as StringConverter writes it, as a string."""
    try:
        orjson.loads(key)
    except orjson.JSONDecodeError:
        return orjson.dumps(key.decode("utf-8", "backslashreplace"))
    return key


def _bytes(value: Any, table: TableId, column: str) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise UnsupportedEventError(
        f"{table}: column {column} holds {type(value).__name__}, expected records as text or bytes"
    )


def _files_of(raw: Table) -> set[str]:
    """Return the names of the snapshots and files whose records a raw table holds."""
    batches = raw.scan(selected_fields=("source_file",)).to_arrow_batch_reader()
    return {name for rows in batches for name in rows["source_file"].unique().to_pylist()}


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
