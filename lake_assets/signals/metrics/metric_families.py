"""The metrics of a lake: names, labels and values. No value and no label comes from the rows of a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lake_assets.health.lake_status import LakeStatus
from lake_assets.health.table_lag import lag_of
from lake_assets.health.table_status import TableStatus
from lake_assets.health.upkeep_status import UpkeepStatus
from lake_assets.service.service_state import State, StreamState
from lake_assets.signals.metrics.step_totals import StepTotals

PREFIX = "lake_assets"
_TABLE = ("table", "pipeline")


@dataclass(frozen=True)
class Reading:
    """What the metrics are made of.

    Attributes:
        held: tables of which a batch is held back by an audit.
        sources: the state of the services of live sources, by raw table.
    """

    status: LakeStatus
    held: frozenset[str]
    steps: Mapping[str, StepTotals]
    sources: Mapping[str, StreamState]

    @cached_property
    def by_name(self) -> Mapping[str, TableStatus]:
        """The tables by name."""
        return {t.table: t for t in self.status.tables}


def families(reading: Reading) -> list[Metric]:
    """Return all metrics with what was read."""
    return [
        *_of_tables(reading),
        _of_consumers(reading.status.upkeep),
        *_of_steps(reading.steps),
        *_of_sources(reading.sources),
    ]


# A value of a table; None: it has none.
_Value = Callable[[TableStatus, Reading], float | None]
_GAUGES: Mapping[str, tuple[str, _Value]] = {
    "table_rows": ("Rows, from the current snapshot's summary.", lambda t, _: t.rows),
    "table_lag_seconds": (
        "Age of the oldest commit that the table, or a table upstream of it, has not absorbed.",
        lambda t, r: None if t.error else lag_of(t, r.by_name),
    ),
    "table_lag_target_seconds": (
        "Lag that the table is declared to have at most.",
        lambda t, _: t.target_lag,
    ),
    "table_pending_snapshots": (
        "Snapshots of its sources that the table has not absorbed.",
        lambda t, _: None if t.error else sum(n or 0 for n in t.behind.values()),
    ),
    "table_pending_rows": ("Changed rows, or records, in pending snapshots.", lambda t, _: t.rows_behind),
    "table_pending_files": ("Files in the landing folder that have not landed.", lambda t, _: t.waiting.files),
    "table_failed": ("Whether its last step failed.", lambda t, _: t.failure is not None),
    "table_held": ("Whether a batch is held back by an audit.", lambda t, r: t.table in r.held),
    "table_history_lost": ("Whether the history of a source is lost.", lambda t, _: bool(t.lost)),
    "table_unreadable": ("Whether it is unknown how far it is.", lambda t, _: t.error is not None),
    "table_inexact_reasons": (
        "Reasons for which it is known to differ from its source.",
        lambda t, _: len(t.not_exact),
    ),
    "table_silent": ("Whether nothing arrives, for longer than declared or usual.", lambda t, _: t.silent is not None),
    "table_audit_warnings": ("Audits that do not pass, and only warn.", lambda t, _: len(t.warnings)),
    "table_step_running_seconds": (
        "For how long its step has run that is at work; none if no step is.",
        lambda t, _: max(0.0, time.time() - t.running.since) if t.running else None,
    ),
    "table_step_overlong": ("Whether that step takes far longer than usual.", lambda t, _: t.overlong is not None),
    "table_rejected_records": ("Records that stand rejected, of a raw table.", lambda t, _: t.rejected),
    "table_absorbed_timestamp_seconds": (
        "When it last absorbed something, in seconds since 1970.",
        lambda t, _: t.last_run.timestamp() if t.last_run else None,
    ),
    "table_upkeep_due_actions": (
        "Kinds of upkeep that are due; none if its pipeline is not found.",
        lambda t, _: None if t.upkeep is None else len(t.upkeep),
    ),
}
_COUNTERS: Mapping[str, tuple[str, Callable[[StepTotals], float]]] = {
    "step_duration_seconds": ("Time that steps took.", lambda s: s.seconds),
    "step_cpu_seconds": ("CPU time of steps, of one core.", lambda s: s.cpu_seconds),
    "step_read_bytes": ("Bytes of the captured files, and of the files that steps replaced.", lambda s: s.bytes_read),
    "step_written_bytes": ("Bytes of the files that steps added.", lambda s: s.bytes_written),
    "step_rejected_records": ("Records that steps rejected.", lambda s: s.records_rejected),
}
_LAST: Mapping[str, tuple[str, Callable[[StepTotals], float | None]]] = {
    "step_last_duration_seconds": ("Time that the last step with changes took.", lambda s: s.last_seconds),
    "step_last_lag_seconds": (
        "Age of the oldest commit that the last step with changes absorbed, at its end.",
        lambda s: s.last_lag,
    ),
}


def _of_tables(reading: Reading) -> Iterable[Metric]:
    for name, (text, value) in _GAUGES.items():
        family = _gauge(name, text, _TABLE)
        for table in reading.status.tables:
            if (found := value(table, reading)) is not None:
                family.add_metric([table.table, table.pipeline], float(found))
        yield family


def _of_consumers(upkeep: Mapping[str, UpkeepStatus]) -> Metric:
    lag = _gauge(
        "consumer_lag_seconds",
        "Age of the oldest change of the table that a consumer has not absorbed; 0 if none waits.",
        ("table", "consumer"),
    )
    for table, of in upkeep.items():
        for claim in of.consumers:
            lag.add_metric([table, claim.consumer], claim.waited)
    return lag


def _of_steps(steps: Mapping[str, StepTotals]) -> Iterable[Metric]:
    ends = CounterMetricFamily(
        f"{PREFIX}_steps", "Steps that absorbed something, or failed.", labels=[*_TABLE, "status"]
    )
    rows = CounterMetricFamily(f"{PREFIX}_step_changed_rows", "Rows that steps changed.", labels=[*_TABLE, "change"])
    for table, totals in steps.items():
        labels = [table, totals.pipeline]
        # A step that an audit held back has failed, and is counted once.
        ended = {"absorbed": totals.absorbed, "failed": totals.failed - totals.held, "held": totals.held}
        for status, number in ended.items():
            ends.add_metric([*labels, status], number)
        changed = {"inserted": totals.rows_inserted, "updated": totals.rows_updated, "deleted": totals.rows_deleted}
        for change, number in changed.items():
            rows.add_metric([*labels, change], number)
    yield from (ends, rows)
    for name, (text, value) in _COUNTERS.items():
        counter = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=_TABLE)
        for table, totals in steps.items():
            counter.add_metric([table, totals.pipeline], value(totals))
        yield counter
    for name, (text, last) in _LAST.items():
        gauge = _gauge(name, text, _TABLE)
        for table, totals in steps.items():
            if (found := last(totals)) is not None:
                gauge.add_metric([table, totals.pipeline], found)
        yield gauge


def _of_sources(sources: Mapping[str, StreamState]) -> Iterable[Metric]:
    reading = _gauge("source_reading", "Whether a live source is read.", ("table",))
    states = _gauge(
        "source_state", "State of the service of a live source: 1 for the one it is in.", ("table", "state")
    )
    rate = _gauge("source_records_per_second", "Records that landed, over the last minute.", ("table",))
    lag = _gauge("source_lag_seconds", "How far the reader is behind its source, if that says so.", ("table",))
    committed = _gauge("source_committed_timestamp_seconds", "When records last landed.", ("table",))
    for table, state in sources.items():
        reading.add_metric([table], float(state.is_well))
        for name in get_args(State):
            states.add_metric([table, name], float(name == state.state))
        rate.add_metric([table], state.records_a_second if state.is_alive else 0.0)
        if isinstance(behind := state.measures.get("seconds_behind"), int | float):
            lag.add_metric([table], float(behind))
        if state.committed is not None:
            committed.add_metric([table], state.committed)
    return [reading, states, rate, lag, committed]


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
