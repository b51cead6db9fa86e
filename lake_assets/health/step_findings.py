"""What the journal tells of tables beside failures: a silent source, steps that stay away, hang or are slower, audits
that warn."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile

from lake_assets.errors import InvalidNameError
from lake_assets.health.table_rhythm import longest_silence, longest_step, slowdown, usual_gap
from lake_assets.health.table_status import Overdue, TableStatus
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY
from lake_assets.journal.step_digests import Activity, Digests, StepDigest, step_digests
from lake_assets.lake import LakeBase
from lake_assets.lake.durations import in_words
from lake_assets.lake.metadata.row_counts import is_upkeep, number, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.pending_windows import GONE
from lake_assets.tables.writing.commit_counts import counts

log = logging.getLogger(__name__)


def with_steps(
    lake: LakeBase, tables: Sequence[TableStatus], specs: Mapping[str, Spec], now: float | None = None
) -> list[TableStatus]:
    """Return the tables with what their past steps tell, or that this is unknown, if the journal cannot be read.

    Args:
        tables: upstream first, each with its upstream tables that are behind.
        specs: the declared tables, by name.
        now: seconds since 1970; default: now.
    """
    now = time.time() if now is None else now
    try:
        digests = step_digests(lake, now)
    except Exception as e:  # of the catalog or the store: what is known otherwise still counts
        log.warning("what steps have shown is not known: %s", lake.config.hidden(str(e)))
        return [replace(t, steps_known=False) for t in tables]
    return _Findings(lake, digests, specs, now).of(tables)


@dataclass(frozen=True)
class _Findings:
    """What the journal tells of the tables of a lake at some time."""

    lake: LakeBase
    digests: Digests
    specs: Mapping[str, Spec]
    now: float

    def of(self, tables: Sequence[TableStatus]) -> list[TableStatus]:
        found: list[TableStatus] = []
        own, quiet = {t.table for t in tables}, set[str]()
        for table in tables:
            digest = self.digests.get(table.table, StepDigest())
            silent = None if _is_behind(table) else self._silence(table, digest, own, quiet)
            if silent is not None:
                quiet.add(table.table)
            if table.running and digest.newest and digest.newest[-1].started_at > table.running.since:
                table = replace(table, running=None)  # an interrupted step whose process goes on
            found.append(
                replace(
                    table,
                    silent=silent,
                    stalled=self._stall(table, digest),
                    overlong=self._overlong(table, digest),
                    slower=_slower(digest),
                    warnings=self._warnings(table.table, digest),
                )
            )
        return [*found, *self._gone(own)]

    def _gone(self, own: set[str]) -> Iterator[TableStatus]:
        """Yield declared tables that steps have filled, and that do not exist any more."""
        for name, spec in self.specs.items():
            if name in own or not self.digests.get(name, StepDigest()).newest or self.lake.exists(spec.table):
                continue
            yield TableStatus(name, spec.pipeline, None, {}, {}, 0.0, None, lost=[_gone_text(spec)], is_gone=True)

    def _silence(self, table: TableStatus, digest: StepDigest, own: set[str], quiet: set[str]) -> Overdue | None:
        """Return for how long nothing has arrived, if that is longer than declared, or than usual.

        What is silent upstream is told there only. Of final tables and models, only what is declared is expected.
        """
        spec = self.specs.get(table.table)
        freshness = spec.shown.freshness if spec is not None else None
        if freshness is not None:
            limit, last = freshness.fail, self._last(table.table, digest)
            if limit is None or last is None or self.now - last <= limit:
                return None
            text = f"nothing new {self._since(last)}; `freshness` expects something at least every {in_words(limit)}"
            return Overdue(self.now - last, limit, f"{text}: does its source still deliver?")
        layer = table.table.partition(".")[0]
        if layer == "raw" or (layer == "staging" and quiet.isdisjoint(table.watermark)):
            about = "" if layer == "raw" else f" about {self._about(table.table)}"
            return self._unusual(table.table, digest, f"nothing has arrived{about}", digest.arrivals)
        for source in table.watermark:
            if source not in own and source not in quiet:
                quiet.add(source)  # one of its readers tells
                of = self.digests.get(source, StepDigest())
                if found := self._unusual(source, of, f"its source {source} has not changed", of.arrivals):
                    return found
        return None

    def _unusual(self, name: str, digest: StepDigest, what: str, arrivals: Activity | None) -> Overdue | None:
        limit, last = longest_silence(arrivals), self._last(name, digest)
        if limit is None or last is None or arrivals is None or self.now - last <= limit:
            return None
        text = (
            f"{what} {self._since(last)}; before, something came at least every {_gap(arrivals)}: is its writer still "
            "running? If such a silence is usual, declare how long it may last: `freshness: 7d`"
        )
        return Overdue(self.now - last, limit, text)

    def _last(self, name: str, digest: StepDigest) -> float | None:
        """Return when a table changed last: its snapshots may have expired, and the journal has no live commits."""
        try:
            table = self.lake.find(name)
        except InvalidNameError:  # a landing folder
            table = None
        changed = (s for s in ancestors(table) if not is_upkeep(s) and sum(counts(s))) if table is not None else ()
        newest = next(iter(changed), None)
        times = [digest.last, newest.timestamp_ms / 1000 if newest is not None else None]
        return max((t for t in times if t is not None), default=None)

    def _about(self, name: str) -> str:
        return self.lake.table(name).properties.get(SOURCE_TABLE_PROPERTY, "it")

    def _stall(self, table: TableStatus, digest: StepDigest) -> Overdue | None:
        """Return for how long changes have waited, if the table used to be absorbed much more often."""
        waited = max(table.behind_seconds, self.now - (table.waiting.since or self.now))
        limit, steps = longest_silence(digest.changes), digest.changes
        if table.failure or table.target_lag is not None or limit is None or steps is None or waited <= limit:
            return None
        text = (
            f"changes have waited for {in_words(waited)}; before, the table absorbed some at least every "
            f"{_gap(steps)}: is the capture sensor on, or does cron still run? `lake-assets run` with the pipeline's "
            "file absorbs them"
        )
        return Overdue(waited, limit, text)

    def _overlong(self, table: TableStatus, digest: StepDigest) -> Overdue | None:
        """Return for how long the table's step has run, if that is far longer than its newest steps took."""
        step, limit = table.running, longest_step(digest.newest)
        if step is None or limit is None or self.now - step.since <= limit:
            return None
        if usual := max(s.bytes for s in digest.newest):  # a step that catches up has more to read than any before
            limit *= max(1.0, self._pending_bytes(table, step.since) / usual)
        if self.now - step.since <= limit:
            return None
        of = f", process {step.process}" if step.process else "; its process is on another machine, or gone"
        longest = max(s.seconds for s in digest.newest)
        text = (
            f"its step has run for {in_words(self.now - step.since)} (since {_moment(step.since)}{of}), and its last "
            f"{len(digest.newest)} steps took {_seconds(longest)} at most. Its log says what it does; if it hangs, end "
            "the process: nothing is published, and the next run begins again"
        )
        return Overdue(self.now - step.since, limit, text)

    def _pending_bytes(self, table: TableStatus, at: float) -> int:
        """Return the size of the files that a table had to absorb at some time, as far as its sources tell.

        What has come since then does not count: else no step would be overlong whose source goes on.
        """
        pending = 0
        for source, absorbed in table.watermark.items():
            try:
                loaded = self.lake.find(source)
            except InvalidNameError:  # a landing folder
                continue
            if loaded is None:
                continue
            if table.redeclared:  # it is computed again
                pending += number(summary_of(loaded.current_snapshot()), "total-files-size")
                continue
            newer = takewhile(lambda s, start=absorbed: s.snapshot_id != start, ancestors(loaded))
            pending += sum(
                number(summary_of(s), "added-files-size")
                for s in newer
                if s.timestamp_ms / 1000 <= at and not is_upkeep(s)
            )
        return pending

    def _warnings(self, name: str, digest: StepDigest) -> tuple[str, ...]:
        """Return the audits that did not pass in the newest step that changed rows, which published nevertheless."""
        step = next((s for s in reversed(digest.newest) if s.rows), None)
        spec = self.specs.get(name)
        declared = {a.name for a in spec.audits} if spec is not None else None
        return tuple(a for a in (step.failed_audits if step else ()) if declared is None or a in declared)

    def _since(self, last: float) -> str:
        return f"for {in_words(self.now - last)} (since {_moment(last)})"


def _gone_text(spec: Spec) -> str:
    """Return that a table is gone, and what the next run does about it."""
    what = f"{spec.table} {GONE}"
    if isinstance(spec, RawSpec):
        return (
            f"{what}. The next run lands what its source still has. Records that it no longer has are lost with the "
            "table: if there are such, restore the table first"
        )
    sources = ", ".join(map(str, spec.sources))
    return f"{what}. The next run computes it again from everything that {sources} {_HOLDS[len(spec.sources) == 1]}"


_HOLDS = {True: "holds", False: "hold"}


def _is_behind(table: TableStatus) -> bool:
    """Whether something has arrived that is not absorbed, or nobody can tell."""
    waits = table.waiting.files or any(n is None or n for n in table.behind.values())
    return bool(waits or table.error or table.source_fails or table.upstream)


def _slower(digest: StepDigest) -> str:
    if (found := slowdown(digest.newest)) is None:
        return ""
    steps = "its last step" if found.steps == 1 else f"its last {found.steps} steps"
    return (
        f"slower since {_moment(found.since)}: {steps} took {in_words(found.now)}, and three of four earlier "
        f"steps with as many rows took {_seconds(found.before)} at most"
    )


def _seconds(seconds: float) -> str:
    return in_words(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _gap(activity: Activity) -> str:
    return in_words(max(1.0, usual_gap(activity)))


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
