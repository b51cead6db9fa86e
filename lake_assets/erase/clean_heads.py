"""Leave a table with one snapshot that names no removed file, and with what its next step starts from.

Manifests go on to list the files that a commit removed, with bounds of their columns, and summaries of older snapshots
hold watermarks, positions and offsets. So the last snapshot lists the same files once more, without the removed ones,
and has the properties of its ancestors, which can expire then.

Source: https://iceberg.apache.org/spec/#snapshots, "Manifest Lists" and "Manifest Entry Fields"
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from pyiceberg.table import Table

from lake_assets.capture.files.avro_files import decode, encode
from lake_assets.capture.files.manifest_lists import manifest_of
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.errors import ConcurrentWriteError
from lake_assets.ingest.raw.file_ledger import PROPERTY as LANDED
from lake_assets.ingest.raw_tables import ARRIVED_PROPERTY
from lake_assets.ingest.records.tombstones import DELETES_PROPERTY
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata import refresh_state
from lake_assets.lake.metadata.metadata_commits import Metadata, MovedError, commit, now_ms, read_metadata
from lake_assets.lake.metadata.refs import refs_of, with_refs
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY, is_upkeep, keeps_rows, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors, between
from lake_assets.lake.metadata.watermark import Watermark, read_marks, to_properties
from lake_assets.models.steps.cost_estimate import COST
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.pending_windows import known_marks

_PREFIX = "lake-assets."
# What a commit says of itself alone. Digests of deleted keys are left out too: they only spare staging a few events.
_OWN = (ARRIVED_PROPERTY, LANDED, COST, DELETES_PROPERTY, UPKEEP_PROPERTY)
_COUNTS = ("lake-assets.rows-", "lake-assets.merged-rows-", "lake-assets.changes")
ERASE = "erase"


def carried(table: Table) -> dict[str, str]:
    """Return the properties of a table's snapshots that its next step starts from, the newest value of each."""
    found: dict[str, str] = {}
    for snapshot in ancestors(table):
        for name, value in summary_of(snapshot).items():
            if name.startswith(_PREFIX) and name not in _OWN and not name.startswith(_COUNTS):
                found.setdefault(name, value)
    return found


def marks_at_heads(
    lake: LakeBase, table: Table, spec: Spec | None, touched: Collection[TableId]
) -> dict[str, Watermark]:
    """Return a table's watermarks, moved over commits that change nothing for it.

    Args:
        spec: its declaration; None: it is a ledger of files that is up to date.
        touched: the sources whose watermarks are moved.

    Raises:
        ConcurrentWriteError: a source has changes that the table has not absorbed.
    """
    marks = dict(read_marks(table))
    for source, mark in marks.items():
        loaded = lake.find(source) if TableId.parse(source) in touched else None
        if loaded is None or str(loaded.metadata.table_uuid) != mark.uuid:
            continue
        head = loaded.metadata.current_snapshot_id
        if head == mark.snapshot:
            continue
        if not _changes_nothing(lake, table, spec, loaded, mark):
            raise ConcurrentWriteError(
                f"{'.'.join(table.name())} has not absorbed all changes of {source}, whose old snapshots have to stay"
            )
        marks[source] = Watermark(mark.uuid, head, mark.high, mark.time, mark.transaction)
    return marks


def _changes_nothing(lake: LakeBase, table: Table, spec: Spec | None, source: Table, mark: Watermark) -> bool:
    """Whether the commits of a source after a watermark need no step of a table."""
    commits = between(source.metadata, mark.snapshot, source.metadata.current_snapshot_id)
    if not commits.is_forward:
        return False
    if spec is None or all(keeps_rows(s) or is_upkeep(s) for s in commits.steps):
        return True
    # Landings may bring records of other tables only: then the step has nothing to do, and its watermark lags.
    step = step_of(spec)
    windows = step.windows(lake, table, {s: t for s in spec.sources if (t := lake.find(s)) is not None})
    return all(w.start == w.head.snapshot for w in windows if str(w.source) == ".".join(source.name()))


def clean_head(lake: LakeBase, name: TableId, marks: Mapping[str, Watermark]) -> None:
    """Commit a snapshot with the files of the current one, the properties of its ancestors, and watermarks.

    Does nothing if the current snapshot is such a one.

    Raises:
        MovedError, CommitFailedException: another writer was faster.
    """
    table = lake.table(name)
    head = table.current_snapshot()
    if head is None:
        return
    properties = carried(table) | (to_properties(marks) if marks else {}) | refresh_state.carried(table, marks)
    records, kind = decode(_content(table, head.manifest_list), head.manifest_list)
    lines = [*records]
    if not any(_is_worn(line) for line in lines) and properties.items() <= summary_of(head).items():
        return
    new_id = random.getrandbits(62)
    number = read_metadata(table).get("last-sequence-number", 0) + 1
    folder = head.manifest_list.rsplit("/", 1)[0]
    next_lines = [line for old in lines for line in _cleaned(table, old, new_id, number, folder)]
    path = f"{folder}/snap-{new_id}-1-{uuid.uuid4()}.avro"
    list_properties = {**kind.metadata, "snapshot-id": str(new_id), "parent-snapshot-id": str(head.snapshot_id)}
    list_properties |= {"sequence-number": str(number)} if "sequence-number" in kind.metadata else {}
    _put(table, path, encode(kind, next_lines, list_properties))
    totals = {k: v for k, v in summary_of(head).items() if k.startswith("total-")}
    snapshot: dict[str, Any] = {
        "snapshot-id": new_id,
        "parent-snapshot-id": head.snapshot_id,
        "sequence-number": number,
        "timestamp-ms": now_ms(),
        "manifest-list": path,
        "summary": {"operation": "replace", **totals, **properties, UPKEEP_PROPERTY: ERASE},
        "schema-id": head.schema_id,
    }

    def changed(metadata: Metadata) -> Metadata:
        is_same = refs_of(metadata).get("main", {}).get("snapshot-id") == head.snapshot_id
        if not is_same or metadata.get("last-sequence-number", 0) + 1 != number:
            raise MovedError(f"{name} has been changed by another writer")
        at = max(now_ms(), metadata["last-updated-ms"], *(s["timestamp-ms"] for s in metadata["snapshots"]))
        own = {**snapshot, "timestamp-ms": at}
        if metadata["format-version"] >= 3:
            own |= {"first-row-id": metadata.get("next-row-id", 0), "added-rows": 0}
        added = {**metadata, "snapshots": [*metadata["snapshots"], own], "last-sequence-number": number}
        refs = refs_of(metadata)
        return with_refs(added, {**refs, "main": {**refs["main"], "snapshot-id": new_id}}, at)

    commit(table, changed)


def removed_files(table: Table) -> int:
    """Return how many manifests of a table's current snapshot list removed files."""
    head = table.current_snapshot()
    if head is None:
        return 0
    return sum(_is_worn(line) for line in decode(_content(table, head.manifest_list), head.manifest_list)[0])


def _is_worn(line: Mapping[str, Any]) -> bool:
    """Whether a manifest lists removed files, by its line in the manifest list; or may, if that does not tell."""
    return line.get("deleted_files_count", line.get("deleted_data_files_count")) != 0


def _cleaned(table: Table, line: dict[str, Any], snapshot: int, number: int, folder: str) -> list[dict[str, Any]]:
    """Return a line of a manifest list, for a manifest without removed files; none if no file is left."""
    if not _is_worn(line):
        return [line]
    manifest = manifest_of(line, line["manifest_path"])
    reader = ManifestReader(table.io)
    entries = reader.completed(reader.entries([manifest]))
    if not entries:
        return []
    path = f"{folder}/{uuid.uuid4()}-m0.avro"
    content = encode(entries[0].kind, [{**e.raw, "status": 0} for e in entries])
    _put(table, path, content)
    return [_line(line, entries, path, len(content), snapshot, number)]


def _line(
    old: Mapping[str, Any], entries: list[Entry], path: str, length: int, snapshot: int, number: int
) -> dict[str, Any]:
    rows = sum(e.records for e in entries)
    # The summary of partitions is that of more files: without one, readers open the manifest.
    line = {**old, "manifest_path": path, "manifest_length": length, "partitions": None, "added_snapshot_id": snapshot}
    line |= {"sequence_number": number, "min_sequence_number": min(e.sequence_number for e in entries)}
    if old.get("first_row_id") is not None:
        line["first_row_id"] = min(e.first_row_id or 0 for e in entries)
    counts = {"added": (0, 0), "existing": (len(entries), rows), "deleted": (0, 0)}
    for what, (files, records) in counts.items():
        values = {f"{what}_files_count": files, f"{what}_data_files_count": files, f"{what}_rows_count": records}
        line |= {k: v for k, v in values.items() if k in old}
    return line


def _content(table: Table, path: str) -> bytes:
    with table.io.new_input(path).open() as file:
        return file.read()


def _put(table: Table, path: str, content: bytes) -> None:
    with table.io.new_output(path).create() as file:
        file.write(content)


def stale_readers(lake: LakeBase, name: TableId, targets: Collection[TableId]) -> list[str]:
    """Return the tables whose watermark of a table is not its current snapshot."""
    head = lake.table(name).metadata.current_snapshot_id
    marks = {t: known_marks(lake.find(t)).get(str(name)) for t in targets}
    return [str(t) for t, mark in marks.items() if mark is not None and mark.snapshot != head]
