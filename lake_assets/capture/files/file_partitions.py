"""Compare partition values of files like Iceberg does.

NaN equals itself, and -0.0 differs from 0.0, as in Java. Decimals are compared as numbers: their length in Avro depends
on the precision, which may have been widened between two files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform

from lake_assets.capture.files.avro_files import AvroKind
from lake_assets.capture.files.manifest_lists import Summary
from lake_assets.capture.files.manifests import Entry

PartitionKey = tuple[int, tuple[Any, ...]]
# A value as stored in Avro, and its logical type.
Value = tuple[Any, str | None]


def unpartitioned_specs(specs: Mapping[int, PartitionSpec]) -> frozenset[int]:
    """Return the ids of specs without partitioning: without fields, or with void transforms only.

    In format v1, a dropped partition field stays as a void transform.
    """
    return frozenset(i for i, spec in specs.items() if all(isinstance(f.transform, VoidTransform) for f in spec.fields))


def partition_key(e: Entry) -> PartitionKey:
    """Return the partition of a file; equal for two files if Iceberg considers their partitions equal."""
    values: dict[str, Any] = e.file.get("partition") or {}
    return e.spec_id, tuple(_comparable(values[name], kind) for name, kind, _ in _by_field_id(e.kind))


def partition_values(e: Entry) -> tuple[Value, ...]:
    """Return the partition values of a file in the spec's order, for comparison with summaries of manifests."""
    values: dict[str, Any] = e.file.get("partition") or {}
    return tuple((values[name], kind) for name, kind, _ in _partition_fields(e.kind))


def may_hold(summaries: Sequence[Summary], values: Sequence[Value]) -> bool:
    """Whether a manifest with these summaries may list a file of this partition."""
    if len(summaries) != len(values):
        return True
    return all(_may_hold(s, value, kind) for s, (value, kind) in zip(summaries, values, strict=True))


def _may_hold(summary: Summary, value: Any, kind: str | None) -> bool:
    if value is None:
        return summary.has_null
    if isinstance(value, float) and value != value:
        return summary.has_nan
    # Bounds are missing if all values are null, but also if a writer leaves them out. Writers order UUIDs either by
    # bytes or as two signed numbers.
    if summary.low is None or summary.high is None or kind == "uuid":
        return True
    try:
        comparable = _decoded(value, value, kind)
        low, high = (_decoded(end, value, kind) for end in (summary.low, summary.high))
        return low <= comparable <= high
    except (struct.error, TypeError):
        return True  # a bound of another type than the value is inconclusive


def _decoded(stored: Any, like: Any, kind: str | None) -> Any:
    """Return a serialized bound, or a value as stored in Avro, in a form that sorts like the values of its type."""
    if not isinstance(stored, bytes):
        return stored.encode() if isinstance(stored, str) else stored
    if isinstance(like, bool):
        return stored != b"\0"
    if isinstance(like, float):
        return struct.unpack("<d" if len(stored) == 8 else "<f", stored)[0]
    if isinstance(like, int):
        return int.from_bytes(stored, "little", signed=True)
    return int.from_bytes(stored, "big", signed=True) if kind == "decimal" else stored


def _comparable(value: Any, logical_type: str | None) -> Any:
    if isinstance(value, float):
        return value.hex()
    if logical_type == "decimal" and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


@lru_cache(maxsize=256)
def _partition_fields(kind: AvroKind) -> tuple[tuple[str, str | None, int], ...]:
    """Return name, logical type and field id of the partition fields in a manifest."""
    data_file = next(f["type"] for f in kind.schema["fields"] if f["name"] == "data_file")
    partition = next((f["type"] for f in data_file["fields"] if f["name"] == "partition"), {"fields": []})
    return tuple((f["name"], _logical_type(f["type"]), f.get("field-id", 0)) for f in partition["fields"])


@lru_cache(maxsize=256)
def _by_field_id(kind: AvroKind) -> tuple[tuple[str, str | None, int], ...]:
    return tuple(sorted(_partition_fields(kind), key=lambda f: f[2]))


def _logical_type(kind: Any) -> str | None:
    if isinstance(kind, list):
        return next((name for k in kind if (name := _logical_type(k))), None)
    return kind.get("logicalType") if isinstance(kind, dict) else None
