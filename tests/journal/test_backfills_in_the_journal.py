"""The journal has what published backfills did and used: costs count them, and nothing takes them for steps."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lake_assets import Lake
from lake_assets.health.lake_status import LakeStatus
from lake_assets.health.table_status import TableStatus
from lake_assets.journal import recent_steps, step_journal
from lake_assets.journal.step_costs import cost_lines
from lake_assets.journal.step_digests import step_digests
from lake_assets.journal.step_records import BACKFILL
from lake_assets.lake import thresholds
from lake_assets.lake.config import CostsConfig
from lake_assets.report.contents import Period, composed
from lake_assets.report.period import costs_since
from lake_assets.signals.metrics.step_totals import step_totals
from tests.support.step_records import NOW, step

SIZE = 2 * thresholds.SMALL_INPUT_BYTES
SINCE = NOW - timedelta(hours=1)


@pytest.fixture
def journal(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake whose journal has two steps of a table, and two backfills of it."""
    monkeypatch.setattr(thresholds, "LOCAL_FILES", 50)  # metrics read the journal without Spark
    assert step_totals(plain_lake) == {}
    for record in (
        step("agg.a", "full", cpu=10, of=SIZE, ago=300, rows_inserted=5),
        step("agg.a", "keys", cpu=2, of=SIZE, ago=200, rows_updated=1, lag_seconds=3.0, snapshot=11),
        # Of an unknown duration, and of a long one.
        step("agg.a", BACKFILL, cpu=0, ago=100, rows_updated=7, snapshot=12),
        step("agg.a", BACKFILL, cpu=4_000, ago=90, rows_updated=900, failed_audits=["unique"], snapshot=13),
    ):
        step_journal.note(plain_lake, record)
    return plain_lake


@pytest.mark.parametrize("is_written", [False, True], ids=["waiting", "written"])
def test_costs_count_backfills_and_nothing_else_does(journal: Lake, *, is_written: bool) -> None:
    if is_written:
        assert step_journal.flush(journal) == 4
    costs = costs_since(journal, SINCE)
    lines = {line.name: line for line in cost_lines(costs, "strategy", CostsConfig())}
    assert (lines[BACKFILL].steps, lines[BACKFILL].cpu_seconds, lines[BACKFILL].estimated) == (2, 4_000, 0)
    # The cheapest step took 2 core-seconds, which an estimate takes for what each one needs.
    assert [c.in_full for c in costs] == [10, 10, None, None]
    recent_steps.forget(journal)
    recent = recent_steps.recent_steps(journal)
    assert recent.seconds == {"agg.a": 4.0}
    assert recent.arrivals.keys() == {11}
    assert sum(count.added for count in recent_steps.record_counts(journal).values()) == 5
    digest = step_digests(journal)["agg.a"]
    assert [s.seconds for s in digest.newest] == [5.0, 1.0]
    assert digest.changes is not None
    assert digest.changes.moments == 2
    totals = step_totals(journal)["agg.a"]
    assert (totals.absorbed, totals.cpu_seconds, totals.last_seconds, totals.rows_updated) == (2, 12, 1.0, 1)
    status = LakeStatus([TableStatus("agg.a", "shop", 5, {"src.t": 1}, {}, 0.0, NOW)], {}, ())
    shown = composed(journal, status, {}, costs, Period(SINCE, NOW))
    assert [e.label for e in shown.graph.edges] == ["1 row, 1.0 s"]
    assert shown.audits == []
    assert [chart.steps for chart in shown.lags] == [1]
    assert shown.costs is not None
    assert shown.costs.total.cpu_seconds == 4_012
