"""Manifest lists and manifests, read and written as they are.

Values stay as Avro stores them (dates are days, decimals are bytes), so that an entry that is written again is the
entry that was read, whatever the format version and the partition spec. What the format leaves to be inherited
(snapshot id, sequence numbers, first row ids) is filled in while reading.

Source: https://iceberg.apache.org/spec/#manifests, "Manifest Entry Fields" and "Sequence Number Inheritance".
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException
from pyiceberg.io import FileIO

from lake_assets.errors import CorruptMetadataError, MissingDataFileError, UnsupportedCaptureError

THREADS = 16
# Above this many bytes a manifest is first read without its column statistics, which are most of it, and again for
# the entries that turn out to be captured: a merged manifest of 100,000 files would otherwise take gigabytes.
LARGE = 512 * 1024

DELETED = 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
_PARSED_HEADER = fastavro.parse_schema(_HEADER)
_STATISTICS = {
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "distinct_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
    "sort_order_id",
}
_UNREADABLE = (
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    StopIteration,
    struct.error,
    zlib.error,
    SchemaParseException,
)


@dataclass(frozen=True)
class AvroKind:
    """The schema and the key-value metadata of an Avro file: what is needed to write another of its kind."""

    schema: dict[str, Any]
    metadata: dict[str, str]
    text: str = field(repr=False)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroKind) and self.text == other.text


@dataclass(frozen=True, slots=True)
class Manifest:
    """One line of a manifest list."""

    path: str
    length: int
    spec_id: int
    holds_deletes: bool
    sequence_number: int
    min_sequence_number: int
    snapshot_id: int | None
    first_row_id: int | None
    entries: int | None
    """How many entries the list says that it has; None where a v1 list does not say."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a snapshot, with everything inherited filled in."""

    manifest: Manifest
    kind: AvroKind
    raw: dict[str, Any]
    complete: bool
    """Whether the column statistics were read too."""

    @property
    def file(self) -> dict[str, Any]:
        return self.raw["data_file"]

    @property
    def path(self) -> str:
        return self.file["file_path"]

    @property
    def content(self) -> int:
        return self.file.get("content") or DATA

    @property
    def snapshot_id(self) -> int | None:
        return self.raw["snapshot_id"]

    @property
    def sequence_number(self) -> int:
        """The data sequence number: deletes apply by it."""
        return self.raw.get("sequence_number") or 0

    @property
    def records(self) -> int:
        return self.file["record_count"]

    @property
    def bytes(self) -> int:
        return self.file.get("content_size_in_bytes") or self.file["file_size_in_bytes"]

    @property
    def spec_id(self) -> int:
        return self.manifest.spec_id

    @property
    def partition(self) -> tuple[Any, ...]:
        return tuple((self.file.get("partition") or {}).values())

    @property
    def first_row_id(self) -> int | None:
        return self.file.get("first_row_id")

    @property
    def offset(self) -> int:
        """Where a deletion vector starts in its Puffin file, which may hold several."""
        return self.file.get("content_offset") or 0


class ManifestReader:
    """Reads manifest lists and manifests of one table through its FileIO."""

    def __init__(self, file_io: FileIO) -> None:
        self._io = file_io
        self.opened = 0
        """How many manifests were opened: what planning costs."""

    def manifest_list(self, path: str) -> tuple[list[Manifest], AvroKind]:
        """The manifests of a snapshot and the list's own Avro schema."""
        records, kind = self._read(path, light=False)
        return [_manifest(r, path) for r in records], kind

    def entries(self, manifests: Iterable[Manifest]) -> list[Entry]:
        """The live entries of `manifests`, read by several threads; large manifests without column statistics."""
        todo = list(manifests)
        if len(todo) == 1:
            return self._entries(todo[0], light=todo[0].length > LARGE)
        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(lambda m: self._entries(m, light=m.length > LARGE), todo))
        return [e for part in parts for e in part]

    def completed(self, entries: Sequence[Entry]) -> list[Entry]:
        """`entries` in their order, the statistics of those that were read without them added."""
        wanted: dict[Manifest, set[str]] = {}
        for e in entries:
            if not e.complete:
                wanted.setdefault(e.manifest, set()).add(e.path)
        if not wanted:
            return list(entries)
        with ThreadPoolExecutor(THREADS) as pool:
            parts = pool.map(lambda m: self._entries(m, light=False, paths=wanted[m]), wanted)
        full = {(e.manifest.path, e.path, e.offset, e.sequence_number): e for part in parts for e in part}
        return [e if e.complete else full[e.manifest.path, e.path, e.offset, e.sequence_number] for e in entries]

    def _entries(self, manifest: Manifest, *, light: bool, paths: set[str] | None = None) -> list[Entry]:
        self.opened += 1
        # Deletes are matched to files by their bounds, so that they are needed whole.
        light = light and not manifest.holds_deletes
        records, kind = self._read(manifest.path, light=light, length=manifest.length)
        out, seen = [], 0
        next_row_id = manifest.first_row_id
        for raw in records:
            seen += 1
            if raw["status"] == DELETED:
                continue
            file = raw["data_file"]
            if raw.get("snapshot_id") is None:
                raw["snapshot_id"] = manifest.snapshot_id
            # Only an added entry may lack them, and all of a v1 manifest, whose own number is 0.
            for name in ("sequence_number", "file_sequence_number"):
                if raw.get(name) is None:
                    raw[name] = manifest.sequence_number
            if manifest.first_row_id is None:
                file["first_row_id"] = None
            elif file.get("first_row_id") is None and next_row_id is not None:
                file["first_row_id"] = next_row_id
                next_row_id += file["record_count"]
            if paths is None or file["file_path"] in paths:
                if file.get("key_metadata"):
                    raise UnsupportedCaptureError(
                        f"{file['file_path']} is encrypted: it cannot be captured without its key"
                    )
                out.append(Entry(manifest, kind, raw, complete=not light))
        if manifest.entries is not None and seen != manifest.entries:
            raise CorruptMetadataError(
                f"manifest {manifest.path} has {seen} entries where its snapshot says {manifest.entries}: it was cut or "
                "replaced. Restore the file from a backup; nothing was captured"
            )
        return out

    def _read(self, path: str, *, light: bool, length: int | None = None) -> tuple[Iterator[dict[str, Any]], AvroKind]:
        """The records of an Avro file, logical types left raw."""
        try:
            with self._io.new_input(path).open() as f:
                content = f.read()
        except FileNotFoundError as e:
            raise MissingDataFileError(
                f"metadata file {path} is gone: restore it, or start again from a full capture"
            ) from e
        if length is not None and len(content) != length:
            raise CorruptMetadataError(
                f"manifest {path} has {len(content)} bytes where its snapshot says {length}: it was cut or replaced. "
                "Restore the file from a backup; nothing was captured"
            )
        with unreadable(path):
            return _records(content, light=light, path=path)


class unreadable:
    """Turns what a broken file makes a parser raise into CorruptMetadataError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, _: object) -> None:
        if isinstance(e, _UNREADABLE):
            raise CorruptMetadataError(
                f"metadata file {self._path} cannot be read ({type(e).__name__}: {e}). Restore it from a backup; nothing "
                "was captured"
            ) from e


def _records(content: bytes, *, light: bool, path: str) -> tuple[Iterator[dict[str, Any]], AvroKind]:
    header_at = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(header_at, _PARSED_HEADER, None)
    if header["magic"] != b"Obj\x01":
        raise ValueError("no Avro file")
    text = header["meta"]["avro.schema"].decode()
    metadata = {k: v.decode() for k, v in header["meta"].items() if not k.startswith("avro.")}
    schema = json.loads(text)
    kind = AvroKind(schema, metadata, text)
    plain = _without_logical_types(schema)
    # fastavro has no switch for logical types, so that the file is given another header. They would turn dates and
    # decimals into Python objects, which costs time, and fail on years that Python does not have.
    rest = io.BytesIO()
    meta = {**header["meta"], "avro.schema": json.dumps(plain).encode()}
    fastavro.schemaless_writer(rest, _PARSED_HEADER, {**header, "meta": meta})
    rest.write(memoryview(content)[header_at.tell() :])
    rest.seek(0)
    wanted = _light(plain) if light else None
    return _checked(fastavro.reader(rest, reader_schema=wanted), path), kind


def _checked(records: Iterable[Any], path: str) -> Iterator[dict[str, Any]]:
    with unreadable(path):
        yield from records


def _manifest(r: dict[str, Any], path: str) -> Manifest:
    with unreadable(path):
        counts = [
            r.get(f"{what}_files_count", r.get(f"{what}_data_files_count")) for what in ("added", "existing", "deleted")
        ]
        return Manifest(
            path=r["manifest_path"],
            length=r["manifest_length"],
            spec_id=r["partition_spec_id"],
            holds_deletes=r.get("content") == 1,
            sequence_number=r.get("sequence_number") or 0,
            min_sequence_number=r.get("min_sequence_number") or 0,
            snapshot_id=r.get("added_snapshot_id"),
            first_row_id=r.get("first_row_id"),
            entries=sum(counts) if None not in counts else None,
        )


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(s) for s in schema]
    return schema


def _light(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of manifest entries without the fields in `_STATISTICS`."""
    fields = []
    for f in schema["fields"]:
        if f["name"] == "data_file":
            file = {**f["type"], "fields": [g for g in f["type"]["fields"] if g["name"] not in _STATISTICS]}
            f = {**f, "type": file}
        fields.append(f)
    return {**schema, "fields": fields}


def encode(kind: AvroKind, records: Sequence[dict[str, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """An Avro file of `kind` that holds `records`."""
    out = io.BytesIO()
    fastavro.writer(out, kind.schema, records, metadata=metadata or kind.metadata, codec="deflate")
    return out.getvalue()
