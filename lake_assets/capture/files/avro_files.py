"""Read and write the Avro files of Iceberg's metadata without converting values.

Dates stay days and decimals stay bytes, so a rewritten entry equals the entry that was read, whatever the format
version and the partition spec.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError

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
# Errors of the JSON and Avro parsers for a broken file.
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


class unreadable:
    """Context that converts parser errors caused by a broken file to CorruptMetadataError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, _: object) -> None:
        if isinstance(e, _UNREADABLE):
            raise CorruptMetadataError(
                f"metadata file {self._path} cannot be read ({type(e).__name__}: {e}). Nothing was captured. "
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


def decode_blocks(content: bytes, path: str, omitted: Collection[str] = ()) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield start, end and records of each block of an Avro file; see `decode`."""
    with unreadable(path):
        _, header, plain, at = _read_header(content)
        reader_schema = _without_fields(plain, omitted) if omitted else None
        # Offsets include the header that replaces the file's own.
        shift = at - len(header)
        for block in fastavro.block_reader(io.BytesIO(header + memoryview(content)[at:]), reader_schema=reader_schema):
            start = block.offset + shift
            yield start, start + block.size, list(block)


def header_of(content: bytes, path: str) -> tuple[AvroKind, bytes]:
    """Return the kind of an Avro file and its header for `decode_block`; files with equal headers share one object."""
    with unreadable(path):
        kind, header, _, _ = _read_header(content)
        return _same_header(kind, header[:-_SYNC])


def decode_block(header: bytes, block: bytes, path: str) -> list[Any]:
    """Return the records of one block of an Avro file; see `decode`."""
    with unreadable(path):
        # Every block ends with the same marker as the header of its file.
        return list(fastavro.reader(io.BytesIO(header + block[-_SYNC:] + block)))


@lru_cache(maxsize=1024)
def _same_header(kind: AvroKind, header: bytes) -> tuple[AvroKind, bytes]:
    return kind, header


def _read_header(content: bytes) -> tuple[AvroKind, bytes, dict[str, Any], int]:
    """Return an Avro file's kind, a header without logical types and its schema, and the end of the original header."""
    at = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(at, _HEADER, None)
    if header["magic"] != b"Obj\x01":
        raise ValueError("not an Avro file")
    text = header["meta"]["avro.schema"].decode()
    metadata = {k: v.decode() for k, v in header["meta"].items() if not k.startswith("avro.")}
    kind = AvroKind(json.loads(text), metadata, text)
    # fastavro cannot ignore logical types, so the header is replaced. Logical types would convert dates and decimals to
    # Python objects, which takes time and fails for years that Python does not support.
    plain = _without_logical_types(kind.schema)
    other = io.BytesIO()
    meta = {**header["meta"], "avro.schema": json.dumps(plain).encode()}
    fastavro.schemaless_writer(other, _HEADER, {**header, "meta": meta})
    return kind, other.getvalue(), plain, at.tell()


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
