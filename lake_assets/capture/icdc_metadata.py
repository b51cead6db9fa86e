"""The metadata.json of an ICDC table, made from that of its source."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.capture_planning import Side
from lake_assets.capture.files.avro_files import unreadable
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.lake.metadata.metadata_json import decode
from lake_assets.runtime.processes import owner

PREFIX = "lake-assets.icdc."


def raw_metadata(source: Table) -> dict[str, Any]:
    """The source's metadata.json itself: PyIceberg's model of it cannot be written for format v3."""
    try:
        path, content = source.metadata_location, _content(source)
    except FileNotFoundError:
        # Tables keep some tens of versions only. A newer one knows every schema and spec that this one knew.
        path, content = source.refresh().metadata_location, _content(source)
    with unreadable(path):
        return decode(content)


def _content(source: Table) -> bytes:
    with source.io.new_input(source.metadata_location).open() as f:
        return f.read()


def table_metadata(
    raw: dict[str, Any],
    window: Window,
    side: Side,
    point: Point,
    location: str,
    snapshot_id: int,
    manifest_list: str,
    former: Mapping[int, NestedField] | None = None,
    expires: datetime | None = None,
) -> dict[str, Any]:
    """The metadata.json of an ICDC table over `side`, which `manifest_list` lists.

    Args:
        raw: the source's metadata.json.
        window: what was captured.
        side: the files.
        point: the snapshot that they are seen from.
        location: of the table.
        snapshot_id: of the table's one snapshot.
        manifest_list: where it is.
        former: top-level fields, by id, that the files hold with another type than the window's schema says.
        expires: when it may be swept; None: when its process has ended.
    """
    version, now = raw["format-version"], int(time.time() * 1000)
    schema = _schema(raw, former or {}, window)
    # An equality delete may be by a column that the window's schema does not have any more.
    others = [s for s in raw.get("schemas", ()) if s.get("schema-id", 0) != window.schema_id]
    specs, default = _partition_specs(raw, side, schema)
    snapshot: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": now,
        "manifest-list": manifest_list,
        # Without totals Spark's planner takes the table for an endless one and never broadcasts it.
        "summary": {"operation": "append", **_totals(side)},
        "schema-id": window.schema_id,
    }
    kept = {k: v for k, v in raw.get("properties", {}).items() if k.startswith(("read.", "schema.name-mapping."))}
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
        "properties": {**kept, "gc.enabled": "false", **_origin(window, point, now, expires)},
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
        # Iceberg 1.8, where row lineage was optional, left it out: no row had an id.
        next_row_id = raw.get("next-row-id", 0)
        metadata["next-row-id"] = next_row_id
        snapshot |= {"first-row-id": next_row_id, "added-rows": 0}
    return metadata


def _origin(window: Window, point: Point, now: int, expires: datetime | None) -> dict[str, str]:
    """Properties that say what an ICDC table was made of, when, by which process, and for how long."""
    facts: dict[str, object] = {
        "source": str(window.table),
        "source-uuid": window.table_uuid,
        "snapshot": point.snapshot_id,
        "created-ms": now,
        "owner": owner(),
    }
    if expires is not None:
        facts["expires-ms"] = int(expires.timestamp() * 1000)
    return {PREFIX + k: str(v) for k, v in facts.items()}


def _totals(side: Side) -> dict[str, str]:
    """Rows and files of `side`, as the summary of a snapshot says them."""
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
    """The partition specs that the files of `side` have, and the table's own."""
    # Only the specs that are used: a newer one may be on a column that end's schema does not have.
    used = {e.spec_id for e in (*side.data, *side.deletes)}
    specs = [s for s in raw["partition-specs"] if s["spec-id"] in used]
    default = next((s for s in specs if _is_bound(s, schema)), None)
    if default is None:
        default = {"spec-id": 1 + max(s["spec-id"] for s in raw["partition-specs"]), "fields": []}
        specs.append(default)
    return specs, default


def _schema(raw: dict[str, Any], former: Mapping[int, NestedField], window: Window) -> dict[str, Any]:
    schemas = raw.get("schemas") or [raw["schema"]]
    schema = next(s for s in schemas if s.get("schema-id", 0) == window.schema_id)
    fields = [{**f, "type": _type(former[f["id"]])} if f["id"] in former else f for f in schema["fields"]]
    return {**schema, "fields": [_without_default(f) if f["id"] in former else f for f in fields]}


def _is_bound(spec: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether readers accept a spec as the table's own: the source of every field is still in the schema."""
    ids = set(_field_ids(schema))
    return all(f["source-id"] in ids or f["transform"] == "void" for f in spec["fields"])


def _field_ids(kind: Any) -> Iterator[int]:
    """The ids of a struct's fields, at any depth; elements of lists and entries of maps partition nothing."""
    for f in kind["fields"] if isinstance(kind, dict) and kind.get("type") == "struct" else ():
        yield f["id"]
        yield from _field_ids(f["type"])


def _type(field: NestedField) -> Any:
    return json.loads(field.model_dump_json())["type"]


def _without_default(field: dict[str, Any]) -> dict[str, Any]:
    """A default is of the type that the column has now."""
    return {k: v for k, v in field.items() if k not in ("initial-default", "write-default")}
