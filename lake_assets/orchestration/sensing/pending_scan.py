"""Scan the lake for pending changes and their size, for the capture sensor, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lake_assets.errors import HistoryError, InputError, LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.orchestration.sensing.sensor_planning import Work, fingerprint
from lake_assets.pipeline import Absorbed, SnapshotPins
from lake_assets.pipeline.pending import Pending, may_wait, next_batch, pending_of
from lake_assets.pipeline.table_graph import Spec, also_read_by

# Sizes and ranges only inform people; they must not slow down a tick.
MOST_CAPTURES = 20


@dataclass(frozen=True)
class PendingTable:
    """One table's work and the windows it consists of.

    Attributes:
        wait: seconds that it may still wait for more changes; 0 if it is due.
    """

    work: Work
    windows: tuple[Pending, ...]
    landed_bytes: int = 0
    wait: float = 0.0


def look(lake: Lake, specs: Sequence[Spec], steps: dict[str, str], now: float) -> list[PendingTable]:
    """Return the tables with something to absorb.

    A table with a broken history or input is included: its step fails with the same error, where people see it, and
    the other tables continue. An error of the whole lake is raised.

    Args:
        lake: opened for this scan.
        specs: the tables to scan.
        steps: by table, the step that absorbs it.
        now: seconds since 1970.

    Raises:
        CatalogUnavailableError: the catalog cannot be opened.
    """
    found: list[PendingTable] = []
    for spec in specs:
        name = str(spec.table)
        # A table that was given up is retried after a change of its declaration, or of a table that its audits read.
        declared = fingerprint(spec)
        try:
            declared = fingerprint(spec, *((str(t), _head(lake, t)) for t in also_read_by(spec)))
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
    """Shorten the windows to what one run absorbs, if batches are limited.

    Fingerprints, and so the count of attempts, stay those of the whole windows.

    Args:
        lake: opened for this scan.
        specs: the tables, upstream first.
        found: the due tables, in the same order.
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
        return found  # its step reports the error
    if not taken:
        return found
    what = ", ".join(describe(w) for w in taken)
    return replace(found, work=replace(found.work, what=what), windows=tuple(taken))


def _head(lake: Lake, table: TableId) -> int | None:
    found = lake.find(table)
    return found.metadata.current_snapshot_id if found else None


def missing(lake: Lake, specs: Sequence[Spec]) -> list[str]:
    """Describe tables that wait for a missing table outside the pipeline."""
    made = {s.table for s in specs}
    outside = {(spec.table, source) for spec in specs for source in spec.sources if source not in made}
    return [f"{t} waits for {s}, which is not in the lake" for t, s in sorted(outside) if not lake.exists(s)]


def _files(window: Pending) -> list[tuple[str, int, int]]:
    # A file that was corrected in place counts as new: the landing that failed on it is due again.
    stats = [(f.name, f.stat()) for f in window.paths]
    return [(name, s.st_size, s.st_mtime_ns) for name, s in stats]


def describe(window: Pending) -> str:
    """Describe a window: `raw.events 12..34`, or the number of files in the landing folder."""
    if window.end is None:
        return f"{window.files} files in {window.source}"
    left = f" (a batch; {window.left} snapshots are left)" if window.left else ""
    return f"{window.source} {window.start or 'empty'}..{window.end}{left}"


@dataclass(frozen=True)
class Size:
    """Total size of the windows, each (source, window) counted once."""

    files: int
    bytes: int
    ranges: tuple[str, ...]


def measure(lake: Lake, found: Sequence[PendingTable]) -> Size:
    """Sum up files, bytes and ranges of pending windows; the step reports windows that cannot be captured."""
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
