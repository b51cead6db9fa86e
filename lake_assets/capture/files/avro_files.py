"""Read and write the Avro files of Iceberg's metadata without converting values.

Dates stay days and decimals stay bytes, so a rewritten entry equals the entry that was read, whatever the format
version and the partition spec.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec

from lake_assets.capture.files.avro_scan import DECODER, RecordScan
from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError
from lake_assets.lake import thresholds

_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
# The length of the marker between blocks.
_SYNC = 16
# None: blocks are not compressed.
_CODECS: Mapping[str, type[Codec] | None] = {**KNOWN_CODECS}
# Errors of the JSON and Avro parsers for a broken file, or a codec that is not installed.
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
    ImportError,
)


@dataclass(frozen=True, eq=False)
class AvroKind:
    """The schema and key-value metadata of an Avro file, as needed to write a similar file."""

    schema: dict[str, Any]
    metadata: dict[str, str]
    text: str = field(repr=False)
    """The schema as text, as stored in the file."""

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroKind) and self.text == other.text

    def has_field(self, name: str) -> bool:
        """Whether the records have a field of this name."""
        return any(f["name"] == name for f in self.schema["fields"])


def kind_of(path: str) -> str:
    """Return what a file of a table is in Iceberg's words, as far as its name says that."""
    name = path.rpartition("/")[2]
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "metadata file" if name.endswith(".metadata.json") else "file"


class unreadable:
    """Context that converts parser errors caused by a broken file to CorruptMetadataError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, _: object) -> None:
        if isinstance(e, _UNREADABLE):
            raise CorruptMetadataError(
                f"{kind_of(self._path)} {self._path} cannot be read ({type(e).__name__}: {e}). Nothing was captured. "
                f"{LOST_FILE_ADVICE}"
            ) from e


def decode(content: bytes, path: str, omitted: Collection[str] = ()) -> tuple[Iterator[dict[str, Any]], AvroKind]:
    """Return the records of an Avro file, and its kind.

    Args:
        omitted: fields of `data_file` to skip.

    Raises:
        CorruptMetadataError: it is not an Avro file, or broken; also raised while iterating over the records.
    """
    with unreadable(path):
        kind, header, plain, at = _read_header(content)
        reader_schema = _without_fields(plain, omitted) if omitted else None
        file = io.BytesIO(header + memoryview(content)[at:])
        return _checked(fastavro.reader(file, reader_schema=reader_schema), path), kind


@dataclass(frozen=True, slots=True)
class Container:
    """What is needed to read blocks of an Avro file without its header."""

    kind: AvroKind
    codec: str
    marker: bytes
    """The marker between blocks."""


def container_of(content: bytes, path: str) -> tuple[Container, int]:
    """Return what is needed to read blocks of an Avro file, and the start of the first one.

    Raises:
        CorruptMetadataError: it is not an Avro file.
    """
    with unreadable(path):
        header, end = _original_header(content)
        codec = header["meta"].get("avro.codec", b"null").decode()
        return Container(_same_kind(_kind(header)), codec, header["sync"]), end


def scan_blocks(
    container: Container, content: bytes, path: str, fields: tuple[str, ...], at: int = 0
) -> Iterator[tuple[int, bytes, list[tuple[Any, ...]]]]:
    """Yield the start of each block from the byte `at` on, its uncompressed records, and their starts and some fields.

    Some writers make a block of each record: these are combined. See `RecordScan` for the fields, and `decode_record`.

    Raises:
        CorruptMetadataError: a block is broken.
    """
    with unreadable(path):
        scan = _record_scan(container.kind.text, fields)
        codec = _CODECS[container.codec]
        decompress = codec.decompress if codec else bytes
        numbers = DECODER(content + bytes(_SYNC))
        numbers.skip(at)
        parts, ends = list[bytes](), list[tuple[int, int]]()
        records, length, first = 0, 0, at
        while at < len(content):
            count, size = numbers.read_int(), numbers.read_int()
            start = numbers.tell()
            end = start + size
            if count < 0 or size < 0 or not content.startswith(container.marker, end):
                raise ValueError(f"the block at byte {at} is broken")
            parts.append(decompress(content[start:end]))
            records, length = records + count, length + len(parts[-1])
            ends.append((count, length))
            at = end + _SYNC
            numbers.skip(size + _SYNC)
            if records >= thresholds.COMBINED_ENTRIES or at == len(content):
                joined = b"".join(parts)
                yield first, joined, list(scan.records(joined, ends))
                parts, ends, records, length, first = [], [], 0, 0, at


def decode_record(container: Container, records: bytes, start: int, path: str) -> dict[str, Any]:
    """Return one of the uncompressed records of a block; see `decode`."""
    with unreadable(path):
        file = io.BytesIO(records)
        file.seek(start)
        record: Any = fastavro.schemaless_reader(file, _schemas(container.kind.text).parsed, None)
        return record


@lru_cache(maxsize=1024)
def _same_kind(kind: AvroKind) -> AvroKind:
    return kind


def _original_header(content: bytes) -> tuple[dict[str, Any], int]:
    """Return an Avro file's header and its end."""
    at = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(at, _HEADER, None)
    if header["magic"] != b"Obj\x01":
        raise ValueError("not an Avro file")
    return header, at.tell()


def _kind(header: dict[str, Any]) -> AvroKind:
    text = header["meta"]["avro.schema"].decode()
    metadata = {k: v.decode() for k, v in header["meta"].items() if not k.startswith("avro.")}
    return AvroKind(_schemas(text).schema, metadata, text)


def _read_header(content: bytes) -> tuple[AvroKind, bytes, dict[str, Any], int]:
    """Return an Avro file's kind, a header without logical types and its schema, and the end of the original header."""
    header, end = _original_header(content)
    kind = _kind(header)
    schemas = _schemas(kind.text)
    # fastavro cannot ignore logical types, so the header is replaced. Logical types would convert dates and decimals to
    # Python objects, which takes time and fails for years that Python does not support.
    other = io.BytesIO()
    meta = {**header["meta"], "avro.schema": schemas.plain_text}
    fastavro.schemaless_writer(other, _HEADER, {**header, "meta": meta})
    return kind, other.getvalue(), schemas.plain, end


@dataclass(frozen=True, slots=True)
class _Schemas:
    schema: dict[str, Any]
    plain: dict[str, Any]
    """The schema without logical types; as text; and as fastavro parses it."""
    plain_text: bytes
    parsed: Any


@lru_cache(maxsize=256)
def _schemas(text: str) -> _Schemas:
    schema = json.loads(text)
    plain = _without_logical_types(schema)
    return _Schemas(schema, plain, json.dumps(plain).encode(), fastavro.parse_schema(plain))


@lru_cache(maxsize=256)
def _record_scan(schema: str, fields: tuple[str, ...]) -> RecordScan:
    return RecordScan(_schemas(schema).schema, fields)


def encode(kind: AvroKind, records: Sequence[dict[str, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of an Avro file of `kind` with `records`."""
    out = io.BytesIO()
    fastavro.writer(out, kind.schema, records, metadata=metadata or kind.metadata, codec="deflate")
    return out.getvalue()


def _checked(records: Iterable[Any], path: str) -> Iterator[dict[str, Any]]:
    with unreadable(path):
        yield from records


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(s) for s in schema]
    return schema


def _without_fields(schema: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the schema of manifest entries without some fields of `data_file`."""
    fields: list[dict[str, Any]] = []
    for f in schema["fields"]:
        if f["name"] == "data_file":
            f = {**f, "type": {**f["type"], "fields": [g for g in f["type"]["fields"] if g["name"] not in names]}}
        fields.append(f)
    return {**schema, "fields": fields}
