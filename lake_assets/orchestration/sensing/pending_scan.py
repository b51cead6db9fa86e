"""Scan the lake for pending changes and their size, for the capture sensor, from metadata alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lake_assets.errors import (
    HistoryError,
    InputError,
    LakeError,
    MissingPackageError,
    PipelineError,
    StorageUnavailableError,
)
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.orchestration.runs.run_retries import Work, fingerprint
from lake_assets.pipeline import SnapshotPins
from lake_assets.pipeline.pending import PendingWindow, may_wait, next_batch, pending_of
from lake_assets.pipeline.table_graph import Spec, also_read_by
from lake_assets.pipeline.table_lags import has_targets, table_lags
from lake_assets.pipeline.table_steps import step_of
from lake_assets.pipeline.target_lag import plan
from lake_assets.tables.outcome import Absorbed

# Measure at most this many windows per tick: sizes and ranges are only shown, and must not slow a tick down.
MOST_CAPTURES = 20


@dataclass(frozen=True)
class PendingTable:
    """A table with something to absorb, and its windows.

    Attributes:
        landed_bytes: size of its new files in the landing folder.
        wait: seconds that it may still wait for more changes; 0 if it is due.
    """

    work: Work
    windows: tuple[PendingWindow, ...]
    landed_bytes: int = 0
    wait: float = 0.0


def scan(lake: Lake, specs: Sequence[Spec], steps: dict[str, str], now: float) -> list[PendingTable]:
    """Return the tables with something to absorb.

    A table with a broken history, input or query, or without access to its files, is included: its step fails with the
    same error, where people see it, and the other tables continue. Only an error of the whole lake is raised.

    Args:
        steps: by table, the step that absorbs it.
        now: seconds since 1970.

    Raises:
        CatalogUnavailableError: the catalog cannot be opened.
    """
    pending: list[PendingTable] = []
    for spec in specs:
        name = str(spec.table)
        # A table that was given up is retried once its declaration changes, or a table that its audits read.
        version = fingerprint(spec)
        try:
            version = fingerprint(spec, *((str(t), _head(lake, t)) for t in also_read_by(spec)))
            step_of(spec).check()
            windows = tuple(pending_of(lake, spec))
        except (HistoryError, InputError, PipelineError, MissingPackageError, StorageUnavailableError) as e:
            error = f"{type(e).__name__}: {e}"
            pending.append(PendingTable(Work(name, steps[name], fingerprint(version, error), error), ()))
            continue
        if windows:
            files = [f for w in windows for f in _files(w)]
            text = ", ".join(describe(w) for w in windows)
            work = Work(name, steps[name], fingerprint(version, *(files or windows)), text)
            wait = may_wait(lake, spec, windows, now)
            pending.append(PendingTable(work, windows, sum(size for _, size, _ in files), wait))
    return pending


def pending_fingerprint(lake: Lake, spec: Spec) -> str:
    """Return the fingerprint of what is pending for a table; empty: nothing is, or the lake cannot be read.

    A step that was requested because a table upstream was pending, and fails, tells by it what it has attempted.
    """
    try:
        pending = scan(lake, [spec], {str(spec.table): ""}, time.time())
    except LakeError:
        return ""
    return pending[0].work.fingerprint if pending else ""


def held_back(
    lake: Lake, specs: Sequence[Spec], pending: Sequence[PendingTable], now: float, interval: float
) -> tuple[list[PendingTable], frozenset[str]]:
    """Let tables wait for as long as the targets of the pipeline allow.

    Args:
        now: seconds since 1970.
        interval: seconds until the next tick.

    Returns:
        The pending tables with their waits, and all tables that the next run leaves out.
    """
    if not has_targets(specs):
        return list(pending), frozenset()
    # A table whose step will fail for a known reason has no windows, and is not held back.
    lags = table_lags(lake, specs, {p.work.table: p.windows for p in pending}, now)
    found = plan(lags, now, interval)
    waits_for_batch = {str(s.table): bool(s.batch.wait) for s in specs}
    result: list[PendingTable] = []
    for table in pending:
        name = table.work.table
        is_full = waits_for_batch[name] and not table.wait
        is_due = not table.windows or name in found.run or is_full
        result.append(replace(table, wait=0.0 if is_due else found.waits.get(name, interval)))
    due = {t.work.table for t in result if not t.wait}
    return result, frozenset(t.table for t in lags if t.table not in found.run and t.table not in due)


def batches(lake: Lake, specs: Sequence[Spec], pending: Sequence[PendingTable]) -> list[PendingTable]:
    """Shorten the windows to what one run absorbs, if batches are limited.

    Fingerprints still identify the whole windows, and attempts are counted by fingerprint.

    Args:
        specs: the tables, upstream first.
        pending: the due tables, in the same order.
    """
    by_name = {str(s.table): s for s in specs}
    if not any(by_name[table.work.table].batch.is_limited for table in pending):
        return list(pending)
    pins = SnapshotPins()
    return [_batch(lake, by_name[table.work.table], table, pins) for table in pending]


def _batch(lake: Lake, spec: Spec, pending: PendingTable, pins: SnapshotPins) -> PendingTable:
    try:
        batch = next_batch(lake, spec, pending.windows, pins) if pending.windows else []
    except LakeError:
        return pending  # its step reports the error
    if not batch:
        return pending
    text = ", ".join(describe(w) for w in batch)
    return replace(pending, work=replace(pending.work, what=text), windows=tuple(batch))


def _head(lake: Lake, table: TableId) -> int | None:
    loaded = lake.find(table)
    return loaded.metadata.current_snapshot_id if loaded else None


def missing_sources(lake: Lake, specs: Sequence[Spec]) -> list[str]:
    """Describe each table that waits for a missing source table outside the pipeline."""
    own = {s.table for s in specs}
    outside = {(spec.table, source) for spec in specs for source in spec.sources if source not in own}
    return [f"{t} waits for {s}, which is not in the lake" for t, s in sorted(outside) if not lake.exists(s)]


def _files(window: PendingWindow) -> list[tuple[str, int, int]]:
    # A file that was corrected in place counts as new, so a landing that failed on it is due again.
    return [(f.name, f.size, round((f.modified or 0) * 1e9)) for f in window.paths]


def describe(window: PendingWindow) -> str:
    """Describe a window: `raw.events 12..34`, or the number of files in the landing folder."""
    if window.files:
        return f"{plural(window.files, 'file')} in {window.source}"
    suffix = f" (a batch; {window.left} snapshots remain)" if window.left else ""
    return f"{window.source} {window.start or 'empty'}..{window.end or 'empty'}{suffix}"


@dataclass(frozen=True)
class Size:
    """Total size of the windows, each (source, window) counted once."""

    files: int
    bytes: int
    ranges: tuple[str, ...]


def measure(lake: Lake, pending: Sequence[PendingTable]) -> Size:
    """Sum up files, bytes and ranges of pending windows. Skips windows that cannot be captured: their step fails."""
    windows = [w for table in pending for w in table.windows]
    files, size = sum(w.files for w in windows), sum(table.landed_bytes for table in pending)
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
