"""The parts of a capture: the whole window at once, or every snapshot on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lake_assets.capture.capture_planning import Plan, Side, net, plan
from lake_assets.capture.files.manifests import Entry, ManifestReader
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
    """By which snapshot each captured file came, where the part holds the appends of several."""
    commit: Point | None = None
    """The snapshot that the part is of, where it is of one."""

    @property
    def has_lineage(self) -> bool:
        """Whether rows are told apart by their ids: every file has them, and nothing says that they are wrong."""
        start = self.window.start if self.window.is_forward else None
        is_counted = start is None or start.next_row_id is not None
        return is_counted and self.plan.has_lineage and not are_stored_by_appends(self.plan, self.window)


def whole(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> list[Part]:
    """The net change of `window`."""
    planned = net(reader, window, unpartitioned)
    return [] if planned.is_empty else [Part(window, planned)]


def by_snapshot(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> list[Part]:
    """The changes of every snapshot of `window`; those of all appends are one part, to be read at once.

    Raises:
        NotAnAncestorError: no steps lead from the start to the end: the start was rolled back, or it is staged, or on
            another branch.
        SnapshotExpiredError: a snapshot within the window is gone.
    """
    if window.end is None or window.start_snapshot_id == window.end_snapshot_id:
        return []
    if window.apart:
        raise NotAnAncestorError(
            f"{window.table}: snapshot {window.start_snapshot_id} is no ancestor of {window.end_snapshot_id}, so no "
            f"steps lead from one to the other: {window.apart.reason}. To go on, {window.apart.advice}, or ask for the "
            "net change (granularity='net')"
        )
    if not window.is_complete:
        raise _lost(window)
    parts: list[Part] = []
    appended: list[tuple[Entry, Point]] = []
    last: Plan | None = None
    parent = window.start
    for step in window.steps:
        if step.operation != "replace":
            planned = plan(reader, parent.manifest_list if parent else None, step.manifest_list, unpartitioned)
            if parent is None and any(e.snapshot_id != step.snapshot_id for e in planned.after.data):
                raise _lost(window)  # what expires snapshots may also have cut the link to them
            if step.operation == "append" and not planned.before.data and not planned.after.deletes:
                appended += [(e, step) for e in planned.after.data]
                last = planned
            elif not planned.is_empty:
                own = replace(window, start=parent, end=step, ancestor=parent, steps=(step,), undone=())
                parts.append(Part(own, planned, commit=step))
        parent = step
    commits = {e.path: step for e, step in appended}
    if last is not None and len(commits) == len(appended):
        together = Plan(after=Side(tuple(e for e, _ in appended), (), last.after.list_kind))
        parts.insert(0, Part(window, together, commits=commits))
    elif last is not None:
        parts += _one_by_one(window, appended, last)
    return parts


def _one_by_one(window: Window, appended: list[tuple[Entry, Point]], last: Plan) -> list[Part]:
    """A part for every append: a file was appended twice, so that its name does not tell by which snapshot."""
    files: dict[Point, list[Entry]] = {}
    for e, step in appended:
        files.setdefault(step, []).append(e)
    return [
        Part(replace(window, end=step), Plan(after=Side(tuple(es), (), last.after.list_kind)), commit=step)
        for step, es in files.items()
    ]


def _lost(window: Window) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{window.table}: snapshots between {window.start_snapshot_id or 'the beginning'} and {window.end_snapshot_id} "
        "have been expired, so that their own changes cannot be told. The net change (granularity='net') does not need "
        "them"
    )
