"""The metadata.json of an ICDC table, derived from its source's."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.files.avro_files import unreadable
from lake_assets.capture.files.planned_files import Side
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.lake.metadata.metadata_commits import read_metadata
from lake_assets.runtime.processes import owner

PREFIX = "lake-assets.icdc."


def raw_metadata(source: Table) -> dict[str, Any]:
    """Return the source's metadata.json as is: PyIceberg cannot write its model for format v3."""
    try:
        return _read(source)
    except FileNotFoundError:
        # The version was replaced and deleted meanwhile. A newer version still has every schema and spec of it.
        return _read(source.refresh())


def _read(source: Table) -> dict[str, Any]:
    with unreadable(source.metadata_location):
        return read_metadata(source)


def table_metadata(
    raw: dict[str, Any],
    window: Window,
    side: Side,
    point: Point,
    location: str,
    snapshot_id: int,
    manifest_list: str,
    old_types: Mapping[int, NestedField] | None = None,
    expires: datetime | None = None,
) -> dict[str, Any]:
    """Return the metadata.json of an ICDC table over the files of `side`.

    Args:
        point: the source snapshot of that side.
        manifest_list: location of the manifest list with the files of `side`.
        old_types: top-level fields, by id, that have another type in the files than in the window's schema.
        expires: when the table may be swept; None: when its process has ended.
    """
    version, now = raw["format-version"], int(time.time() * 1000)
    schema = _schema(raw, old_types or {}, window)
    # An equality delete may use a column that the window's schema no longer has.
    others = [s for s in raw.get("schemas", ()) if s.get("schema-id", 0) != window.schema_id]
    specs, default = _partition_specs(raw, side, schema)
    snapshot: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": now,
        "manifest-list": manifest_list,
        # Without totals Spark's planner assumes an infinite size and never broadcasts the table.
        "summary": {"operation": "append", **_totals(side)},
        "schema-id": window.schema_id,
    }
    read_properties = {
        k: v for k, v in raw.get("properties", {}).items() if k.startswith(("read.", "schema.name-mapping."))
    }
    metadata: dict[str, Any] = {
        "format-version": version,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-updated-ms": now,
        "last-column-id": raw["last-column-id"],
        "current-schema-id": window.schema_id,
        "schemas": [*others, schema],
        "default-spec-id": default["spec-id"],
        "partition-specs": specs,
        "last-partition-id": raw.get("last-partition-id", 999),
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**read_properties, "gc.enabled": "false", **_origin(window, point, now, expires)},
        "current-snapshot-id": snapshot_id,
        "snapshots": [snapshot],
        "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version == 1:
        metadata |= {"schema": schema, "partition-spec": default["fields"]}
    else:
        snapshot["sequence-number"] = metadata["last-sequence-number"] = point.sequence_number
    if version >= 3:
        # Missing in Iceberg 1.8, where row lineage was optional: then no row has an id.
        next_row_id = raw.get("next-row-id", 0)
        metadata["next-row-id"] = next_row_id
        snapshot |= {"first-row-id": next_row_id, "added-rows": 0}
    return metadata


def _origin(window: Window, point: Point, now: int, expires: datetime | None) -> dict[str, str]:
    """Return properties with an ICDC table's source, time of creation, creating process and end of its lifetime."""
    values: dict[str, object] = {
        "source": str(window.table),
        "source-uuid": window.table_uuid,
        "snapshot": point.snapshot_id,
        "created-ms": now,
        "owner": owner(),
    }
    if expires is not None:
        values["expires-ms"] = int(expires.timestamp() * 1000)
    return {PREFIX + k: str(v) for k, v in values.items()}


def _totals(side: Side) -> dict[str, str]:
    """Return row and file counts of `side` as properties of a snapshot summary."""
    totals = {
        "total-records": sum(e.records for e in side.data),
        "total-data-files": len(side.data),
        "total-files-size": sum(e.bytes for e in side.data),
        "total-delete-files": len(side.deletes),
    }
    return {k: str(v) for k, v in totals.items()}


def _partition_specs(
    raw: dict[str, Any], side: Side, schema: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the partition specs of the files of `side`, and the table's default spec."""
    # Only the specs in use: a newer one may refer to a column that the end's schema does not have.
    used = {e.spec_id for e in (*side.data, *side.deletes)}
    specs = [s for s in raw["partition-specs"] if s["spec-id"] in used]
    default = next((s for s in specs if _is_bound(s, schema)), None)
    if default is None:
        default = {"spec-id": 1 + max(s["spec-id"] for s in raw["partition-specs"]), "fields": []}
        specs.append(default)
    return specs, default


def _schema(raw: dict[str, Any], old_types: Mapping[int, NestedField], window: Window) -> dict[str, Any]:
    schemas = raw.get("schemas") or [raw["schema"]]
    schema = next(s for s in schemas if s.get("schema-id", 0) == window.schema_id)
    fields = [{**f, "type": _type(old_types[f["id"]])} if f["id"] in old_types else f for f in schema["fields"]]
    return {**schema, "fields": [_without_default(f) if f["id"] in old_types else f for f in fields]}


def _is_bound(spec: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a spec can be the default: the source column of each of its fields is still in the schema."""
    ids = set(_field_ids(schema))
    return all(f["source-id"] in ids or f["transform"] == "void" for f in spec["fields"])


def _field_ids(kind: Any) -> Iterator[int]:
    """Yield the ids of a struct's fields at any depth, except inside lists and maps, which cannot be partitioned by."""
    for f in kind["fields"] if isinstance(kind, dict) and kind.get("type") == "struct" else ():
        yield f["id"]
        yield from _field_ids(f["type"])


def _type(field: NestedField) -> Any:
    return json.loads(field.model_dump_json())["type"]


def _without_default(field: dict[str, Any]) -> dict[str, Any]:
    """Remove the defaults of a field: they have its new type."""
    return {k: v for k, v in field.items() if k not in ("initial-default", "write-default")}
