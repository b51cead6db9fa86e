"""What a report on a lake shows, from metadata and the journal: no value of a row, and no secret."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lake_assets.errors import CorruptMetadataError, InvalidNameError, LakeError
from lake_assets.health.lake_status import LakeStatus, lake_status
from lake_assets.health.table_status import TableStatus
from lake_assets.journal import step_journal
from lake_assets.journal.step_costs import CostLine, StepCost, cost_lines, total_line
from lake_assets.journal.step_records import BACKFILL, StepRecord
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.config import CostsConfig
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import number, summary_of
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.column_sources import column_sources
from lake_assets.pipeline.table_graph import Spec
from lake_assets.report.amounts import duration, moment
from lake_assets.report.charts import Bar, LagChart, day_bars, lag_chart
from lake_assets.report.cost_sentences import cost_sentences, not_counted
from lake_assets.report.findings import (
    URGENT,
    Finding,
    behind_text,
    findings,
    is_late,
    of_disk,
    of_erasure,
    of_missed_target,
    without_values,
)
from lake_assets.report.full_steps import Advisor
from lake_assets.report.graph_layout import LAYERS, Graph, graph
from lake_assets.report.period import costs_since


@dataclass(frozen=True)
class TableRow:
    """How a table is kept.

    Attributes:
        state: `good`, `late`, `silent` or `failing`.
        upkeep: kinds of actions that are due; None: unknown.
    """

    table: str
    pipeline: str
    state: str
    rows: int | None
    behind: str
    last_run: str
    upkeep: tuple[str, ...] | None
    files: int
    bytes: int
    snapshots: int


@dataclass(frozen=True)
class AuditRow:
    """The results of an audit.

    Attributes:
        result: of the last step: `failed`, `passed`, or `not evaluated`, since no row was written.
        failures: steps in the period in which it failed.
    """

    table: str
    audit: str
    is_blocking: bool | None
    result: str
    at: str
    failures: int


@dataclass(frozen=True)
class Failure:
    """The failed steps of a table in the period.

    Attributes:
        error: of the last one, which also says what to do.
        stands: whether the table has absorbed nothing since.
    """

    table: str
    at: str
    error: str
    count: int
    stands: bool


@dataclass(frozen=True)
class Lineage:
    """The columns of a table.

    Attributes:
        columns: each with the source columns that it depends on.
        copied_from: the one table of which all columns have the same names; empty: there is none.
    """

    table: str
    columns: Sequence[tuple[str, Sequence[str]]]
    copied_from: str = ""


@dataclass(frozen=True)
class Costs:
    """What steps used; see `CostLine`."""

    total: CostLine
    tables: Sequence[CostLine]
    days: Sequence[Bar]
    sentences: Sequence[str]
    prices: CostsConfig


@dataclass(frozen=True)
class Period:
    """The time that a report is about."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Report:
    """A report on a lake.

    Attributes:
        since, made_at: the period, as text in UTC.
        counts: numbers of findings, by their kind.
        costs: None: no step has run in the period.
        first_step: when the first step of the period began, which is where charts begin.
        lags: the greatest first, those of tables with a target before the others, as a share of it.
        quiet_lags: number of tables with a lag that is not drawn.
        rejected: by raw table, numbers of records that could not be read: that stand, are closed, were rejected in the
            period.
        unread: errors of pipelines that cannot be read.
    """

    lake: str
    since: str
    made_at: str
    tables: Sequence[TableRow]
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    graph: Graph
    lags: Sequence[LagChart]
    first_step: str
    quiet_lags: int
    costs: Costs | None
    audits: Sequence[AuditRow]
    rejected: Sequence[tuple[str, int, int, int]]
    lineage: Sequence[Lineage]
    failures: Sequence[Failure]
    unread: Sequence[str]

    @property
    def urgent(self) -> Sequence[Finding]:
        """The findings that somebody has to act on."""
        return [f for f in self.findings if f.kind in URGENT]


def report(
    lake: LakeBase,
    pipelines: Sequence[Pipeline],
    start: datetime,
    *,
    unread: Sequence[str] = (),
) -> Report:
    """Return the report on a lake; reads metadata only.

    Args:
        pipelines: the pipelines whose declarations are known.
        start: the beginning of the period for what steps did.
        unread: errors of pipelines that could not be loaded.
    """
    status, specs = lake_status(lake, pipelines), _specs(lake, pipelines)
    steps, broken = list[StepCost](), list[Finding]()
    try:
        steps += costs_since(lake, start)
    except LakeError as e:  # what is known otherwise still counts
        broken.append(Finding("failing", str(step_journal.TABLE), str(e)))
    return composed(lake, status, specs, steps, Period(start, datetime.now(UTC)), unread=unread, broken=broken)


def composed(
    lake: LakeBase,
    status: LakeStatus,
    specs: Mapping[str, Spec],
    steps: Sequence[StepCost],
    period: Period,
    *,
    unread: Sequence[str] = (),
    broken: Sequence[Finding] = (),
) -> Report:
    """Return the report on a lake whose status, declarations and steps are known; see `report`.

    Args:
        broken: why some of these are not known.
    """
    targets = {t.table: t.target_lag for t in status.tables if t.target_lag is not None}
    hidden = lake.config.hidden
    records: dict[str, list[StepRecord]] = defaultdict(list)
    for record in (s.record for s in steps if s.record.strategy != BACKFILL):
        records[record.table].append(record)
    erasures = [of_erasure(status.erasure)] if status.erasure else []
    # The charts begin with the first step: a lake may be younger than the period.
    first = steps[0].record.started_at if steps else period.start.timestamp()
    lags = [lag_chart(t, of, first, period.end.timestamp(), targets.get(t)) for t, of in records.items()]
    lags = sorted((chart for chart in lags if chart.steps), key=lambda chart: (-chart.share, -chart.seconds))
    later = {chart.table: chart.later for chart in lags}
    missed = filter(None, (of_missed_target(t, later.get(t.table, 0), moment(first)) for t in status.tables))
    found = [*broken, *map(of_disk, status.disks), *findings(status.tables), *missed, *erasures]
    found = [replace(f, what=hidden(f.what)) for f in found]
    return Report(
        lake.config.name,
        moment(period.start.timestamp()),
        moment(period.end.timestamp()),
        [_table_row(lake, t) for t in status.tables],
        found,
        Counter(f.kind for f in found),
        _graph(status.tables, specs, records),
        lags[: thresholds.REPORT_LAG_CHARTS],
        moment(first),
        len(lags[thresholds.REPORT_LAG_CHARTS :]),
        _costs(lake, specs, steps) if steps else None,
        _audits(specs, records),
        _rejected(status.tables, records),
        _lineage(lake, specs),
        [replace(f, error=hidden(f.error)) for f in _failures(status.tables, records)],
        [hidden(without_values(text)) for text in (*unread, *status.unread)],
    )


def _costs(lake: LakeBase, specs: Mapping[str, Spec], steps: Sequence[StepCost]) -> Costs:
    prices = lake.config.costs
    tables = [_without_values(lake, line) for line in cost_lines(steps, "table", prices)]
    return Costs(
        total_line(steps, prices),
        tables,
        day_bars(cost_lines(steps, "day", prices)),
        [*filter(None, [not_counted(lake.config)]), *cost_sentences(tables, Advisor(lake, specs))],
        prices,
    )


def _without_values(lake: LakeBase, line: CostLine) -> CostLine:
    """Return a line whose reasons, some of which hold errors of Spark, name no values."""
    reasons = Counter[str]()
    for reason, count in line.reasons.items():
        reasons[lake.config.hidden(without_values(reason))] += count
    return replace(line, reasons=dict(reasons.most_common()))


def _specs(lake: LakeBase, pipelines: Sequence[Pipeline]) -> dict[str, Spec]:
    found: dict[str, Spec] = {}
    for pipeline in pipelines:
        try:
            found |= {str(s.table): s for s in pipeline.specs(lake, alone=False)}
        except LakeError:  # `lake_status` returns the error
            continue
    return found


def _state(status: TableStatus) -> str:
    is_killed = status.killed is not None and status.killed.is_known
    if status.failure or status.error or status.lost or status.source_fails or is_killed:
        return "failing"
    if is_late(status) or status.overlong:
        return "late"
    return "silent" if status.silent else "good"


def _running_text(status: TableStatus) -> str:
    return f"a step runs since {moment(status.running.since)}" if status.running else ""


def _table_row(lake: LakeBase, status: TableStatus) -> TableRow:
    table = None
    # It has failed before it existed, or its status says what is wrong with it.
    with contextlib.suppress(InvalidNameError, CorruptMetadataError):
        table = lake.find(status.table)
    summary = summary_of(table.current_snapshot()) if table is not None else {}
    return TableRow(
        status.table,
        status.pipeline,
        _state(status),
        status.rows,
        ", ".join(filter(None, [behind_text(status), _running_text(status)])),
        f"{status.last_run:%Y-%m-%d %H:%M}" if status.last_run else "",
        status.upkeep,
        number(summary, "total-data-files"),
        number(summary, "total-files-size"),
        len(table.metadata.snapshots) if table is not None else 0,
    )


def _graph(
    tables: Sequence[TableStatus],
    specs: Mapping[str, Spec],
    records: Mapping[str, Sequence[StepRecord]],
) -> Graph:
    own = {t.table for t in tables}
    # What is declared and has never run is in the graph once a table of it exists or has failed.
    declared = {name: [str(s) for s in spec.sources] for name, spec in specs.items() if name in own}
    sources = {t.table: declared.get(t.table) or [str(s) for s in t.watermark] for t in tables}
    # A landing folder is no table.
    sources = {t: [s for s in of if s in own or "/" not in s] for t, of in sources.items()}
    notes = {t.table: plural(t.rows, "row") if t.rows is not None else "" for t in tables}
    last = {t: done[-1] for t, of in records.items() if (done := [r for r in of if r.status == "absorbed"])}
    labels = {t: f"{plural(r.rows_changed, 'row')}, {duration(r.seconds)}" for t, r in last.items()}
    return graph(sources, notes, {t.table: _state(t) for t in tables}, labels)


def _audits(specs: Mapping[str, Spec], records: Mapping[str, Sequence[StepRecord]]) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for table in dict.fromkeys((*specs, *records)):
        declared = {a.name: a.is_blocking for a in specs[table].audits} if table in specs else {}
        steps = records.get(table, ())
        failures = Counter(name for r in steps for name in r.failed_audits)
        for name in dict.fromkeys((*declared, *failures)):
            result, at = _last_result(name, steps)
            if steps or failures:
                rows.append(AuditRow(table, name, declared.get(name), result, at, failures[name]))
    return sorted(rows, key=lambda r: (r.result != "failed", -r.failures))


def _last_result(audit: str, steps: Sequence[StepRecord]) -> tuple[str, str]:
    """Return the result of an audit in the last step that evaluated it, and when that was."""
    for r in reversed(steps):
        if audit in r.failed_audits:
            return "failed", moment(r.ended_at)
        if r.status == "absorbed" and r.rows_changed:
            return "passed", moment(r.ended_at)
    return "not evaluated", ""


def _rejected(
    tables: Sequence[TableStatus], records: Mapping[str, Sequence[StepRecord]]
) -> list[tuple[str, int, int, int]]:
    found = [(t.table, t.rejected, t.closed, sum(r.records_rejected for r in records.get(t.table, ()))) for t in tables]
    return [row for row in found if any(row[1:])]


def _lineage(lake: LakeBase, specs: Mapping[str, Spec]) -> list[Lineage]:
    found: list[Lineage] = []
    for name, spec in specs.items():
        of: Mapping[str, Sequence[tuple[TableId, str]]] | None = None
        with contextlib.suppress(CorruptMetadataError):  # the status of the table says so
            of = column_sources(lake, spec) if lake.exists(spec.table) else None
        if not of:
            continue
        columns = [(column, [f"{t}.{c}" for t, c in sources]) for column, sources in of.items()]
        tables = {str(t) for sources in of.values() for t, _ in sources}
        is_copy = len(tables) == 1 and all([c for _, c in sources] == [column] for column, sources in of.items())
        found.append(Lineage(name, columns, tables.pop() if is_copy else ""))
    return sorted(found, key=lambda t: (bool(t.copied_from), _layer(t.table), t.table))


def _layer(table: str) -> int:
    layer = table.partition(".")[0]
    return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)


def _failures(tables: Sequence[TableStatus], records: Mapping[str, Sequence[StepRecord]]) -> list[Failure]:
    standing = {t.table for t in tables if t.failure}
    last = {t: failed for t, of in records.items() if (failed := [r for r in of if r.status == "failed"])}
    newest = sorted(last.items(), key=lambda item: -item[1][-1].ended_at)[: thresholds.REPORT_FAILURES]
    return [
        Failure(t, moment(failed[-1].ended_at), without_values(failed[-1].error), len(failed), t in standing)
        for t, failed in newest
    ]
