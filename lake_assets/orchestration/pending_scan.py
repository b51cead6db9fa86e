"""Looking at the lake for the capture sensor: what is pending and how much that is, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lake_assets.errors import HistoryError, InputError, LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.orchestration.sensor_planning import Work, fingerprint
from lake_assets.pipeline import Absorbed, SnapshotPins
from lake_assets.pipeline.pending import Pending, may_wait, next_batch, pending_of
from lake_assets.pipeline.table_graph import Spec, audited_by

# Sizes and ranges are for people who look at a run; a tick must not become slow for them.
MOST_CAPTURES = 20


@dataclass(frozen=True)
class PendingTable:
    """One table's work and the windows it consists of.

    Attributes:
        wait: seconds that it may still wait for more; 0: none.
    """

    work: Work
    windows: tuple[Pending, ...]
    landed_bytes: int = 0
    wait: float = 0.0


def look(lake: Lake, specs: Sequence[Spec], steps: dict[str, str], now: float) -> list[PendingTable]:
    """Which tables have something to absorb.

    A table whose own history or input is broken is found as well: its step fails with the same error, where people see
    it, and the other tables go on. An error of the lake as a whole is raised.

    Args:
        lake: opened for this look.
        specs: the tables.
        steps: by table, the step that absorbs it.
        now: seconds since 1970.

    Raises:
        CatalogUnavailableError: the catalog cannot be opened.
    """
    found: list[PendingTable] = []
    for spec in specs:
        name = str(spec.table)
        # A changed declaration is a new chance for a table that was given up, and so are other rows in a table that
        # its audits look at.
        declared = fingerprint(spec)
        try:
            declared = fingerprint(spec, *((str(t), _head(lake, t)) for t in audited_by(spec)))
            windows = tuple(pending_of(lake, spec))
        except (HistoryError, InputError, PipelineError) as e:
            error = f"{type(e).__name__}: {e}"
            found.append(PendingTable(Work(name, steps[name], fingerprint(declared, error), error), ()))
            continue
        if windows:
            files = [f for w in windows for f in _files(w)]
            what = ", ".join(describe(w) for w in windows)
            work = Work(name, steps[name], fingerprint(declared, *(files or windows)), what)
            wait = may_wait(lake, spec, windows, now)
            found.append(PendingTable(work, windows, sum(size for _, size, _ in files), wait))
    return found


def batches(lake: Lake, specs: Sequence[Spec], found: Sequence[PendingTable]) -> list[PendingTable]:
    """The same work with the windows that one run takes of it at most, where batches are limited.

    What has to be done and how often it was tried stays counted by the whole windows (`fingerprint`).

    Args:
        lake: opened for this look.
        specs: the tables, sources before what depends on them.
        found: what is due, in the same order.
    """
    by_name = {str(s.table): s for s in specs}
    if not any(by_name[f.work.table].batch.is_limited for f in found):
        return list(found)
    pins = SnapshotPins()
    return [_batch(lake, by_name[f.work.table], f, pins) for f in found]


def _batch(lake: Lake, spec: Spec, found: PendingTable, pins: SnapshotPins) -> PendingTable:
    try:
        taken = next_batch(lake, spec, found.windows, pins) if found.windows else []
    except LakeError:
        return found  # its step says what is wrong
    if not taken:
        return found
    what = ", ".join(describe(w) for w in taken)
    return replace(found, work=replace(found.work, what=what), windows=tuple(taken))


def _head(lake: Lake, table: TableId) -> int | None:
    found = lake.find(table)
    return found.metadata.current_snapshot_id if found else None


def missing(lake: Lake, specs: Sequence[Spec]) -> list[str]:
    """Tables that wait for one which is not there and which the pipeline does not make, for people."""
    made = {s.table for s in specs}
    outside = {(spec.table, source) for spec in specs for source in spec.sources if source not in made}
    return [f"{t} waits for {s}, which is not in the lake" for t, s in sorted(outside) if not lake.exists(s)]


def _files(window: Pending) -> list[tuple[str, int, int]]:
    # A file that was corrected in place is another one: the landing that failed on it is due again.
    stats = [(f.name, f.stat()) for f in window.paths]
    return [(name, s.st_size, s.st_mtime_ns) for name, s in stats]


def describe(window: Pending) -> str:
    """A window for people: `raw.events 12..34`, or the number of files that landed."""
    if window.end is None:
        return f"{window.files} files in {window.source}"
    left = f" (a batch; {window.left} snapshots are left)" if window.left else ""
    return f"{window.source} {window.start or 'empty'}..{window.end}{left}"


@dataclass(frozen=True)
class Size:
    """How much the windows hold, each (source, window) counted once."""

    files: int
    bytes: int
    ranges: tuple[str, ...]


def measure(lake: Lake, found: Sequence[PendingTable]) -> Size:
    """Files, bytes and ranges of what was found; a window that cannot be captured is left to its step's error."""
    windows = [w for f in found for w in f.windows]
    files, size = sum(w.files for w in windows), sum(f.landed_bytes for f in found)
    ranges: list[str] = []
    distinct = dict.fromkeys((w.source, w.start, w.end) for w in windows if w.end is not None)
    for source, start, end in list(distinct)[:MOST_CAPTURES]:
        try:
            captured = Absorbed.of(source, lake.capture(source, start, end))
        except HistoryError:
            continue
        files += captured.files
        size += captured.bytes
        ranges += [f"{source}.{name} {text}" for name, text in list(captured.ranges.items())[:1]]
    return Size(files, size, tuple(ranges))
