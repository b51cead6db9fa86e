"""Deletion vectors: bitmaps of the deleted rows of a data file.

A window deleted the rows that are in the end's vector but not in the start's. To read exactly these rows, a new vector
deletes all others: readers then select rows by position, without comparing values.

Source: https://iceberg.apache.org/puffin-spec/#deletion-vector-v1-blob-type
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO
from pyroaring import BitMap64

from lake_assets.capture.files.avro_files import unreadable
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.manifests import POSITION_DELETES, Entry
from lake_assets.capture.files.planned_files import Plan, Side
from lake_assets.capture.files.row_ids import RowIds
from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError

_MAGIC, _PUFFIN = b"\xd1\xd3\x39\x64", b"PFA1"
_BLOB = "deletion-vector-v1"
# Reserved field id of a row's position.
_POSITION_ID = 2147483645


@dataclass(frozen=True)
class DeletedRows:
    """The files to read to find the rows of the start that are missing at the end.

    Attributes:
        before: files of the start; if the end has a file too, only its rows that were deleted since.
        after: files of the end into which rows of the start may have been carried over.
        puffin: content of the file with the new vectors.
        is_restored: whether deleted rows came back, so all rows have to be compared; the other attributes are empty.
    """

    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    puffin: bytes = b""
    is_restored: bool = False


def deleted_rows(
    io: FileIO, planned: Plan, unpartitioned: frozenset[int], path: str, ids: RowIds
) -> DeletedRows | None:
    """Find the deleted rows by vectors; None if no file's deleted rows are identified by vectors.

    Args:
        ids: row ids in the window.

    Raises:
        MissingDataFileError, CorruptMetadataError: a vector cannot be read.
    """
    deletes_before, deletes_after = (
        DeleteIndex(planned.before.deletes, unpartitioned),
        DeleteIndex(planned.after.deletes, unpartitioned),
    )
    by_path = {e.path: e for e in planned.after.data}
    pairs: dict[str, tuple[Entry, list[Entry], list[Entry]]] = {}
    for e in planned.before.data:
        if e.path in planned.shared and e.path in by_path:
            applying = deletes_before.applying_to(e), deletes_after.applying_to(by_path[e.path])
            if all(is_vector(d) for ds in applying for d in ds) and all(len(ds) <= 1 for ds in applying):
                pairs[e.path] = (e, *applying)
            elif {_blob_key(d) for d in applying[0]} - {_blob_key(d) for d in applying[1]}:
                return DeletedRows(is_restored=True)
    bitmaps = read_vectors(io, [d for _, *both in pairs.values() for ds in both for d in ds])
    puffin, vectors, covered = Puffin(path), list[Entry](), set[str]()
    empty = BitMap64()
    for name, (e, before, after) in pairs.items():
        deleted_then, deleted_now = (bitmaps[_blob_key(ds[0])] if ds else empty for ds in (before, after))
        if not deleted_then <= deleted_now:
            return DeletedRows(is_restored=True)
        covered.add(name)
        if newly_deleted := deleted_now - deleted_then:
            rest = BitMap64(range(e.records))
            rest -= newly_deleted
            vectors.append(puffin.add(e, (after or before)[0], rest))
    if not covered:
        return None
    with_vectors = {v.file["referenced_data_file"] for v in vectors}
    uncovered = [e for e in planned.before.data if e.path not in covered]
    kept_deletes = {_blob_key(d): d for e in uncovered for d in deletes_before.applying_to(e)}
    data = (*uncovered, *(e for e in planned.before.data if e.path in with_vectors))
    before_side = replace(planned.before, data=data, deletes=(*kept_deletes.values(), *vectors)) if data else Side()
    carried = tuple(e for e in planned.after.data if e.path not in covered and ids.may_carry(e))
    carried_deletes = {_blob_key(d): d for e in carried for d in deletes_after.applying_to(e)}
    after_side = replace(planned.after, data=carried, deletes=tuple(carried_deletes.values())) if carried else Side()
    content = puffin.content()
    deletes = tuple(_with_size(d, path, len(content)) for d in before_side.deletes)
    return DeletedRows(replace(before_side, deletes=deletes), after_side, content)


def is_vector(e: Entry) -> bool:
    """Whether a delete file is a deletion vector."""
    return (
        e.content == POSITION_DELETES
        and e.file.get("content_offset") is not None
        and bool(e.file.get("referenced_data_file"))
    )


def _blob_key(e: Entry) -> tuple[str, int]:
    return e.path, e.offset


def read_vectors(io: FileIO, vectors: Iterable[Entry]) -> Mapping[tuple[str, int], BitMap64]:
    """Return the deleted positions of deletion vectors, by path and offset.

    Raises:
        CorruptMetadataError: a vector is broken.
    """
    by_file: dict[str, list[Entry]] = {}
    for e in vectors:
        by_file.setdefault(e.path, []).append(e)
    bitmaps: dict[tuple[str, int], BitMap64] = {}
    for path, entries in by_file.items():
        with io.new_input(path).open() as f:
            for e in entries:
                f.seek(e.offset)
                bitmaps[_blob_key(e)] = _decoded(f.read(e.file["content_size_in_bytes"]), e)
    return bitmaps


def _decoded(blob: bytes, e: Entry) -> BitMap64:
    with unreadable(e.path):
        (length,) = struct.unpack(">i", blob[:4])
        body, (checksum,) = blob[4 : 4 + length], struct.unpack(">I", blob[4 + length : 8 + length])
        if body[:4] != _MAGIC or zlib.crc32(body) != checksum:
            raise CorruptMetadataError(
                f"the deletion vector at byte {e.offset} of {e.path} is broken (its checksum differs). Nothing "
                f"was captured. {LOST_FILE_ADVICE}"
            )
        return BitMap64.deserialize(body[4:])


class Puffin:
    """Builds a Puffin file of deletion vectors."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content = bytearray(_PUFFIN)
        self._blobs: list[dict[str, object]] = []

    def add(self, data: Entry, like: Entry, deleted: BitMap64) -> Entry:
        """Add a vector for a data file; return its manifest entry, modelled on the entry of another vector."""
        offset, length, rows = self.write(data.path, deleted)
        file = {
            **like.file,
            "file_path": self._path,
            "record_count": rows,
            "content_offset": offset,
            "content_size_in_bytes": length,
            "referenced_data_file": data.path,
        }
        # The sequence number of the data file, so the vector applies in every snapshot.
        number = data.sequence_number
        raw = {**like.raw, "sequence_number": number, "file_sequence_number": number, "data_file": file}
        return replace(like, raw=raw)

    def write(self, path: str, deleted: BitMap64) -> tuple[int, int, int]:
        """Add a vector for the data file `path`; return its offset, its length in bytes and its number of rows."""
        body = _MAGIC + deleted.serialize()
        blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        offset, rows = len(self._content), len(deleted)
        self._content += blob
        self._blobs.append(
            {
                "type": _BLOB,
                "fields": [_POSITION_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(rows)},
            }
        )
        return offset, len(blob), rows

    def content(self) -> bytes:
        """Return the content of the file."""
        footer = json.dumps({"blobs": self._blobs, "properties": {"created-by": "lake_assets"}}).encode()
        return bytes(self._content) + _PUFFIN + footer + struct.pack("<i", len(footer)) + bytes(4) + _PUFFIN


def _with_size(e: Entry, path: str, size: int) -> Entry:
    """Set the file size of the entries in the Puffin file `path`."""
    if e.path != path:
        return e
    return replace(e, raw={**e.raw, "data_file": {**e.file, "file_size_in_bytes": size}})
