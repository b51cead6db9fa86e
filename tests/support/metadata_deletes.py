"""Commit deletes by writing metadata: PyIceberg cannot write deletes, and planning reads no data."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

from pyiceberg.io import FileIO

from lake_assets import Lake
from lake_assets.capture.files.avro_files import AvroKind, decode, encode
from lake_assets.capture.files.delete_files import FILE_PATH_ID
from lake_assets.capture.files.manifests import EQUALITY_DELETES, POSITION_DELETES, Entry, ManifestReader
from lake_assets.capture.icdc_metadata import raw_metadata

COUNTS = ("added", "existing", "deleted")


def data_files(lake: Lake, name: str) -> list[Entry]:
    """The data files of a table, oldest manifests last."""
    table = lake.table(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    reader = ManifestReader(table.io)
    manifests, _ = reader.manifest_list(snapshot.manifest_list)
    return [e for e in reader.entries(manifests) if not e.content]


def position_delete(data: Entry) -> dict[str, Any]:
    """The `data_file` of a position delete file for one data file, which it names by the bounds of its paths."""
    path = [{"key": FILE_PATH_ID, "value": data.path.encode()}]
    own = {"content": POSITION_DELETES, "file_path": f"{data.path}-deletes", "record_count": 1}
    return {**data.file, **own, "lower_bounds": path, "upper_bounds": path}


def equality_delete(data: Entry, field_id: int) -> dict[str, Any]:
    """The `data_file` of an equality delete file in the partition of a data file."""
    own = {
        "content": EQUALITY_DELETES,
        "file_path": f"{data.path}-equal",
        "record_count": 1,
        "equality_ids": [field_id],
    }
    return {**data.file, **own, "lower_bounds": None, "upper_bounds": None}


def commit_deletes(lake: Lake, name: str, like: Entry, files: Sequence[dict[str, Any]]) -> int:
    """Add one manifest of deletes to a table of format v2, in the spec and with the Avro schema of the file `like`."""
    table = lake.table(name)
    raw = raw_metadata(table)
    now = next(s for s in raw["snapshots"] if s["snapshot-id"] == raw["current-snapshot-id"])
    folder, snapshot, number = f"{table.location()}/metadata", random.getrandbits(62), raw["last-sequence-number"] + 1
    inherited = {"status": 1, "snapshot_id": snapshot, "sequence_number": None, "file_sequence_number": None}
    content = encode(like.kind, [{**inherited, "data_file": f} for f in files])
    manifest = _put(table.io, f"{folder}/{snapshot}-m0.avro", content)
    lines, kind = _lines(table.io, now["manifest-list"])
    counts = {f"{c}_{what}_count": 0 for c in COUNTS for what in ("files", "data_files", "rows")}
    line = {**next(ln for ln in lines if ln["manifest_path"] == like.manifest.path), **counts}
    line |= {"manifest_path": manifest, "manifest_length": len(content), "content": 1, "added_snapshot_id": snapshot}
    line |= {"sequence_number": number, "min_sequence_number": number}
    line |= {"added_files_count": len(files), "added_data_files_count": len(files)}
    return _commit(lake, name, "delete", [*lines, line], kind, snapshot)


def commit_miscounted(lake: Lake, name: str) -> int:
    """Add a snapshot with the same manifests, reported to have no entries."""
    table = lake.table(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    lines, kind = _lines(table.io, snapshot.manifest_list)
    counts = {f"{c}_files_count": 0 for c in COUNTS}
    return _commit(lake, name, "append", [{**line, **counts} for line in lines], kind, random.getrandbits(62))


def _commit(
    lake: Lake, name: str, operation: str, lines: Sequence[dict[str, Any]], kind: AvroKind, snapshot: int
) -> int:
    """Commit a snapshot with the lines of a manifest list."""
    table = lake.table(name)
    raw = raw_metadata(table)
    now = next(s for s in raw["snapshots"] if s["snapshot-id"] == raw["current-snapshot-id"])
    folder, number = f"{table.location()}/metadata", raw.get("last-sequence-number", 0) + 1
    manifest_list = _put(table.io, f"{folder}/snap-{snapshot}.avro", encode(kind, lines))
    at = max(int(time.time() * 1000), now["timestamp-ms"] + 1)
    snapshot_json = {
        **now,
        "snapshot-id": snapshot,
        "parent-snapshot-id": now["snapshot-id"],
        "sequence-number": number,
    }
    snapshot_json |= {"timestamp-ms": at, "manifest-list": manifest_list, "summary": {"operation": operation}}
    raw |= {
        "snapshots": [*raw["snapshots"], snapshot_json],
        "current-snapshot-id": snapshot,
        "last-sequence-number": number,
    }
    raw |= {"last-updated-ms": at, "refs": {"main": {"snapshot-id": snapshot, "type": "branch"}}}
    raw["snapshot-log"] = [*raw["snapshot-log"], {"snapshot-id": snapshot, "timestamp-ms": at}]
    path = _put(table.io, f"{folder}/99999-{snapshot}.metadata.json", json.dumps(raw).encode())
    lake.catalog.drop_table(name)
    lake.catalog.register_table(name, path)
    return snapshot


def _lines(io: FileIO, path: str) -> tuple[list[dict[str, Any]], AvroKind]:
    with io.new_input(path).open() as f:
        records, kind = decode(f.read(), path)
    return list(records), kind


def _put(io: FileIO, path: str, content: bytes) -> str:
    with io.new_output(path).create() as f:
        f.write(content)
    return path
