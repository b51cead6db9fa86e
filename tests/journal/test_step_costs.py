"""What steps used is added up, and what computing everything would have used is estimated, or said to be unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lake_assets import Lake
from lake_assets.journal.step_costs import FIRST_STEP, KnownSteps, cost_lines, step_costs, total_line
from lake_assets.journal.step_journal import TABLE, flush, note, read
from lake_assets.lake import thresholds
from lake_assets.lake.config import CostsConfig
from tests.support.step_records import NOW, step

MB = 1 << 20
FREE = CostsConfig()


def test_sums_by_table_pipeline_day_and_strategy() -> None:
    records = [
        step("final.a", cpu=3, bytes_read=10, bytes_written=1, files_read=2, files_written=1, rows_inserted=5),
        step("final.a", "full", cpu=1, bytes_read=5, rows_updated=2, reason="few rows: 365 in its sources"),
        step("agg.b", cpu=4, pipeline="other", ago=86_460),
        step("final.a", status="failed", cpu=2),
    ]
    costs = step_costs(records)
    first, second = cost_lines(costs, "table", FREE)
    assert (first.name, second.name) == ("final.a", "agg.b")
    assert (first.steps, first.failed, first.complete) == (3, 1, 1)
    assert (first.cpu_seconds, first.seconds, first.share) == (6, 3, 0.6)
    assert (first.bytes_read, first.bytes_written, first.files_read, first.files_written) == (15, 1, 2, 1)
    assert first.rows_changed == 7
    assert first.reasons == {"few rows: … in its sources": 1}
    assert {line.name: line.cpu_seconds for line in cost_lines(costs, "pipeline", FREE)} == {"shop": 6, "other": 4}
    days = [(NOW - timedelta(seconds=ago)).date().isoformat() for ago in (86_460, 60)]
    assert [line.name for line in cost_lines(costs, "day", FREE)] == days
    assert {line.name for line in cost_lines(costs, "strategy", FREE)} == {"merge", "full"}
    reasons = {line.name: line.cpu_seconds for line in cost_lines(costs, "reason", FREE)}
    assert reasons.pop("full: few rows: … in its sources") + sum(reasons.values()) == 10
    assert set(reasons) == {"merge"}
    assert total_line(costs, FREE).cpu_seconds == 10
    assert cost_lines([], "table", FREE) == []
    assert total_line([], FREE).share == 0


def in_full(*records: object, earlier: object = ()) -> list[tuple[float | None, str]]:
    return [(c.in_full, c.basis) for c in step_costs(list(records), earlier)]


def test_an_estimate_grows_with_the_sources_from_what_each_step_costs_anyway() -> None:
    full = step("agg.a", "full", cpu=11, of=100 * MB)
    # One core-second is what the cheapest step used: the other ten read 100 MB.
    assert in_full(full, step("agg.a", cpu=1, of=200 * MB)) == [(11, "measured"), (21, "table")]
    # Of steps that computed everything, the one over sources of about this size counts; the cheapest of several.
    small = step("agg.a", "full", cpu=2, of=40 * MB)
    near = step("agg.a", "rebuild", cpu=9, of=110 * MB)
    assert in_full(step("agg.a", cpu=1, of=110 * MB), earlier=[full, small, near]) == [(9, "table")]


def test_an_estimate_is_carried_on_when_the_step_that_computed_everything_is_long_past() -> None:
    known = KnownSteps([step("agg.a", "full", cpu=11, of=100 * MB), step("agg.a", cpu=1, of=100 * MB)])
    carried = known.with_estimate(step("agg.a", cpu=1, of=200 * MB))
    assert (carried.in_full_cpu_seconds, carried.in_full_basis) == (21, "table")
    later, change = KnownSteps([carried]), step("agg.a", cpu=1, of=400 * MB)
    assert (later.cost(change).in_full, later.cost(change).basis) == (41, "table")
    # What was measured counts from then on; an estimate from other tables is not carried.
    later.add(step("agg.a", "full", cpu=5, of=400 * MB))
    assert later.cost(change).in_full == 5
    other = known.with_estimate(step("agg.b", cpu=1, of=100 * MB))
    assert other.in_full_basis == "pipeline"
    assert KnownSteps([other]).cost(step("agg.b", cpu=1, of=100 * MB)).in_full is None


def test_small_sources_cost_the_same_and_nothing_is_scaled_far() -> None:
    tiny = step("agg.a", "full", cpu=5, of=1_000)
    assert in_full(step("agg.a", cpu=1, of=900_000), earlier=[tiny]) == [(5, "table")]
    large = step("agg.a", cpu=1, of=1000 * thresholds.SMALL_INPUT_BYTES)
    assert in_full(large, earlier=[tiny]) == [(1 + 4 * thresholds.COSTS_SCALED, "table")]


def test_without_steps_of_the_table_its_pipeline_tells_and_else_nothing_does() -> None:
    other = step("agg.b", "full", cpu=20, of=100 * MB)
    change = step("agg.a", cpu=1, of=50 * MB)
    assert in_full(change, earlier=[other]) == [(10, "pipeline")]
    assert in_full(change, earlier=[replace(other, pipeline="elsewhere")]) == [(None, "")]
    assert in_full(step("agg.a", cpu=1, of=0), earlier=[other]) == [(None, "")]
    line = total_line(step_costs([change]), FREE)
    assert (line.saved, line.estimated) == (None, 0)


@pytest.mark.parametrize("strategy", ["land", "replay"])
def test_landing_has_no_other_way(strategy: str) -> None:
    landed = step("raw.a", strategy, start=None, of=MB)
    assert not landed.computed_all
    assert in_full(landed, earlier=[step("raw.a", "full", of=MB)]) == [(None, "")]


def test_first_steps_and_rebuilds_computed_everything_and_watermarks_alone_save_nothing() -> None:
    first, later = step("final.a", start=None, of=MB), step("final.a", of=MB)
    assert (first.computed_all, later.computed_all) == (True, False)
    assert step("final.a", "rebuild").computed_all
    assert not step("final.a", "full", status="failed").computed_all
    moved = step("final.a", "none", cpu=0.1, start=None, of=MB)
    assert in_full(moved, earlier=[first]) == [(0.1, "measured")]
    assert total_line(step_costs([first]), FREE).reasons == {FIRST_STEP: 1}


def test_a_saving_may_be_negative_and_has_a_price() -> None:
    prices = CostsConfig(core_hour=36, terabyte=1e6, currency="EUR")
    records = [
        step("agg.a", "full", cpu=10, of=100 * MB),
        step("agg.a", cpu=40, of=100 * MB, bytes_read=MB, bytes_written=MB),
        step("agg.a", cpu=10, of=100 * MB),
    ]
    line = total_line(step_costs(records), prices)
    assert line.saved == -30
    assert line.money == pytest.approx(60 * 0.01 + 2 * MB / 1e6)
    # Computing everything twice more reads all sources, and writes at least what was written.
    assert line.money_in_full == pytest.approx(30 * 0.01 + 201 * MB / 1e6)
    assert line.money_in_full is not None
    assert line.money_of_estimated is not None
    assert line.money_saved == pytest.approx(line.money_in_full - line.money_of_estimated)
    assert total_line(step_costs(records), FREE).money is None


def test_the_journal_reads_steps_that_computed_everything(plain_lake: Lake) -> None:
    records = [
        step("final.a", start=None, of=MB),
        step("final.a", of=MB),
        step("agg.b", "full", of=MB),
        step("raw.c", "land", start=None),
    ]
    since = NOW - timedelta(hours=1)

    def complete() -> set[str]:
        return {r.id for r in read(plain_lake, since, only_complete=True)}

    for record in records:
        note(plain_lake, record)
    expected = {records[0].id, records[2].id}
    assert complete() == expected
    flush(plain_lake)
    assert complete() == expected
    # The journal of a version without the column knows those of which the strategy tells.
    with plain_lake.table(TABLE).update_schema() as update:
        update.delete_column("computed_all")
    assert complete() == {records[2].id}
    note(plain_lake, step("final.d", start=None, of=MB))
    flush(plain_lake)
    assert {r.table for r in read(plain_lake, since, only_complete=True)} == {"agg.b", "final.d"}
