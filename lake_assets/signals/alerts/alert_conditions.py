"""What is wrong now with the tables of a lake, from metadata, notes of failures and the journal."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lake_assets.health.lake_status import declared, little_room, quick_status, retry_command
from lake_assets.health.table_lag import lag_of, target_of
from lake_assets.health.table_status import TableStatus, reasons_text
from lake_assets.health.upkeep_status import consumers_of
from lake_assets.journal.recent_steps import record_counts
from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.durations import in_words
from lake_assets.lake.redaction import without_quoted
from lake_assets.lake.signal_settings import AlertKind
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.signals.error_text import error_text
from lake_assets.tables.standing_failures import standing

log = logging.getLogger(__name__)
_HELD = "AuditFailedError"
# A line of its text, which begins with the name of an audit.
_AUDIT = re.compile(r"(?m)^- ([^:\n]+):")


@dataclass(frozen=True)
class Condition:
    """Something that is wrong.

    Attributes:
        kind: what it is: see `AlertKind`.
        table: the table.
        pipeline: its pipeline.
        text: what is wrong, in a line.
        value, limit: for a lag, a silence or a consumer, seconds; for rejected records, shares; for a disk, bytes; else
            None.
        consumer: the consumer of the table for which changes wait; empty: it is about the table.
    """

    kind: AlertKind
    table: str
    pipeline: str
    text: str
    value: float | None = None
    limit: float | None = None
    consumer: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same condition as one before."""
        return self.kind, self.table, self.consumer


@dataclass(frozen=True)
class Limits:
    """From when on something is wrong.

    Attributes:
        lag: seconds, for tables without a target of their own; None: no limit.
        rejected: a share up to 1.
        kinds: the kinds to look for.
        consumer: seconds for which changes may wait for a consumer; None: as the upkeep of its table says.
    """

    lag: float | None
    rejected: float
    kinds: Collection[str]
    consumer: float | None = None


@dataclass(frozen=True)
class Found:
    """What is wrong, and what is not known.

    Attributes:
        conditions: what is wrong.
        pipelines: the pipelines whose tables were looked at; None: all.
        unknown: kinds and tables of conditions of which it is not known whether they hold.
        unread: pipelines whose declarations cannot be read: of their tables, it is not known what has ended.
        tables: the tables that were looked at because a pipeline declares them: another one may have filled them.
        read: pipelines whose declarations are known, which tell how their tables' consumers are looked after.
    """

    conditions: Sequence[Condition]
    pipelines: frozenset[str] | None
    unknown: frozenset[tuple[str, str]] = field(default_factory=frozenset[tuple[str, str]])
    unread: frozenset[str] = field(default_factory=frozenset[str])
    tables: frozenset[str] = field(default_factory=frozenset[str])
    read: frozenset[str] = field(default_factory=frozenset[str])

    def is_about(self, condition: Condition) -> bool:
        """Whether the table of a condition was looked at."""
        is_of_pipeline = self.pipelines is None or condition.pipeline in self.pipelines
        return is_of_pipeline or condition.table in self.tables

    def has_ended(self, condition: Condition) -> bool:
        """Whether a condition that is not among these is known not to hold."""
        if (condition.kind, condition.table) in self.unknown or condition.pipeline in self.unread:
            return False
        return self.is_about(condition) and (condition.kind != "consumer" or condition.pipeline in self.read)


def conditions(lake: LakeBase, pipelines: Sequence[Pipeline], limits: Limits, *, of_all: bool = False) -> Found:
    """Return what is wrong with the tables of some pipelines.

    Args:
        of_all: whether to look at the tables of other pipelines too, as far as that is possible without declarations.
    """
    lake = lake.glance()
    found, unread = declared(lake, pipelines)
    for name, error in unread.items():
        log.warning("alerts: the declaration of pipeline %s cannot be read: %s", name, lake.config.hidden(error))
    specs = {str(s.table): s for s in found}
    tables = {t.table: t for t in quick_status(lake, found)}
    names = frozenset(p.name for p in pipelines)
    nothing = Found(
        (), None if of_all else names, _unknown(tables, specs, names - unread.keys()), frozenset(unread),
        frozenset(specs), names - unread.keys(),
    )  # fmt: skip
    wrong = [
        *_failures(lake),
        *_lost_sources(tables),
        *_killed(tables),
        *_disks(lake, pipelines),
        *_lags(tables, specs, limits),
        *_rejects(lake, tables, limits),
        *_inexact(tables),
        *_sources(lake, tables),
        *_silences(tables, specs),
        *_warnings(tables),
    ]
    if "consumer" in limits.kinds:
        # A table that fails or is late says so itself.
        told = {c.table for c in wrong if c.kind in ("failed", "held", "lag")}
        wrong += [c for c in _consumers(lake, pipelines, limits) if c.consumer not in told]
    return replace(nothing, conditions=[c for c in wrong if c.kind in limits.kinds and nothing.is_about(c)])


def _unknown(
    tables: Mapping[str, TableStatus], specs: Mapping[str, Spec], read: Collection[str]
) -> frozenset[tuple[str, str]]:
    """Return kinds and tables of conditions of which nobody can tell whether they hold.

    Args:
        read: the pipelines whose declarations are known: what they no longer declare is expected by nobody.
    """
    found = {(kind, t) for t in tables if t not in specs and tables[t].pipeline not in read for kind in _EXPECTED}
    found |= {(kind, t) for t in tables if tables[t].error for kind in _MEASURED}
    found |= {(kind, t) for t in tables if not tables[t].steps_known for kind in _OF_JOURNAL}
    return frozenset(found)


# What only a declaration tells, what the metadata of a table tell, and what the journal tells.
_EXPECTED: Sequence[AlertKind] = ("lag", "silent")
_MEASURED: Sequence[AlertKind] = ("lag", "not_exact", "rejected", "silent", "consumer")
_OF_JOURNAL: Sequence[AlertKind] = ("lag", "silent", "rejected", "audit")


def conditions_without_tables(lake: LakeBase, pipelines: Sequence[Pipeline], limits: Limits) -> Found:
    """Return the disks with little room and the noted failures; the tables cannot be read."""
    names = {p.name for p in pipelines}
    failures = (c for c in _failures(lake) if c.pipeline in names)
    return Found([c for c in (*failures, *_disks(lake, pipelines)) if c.kind in limits.kinds], frozenset())


def _failures(lake: LakeBase) -> Iterator[Condition]:
    for failure in standing(lake).values():
        # The note has no secrets; its further lines may have rows, after the name of each audit.
        kind, text = "failed", error_text(lake, failure.error)
        if failure.error.startswith(_HELD):
            kind, audits = "held", ", ".join(_AUDIT.findall(failure.error))
            text = f"{text.removesuffix(':')}: {audits}" if audits else text.removesuffix(":")
        command = retry_command(failure)
        then = f"; after a correction, `{command}` tries again" if command else ""
        yield Condition(kind, failure.table, failure.pipeline, f"{text}{then}")


def _lost_sources(tables: Mapping[str, TableStatus]) -> Iterator[Condition]:
    """Yield tables that are gone, or whose source or its history is: their steps wait, and do not fail."""
    for name, table in tables.items():
        if table.lost and not table.failure:
            more = f" (and {len(table.lost) - 1} more)" if len(table.lost) > 1 else ""
            yield Condition("failed", name, table.pipeline, f"{table.lost[0]}{more}")


def _killed(tables: Mapping[str, TableStatus]) -> Iterator[Condition]:
    """Yield tables whose last step was killed: nothing else tells of a run that ends without a word."""
    for name, table in tables.items():
        if table.killed and table.killed.is_known and not table.failure and not table.lost:
            yield Condition("failed", name, table.pipeline, table.killed.text)


def _disks(lake: LakeBase, pipelines: Sequence[Pipeline]) -> Iterator[Condition]:
    for disk in little_room(lake):
        # Whichever pipeline is looked at, it is the same disk.
        pipeline = pipelines[0].name if pipelines else ""
        limit = min(thresholds.DISK_FREE_BYTES, thresholds.DISK_FREE_SHARE * disk.total)
        yield Condition("disk", str(disk.folder), pipeline, disk.advice, float(disk.free), float(limit))


def _lags(tables: Mapping[str, TableStatus], specs: Mapping[str, Spec], limits: Limits) -> Iterator[Condition]:
    for name, table in tables.items():
        own = target_of(specs[name]) if name in specs else None
        limit, lag = limits.lag if own is None else own, lag_of(table, tables)
        if name in specs and limit is not None and lag > limit:
            text = f"changes of the last {in_words(lag)} are not in it; at most {in_words(limit)} are wanted"
            text += f"; {table.overlong.text}" if table.overlong else ""
            yield Condition("lag", name, table.pipeline, text, lag, limit)
        elif name in specs and limit is None and (late := table.overlong or table.stalled):
            yield Condition("lag", name, table.pipeline, late.text, late.seconds, late.limit)


def _silences(tables: Mapping[str, TableStatus], specs: Mapping[str, Spec]) -> Iterator[Condition]:
    for name, table in tables.items():
        if name in specs and (silent := table.silent):
            yield Condition("silent", name, table.pipeline, silent.text, silent.seconds, silent.limit)


def _warnings(tables: Mapping[str, TableStatus]) -> Iterator[Condition]:
    for name, table in tables.items():
        if table.warnings:
            yield Condition("audit", name, table.pipeline, table.warning_text)


def _consumers(lake: LakeBase, pipelines: Sequence[Pipeline], limits: Limits) -> Iterator[Condition]:
    """Yield the consumers that have stopped: nothing else tells of a program that reads no more."""
    for waiting in consumers_of(lake, pipelines):
        claim = waiting.claim
        limit = waiting.limit if limits.consumer is None else limits.consumer
        if limit is None or claim.waited <= limit:
            continue
        text = (
            f"changes have waited for {claim.consumer} for {in_words(claim.waited)}; at most {in_words(limit)} are "
            f"expected. It keeps the snapshot that it has absorbed{claim.prospect}"
        )
        yield Condition("consumer", claim.table, waiting.pipeline, text, claim.waited, limit, claim.consumer)


def _rejects(lake: LakeBase, tables: Mapping[str, TableStatus], limits: Limits) -> Iterator[Condition]:
    raws = {n: t for n, t in tables.items() if t.rejected}
    if not raws:
        return
    landed, parsed, rejected = (dict.fromkeys(raws, 0) for _ in range(3))
    for names, count in record_counts(lake).items():
        raw = next((n for n in names if n in raws), None)
        if raw is None:
            continue
        rejected[raw] += count.rejected
        (landed if raw == names[0] else parsed)[raw] += count.added
    for name, table in raws.items():
        records = max(landed[name], parsed[name] + rejected[name])
        # Those that were closed, or read after all, do not count any more.
        stand = min(rejected[name], table.rejected)
        share = stand / records if records else 0.0
        if share > limits.rejected:
            percent, most = _percents(share, limits.rejected)
            reasons = without_quoted(reasons_text(table.reject_reasons))
            text = (
                f"{stand:,} of {records:,} records of the last day are rejected ({percent}; the limit is {most}); all "
                f"that stand: {reasons}. `lake-assets rejected` says what can be done"
            )
            yield Condition("rejected", name, table.pipeline, text, share, limits.rejected)


def _inexact(tables: Mapping[str, TableStatus]) -> Iterator[Condition]:
    for name, table in tables.items():
        if table.not_exact:
            more = f" (and {len(table.not_exact) - 1} more)" if len(table.not_exact) > 1 else ""
            yield Condition("not_exact", name, table.pipeline, f"{without_quoted(table.not_exact[0])}{more}")


def _sources(lake: LakeBase, tables: Mapping[str, TableStatus]) -> Iterator[Condition]:
    for name, table in tables.items():
        if table.source_fails:
            text = error_text(lake, f"its source is not read: {table.source}")
            yield Condition("source", name, table.pipeline, text)


def _percents(share: float, limit: float) -> tuple[str, str]:
    """Format two shares with as many digits as tell them apart: 1.5% and 1%, 1.0004% and 1%."""
    pairs = ((f"{share * 100:.{n}g}%", f"{limit * 100:.{n}g}%") for n in range(2, 10))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{share:%}", f"{limit:%}"))
