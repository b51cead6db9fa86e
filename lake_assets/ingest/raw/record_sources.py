"""Batches of records to land in one commit, from files, Python or a table, with the properties of that commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from lake_assets.capture import Point, capture
from lake_assets.errors import InputError, NotAnAncestorError, SnapshotExpiredError, UnsupportedEventError
from lake_assets.formats.files.file_streams import Limits, Record
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.file_ledger import LandedFile
from lake_assets.ingest.raw.landing_folder import as_record, name_of, records_of
from lake_assets.ingest.raw.raw_tables import OFFSETS_PROPERTY
from lake_assets.lake import LakeBase, TableId

Read = Callable[[Any], Iterable[tuple[Any, str | bytes | Mapping[str, Any]]]]


@dataclass
class Batch:
    """The records of one commit, and its properties.

    Attributes:
        properties: snapshot properties of the commit, complete after `end`.
        parts: number of files, or of snapshots of a table.
        bytes: their size.
        source_name: the name of their source. Records of one source are ordered.
    """

    properties: dict[str, str] = field(default_factory=dict[str, str])
    parts: int = 0
    bytes: int = 0
    source_name: str = ""

    def read(self) -> Iterator[tuple[str, Record]]:
        """Yield each record with the name of its file, source or snapshot."""
        raise NotImplementedError

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """Complete the properties after all records are read; `counts`: records by file."""


class UnreadableFileError(Exception):
    """A file of a batch cannot be read: its index in the batch, and the cause."""

    def __init__(self, index: int, cause: InputError) -> None:
        super().__init__(str(cause))
        self.index, self.cause = index, cause


class FileBatch(Batch):
    """Whole files, up to the one that completes `enough` records."""

    def __init__(self, files: Sequence[Path], enough: int | None, limits: Limits) -> None:
        super().__init__(parts=len(files))
        self.files, self.enough, self.limits = files, enough, limits

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        count = 0
        for i, file in enumerate(self.files):
            try:
                for record in records_of(file, self.limits):
                    count += 1
                    yield name_of(file), record
            except InputError as e:
                raise UnreadableFileError(i, e) from e
            if self.enough is not None and count >= self.enough:
                self.files = self.files[: i + 1]
                self.parts = len(self.files)
                return

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        landed = [LandedFile(name_of(f), f.stat().st_size, counts.get(name_of(f), 0), arrived_at) for f in self.files]
        self.bytes = sum(f.size for f in landed)
        self.properties[file_ledger.PROPERTY] = json.dumps([f.to_json() for f in landed])


class PythonBatch(Batch):
    """Records that Python code yields, at most `most`; the rest is for the next commit."""

    def __init__(self, source: Read, name: str, offsets: Mapping[str, Any], most: int, limits: Limits) -> None:
        super().__init__(parts=1, source_name=name)
        self.name, self.offsets, self.most, self.limits = name, offsets, most, limits
        self.offset = offsets.get(name)
        self.is_cut = False
        self.records = iter(source(self.offset))
        self.first = next(self.records, None)

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        first = [self.first] if self.first is not None else []
        for number, (offset, record) in enumerate(chain(first, self.records), 1):
            raw = record.encode() if isinstance(record, str) else record
            raw = raw if isinstance(raw, bytes) else orjson.dumps(raw)
            self.offset = offset
            self.bytes += len(raw)
            yield self.name, as_record(number, raw, self.limits)
            if number >= self.most:
                self.is_cut = True
                return

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        self.properties[OFFSETS_PROPERTY] = json.dumps({**self.offsets, self.name: self.offset})


class TableBatch(Batch):
    """Rows that another system appended to a table, in the order of its snapshots."""

    def __init__(self, lake: LakeBase, spec: RawSpec, source: TableId, start: int | None, end: int) -> None:
        super().__init__()
        self.lake, self.spec, self.source, self.start, self.head = lake, spec, source, start, end

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        lost = self._unknown_records("has lost snapshots that were not landed")
        try:
            with capture(self.lake, self.source, self.start, self.head) as captured:
                window = captured.window
        except SnapshotExpiredError as e:
            raise SnapshotExpiredError(lost) from e
        # At the first landing, the oldest remaining snapshot holds the rows of all earlier ones.
        if self.start is not None and window.divergence:
            raise NotAnAncestorError(self._unknown_records(f"has another history now ({window.divergence.reason})"))
        if self.start is not None and not window.is_complete:
            raise SnapshotExpiredError(lost)
        before = self.start
        for step in window.steps:
            if before is None or step.operation != "replace":  # compaction appends nothing
                yield from self._appended(before, step)
            before = step.snapshot_id

    def _unknown_records(self, what: str) -> str:
        return (
            f"{self.source} {what}, so the records appended since snapshot {self.start} are unknown. Drop "
            f"{self.spec.table} and run again to land all rows that it holds now, then `lake-assets rebuild` the "
            "staging tables of this stream, and the final tables"
        )

    def _appended(self, start: int | None, end: Point) -> Iterator[tuple[str, Record]]:
        name = f"{self.source}@{end.snapshot_id}"
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
            if missing := self.spec.missing_columns(step.columns):
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
            key = _bytes(row[self.spec.key_column], self.source, self.spec.key_column)
            value = b'{"key":' + key + b',"value":' + value + b"}"
        return as_record(number, value, self.spec.limits)


def _bytes(value: Any, table: TableId, column: str) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise UnsupportedEventError(
        f"{table}: column {column} holds {type(value).__name__}, expected records as text or bytes"
    )
