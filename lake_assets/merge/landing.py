"""Landing: new files of a folder become rows of a raw table, as they came, each file exactly once.

All new files of a batch are one commit: readers see all of their records or none. A file that is cut in the middle or
holds a record that is none of its format stops the batch before anything is written to the table.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import orjson
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.capture import capture
from lake_assets.errors import (
    ConcurrentWriteError,
    InputError,
    MalformedRecordError,
    SnapshotExpiredError,
    TruncatedInputError,
)
from lake_assets.events import EventFormat, SourceTable
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.watermark import PIPELINE_PROPERTY, find_property
from lake_assets.merge import ledger
from lake_assets.merge.ledger import LandedFile
from lake_assets.merge.tables import check_owner

POSITION_PROPERTY = "lake-assets.position"
ROUTES_PROPERTY = "lake-assets.source-tables"
ROWS_A_BATCH, BYTES_A_BATCH, FILES_A_COMMIT = 50_000, 64 << 20, 1_000

RAW_SCHEMA = Schema(
    NestedField(1, "position", LongType(), required=True, doc="order of arrival in this table, without gaps"),
    NestedField(2, "source_table", StringType(), doc="the table that the record is about; null: about none"),
    NestedField(3, "source_file", StringType(), required=True),
    NestedField(4, "source_line", LongType(), required=True, doc="counted from 1"),
    NestedField(5, "arrived_at", TimestamptzType(), required=True),
    NestedField(6, "record", StringType(), required=True, doc="the line as it came"),
)
_ARROW: pa.Schema = pa.schema(
    [f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in RAW_SCHEMA.as_arrow()]
)
# PyIceberg writes format version 2; the record itself needs no bounds, the table it is about needs them whole.
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.metadata.metrics.column.record": "none",
    "write.metadata.metrics.column.source_table": "full",
    "history.expire.min-snapshots-to-keep": "20",
}


@dataclass(frozen=True)
class Landed:
    """What a landing took in."""

    files: int
    records: int
    bytes: int
    snapshot: int | None


def ensure_raw(lake: LakeBase, table: TableId, pipeline: str) -> Table:
    """The raw table, made if it is not there."""
    if not lake.exists(table):
        lake.ensure_namespace(table.namespace)
        try:
            return lake.catalog.create_table(
                table.parts, RAW_SCHEMA, properties={**_PROPERTIES, PIPELINE_PROPERTY: pipeline}
            )
        except TableAlreadyExistsError:
            return lake.table(table)  # another process was quicker
    return lake.table(table)


def new_files(lake: LakeBase, table: TableId, folder: Path) -> list[Path]:
    """Files of `folder` that are not in the raw table yet, by name. Reads metadata and the listing only."""
    there = listing(folder)
    if not there or not lake.exists(table):
        return there
    return _unseen(there, ledger.seen(lake, table))


def _unseen(files: Sequence[Path], seen: dict[str, int]) -> list[Path]:
    return [f for f in files if ledger.is_new(f, seen)]


def listing(folder: Path) -> list[Path]:
    """The landing folder's files in the order of their names; hidden and unfinished ones (`.`, `_`, `.tmp`) left out.

    A folder that does not exist yet holds nothing: whoever fills it makes it.
    """
    if not folder.is_dir():
        return []
    return sorted(
        p for p in folder.iterdir() if p.is_file() and p.name[0] not in "._" and p.suffix not in (".tmp", ".part")
    )


def routes(lake: LakeBase, table: TableId) -> list[SourceTable]:
    """The source tables that records have come for so far, as the landings' commits say."""
    return _routes(lake.table(table)) if lake.exists(table) else []


def _routes(raw: Table) -> list[SourceTable]:
    found = find_property(raw, ROUTES_PROPERTY)
    return [SourceTable.parse(r) for r in json.loads(found[0])] if found else []


def land(lake: LakeBase, table: TableId, folder: Path, event_format: EventFormat, pipeline: str) -> Landed:
    """Take in what is new in `folder`.

    Raises:
        TruncatedInputError, MalformedRecordError: a file is not what it should be; names file and line. The table is
            as it was.
        ChangedInputError: a file that was taken in has another size now.
        ConcurrentWriteError: another process landed beside this one; nothing of this batch is in the table.
        TableClaimedError: the raw table belongs to another pipeline.
    """
    raw = ensure_raw(lake, table, pipeline)
    check_owner(lake, table, pipeline)
    ledger.catch_up(lake, table)
    total = Landed(0, 0, 0, raw.metadata.current_snapshot_id)
    while there := listing(folder):
        # The table that the batch is committed to is the one that did not have its files: where another process lands
        # them in between, the commit is refused.
        raw, seen = ledger.seen_by(lake, table)
        files = _unseen(there, seen)[:FILES_A_COMMIT]
        if not files:
            break
        landed = _commit_batch(lake, table, raw, files, event_format)
        total = Landed(
            total.files + landed.files, total.records + landed.records, total.bytes + landed.bytes, landed.snapshot
        )
        ledger.catch_up(lake, table)
    return total


def _next_position(lake: LakeBase, table: TableId, raw: Table) -> int:
    found = find_property(raw, POSITION_PROPERTY)
    if found or raw.metadata.current_snapshot_id is None:
        return int(found[0]) if found else 0
    # The snapshots that said so have expired; the bounds of the data files still know.
    with capture(lake, table, None, raw.metadata.current_snapshot_id) as everything:
        highest = everything.ranges["position"].high
    if highest is None:
        raise SnapshotExpiredError(
            f"{table} does not tell which positions are taken: its landings' snapshots have expired and its data files "
            "have no bounds of `position`. Rewrite its data files with metrics of that column (`full`), and run again"
        )
    return highest + 1


def _commit_batch(
    lake: LakeBase, table: TableId, raw: Table, files: Sequence[Path], event_format: EventFormat
) -> Landed:
    reading = _Reading(event_format, _next_position(lake, table, raw), {str(r) for r in _routes(raw)})
    # A commit that finds the table moved must not be tried again as it is: the other one may have landed the same
    # files, and these positions would be given twice. Only this process's copy of the table's properties is changed.
    raw.metadata.properties["commit.retry.num-retries"] = "0"
    transaction = raw.transaction()
    properties: dict[str, str] = {}
    try:
        # The properties are filled while the files are read, before the snapshot's summary is made of them.
        transaction.append(
            pa.RecordBatchReader.from_batches(_ARROW, reading.batches(files, properties)),
            snapshot_properties=properties,
        )
        transaction.commit_transaction()
    except CommitFailedException as e:
        raise ConcurrentWriteError(f"{table}: another process landed files at the same time") from e
    return Landed(
        len(files), reading.position - reading.first, sum(f.size for f in reading.landed), _current(lake, table)
    )


def _current(lake: LakeBase, table: TableId) -> int | None:
    return lake.table(table).metadata.current_snapshot_id


class _Reading:
    """Reads files into record batches and counts positions on the way."""

    def __init__(self, event_format: EventFormat, position: int, routes: set[str]) -> None:
        self.event_format, self.routes = event_format, routes
        self.first = self.position = position
        self.landed: list[LandedFile] = []
        self.arrived_at = datetime.now(UTC)

    def batches(self, files: Sequence[Path], properties: dict[str, str]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[int, str | None, str, int, datetime, str]] = []
        size = 0
        for file in files:
            first = self.position
            for number, line in lines(file):
                source_table = self._route(file, number, line)
                if source_table:
                    self.routes.add(source_table)
                rows.append((self.position, source_table, file.name, number, self.arrived_at, line))
                self.position += 1
                size += len(line)
                if len(rows) >= ROWS_A_BATCH or size >= BYTES_A_BATCH:
                    yield _batch(rows)
                    rows, size = [], 0
            self.landed.append(LandedFile(file.name, file.stat().st_size, self.position - first, self.arrived_at))
        if rows:
            yield _batch(rows)
        properties[POSITION_PROPERTY] = str(self.position)
        properties[ROUTES_PROPERTY] = json.dumps(sorted(self.routes))
        properties[ledger.PROPERTY] = json.dumps([f.to_json() for f in self.landed])

    def _route(self, file: Path, number: int, line: str) -> str | None:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as e:
            raise MalformedRecordError(
                f"{file}, line {number}: not JSON ({e}): {line[:120]!r}. Nothing of this batch was taken in; correct "
                f"or "
                "remove the file"
            ) from e
        try:
            routed = self.event_format.route(record)
        except InputError as e:
            raise MalformedRecordError(
                f"{file}, line {number}: {e}: {line[:120]!r}. Nothing of this batch was taken in"
            ) from e
        return str(routed) if routed else None


def _batch(rows: list[tuple[int, str | None, str, int, datetime, str]]) -> pa.RecordBatch:
    # Records of one table beside each other: a reader of one table skips the row groups and pages of all others.
    rows.sort(key=lambda r: (r[1] or "", r[0]))
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, type=f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file (gzip if it is named .gz) with their numbers from 1, blank ones left out.

    Raises:
        TruncatedInputError: the file ends in the middle of a record (or of its compressed stream).
        MalformedRecordError: bytes that are no UTF-8.
    """
    number = 0
    if file.suffix == ".gz" and not file.stat().st_size:
        raise TruncatedInputError(
            f"{file}, after line 0: an empty file is no gzip stream. Nothing of this batch was taken in; deliver the "
            "whole file (write elsewhere, then rename into the folder)"
        )
    try:
        with _open(file) as stream:
            for raw in stream:
                number += 1
                text = raw.decode("utf-8").rstrip("\r\n")
                if not raw.endswith(b"\n") and text and not _is_json(text):
                    raise TruncatedInputError(
                        f"{file}, line {number}: the file ends in the middle of a record ({text[-60:]!r}). Nothing "
                        f"of this "
                        "batch was taken in; deliver the whole file (write elsewhere, then rename into the folder)"
                    )
                if text.strip():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise TruncatedInputError(
            f"{file}, after line {number}: the compressed stream is cut or damaged ({e}). Nothing of this batch was "
            f"taken "
            "in; deliver the whole file"
        ) from e
    except UnicodeDecodeError as e:
        raise MalformedRecordError(f"{file}, line {number}: not UTF-8 ({e})") from e


def _open(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
