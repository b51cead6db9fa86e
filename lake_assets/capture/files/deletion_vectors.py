"""Deletion vectors: which rows of a data file a snapshot does not show.

The rows that a window deleted from a file are those that the end's vector names and the start's does not. A vector
that names all the others makes readers give exactly these rows, by position and without comparing anything.

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

from lake_assets.capture.capture_planning import Plan, Side
from lake_assets.capture.files.avro_files import unreadable
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.manifests import POSITION_DELETES, Entry
from lake_assets.capture.files.row_ids import RowIds
from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError

_MAGIC, _PUFFIN = b"\xd1\xd3\x39\x64", b"PFA1"
_BLOB = "deletion-vector-v1"
# Reserved field id of a row's position, which a vector is about.
_POSITION_ID = 2147483645


@dataclass(frozen=True)
class DeletedRows:
    """What has to be read to know which rows of the start the end does not have.

    Attributes:
        before: files of the start, of those that the end has too with the rows alone that it does not show.
        after: files of the end in which rows of the start may be carried along.
        puffin: the content of the file that the new vectors are in.
        is_restored: whether rows came back, so that more has to be compared than what went; nothing else is told then.
    """

    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    puffin: bytes = b""
    is_restored: bool = False


def deleted_rows(
    io: FileIO, planned: Plan, unpartitioned: frozenset[int], path: str, ids: RowIds
) -> DeletedRows | None:
    """What went, by vectors; None: no file has rows that vectors tell.

    Args:
        io: reads the vectors.
        planned: a plan in which rows have lineage.
        unpartitioned: ids of the partition specs without fields.
        path: where the new vectors are going to be.
        ids: what row ids say about the window.

    Raises:
        MissingDataFileError, CorruptMetadataError: a vector cannot be read.
    """
    was, now = DeleteIndex(planned.before.deletes, unpartitioned), DeleteIndex(planned.after.deletes, unpartitioned)
    ends = {e.path: e for e in planned.after.data}
    pairs: dict[str, tuple[Entry, list[Entry], list[Entry]]] = {}
    for e in planned.before.data:
        if e.path in planned.shared and e.path in ends:
            applying = was.applying_to(e), now.applying_to(ends[e.path])
            if all(is_vector(d) for ds in applying for d in ds) and all(len(ds) <= 1 for ds in applying):
                pairs[e.path] = (e, *applying)
            elif {_place(d) for d in applying[0]} - {_place(d) for d in applying[1]}:
                return DeletedRows(is_restored=True)
    bitmaps = _read(io, [d for _, *both in pairs.values() for ds in both for d in ds])
    puffin, vectors, told = _Puffin(path), list[Entry](), set[str]()
    empty = BitMap64()
    for name, (e, before, after) in pairs.items():
        then, here = (bitmaps[_place(ds[0])] if ds else empty for ds in (before, after))
        if not then <= here:
            return DeletedRows(is_restored=True)
        told.add(name)
        if went := here - then:
            rest = BitMap64(range(e.records))
            rest -= went
            vectors.append(puffin.add(e, (after or before)[0], rest))
    if not told:
        return None
    changed = {v.file["referenced_data_file"] for v in vectors}
    kept = [e for e in planned.before.data if e.path not in told]
    standing = {_place(d): d for e in kept for d in was.applying_to(e)}
    data = (*kept, *(e for e in planned.before.data if e.path in changed))
    before_side = replace(planned.before, data=data, deletes=(*standing.values(), *vectors)) if data else Side()
    carried = tuple(e for e in planned.after.data if e.path not in told and ids.may_carry(e))
    applying_there = {_place(d): d for e in carried for d in now.applying_to(e)}
    after_side = replace(planned.after, data=carried, deletes=tuple(applying_there.values())) if carried else Side()
    content = puffin.content()
    return DeletedRows(replace(before_side, deletes=tuple(_sized(d, path, len(content)) for d in before_side.deletes)),
                after_side, content)  # fmt: skip


def is_vector(e: Entry) -> bool:
    """Whether a delete file is a deletion vector."""
    return (
        e.content == POSITION_DELETES
        and e.file.get("content_offset") is not None
        and bool(e.file.get("referenced_data_file"))
    )


def _place(e: Entry) -> tuple[str, int]:
    return e.path, e.offset


def _read(io: FileIO, vectors: Iterable[Entry]) -> Mapping[tuple[str, int], BitMap64]:
    by_file: dict[str, list[Entry]] = {}
    for e in vectors:
        by_file.setdefault(e.path, []).append(e)
    found: dict[tuple[str, int], BitMap64] = {}
    for path, entries in by_file.items():
        with io.new_input(path).open() as f:
            for e in entries:
                f.seek(e.offset)
                found[_place(e)] = _decoded(f.read(e.file["content_size_in_bytes"]), e)
    return found


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


class _Puffin:
    """A file of vectors."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content = bytearray(_PUFFIN)
        self._blobs: list[dict[str, object]] = []

    def add(self, data: Entry, like: Entry, deleted: BitMap64) -> Entry:
        """Put in a vector for a data file; returns its entry, made like that of another vector."""
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
                "properties": {"referenced-data-file": data.path, "cardinality": str(rows)},
            }
        )
        file = {
            **like.file,
            "file_path": self._path,
            "record_count": rows,
            "content_offset": offset,
            "content_size_in_bytes": len(blob),
            "referenced_data_file": data.path,
        }
        # As old as the file itself, so that no snapshot is too old to see it.
        number = data.sequence_number
        raw = {**like.raw, "sequence_number": number, "file_sequence_number": number, "data_file": file}
        return replace(like, raw=raw)

    def content(self) -> bytes:
        """The whole file."""
        footer = json.dumps({"blobs": self._blobs, "properties": {"created-by": "lake_assets"}}).encode()
        return bytes(self._content) + _PUFFIN + footer + struct.pack("<i", len(footer)) + bytes(4) + _PUFFIN


def _sized(e: Entry, path: str, size: int) -> Entry:
    """With the size of the file that it is in."""
    if e.path != path:
        return e
    return replace(e, raw={**e.raw, "data_file": {**e.file, "file_size_in_bytes": size}})
