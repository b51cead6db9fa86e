"""Branches and tags of tables, committed beside Spark (see `metadata_commits`).

Can be removed once PyIceberg commits to tables of format version 3, and one such commit (`manage_snapshots`) can move
main to a branch and drop the branch, unless main has moved. `tests/lake/test_refs.py` specifies the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata, MovedError, can_commit, commit, now_ms

__all__ = [
    "MovedError",
    "age_of",
    "can_commit",
    "create_branch",
    "drop",
    "drop_at",
    "is_held_needlessly",
    "keep_snapshots",
    "publish",
    "release",
    "set_tag",
    "set_tags",
    "with_tag",
]
DAY_MS = 24 * 60 * 60 * 1000
# While a table has a tag of a backfill, main keeps all of its snapshots: only they tell who has written to it since.
BACKFILL_TAG = "backfill-"
# Added meanwhile to the number of snapshots that main keeps, so that it is known afterwards. A declared number above
# `_MANY` keeps all of them anyway, and stays as it is.
_HELD, _MANY = 2**30, 10**6
_KEPT = "min-snapshots-to-keep"
Refs = dict[str, dict[str, Any]]


def create_branch(table: Table, branch: str, snapshot: int, days: int) -> None:
    """Create a branch at a snapshot; Iceberg's snapshot expiration drops it after `days`.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    _commit(table, lambda refs, metadata: refs.update({branch: _ref(metadata, "branch", snapshot, days)}))


def set_tag(table: Table, tag: str, snapshot: int, days: int) -> None:
    """Create a tag at a snapshot, or move an existing one; it expires after `days`.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    set_tags(table, {tag: snapshot}, days)


def set_tags(table: Table, tags: Mapping[str, int], days: int, *, drop: Iterable[str] = ()) -> None:
    """Create or move several tags in one commit, as `set_tag` does, and drop others."""

    def change(refs: Refs, metadata: Metadata) -> None:
        for tag in drop:
            refs.pop(tag, None)
        refs.update({t: _ref(metadata, "tag", s, days) for t, s in tags.items()})

    _commit(table, change)


def publish(
    table: Table,
    branch: str,
    base: int | None,
    *,
    check: Callable[[Metadata], object] | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Fast-forward main to a branch, set table properties, and drop the branch, in one commit.

    Args:
        branch: a branch created at `base`.
        base: the expected snapshot of main; None: it has none.
        check: called with the current metadata; raises MovedError if they are not as expected.
        settings: table properties to set.

    Raises:
        MovedError: main is at another snapshot, or the branch does not exist.
    """

    def changed(metadata: Metadata) -> Metadata:
        if check:
            check(metadata)
        now = {name: dict(ref) for name, ref in refs_of(metadata).items()}
        main = now.get("main")
        if (main and main["snapshot-id"]) != base:
            raise MovedError(f"main is at {main and main['snapshot-id']}, and {branch} began at {base}")
        if branch not in now:
            raise MovedError(f"the branch {branch} does not exist")
        now["main"] = {"type": "branch", **(main or {}), "snapshot-id": now.pop(branch)["snapshot-id"]}
        moved = with_refs(metadata, _held(now), now_ms())
        return {**moved, "properties": {**moved.get("properties", {}), **(settings or {})}}

    commit(table, changed)


def keep_snapshots(table: Table, number: int) -> None:
    """Let main keep its newest snapshots whenever snapshots expire, unless it has such a number; main does not move.

    Raises:
        MovedError: the table was dropped or created again.
    """

    def change(refs: Refs, _: Metadata) -> None:
        if main := refs.get("main"):
            main.setdefault(_KEPT, number)

    _commit(table, change)


def is_held_needlessly(table: Table) -> bool:
    """Whether main still keeps all snapshots although the last tag of a backfill is gone."""
    main = table.metadata.refs.get("main")
    has_tag = any(name.startswith(BACKFILL_TAG) for name in table.metadata.refs)
    return main is not None and _is_held(main.min_snapshots_to_keep) and not has_tag


def release(table: Table) -> None:
    """Let main keep the number of snapshots that it kept before, unless the table has a tag of a backfill."""
    _commit(table, lambda refs, metadata: None)  # every commit here does


def drop(table: Table, *names: str) -> None:
    """Drop branches or tags, as far as they exist."""
    _commit(table, lambda refs, _: [refs.pop(name, None) for name in names])


def drop_at(table: Table, at: Mapping[str, int]) -> list[str]:
    """Drop branches or tags that are at these snapshots, by name; return them."""
    dropped: list[str] = []

    def change(refs: Refs, _: Metadata) -> None:
        dropped[:] = [name for name, snapshot in at.items() if refs.get(name, {}).get("snapshot-id") == snapshot]
        for name in dropped:
            del refs[name]

    _commit(table, change)
    return dropped


def with_tag(metadata: Metadata, tag: str, snapshot: int, days: int) -> Metadata:
    """Return a table's metadata with a tag that expires after `days`, or as they are if the snapshot has expired."""
    try:
        refs = {**refs_of(metadata), tag: _ref(metadata, "tag", snapshot, days)}
    except MovedError:
        return metadata
    return {**metadata, "refs": _held(refs)}


def age_of(table: Table, snapshot: int, days: int) -> int:
    """Return the maximum age of a reference that is to expire after `days`, in milliseconds.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    found = table.snapshot_by_id(snapshot)
    return _age(None if found is None else found.timestamp_ms, days, f"{'.'.join(table.name())}", snapshot)


def _ref(metadata: Metadata, kind: str, snapshot: int, days: int) -> dict[str, Any]:
    """Return a reference that expires after `days`.

    Raises:
        MovedError: the table no longer has the snapshot.
    """
    made = next((s["timestamp-ms"] for s in metadata.get("snapshots", ()) if s["snapshot-id"] == snapshot), None)
    age = _age(made, days, str(metadata.get("location")), snapshot)
    return {"snapshot-id": snapshot, "type": kind, "max-ref-age-ms": age}


def _age(made: int | None, days: int, table: str, snapshot: int) -> int:
    """Return the age at which a reference to a snapshot that was made at a time expires after `days`.

    Iceberg's age of a reference is that of its snapshot, which may be old. Rounded up to whole days: setting it again
    on the same day changes nothing.

    Source: `RemoveSnapshots.computeRetainedRefs` of Iceberg
    """
    if made is None:
        raise MovedError(f"{table} no longer has snapshot {snapshot}")
    past = -(-max(now_ms() - made, 0) // DAY_MS)
    return (past + days) * DAY_MS


def _held(refs: Refs) -> Refs:
    """Return references with a main that keeps all of its snapshots while the table has a tag of a backfill."""
    if (main := refs.get("main")) is None:
        return refs
    kept, has_tag = main.get(_KEPT), any(name.startswith(BACKFILL_TAG) for name in refs)
    if has_tag and (kept is None or kept < _MANY):
        main = {**main, _KEPT: _HELD + (kept or 0)}
    elif not has_tag and kept is not None and _is_held(kept):
        main = {k: v for k, v in main.items() if k != _KEPT} | ({_KEPT: kept - _HELD} if kept > _HELD else {})
    return {**refs, "main": main}


def _is_held(kept: int | None) -> bool:
    """Whether a number of snapshots to keep was raised for a backfill."""
    return kept is not None and _HELD <= kept < _HELD + _MANY


def _commit(table: Table, change: Callable[[Refs, Metadata], object]) -> None:
    """Change a table's references.

    Args:
        table: the loaded table, possibly outdated.
        change: changes the current references, given the current metadata; raises MovedError if they are not as
            expected.

    Raises:
        MovedError: raised by `change`.
        CommitFailedException, CorruptMetadataError: see `metadata_commits.commit`.
    """

    def changed(metadata: Metadata) -> Metadata | None:
        before = refs_of(metadata)
        refs = {name: dict(ref) for name, ref in before.items()}
        change(refs, metadata)
        refs = _held(refs)
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
