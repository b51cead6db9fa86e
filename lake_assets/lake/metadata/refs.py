"""Branches and tags of tables, committed beside Spark (see `metadata_commits`).

Can be removed once PyIceberg commits to tables of format version 3, and one such commit (`manage_snapshots`) can move
main to a branch and drop the branch, unless main has moved. `tests/lake/test_refs.py` specifies the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata, MovedError, can_commit, commit, now_ms

__all__ = ["MovedError", "can_commit", "create_branch", "drop", "keep_snapshots", "publish", "set_tag", "tag_at"]
DAY_MS = 24 * 60 * 60 * 1000
Refs = dict[str, dict[str, Any]]


def create_branch(table: Table, branch: str, snapshot: int, days: int) -> None:
    """Create a branch at a snapshot; Iceberg's snapshot expiration drops it after `days`.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    _commit(table, lambda refs: refs.update({branch: _ref("branch", snapshot, days)}), snapshot)


def set_tag(table: Table, tag: str, snapshot: int, days: int) -> None:
    """Create a tag at a snapshot, or move an existing one; it expires after `days`.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    _commit(table, lambda refs: refs.update({tag: tag_at(snapshot, days)}), snapshot)


def publish(table: Table, branch: str, base: int) -> None:
    """Fast-forward main to a branch, and drop the branch, in one commit.

    Args:
        table: the table.
        branch: a branch created at `base`.
        base: the expected snapshot of main.

    Raises:
        MovedError: main is at another snapshot, or the branch does not exist.
    """

    def change(refs: Refs) -> None:
        main = refs.get("main")
        if main is None or main["snapshot-id"] != base:
            raise MovedError(f"main is at {main and main['snapshot-id']}, and {branch} began at {base}")
        if branch not in refs:
            raise MovedError(f"the branch {branch} does not exist")
        refs["main"] = {**main, "snapshot-id": refs.pop(branch)["snapshot-id"]}

    _commit(table, change)


def keep_snapshots(table: Table, number: int) -> None:
    """Let main keep its newest snapshots whenever snapshots expire, unless it has such a number; main does not move.

    Raises:
        MovedError: the table was dropped or created again.
    """

    def change(refs: Refs) -> None:
        if main := refs.get("main"):
            main.setdefault("min-snapshots-to-keep", number)

    _commit(table, change)


def drop(table: Table, name: str) -> None:
    """Drop a branch or tag, if it exists."""
    _commit(table, lambda refs: refs.pop(name, None))


def tag_at(snapshot: int, days: int) -> dict[str, Any]:
    """Return the JSON of a tag at a snapshot that expires after `days`."""
    return _ref("tag", snapshot, days)


def _ref(kind: str, snapshot: int, days: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot, "type": kind, "max-ref-age-ms": days * DAY_MS}


def _commit(table: Table, change: Callable[[Refs], object], required: int | None = None) -> None:
    """Change a table's references.

    Args:
        table: the loaded table, possibly outdated.
        change: changes the current references; raises MovedError if they are not as expected.
        required: a snapshot that must exist.

    Raises:
        MovedError: raised by `change`, or the snapshot is missing.
        CommitFailedException, CorruptMetadataError: see `metadata_commits.commit`.
    """

    def changed(metadata: Metadata) -> Metadata | None:
        if required is not None and all(s["snapshot-id"] != required for s in metadata.get("snapshots", ())):
            raise MovedError(f"{'.'.join(table.name())} no longer has snapshot {required}")
        before = refs_of(metadata)
        refs = {name: dict(ref) for name, ref in before.items()}
        change(refs)
        return with_refs(metadata, refs, now_ms()) if refs != before else None

    commit(table, changed)


def refs_of(metadata: Mapping[str, Any]) -> Refs:
    """Return all references; old metadata without references names only main's snapshot."""
    current = metadata.get("current-snapshot-id", -1)
    refs = metadata.get("refs") or {}
    if "main" not in refs and current not in (None, -1):
        return {**refs, "main": {"snapshot-id": current, "type": "branch"}}
    return refs


def with_refs(metadata: Metadata, refs: Refs, now: int) -> Metadata:
    """Return a table's metadata with other references, written at `now` (milliseconds since 1970)."""
    main = refs.get("main", {}).get("snapshot-id")
    changed = {**metadata, "refs": refs}
    if main is not None and main != metadata.get("current-snapshot-id"):
        history = metadata.get("snapshot-log", ())
        at = max(now, metadata["last-updated-ms"], *(entry["timestamp-ms"] for entry in history))
        changed |= {"current-snapshot-id": main, "snapshot-log": [*history, {"timestamp-ms": at, "snapshot-id": main}]}
    return changed
