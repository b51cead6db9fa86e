"""Working copies of a table: metadata that starts at a snapshot of the table, grows aside, and is grafted back.

A working copy has the table's identity, location and data files, and commits of its own. So every program that works on
tables works on it without knowing: it is registered in another catalog. Its metadata files and manifests are in a
folder below the table's, where neither the retention of the table's metadata nor its repair looks for versions.

Grafting adds the copy's snapshots to the table and moves main to the last of them. If main has moved meanwhile, that is
a rollback to where the copy started, followed by the copy's commits: readers find the two common ancestors, and what
differs, as after any rollback.

Source: https://iceberg.apache.org/spec/#table-metadata-fields
"""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.errors import StaleBackfillError
from lake_assets.lake.metadata.metadata_commits import Metadata
from lake_assets.lake.metadata.refs import refs_of, with_refs

# Folders of working copies, below a table's metadata folder: this and an id.
COPIES = "backfill-"
METADATA_PATH = "write.metadata.path"
# The open backfill that brings a table's new definition: until it is published, the table keeps the one that it has.
REVIEW_PROPERTY = "lake-assets.review"
# A copy numbers its commits and rows from far above those that the table can reach meanwhile. In one table, equal
# numbers mean the same commit or row.
SEQUENCE_GAP, ROW_ID_GAP = 10**6, 10**12
# What changes together with the columns: the ids in the files refer to it.
_SHAPE = (
    "format-version",
    "schemas",
    "current-schema-id",
    "last-column-id",
    "partition-specs",
    "default-spec-id",
    "last-partition-id",
    "sort-orders",
    "default-sort-order-id",
)


def working_copy(metadata: Metadata, snapshot: int | None, folder: str, now: int) -> Metadata:
    """Return the metadata of a working copy of a table.

    Args:
        snapshot: the snapshot to start from; None: the table is empty.
        folder: where the copy's metadata files and manifests are written.
        now: milliseconds since 1970.
    """
    copy = at_snapshot(metadata, snapshot, now)
    copy |= {
        "metadata-log": [],
        "last-sequence-number": metadata.get("last-sequence-number", 0) + SEQUENCE_GAP,
        "properties": {**metadata.get("properties", {}), METADATA_PATH: folder, REVIEW_PROPERTY: ""},
    }
    if "next-row-id" in metadata:
        copy["next-row-id"] = metadata["next-row-id"] + ROW_ID_GAP
    return copy


def at_snapshot(metadata: Metadata, snapshot: int | None, now: int) -> Metadata:
    """Return a table's metadata with main at a snapshot, and without other branches and tags."""
    main = refs_of(metadata).get("main")
    if snapshot is None or main is None:
        return {**metadata, "refs": {}}
    return with_refs(metadata, {"main": {**main, "snapshot-id": snapshot}}, now)


def grafted(table: Metadata, copy: Metadata, start: Metadata, now: int) -> Metadata:
    """Return the table's metadata with the snapshots of a working copy, and main at the copy's current one.

    Args:
        copy: the copy's current metadata.
        start: the metadata that the copy was made of.
        now: milliseconds since 1970.

    Raises:
        StaleBackfillError: columns, partitioning or location of the table have changed since the copy was made.
    """
    if table.get("last-sequence-number", 0) >= start.get("last-sequence-number", 0) + SEQUENCE_GAP:
        raise StaleBackfillError(f"the table had {SEQUENCE_GAP:,} commits since the working copy was made")
    if copy["location"] != table["location"]:
        raise StaleBackfillError(f"it was moved from {copy['location']} to {table['location']}")
    existing = {s["snapshot-id"] for s in table.get("snapshots", ())}
    started = {s["snapshot-id"] for s in start.get("snapshots", ())}
    # The copy has snapshots that expired on main meanwhile: only its own are new.
    new = [s for s in copy["snapshots"] if s["snapshot-id"] not in existing | started]
    result = {
        **table,
        **_shape(table, copy, start),
        "last-sequence-number": copy["last-sequence-number"],
        "properties": _properties(table, copy, start),
        "snapshots": [*table.get("snapshots", ()), *new],
    }
    if "next-row-id" in copy:
        result["next-row-id"] = copy["next-row-id"]
    refs = refs_of(table)
    main = {**refs.get("main", {"type": "branch"}), "snapshot-id": copy["current-snapshot-id"]}
    return with_refs(result, {**refs, "main": main}, now)


def _shape(table: Metadata, copy: Metadata, start: Metadata) -> Metadata:
    """Return columns and partitioning: those of the copy, if it changed them, and the table did not change its own."""

    def of(metadata: Metadata) -> Metadata:
        return {name: metadata[name] for name in _SHAPE if name in metadata}

    if of(table) != of(start) and of(table) != of(copy):
        raise StaleBackfillError("the table's columns or partitioning have changed since the working copy was made")
    return of(copy)


def _properties(table: Metadata, copy: Metadata, start: Metadata) -> dict[str, str]:
    """Return the table's properties with the changes that were made in the copy."""
    before, after = start.get("properties", {}), dict(copy.get("properties", {}))
    after.pop(METADATA_PATH, None)
    if METADATA_PATH in before:
        after[METADATA_PATH] = before[METADATA_PATH]
    properties = {k: v for k, v in table.get("properties", {}).items() if k in after or k not in before}
    reviewed = {REVIEW_PROPERTY: ""} if REVIEW_PROPERTY in properties else {}
    return properties | {k: v for k, v in after.items() if before.get(k) != v} | reviewed


def is_redefined(copy: Metadata, start: Metadata, properties: Iterable[str]) -> bool:
    """Whether columns, partitioning or some properties of a working copy differ from those that it started with."""
    before, after = start.get("properties", {}), copy.get("properties", {})
    return any(copy.get(n) != start.get(n) for n in _SHAPE) or any(before.get(p) != after.get(p) for p in properties)
