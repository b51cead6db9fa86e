"""The moments at which a table's main moved, as far as snapshots are kept, and what is known of each.

Main's log tells what readers saw, also after a rollback. A table that was replaced has a new log: the one from before
is in older versions of its metadata, which tell as well when its declaration changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lake_assets.backfill.side_lake import BACKFILL_PROPERTY
from lake_assets.lake import thresholds
from lake_assets.lake.metadata.metadata_commits import Metadata, read_metadata_at
from lake_assets.lake.metadata.refs import refs_of
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY, summary_of
from lake_assets.lake.metadata.snapshot_log import history
from lake_assets.lake.metadata.watermark import PROPERTY, Watermarks, find_property, parse_marks
from lake_assets.models.model_spec import DECLARED_PROPERTY
from lake_assets.models.steps.cost_estimate import COST
from lake_assets.pipeline.redo import RECOMPUTED_PROPERTY
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_state import (
    DECLARATION_PROPERTY,
    DEFINITION,
    FINGERPRINT_PROPERTY,
    KEY_PROPERTY,
)

# Properties that tell how rows were computed.
_KEPT = (*DEFINITION, DECLARED_PROPERTY)
# Settings whose change readers know by another name; the text of a query is long.
_QUIET = (DECLARED_PROPERTY,)


@dataclass(frozen=True)
class Moment:
    """One state of main.

    Attributes:
        snapshot: the snapshot.
        at: when main moved to it.
        marks: what the table had absorbed then, by source; empty: unknown, or nothing.
        declaration: how the declaration differs from that of the moment before; empty: not, or that is unknown.
        is_rollback: whether main moved back to it.
        follows_gap: whether snapshots between the moment before and this one have expired.
    """

    snapshot: Snapshot
    at: datetime
    marks: Watermarks
    declaration: tuple[str, ...] = ()
    is_rollback: bool = False
    follows_gap: bool = False

    @property
    def id(self) -> int:
        """The id of the snapshot."""
        return self.snapshot.snapshot_id

    @property
    def operation(self) -> str:
        """Iceberg's operation."""
        return self.snapshot.summary.operation.value if self.snapshot.summary else "overwrite"

    @property
    def changed(self) -> tuple[int, int, int]:
        """How many rows of the table the commit inserted, updated and deleted."""
        return counts(self.snapshot)

    @property
    def is_of_step(self) -> bool:
        """Whether a step of a run made the commit, so that there was a record of it."""
        summary = summary_of(self.snapshot)
        others = (UPKEEP_PROPERTY, BACKFILL_PROPERTY, RECOMPUTED_PROPERTY)
        return (COST in summary or PROPERTY in summary) and not any(summary.get(name) for name in others)

    @property
    def made_by(self) -> str:
        """What made the commit, as far as its summary tells."""
        summary, parts = summary_of(self.snapshot), list[str]()
        if self.is_rollback:
            parts.append("a rollback")
        if kind := summary.get(UPKEEP_PROPERTY):
            parts.append(f"upkeep ({kind})")
        if backfill := summary.get(BACKFILL_PROPERTY):
            parts.append(f"backfill {backfill}")
        if scope := summary.get(RECOMPUTED_PROPERTY):
            parts.append(f"a recomputation of {scope}")
        if cost := summary.get(COST):
            parts.append(f"a step, strategy {json.loads(cost)['strategy']}")
        elif PROPERTY in summary and len(parts) == int(self.is_rollback):
            parts.append("a step")
        if not parts:
            program = summary.get("engine-name") or summary.get("app-name") or ""
            parts.append(f"another program{f' ({program})' if program else ''}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Timeline:
    """The moments of a table, oldest first.

    Attributes:
        moments: each with another snapshot than the one before.
        is_whole: whether it begins with the table's first commit.
    """

    moments: tuple[Moment, ...]
    is_whole: bool

    @property
    def beginning(self) -> str:
        """Where the history begins, for people."""
        if not self.moments:
            return "the table has no snapshot"
        first = self.moments[0]
        when = f"{first.at:%Y-%m-%d %H:%M:%S} UTC"
        if self.is_whole:
            return f"all snapshots of the table are kept, from its first commit on ({when})"
        return (
            f"history begins with the oldest kept snapshot, {first.id} of {when}: older ones have expired, and earlier "
            "versions of the row with them"
        )


@dataclass(frozen=True)
class _Version:
    """What one version of a table's metadata tells: main's snapshot, its log, and the definition."""

    main: int | None
    log: tuple[tuple[int, int], ...]
    definition: Mapping[str, str]


def timeline(table: Table) -> Timeline:
    """Return the moments of a loaded table."""
    listed = [*_older(table), _version_of(table)]
    versions = [v for v in listed if v is not None]
    kept = {s.snapshot_id: s for s in table.metadata.snapshots}
    heads = [(i, ms) for i, ms in _heads(listed) if i in kept]
    heads = [*_before(table, heads), *heads]
    definitions = {v.main: v.definition for v in versions if v.main is not None}
    moments: list[Moment] = []
    known: Mapping[str, str] | None = None
    seen: set[int] = set()
    for snapshot_id, ms in heads:
        if moments and moments[-1].id == snapshot_id:
            continue
        definition = definitions.get(snapshot_id)
        changes = tuple(_differences(known, definition)) if known is not None and definition is not None else ()
        known = definition if definition is not None else known
        at = datetime.fromtimestamp(ms / 1000, UTC)
        marks = _marks(table, snapshot_id)
        has_gap = snapshot_id not in seen and _has_gap(kept, snapshot_id, [m.id for m in moments])
        moments.append(Moment(kept[snapshot_id], at, marks, changes, snapshot_id in seen, has_gap))
        seen.add(snapshot_id)
    return Timeline(tuple(moments), bool(moments) and _is_first(moments[0].snapshot))


def _has_gap(kept: Mapping[int, Snapshot], snapshot_id: int, seen: Sequence[int]) -> bool:
    """Whether a snapshot has an expired ancestor that is younger than those that were seen before it, oldest first."""
    oldest = kept[snapshot_id]
    while (parent := oldest.parent_snapshot_id) is not None and parent not in seen:
        if parent not in kept:
            return True
        oldest = kept[parent]
    if parent is not None or not seen:
        return False
    # A replaced table begins anew, and PyIceberg forgets the parents that it expires: then commits are missing between.
    numbers = {s.sequence_number for s in kept.values()}
    return not numbers.issuperset(range((kept[seen[-1]].sequence_number or 0) + 1, oldest.sequence_number or 0))


def _older(table: Table) -> list[_Version | None]:
    """Return the versions in the metadata log, oldest first; None for those that are gone."""
    log = table.metadata.metadata_log
    with ThreadPoolExecutor(thresholds.HISTORY_THREADS) as pool:
        return list(pool.map(lambda entry: _read(table, entry.metadata_file), log))


def _read(table: Table, location: str) -> _Version | None:
    try:
        metadata = read_metadata_at(table.io, location)
    except (OSError, ValueError, EOFError):
        return None  # deleted meanwhile, or never written as a whole
    return _version(metadata) if metadata.get("table-uuid") == str(table.metadata.table_uuid) else None


def _version(metadata: Metadata) -> _Version:
    main = refs_of(metadata).get("main", {}).get("snapshot-id")
    log = tuple((e["snapshot-id"], e["timestamp-ms"]) for e in metadata.get("snapshot-log") or ())
    return _Version(
        main, _complete(log, main, metadata["last-updated-ms"]), _defining(metadata.get("properties") or {})
    )


def _version_of(table: Table) -> _Version:
    meta = table.metadata
    log = tuple((e.snapshot_id, e.timestamp_ms) for e in meta.snapshot_log)
    main = meta.current_snapshot_id
    return _Version(main, _complete(log, main, meta.last_updated_ms), _defining(table.properties))


def _complete(log: tuple[tuple[int, int], ...], main: int | None, updated: int) -> tuple[tuple[int, int], ...]:
    """Return a log that ends at main: some catalogs keep none."""
    return log if main is None or (log and log[-1][0] == main) else (*log, (main, updated))


def _defining(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: properties[name] for name in _KEPT if name in properties}


def _heads(versions: Iterable[_Version | None]) -> list[tuple[int, int]]:
    """Return each move of main once, oldest first.

    A commit may add several snapshots, as an overwrite of PyIceberg does: nobody saw those before the last one.
    """
    heads: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    follows = False
    for version in versions:
        if version is not None:
            new = [entry for entry in version.log if entry not in seen]
            heads += new[-1:] if follows else new
            seen |= {*new}
        follows = version is not None
    return heads


def _before(table: Table, heads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the kept ancestors of the first head, and tagged snapshots before them, oldest first.

    The expiration of a snapshot removes older entries of the log, though tags keep some of their snapshots.
    """
    if not heads:
        return []
    first = next(s for s in table.metadata.snapshots if s.snapshot_id == heads[0][0])
    older = {s.snapshot_id: s for s in history(table.metadata, first.parent_snapshot_id)}
    tagged = {r.snapshot_id for r in table.metadata.refs.values() if r.snapshot_ref_type == SnapshotRefType.TAG}
    for s in table.metadata.snapshots:
        if s.snapshot_id in tagged and (s.sequence_number or 0) < (first.sequence_number or 0):
            older[s.snapshot_id] = s
    listed = {i for i, _ in heads}
    rest = (s for s in older.values() if s.snapshot_id not in listed)
    return [
        (s.snapshot_id, s.timestamp_ms) for s in sorted(rest, key=lambda s: (s.sequence_number or 0, s.timestamp_ms))
    ]


def _is_first(snapshot: Snapshot) -> bool:
    """Whether a snapshot is its table's first; an expired parent may leave no trace. Format v1 numbers no commits."""
    if snapshot.sequence_number:
        return snapshot.sequence_number == 1
    summary = summary_of(snapshot)
    return snapshot.parent_snapshot_id is None and summary.get("total-records") == summary.get("added-records")


def _marks(table: Table, snapshot_id: int) -> Watermarks:
    """Return what a table had absorbed at a snapshot; empty if no kept ancestor tells."""
    stored = find_property(table, PROPERTY, snapshot_id)
    try:
        return parse_marks(stored[0]) if stored else {}
    except (ValueError, TypeError, AttributeError, LookupError):
        return {}  # of another program, or a later version


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield what changed in a table's declaration, for people."""
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before == after or name in _QUIET:
            continue
        if name == DECLARATION_PROPERTY:
            yield from _settings(before, after)
        elif name == FINGERPRINT_PROPERTY:
            yield "the query or code of the model changed"
        elif name == KEY_PROPERTY:
            yield f"key: {_names(before)} -> {_names(after)}"
        else:
            yield f"{name.removeprefix('lake-assets.')}: {before or 'none'} -> {after or 'none'}"


def _settings(before: str | None, after: str | None) -> Iterator[str]:
    old, new = _object(before), _object(after)
    for setting in dict.fromkeys((*old, *new)):
        if old.get(setting) != new.get(setting):
            yield f"{setting}: {_short(old.get(setting))} -> {_short(new.get(setting))}"


def _object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _names(text: str | None) -> str:
    return ", ".join(map(str, json.loads(text))) if text else "none"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
