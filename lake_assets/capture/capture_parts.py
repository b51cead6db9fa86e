"""The parts of a capture: the whole window at once, or one part per snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lake_assets.capture.changed_files import net, plan
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.capture.files.planned_files import Plan, Side
from lake_assets.capture.files.row_ids import are_stored_by_appends
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.errors import NotAnAncestorError, SnapshotExpiredError


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
