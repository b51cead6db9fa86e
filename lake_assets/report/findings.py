"""What needs attention in a lake, the most urgent first, and what to do first about each."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lake_assets.health.table_status import TableStatus
from lake_assets.lake import thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.disk_space import DiskSpace
from lake_assets.lake.redaction import without_quoted
from lake_assets.report.amounts import duration

Kind = Literal["failing", "late", "silent", "not exact", "rejected", "warning", "slower", "notice"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Those on which somebody has to act.
URGENT: tuple[Kind, ...] = ("failing", "late", "silent")
# The key that an error names.
_KEY = re.compile(r"rows for \(.*?\):", re.DOTALL)
# Layers of tables that `lake-assets explain` has nothing to say of: their rows are taken as they arrive.
_OF_STREAMS = ("raw.", "staging.", "final.")
_AUDITS = "AuditFailedError"
# A step that fails for lost or replaced tables is not mended by running it again.
_REMEDY = re.compile(r"`lake-assets (?:rebuild|repair) [^`]+`")


@dataclass(frozen=True)
class Finding:
    """What needs attention.

    Attributes:
        kind: how urgent it is.
        table: the table.
        what: what is found.
        do: what to do first; empty: the finding says it.
        waiting: how many tables wait for it.
    """

    kind: Kind
    table: str
    what: str
    do: str = ""
    waiting: int = 0


def findings(tables: Sequence[TableStatus]) -> list[Finding]:
    """Return what needs attention: failing tables first, of these the ones that most tables wait for."""
    gone = {t.table for t in tables if t.is_gone}
    waiting = Counter(u for t in tables for u in {*t.upstream, *gone.intersection(t.watermark)})
    found = [f for t in tables for f in _of_table(t, waiting[t.table], sorted(gone.intersection(t.watermark)))]
    return sorted(found, key=lambda f: (KINDS.index(f.kind), -f.waiting, f.table))


def of_disk(disk: DiskSpace) -> Finding:
    """Return what needs attention of a disk with little room."""
    return Finding("failing", "the lake", disk.advice)


def of_erasure(text: str) -> Finding:
    """Return what needs attention of an erasure that is not completed."""
    return Finding("notice", "the lake", text)


def of_missed_target(status: TableStatus, later: int, since: str) -> Finding | None:
    """Return what is to be known of a target that was missed before; None: it was not, or the table is late or stopped.

    Args:
        later: how many steps were later than the target.
        since: from when on they were counted.
    """
    if not later or status.target_lag is None or status.failure or status.error or status.lost or is_late(status):
        return None
    target = duration(status.target_lag)
    return Finding("notice", status.table, f"missed its target of {target} {plural(later, 'time')} since {since}")


def is_late(status: TableStatus) -> bool:
    """Whether changes have waited for longer than they may."""
    limit = thresholds.REPORT_LATE_SECONDS if status.target_lag is None else status.target_lag
    return bool(status.late or status.stalled) or _waited(status) > limit


def _waited(status: TableStatus) -> float:
    """Return the age, in seconds, of the oldest commit or file that a table has not absorbed."""
    now = time.time()
    return max(status.behind_seconds, now - (status.waiting.since or now))


def _of_table(status: TableStatus, waiting: int, gone: Sequence[str]) -> Iterator[Finding]:
    """Yield what needs attention of a table; `gone` are those of its sources that the next run computes again."""
    table, target = status.table, status.target_lag
    if status.failure:
        what, _, _ = status.failure.partition("\nThen `")
        then = _remedy(what) or (f"`{status.retry}`, once that is corrected" if status.retry else "")
        yield Finding("failing", table, without_values(what), then, waiting)
    elif status.error:
        yield Finding("failing", table, without_values(status.error), "", waiting)
    elif status.lost:
        what = "; ".join(status.lost)
        do = _remedy(what)
        if status.is_gone:
            do = "`lake-assets run` with the pipeline's file"
        elif table.startswith("raw."):  # it may be the only copy of its records: what is lost says no more
            do = "`lake-assets run` with the pipeline's file: its step says what can be done"
        elif gone and do:
            do = f"{do}, once `lake-assets run` with the pipeline's file has computed {', '.join(gone)} again"
        yield Finding("failing", table, without_values(what), do, waiting)
    if status.source_fails:
        do = "`lake-assets doctor` with the pipeline's file says what is missing"
        yield Finding("failing", table, without_values(f"its source is not read: {status.source}"), do, waiting)
    if status.killed:
        yield Finding("failing" if status.killed.is_known else "notice", table, status.killed.text, "", waiting)
    if not status.failure and is_late(status):
        of = f", and may for {duration(target)}" if target is not None else ""
        what = status.late or f"changes have waited for {duration(_waited(status))}{of}: {behind_text(status)}"
        if status.upstream:
            do = f"look at {status.upstream[0]} first, for which it waits"
        elif status.is_behind:
            do = "see whether sensor or cron still start runs; `lake-assets run` with the pipeline's file absorbs them"
        else:  # a target that no run can keep: its text says what would help
            do = ""
        yield Finding("late", table, what, do, waiting)
    if status.overlong:
        yield Finding("late", table, status.overlong.text, "", waiting)
    if status.silent:
        yield Finding("silent", table, status.silent.text)
    for reason in status.not_exact:
        yield Finding("not exact", table, without_values(reason))
    if status.rejected:
        yield Finding("rejected", table, without_values(status.rejected_text), _after_rejects(status))
    if status.warnings:
        yield Finding("warning", table, status.warning_text)
    if status.slower:
        yield Finding("slower", table, status.slower, _after_slowdown(table))
    notes = (status.redeclared, *status.renamed, *(claim.text for claim in status.claims))
    for text in (*notes, *(f"the dump {name} is skipped: {why}" for name, why in status.skipped_dumps.items())):
        if text:
            yield Finding("notice", table, without_values(text))


def _after_slowdown(table: str) -> str:
    do = "`lake-assets costs` says what its steps use"
    return do if table.startswith(_OF_STREAMS) else f"`lake-assets explain {table}` says how it is computed, {do}"


def _remedy(text: str) -> str:
    """Return the command that mends a table, if an error names one; else empty."""
    command = _REMEDY.search(text)
    return command[0] if command else ""


def _after_rejects(status: TableStatus) -> str:
    """Return what to do about rejected records, by their reasons."""
    lost = sum(r.records for r in status.reject_reasons if not r.can_be_replayed)
    again = sum(r.records for r in status.reject_reasons if r.can_be_replayed)
    deliver = "no declaration reads it as it was delivered" if lost == 1 else "no declaration reads them as delivered"
    if lost and not again:
        return f"deliver the rows again, corrected, or leave them: {deliver}"
    but = f"; {lost:,} of them {'has' if lost == 1 else 'have'} to be delivered again, corrected" if lost else ""
    return f"`lake-assets rejected` says what to correct, and `lake-assets rejected replay` reads them again then{but}"


def behind_text(status: TableStatus) -> str:
    """Return how far a table is behind its sources; empty: it is not."""
    parts: list[str] = []
    if any(n is None for n in status.behind.values()):
        parts.append("a source was rolled back or rebuilt, or is gone")
    if status.waiting.files:
        parts.append(plural(status.waiting.files, "file"))
    if snapshots := sum(n or 0 for n in status.behind.values()):
        rows = f" with {plural(status.rows_behind, 'row')}" if status.rows_behind else ""
        parts.append(f"{plural(snapshots, 'snapshot')}{rows}")
    if status.upstream:
        named = ", ".join(status.upstream[: thresholds.REPORT_NAMES])
        more = len(status.upstream) - thresholds.REPORT_NAMES
        parts.append(f"waits for {named}{f' and {more} more' if more > 0 else ''}")
    return ", ".join(parts)


def without_values(error: str) -> str:
    """Return the text of an error without what may be values of rows: texts in single quotes, and rows that fail
    audits."""
    if _AUDITS in error:
        error = f"{error.splitlines()[0].rstrip(':')} (`lake-assets status` shows the audits)"
    return without_quoted(_KEY.sub("rows for one key:", error))
