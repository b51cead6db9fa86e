"""Avro files of Iceberg's metadata, read and written with every value as it is stored.

Dates stay days and decimals stay bytes, so that an entry that is written again is the entry that was read, whatever
the format version and the partition spec.
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
# What parsers of JSON and Avro raise on a broken file.
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
    """The schema and the key-value metadata of an Avro file: what is needed to write another of its kind."""

    schema: dict[str, Any]
    metadata: dict[str, str]
    text: str = field(repr=False)
    """The schema as it was written."""

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroKind) and self.text == other.text

    def has_field(self, name: str) -> bool:
        """Whether the records have a field of this name."""
        return any(f["name"] == name for f in self.schema["fields"])


class unreadable:
    """Turns what a broken file makes a parser raise into CorruptMetadataError."""

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


def decode(content: bytes, path: str, leaving_out: Collection[str] = ()) -> tuple[Iterator[dict[str, Any]], AvroKind]:
    """The records of an Avro file.

    Args:
        content: the file.
        path: what errors call it.
        leaving_out: fields of `data_file` that are skipped.

    Raises:
        CorruptMetadataError: it is no Avro file, or broken; also while the records are read.
    """
    with unreadable(path):
        kind, header, plain, at = _opened(content)
        wanted = _without_fields(plain, leaving_out) if leaving_out else None
        file = io.BytesIO(header + memoryview(content)[at:])
        return _checked(fastavro.reader(file, reader_schema=wanted), path), kind


def decode_blocks(content: bytes, path: str, leaving_out: Collection[str] = ()) -> Iterator[tuple[int, int, list[Any]]]:
    """The records of an Avro file, with the first and last byte of the block that they are in; see `decode`."""
    with unreadable(path):
        _, header, plain, at = _opened(content)
        wanted = _without_fields(plain, leaving_out) if leaving_out else None
        # Offsets count the header that was put in place of the file's own.
        moved = at - len(header)
        for block in fastavro.block_reader(io.BytesIO(header + memoryview(content)[at:]), reader_schema=wanted):
            start = block.offset + moved
            yield start, start + block.size, list(block)


def header_of(content: bytes, path: str) -> tuple[AvroKind, bytes]:
    """The kind of an Avro file, and what `decode_block` needs of its header; one object for all files with the same."""
    with unreadable(path):
        kind, header, _, _ = _opened(content)
        return _same_header(kind, header[:-_SYNC])


def decode_block(header: bytes, block: bytes, path: str) -> list[Any]:
    """The records of one block of an Avro file; see `decode`."""
    with unreadable(path):
        # Every block ends with the marker that the header of its file ends with.
        return list(fastavro.reader(io.BytesIO(header + block[-_SYNC:] + block)))


@lru_cache(maxsize=1024)
def _same_header(kind: AvroKind, header: bytes) -> tuple[AvroKind, bytes]:
    return kind, header


def _opened(content: bytes) -> tuple[AvroKind, bytes, dict[str, Any], int]:
    """An Avro file's kind, a header without logical types, the schema in that header, and where the file's own ends."""
    at = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(at, _HEADER, None)
    if header["magic"] != b"Obj\x01":
        raise ValueError("no Avro file")
    text = header["meta"]["avro.schema"].decode()
    metadata = {k: v.decode() for k, v in header["meta"].items() if not k.startswith("avro.")}
    kind = AvroKind(json.loads(text), metadata, text)
    # fastavro has no switch for logical types, so that the file is given another header. They would turn dates
    # and decimals into Python objects, which costs time, and fail on years that Python does not have.
    plain = _without_logical_types(kind.schema)
    other = io.BytesIO()
    meta = {**header["meta"], "avro.schema": json.dumps(plain).encode()}
    fastavro.schemaless_writer(other, _HEADER, {**header, "meta": meta})
    return kind, other.getvalue(), plain, at.tell()


def encode(kind: AvroKind, records: Sequence[dict[str, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """An Avro file of `kind` that holds `records`."""
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
    """The schema of manifest entries with some fields of `data_file` left out."""
    fields: list[dict[str, Any]] = []
    for f in schema["fields"]:
        if f["name"] == "data_file":
            f = {**f, "type": {**f["type"], "fields": [g for g in f["type"]["fields"] if g["name"] not in names]}}
        fields.append(f)
    return {**schema, "fields": fields}
