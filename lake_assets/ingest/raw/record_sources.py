"""Batches of records to land in one commit, from files or Python, with the properties of that commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any

import orjson
import pyarrow.compute

from lake_assets.errors import InputError
from lake_assets.formats.files.limited_files import Limits, Record
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.file_ledger import LandedFile
from lake_assets.ingest.raw.landing_folder import as_record, fetched_ahead, records_of
from lake_assets.ingest.raw_tables import OFFSETS_PROPERTY, SCHEMA_HISTORY
from lake_assets.sources.live_source import RowLoad, Rows, Undecodable, Voiding

# Arrow's functions have no types.
pc: Any = pyarrow.compute
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

    def read(self) -> Iterator[tuple[str, Record | Rows]]:
        """Yield each record, or many that are alike, with the name of its file, source or snapshot."""
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

    def __init__(
        self,
        files: Sequence[RecordFile],
        enough: int | None,
        limits: Limits,
        last_files: Callable[[Sequence[RecordFile]], Mapping[str, str]],
    ) -> None:
        """
        Args:
            last_files: returns the properties that tell where the next listing begins, once these files have landed.
        """
        super().__init__(parts=len(files))
        self.last_files = last_files
        self.files, self.enough, self.limits = files, enough, limits

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        count = 0
        for i, fetch in enumerate(fetched_ahead(self.files)):
            try:
                file = fetch()
                for record in records_of(file, self.limits):
                    count += 1
                    yield file.name, record
            except InputError as e:
                raise UnreadableFileError(i, e) from e
            if self.enough is not None and count >= self.enough:
                self.files = self.files[: i + 1]
                self.parts = len(self.files)
                return

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        landed = [LandedFile(f.name, f.size, counts.get(f.name, 0), arrived_at) for f in self.files]
        self.bytes = sum(f.size for f in landed)
        self.properties[file_ledger.PROPERTY] = json.dumps([f.to_json() for f in landed])
        self.properties |= self.last_files(self.files)


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


class LiveBatch(Batch):
    """Records of a live source, and lines about its schema; the offset after them is committed as it is given."""

    def __init__(
        self, records: Sequence[bytes], history: Sequence[bytes], name: str, offsets: Mapping[str, Any], limits: Limits
    ) -> None:
        super().__init__(parts=1, bytes=sum(map(len, records)), source_name=name)
        self.records, self.history, self.offsets, self.limits = records, history, offsets, limits
        # Which records truncate a table whose rows arrive again.
        self.voiding = {n for n, record in enumerate(records, 1) if isinstance(record, Voiding)}

    def read(self) -> Iterator[tuple[str, Record]]:
        """See `Batch`."""
        for number, line in enumerate(self.history, 1):
            # Whole, however long: the source cannot go on without them.
            yield SCHEMA_HISTORY, as_record(number, line, replace(self.limits, record=max(len(line), 1)))
        for number, raw in enumerate(self.records, 1):
            record = as_record(number, raw, self.limits)
            if isinstance(raw, Undecodable) and not record.problem:
                record = record._replace(problem=raw.problem)
            yield self.source_name, record

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        self.properties[OFFSETS_PROPERTY] = json.dumps(self.offsets)


class LoadBatch(Batch):
    """All rows of tables of a live source; the offset after them is committed as it is given."""

    def __init__(self, load: RowLoad, name: str, offsets: Mapping[str, Any], limits: Limits) -> None:
        super().__init__(parts=1, source_name=name)
        self.load, self.offsets, self.limits = load, offsets, limits

    def read(self) -> Iterator[tuple[str, Record | Rows]]:
        """See `Batch`."""
        number = 0
        for rows in self.load.read():
            sizes = pc.binary_length(rows.records)
            self.bytes += pc.sum(sizes).as_py() or 0
            if len(rows.records) and pc.max(sizes).as_py() > self.limits.record:
                for n, text in enumerate(rows.records.to_pylist(), number + 1):
                    yield self.source_name, as_record(n, text.encode(), self.limits)
            else:
                yield self.source_name, rows
            number += len(rows.records)

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """See `Batch`."""
        self.properties[OFFSETS_PROPERTY] = json.dumps(self.offsets)
