"""Find the data files whose visible state differs between a window's two snapshots: for the window, or each snapshot.

Manifests that both snapshots list are not opened, unless deletes changed and the data files to which they apply have to
be found. Pure functions over metadata, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lake_assets.capture.files.avro_files import AvroKind
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.manifest_lists import Manifest, check_counts
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.capture.files.planned_files import Plan, Side
from lake_assets.capture.files.row_ids import are_stored_by_appends
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.errors import NotAnAncestorError, SnapshotExpiredError
from lake_assets.lake import thresholds


@dataclass(frozen=True)
class Part:
    """Files that are read together."""

    window: Window
    plan: Plan
    commits: Mapping[str, Point] = field(default_factory=dict[str, Point])
    """The snapshot that added each file, if the part combines the appends of several snapshots."""
    commit: Point | None = None
    """The snapshot of the part, if it has only one."""

    @property
    def has_lineage(self) -> bool:
        """Whether rows can be identified by their row ids: every file has reliable ids."""
        start = self.window.start if self.window.is_forward else None
        is_counted = start is None or start.next_row_id is not None
        return is_counted and self.plan.has_lineage and not are_stored_by_appends(self.plan, self.window)


def whole(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> list[Part]:
    """Return the net change of `window` as one part; no part if it is empty."""
    planned = net(reader, window, unpartitioned)
    return [] if planned.is_empty else [Part(window, planned)]


def by_snapshot(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> list[Part]:
    """Return the changes of each snapshot in `window`; all appends are combined in one part, to be read together.

    Raises:
        NotAnAncestorError: the start is not an ancestor of the end: rolled back, staged, or on another branch.
        SnapshotExpiredError: a snapshot within the window has expired.
    """
    if window.start_snapshot_id == window.end_snapshot_id:
        return []
    if window.divergence:
        end = window.end_snapshot_id or "the empty table"
        raise NotAnAncestorError(
            f"{window.table}: snapshot {window.start_snapshot_id} is not an ancestor of {end}, so "
            f"no snapshots lead from one to the other: {window.divergence.reason}. Instead, "
            f"{window.divergence.advice}, or capture the net change (granularity='net')"
        )
    if not window.is_complete:
        raise _expired(window)
    parts: list[Part] = []
    appended: list[tuple[Entry, Point]] = []
    last_append: Plan | None = None
    parent = window.start
    for step in window.steps:
        if step.operation != "replace":
            planned = plan(reader, parent.manifest_list if parent else None, step.manifest_list, unpartitioned)
            if parent is None and any(e.snapshot_id != step.snapshot_id for e in planned.after.data):
                raise _expired(window)  # the expiration of snapshots may have removed the parent's id as well
            if step.operation == "append" and not planned.before.data and not planned.after.deletes:
                appended += [(e, step) for e in planned.after.data]
                last_append = planned
            elif not planned.is_empty:
                window_of_step = replace(window, start=parent, end=step, ancestor=parent, steps=(step,), undone=())
                parts.append(Part(window_of_step, planned, commit=step))
        parent = step
    commits = {e.path: step for e, step in appended}
    if last_append is not None and len(commits) == len(appended):
        combined = Plan(after=Side(tuple(e for e, _ in appended), (), last_append.after.list_kind))
        parts.insert(0, Part(window, combined, commits=commits))
    elif last_append is not None:
        parts += _per_append(window, appended, last_append)
    return parts


def _per_append(window: Window, appended: list[tuple[Entry, Point]], last: Plan) -> list[Part]:
    """Return one part per append, for files appended twice: their path does not identify the snapshot."""
    files: dict[Point, list[Entry]] = {}
    for e, step in appended:
        files.setdefault(step, []).append(e)
    return [
        Part(replace(window, end=step), Plan(after=Side(tuple(es), (), last.after.list_kind)), commit=step)
        for step, es in files.items()
    ]


def _expired(window: Window) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{window.table}: snapshots between {window.start_snapshot_id or 'the beginning'} and {window.end_snapshot_id} "
        "have expired, so their individual changes are unknown. The net change (granularity='net') does not need them"
    )


State = tuple[str, int]


def plan(reader: ManifestReader, start: str | None, end: str | None, unpartitioned: frozenset[int]) -> Plan:
    """Compare two snapshots.

    Args:
        start: the manifest list of the window's start; None: an empty table.
        end: the manifest list of its end; None: an empty table.

    Raises:
        MissingDataFileError: a manifest is missing.
        CorruptMetadataError: a manifest cannot be read.
    """
    ends, end_kind = reader.manifest_list(end) if end else ([], None)
    starts, start_kind = reader.manifest_list(start) if start else ([], None)
    check_counts(starts, ends)
    start_paths, end_paths = {m.path for m in starts}, {m.path for m in ends}
    new_manifests = [m for m in ends if m.path not in start_paths]
    old_manifests = [m for m in starts if m.path not in end_paths]
    new_deletes = reader.entries(m for m in new_manifests if m.holds_deletes)
    old_deletes = reader.entries(m for m in old_manifests if m.holds_deletes)
    changed = _changed_deletes(old_deletes, new_deletes)
    index = DeleteIndex(changed, unpartitioned)
    new, old = _different_data(reader, index, new_manifests, old_manifests)
    new_data, old_data = _states(new), _states(old)
    added, removed = _minus(new_data, old_data), _minus(old_data, new_data)

    with_changed_deletes: list[tuple[Entry, Entry]] = []
    if changed:
        unchanged = [(old_data[s][0], e) for s, es in new_data.items() if s in old_data for e in es[: len(old_data[s])]]
        with_changed_deletes = [pair for pair in unchanged if index.applying_to(pair[1])]
        common = [m for m in ends if m.path in start_paths and not m.holds_deletes]
        with_changed_deletes += _with_changed_deletes(reader, index, common, {m.path: m for m in starts})

    after_data = reader.completed([*added, *(e for _, e in with_changed_deletes)])
    before_data = reader.completed([*removed, *(e for e, _ in with_changed_deletes)])
    common_deletes = [m for m in ends if m.path in start_paths and m.holds_deletes]
    common_applicable = _applicable_deletes(reader, common_deletes, [*after_data, *before_data])
    after = _side(after_data, [*new_deletes, *common_applicable], unpartitioned, end_kind)
    before = _side(before_data, [*old_deletes, *common_applicable], unpartitioned, start_kind)
    return Plan(after, before, frozenset(e.path for _, e in with_changed_deletes))


def _different_data(
    reader: ManifestReader, index: DeleteIndex, new: Sequence[Manifest], old: Sequence[Manifest]
) -> tuple[list[Entry], list[Entry]]:
    """Return the data files in new and in old manifests, if possible without those that are the same in both."""
    sides = [[m for m in side if not m.holds_deletes] for side in (new, old)]
    paths = index.paths
    # Deletes of whole partitions may apply to any file; and nothing is the same if one side has no manifests.
    if not all(sides) or paths is None or len(paths) > thresholds.INDEX_LOOKUP_FILES:
        return reader.entries(sides[0]), reader.entries(sides[1])
    return reader.different(sides[0], sides[1], paths)


def net(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> Plan:
    """Return the plan of a whole window, without files that were only rewritten by maintenance.

    Raises:
        MissingDataFileError: a manifest is missing.
        CorruptMetadataError: a manifest cannot be read.
    """
    if window.is_empty:
        return Plan()
    begin, end = (p.manifest_list if p else None for p in (window.start, window.end))
    planned = plan(reader, begin, end, unpartitioned)
    if not (planned.before.data and window.is_forward and window.is_complete):
        return planned
    parents = {p.snapshot_id: p.manifest_list for p in (window.start, *window.steps) if p is not None}
    for step in window.steps:
        if step.operation == "replace" and step.parent_id in parents:
            upkeep = plan(reader, parents[step.parent_id], step.manifest_list, unpartitioned)
            planned = _without(planned, upkeep, unpartitioned)
    return planned


def _without(planned: Plan, upkeep: Plan, unpartitioned: frozenset[int]) -> Plan:
    """Remove the files that `upkeep` rewrote from `planned`.

    That is possible only if these files were visible in the same state at the window's start and end. Files that the
    window added, or has changed since, have to be compared row by row.
    """
    after, before = _visible(planned.after, unpartitioned), _visible(planned.before, unpartitioned)
    added, removed = _visible(upkeep.after, unpartitioned), _visible(upkeep.before, unpartitioned)
    lists = ((planned.after, after), (planned.before, before), (upkeep.after, added), (upkeep.before, removed))
    if any(len(visible) != len(side.data) for side, visible in lists):
        return planned  # a file is listed twice
    if not (added and removed and added.keys() <= after.keys() and removed.keys() <= before.keys()):
        return planned

    def rest(side: Side, files: dict[Visible, Entry], exchanged: dict[Visible, Entry]) -> Side:
        return _side([e for v, e in files.items() if v not in exchanged], side.deletes, unpartitioned, side.list_kind)

    return replace(planned, after=rest(planned.after, after, added), before=rest(planned.before, before, removed))


Visible = tuple[str, int, frozenset[tuple[str, int, int]]]


def _visible(side: Side, unpartitioned: frozenset[int]) -> dict[Visible, Entry]:
    """Return data files by their visible state: path, sequence number and applying deletes."""
    index = DeleteIndex(side.deletes, unpartitioned)
    files: dict[Visible, Entry] = {}
    for e in side.data:
        applying = frozenset((d.path, d.offset, d.sequence_number) for d in index.applying_to(e))
        files[e.path, e.sequence_number, applying] = e
    return files


def _states(entries: Iterable[Entry]) -> dict[State, list[Entry]]:
    """Return data files by path and sequence number; a table may list one file twice."""
    by_state: dict[State, list[Entry]] = {}
    for e in entries:
        by_state.setdefault((e.path, e.sequence_number), []).append(e)
    return by_state


def _minus(some: dict[State, list[Entry]], others: dict[State, list[Entry]]) -> list[Entry]:
    return [e for state, entries in some.items() for e in entries[len(others.get(state, ())) :]]


def _changed_deletes(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    def by_state(entries: Iterable[Entry]) -> dict[tuple[str, int, int], Entry]:
        return {(e.path, e.offset, e.sequence_number): e for e in entries if e.content}

    before, after = by_state(old), by_state(new)
    return [e for k, e in after.items() if k not in before] + [e for k, e in before.items() if k not in after]


def _with_changed_deletes(
    reader: ManifestReader, index: DeleteIndex, common: Sequence[Manifest], starts: dict[str, Manifest]
) -> list[tuple[Entry, Entry]]:
    """Return the files in unchanged manifests to which changed deletes apply, as seen by start and end."""
    candidates = [m for m in common if index.may_reach(m)]
    paths = index.paths
    if paths is not None and len(paths) <= thresholds.INDEX_LOOKUP_FILES:
        entries = reader.entries_of(candidates, paths, keep=index.applying_to)
    else:
        entries = reader.completed(reader.entries(candidates, keep=index.applying_to))
    # An upgrade to v3 assigns row ids to existing manifests: the file is the same, but has no ids at the start.
    return [(e if _same_ids(e, starts) else _without_ids(e, starts[e.manifest.path]), e) for e in entries]


def _same_ids(e: Entry, starts: dict[str, Manifest]) -> bool:
    return starts[e.manifest.path].first_row_id == e.manifest.first_row_id


def _without_ids(e: Entry, manifest: Manifest) -> Entry:
    return replace(e, manifest=manifest, raw={**e.raw, "data_file": {**e.file, "first_row_id": None}})


def _applicable_deletes(reader: ManifestReader, manifests: Sequence[Manifest], data: Sequence[Entry]) -> list[Entry]:
    """Return the deletes common to both snapshots that may apply to `data`."""
    if not data:
        return []
    oldest = min(e.sequence_number for e in data)
    return reader.entries(m for m in manifests if m.sequence_number >= oldest)


def _side(
    data: Sequence[Entry], deletes: Sequence[Entry], unpartitioned: frozenset[int], kind: AvroKind | None
) -> Side:
    if not data:
        return Side()
    index = DeleteIndex(deletes, unpartitioned)
    applying: dict[tuple[str, int, int], Entry] = {}
    for e in data:
        for d in index.applying_to(e):
            applying[d.path, d.offset, d.sequence_number] = d
    return Side(tuple(data), tuple(applying.values()), kind)
