"""A source that goes silent, steps that stay away or become slower: told by what a table's past weeks were like."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import CatalogUnavailableError
from lake_assets.health.lake_status import LakeStatus, lake_status, quick_status, without_explained_claims
from lake_assets.health.late_tables import late_tables
from lake_assets.health.step_findings import with_steps
from lake_assets.health.table_rhythm import longest_silence, slowdown, usual_gap
from lake_assets.health.table_status import TableStatus
from lake_assets.journal import step_journal
from lake_assets.journal.step_digests import StepBrief, StepDigest, digested, merged, step_digests
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.disk_space import disks
from lake_assets.lake.metadata.row_counts import number, summary_of
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from lake_assets.report.contents import report
from lake_assets.report.findings import Finding, findings
from lake_assets.signals.metrics.metric_families import Reading, families
from lake_assets.tables import leftovers
from lake_assets.upkeep.claims import Claim
from tests.support.signalled_shop import CITIES, MODEL, ORDERS, Shop, age

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
MONDAY = 1_767_571_200.0  # 2026-01-05, 00:00 UTC


def landing(at: float, table: str = "raw.events", **more: Any) -> StepRecord:
    values = {"strategy": "land", "rows_inserted": 5} | more
    return StepRecord("shop", table, "absorbed", at, 1.0, 1.0, **values)


def every(seconds: float, start: float, end: float) -> list[float]:
    return [start + n * seconds for n in range(int((end - start) / seconds))]


def limit(moments: Iterable[float]) -> float | None:
    return longest_silence(digested([landing(at) for at in moments]).get("raw.events", StepDigest()).changes)


def test_a_source_of_every_minute_is_silent_after_a_quarter_of_an_hour() -> None:
    assert limit(every(MINUTE, MONDAY, MONDAY + 2 * DAY)) == thresholds.SILENCE_LEAST_SECONDS


def test_a_source_that_is_new_is_silent_after_as_long_as_it_is_known() -> None:
    assert limit(every(MINUTE, MONDAY, MONDAY + HOUR)) is None
    assert limit(every(5 * HOUR, MONDAY, MONDAY + 3 * DAY)) is None
    assert limit(every(MINUTE, MONDAY, MONDAY + 8 * HOUR)) == pytest.approx(8 * HOUR, abs=2 * MINUTE)


def office_hours(weeks: int) -> list[float]:
    days = [MONDAY + (7 * week + day) * DAY for week in range(weeks) for day in range(5)]
    return [at for day in days for at in every(10 * MINUTE, day + 8 * HOUR, day + 18 * HOUR)]


def test_nights_and_weekends_are_usual() -> None:
    first_days = limit(office_hours(1)[: 2 * 60])
    assert first_days is not None
    assert 14 * HOUR < first_days < 2 * DAY
    for weeks in (2, 3, 6, 10):
        # From Friday, 18:00, to Monday, 8:00.
        found = limit(office_hours(weeks))
        assert found is not None
        assert 62 * HOUR < found < 8 * DAY, weeks


def test_a_single_outage_makes_no_later_one_usual() -> None:
    moments = [at for at in every(MINUTE, MONDAY, MONDAY + 20 * DAY) if not 0 < at - MONDAY - 9 * DAY < 2 * DAY]
    assert limit(moments) == thresholds.SILENCE_LEAST_SECONDS


def test_digests_of_days_say_what_one_of_all_days_says() -> None:
    moments = office_hours(3)
    at_once = digested([landing(at) for at in moments])
    days = sorted({at // DAY for at in moments})
    by_day = merged(digested([landing(at) for at in moments if at // DAY == day]) for day in days)
    whole, joined = at_once["raw.events"], by_day["raw.events"]
    assert whole.changes is not None
    assert joined.changes is not None
    assert joined.changes == whole.changes
    assert usual_gap(joined.changes) == pytest.approx(62 * HOUR, abs=11 * MINUTE)
    assert joined.newest == whole.newest


def test_steps_that_read_old_changes_again_are_no_arrivals() -> None:
    window = {"source": "raw.events", "start_snapshot": None, "end_snapshot": 2, "files": 1, "bytes": 1}
    of_all = landing(MONDAY, "staging.a", sources=[window], strategy="")
    again = [landing(MONDAY, strategy=s) for s in ("replay", "rebuild")]
    assert {n: (d.changes, d.reads) for n, d in digested(again).items()} == {"raw.events": (None, None)}
    assert "raw.events" not in digested([of_all])
    later = replace(of_all, sources=[{**window, "start_snapshot": 1}], lag_seconds=30.0)
    found = digested([later])["raw.events"].reads
    assert found is not None
    assert found.last == MONDAY + 1.0 - 30.0


def steps(seconds: Sequence[float], rows: Sequence[int] | int = 100) -> list[StepBrief]:
    of = [rows] * len(seconds) if isinstance(rows, int) else rows
    return [StepBrief(MONDAY + 60 * n, s, of[n], 1_000 * of[n]) for n, s in enumerate(seconds)]


def cold(n: int, seconds: float) -> StepBrief:
    return StepBrief(MONDAY + 60 * n, seconds, 100, 100_000, started_spark=True)


def test_one_slow_step_is_told_at_once_with_since_when() -> None:
    found = slowdown(steps([2.0, 2.5, 2.0, 2.2, 25.0]))
    assert found is not None
    assert (found.since, found.steps, found.now) == (MONDAY + 240, 1, 25.0)
    assert 2.0 <= found.before <= 2.5
    later = slowdown(steps([2.0, 2.5, 2.0, 2.2, *[25.0] * 6]))
    assert later is not None
    assert (later.since, later.steps) == (MONDAY + 240, 6)
    assert slowdown(steps([2.0, 2.5, 2.0, 2.2, 25.0, 2.0])) is None


def test_larger_steps_and_first_ones_of_a_process_are_not_slower() -> None:
    assert slowdown(steps([2.0] * 6 + [40.0], [100] * 6 + [10_000])) is None
    assert slowdown(steps([2.0] * 6 + [40.0], [100] * 7)) is not None
    # Every step of a cron job starts a JVM, and some wait longer for it.
    assert slowdown(steps([0.5, 0.4, 0.5, 9.0])) is None
    assert slowdown(steps([14.0, 0.5, 0.4, 0.5, 0.5, 15.0])) is None
    assert slowdown(steps([2.0, 40.0])) is None
    # Where it is known that Spark was started meanwhile, such steps are compared with each other.
    warm = steps([2.0, 2.5, 2.0, 2.2])
    assert slowdown([*warm, cold(4, 40.0)]) is None
    starts = [cold(n, seconds) for n, seconds in enumerate([20.0, 22.0, 21.0, 20.0], 4)]
    assert slowdown([*warm, *starts]) is None
    assert slowdown([*warm, *starts, cold(8, 90.0)]) is not None


@pytest.fixture
def shop(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(plain_lake, monkeypatch)
    made.step()
    return made


def note_steps(lake: Lake, moments: Iterable[float], table: str, source: str, **more: Any) -> None:
    window = {"source": source, "start_snapshot": 1, "end_snapshot": 2, "files": 1, "bytes": 10}
    for at in moments:
        step_journal.note(lake, landing(at, table, strategy="keys", sources=[window], **more))
    step_journal.flush(lake)


def of(tables: Sequence[TableStatus], name: object) -> TableStatus:
    return next(t for t in tables if t.table == str(name))


def test_a_table_of_another_program_that_went_silent(shop: Shop) -> None:
    now = time.time()
    note_steps(shop.lake, every(30 * MINUTE, now - 3 * DAY, now - DAY), str(CITIES), str(ORDERS))
    for table in (ORDERS, CITIES):
        age(shop.lake.table(table), DAY)
    found = of(lake_status(shop.lake, [shop.pipeline]).tables, CITIES)
    assert found.silent is not None
    assert found.silent.text.startswith("its source final.orders has not changed for 1 d (since ")
    assert "something came at least every 30 min" in found.silent.text
    assert ("red", found.silent.text) in found.notes
    assert findings([found])[0].kind == "silent"
    shop.order()
    shop.step()
    assert of(quick_status(shop.lake), CITIES).silent is None


def test_a_table_that_is_not_absorbed_any_more(shop: Shop) -> None:
    now = time.time()
    note_steps(shop.lake, every(30 * MINUTE, now - 3 * DAY, now), str(CITIES), str(ORDERS))
    shop.order()
    assert of(quick_status(shop.lake), CITIES).stalled is None
    age(shop.lake.table(ORDERS), 2 * HOUR)
    found = of(quick_status(shop.lake), CITIES)
    assert found.silent is None
    assert found.stalled is not None
    assert "changes have waited for 2 h; before, the table absorbed some at least every 30 min" in found.stalled.text
    assert [f.kind for f in findings([found])] == ["late"]
    shop.step()
    assert of(quick_status(shop.lake), CITIES).stalled is None


def test_a_declared_freshness_is_what_is_expected(shop: Shop) -> None:
    model = {"name": str(CITIES), "sql": "SELECT city, count(*) AS n FROM final.orders GROUP BY city"}
    for freshness, is_silent in (("1h", True), ("1d", False)):
        config = PipelineConfig.model_validate({"name": "shop", "models": [{**model, "freshness": freshness}]})
        specs = Pipeline(config).specs(shop.lake)
        declared = {str(s.table): s for s in specs}
        # The step of a moment ago is in the journal.
        later = with_steps(shop.lake, quick_status(shop.lake), declared, time.time() + 2 * HOUR)
        silent = of(later, CITIES).silent
        assert (silent is not None) == is_silent
        assert silent is None or "`freshness` expects something at least every 1 h" in silent.text


def test_a_raw_table_that_landed_every_minute(plain_lake: Lake) -> None:
    raw, now = TableId.parse("raw.events"), time.time()
    plain_lake.ensure_namespace(raw.namespace)
    schema = pa.schema([("id", pa.int64())])
    plain_lake.catalog.create_table(raw.parts, schema, properties={PIPELINE_PROPERTY: "shop"})
    for at in every(10 * MINUTE, now - 2 * DAY, now - DAY):
        step_journal.note(plain_lake, landing(at))
    step_journal.flush(plain_lake)
    (found,) = quick_status(plain_lake)
    assert found.silent is not None
    assert found.silent.text.startswith("nothing has arrived for 1 d")
    # What lands is told at once, although the journal is read once a minute.
    step_journal.note(plain_lake, landing(now))
    assert quick_status(plain_lake)[0].silent is None


def test_days_that_are_over_are_read_once(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for at in (now - 3 * DAY, now - 2 * DAY, now):
        step_journal.note(plain_lake, landing(at))
    first = step_digests(plain_lake, now)["raw.events"]
    assert first.changes is not None
    assert first.changes.moments == 3
    read: list[Any] = []
    known: Callable[..., Any] = step_journal.read
    monkeypatch.setattr(step_journal, "read", lambda *a, **k: read.append(a) or known(*a, **k))
    assert step_digests(plain_lake, now)["raw.events"] == first
    assert read == []
    file = plain_lake.config.home / "health" / "step_digests.json"
    file.write_text("{")
    assert step_digests(plain_lake, now)["raw.events"] == first


def test_an_audit_that_warns_stands_until_it_passes(shop: Shop) -> None:
    step_journal.note(shop.lake, landing(time.time() + 1, str(CITIES), failed_audits=["not_null_city"]))
    found = of(quick_status(shop.lake), CITIES)
    assert found.warnings == ("not_null_city",)
    assert "the audit not_null_city does not pass, and its batches are published" in found.warning_text
    assert [(f.kind, f.what) for f in findings([found])] == [("warning", found.warning_text)]
    # A batch that changes no row is not audited.
    step_journal.note(shop.lake, landing(time.time() + 2, str(CITIES), rows_inserted=0))
    assert of(quick_status(shop.lake), CITIES).warnings == ("not_null_city",)
    # The audit is not declared any more.
    assert of(quick_status(shop.lake, shop.pipeline.specs(shop.lake)), CITIES).warnings == ()
    step_journal.note(shop.lake, landing(time.time() + 3, str(CITIES)))
    assert of(quick_status(shop.lake), CITIES).warnings == ()


def test_a_slower_step_is_in_status_and_report(shop: Shop) -> None:
    for n, seconds in enumerate((2.0, 2.0, 2.0, 2.0, 30.0)):
        step_journal.note(shop.lake, replace(landing(time.time() + n, str(CITIES)), seconds=seconds, rows_inserted=2))
    found = of(quick_status(shop.lake), CITIES)
    assert (
        "its last step took 30 s, and three of four earlier steps with as many rows took 2.0 s at most" in found.slower
    )
    assert ("yellow", found.slower) in found.notes
    assert [f.kind for f in findings([found])] == ["slower"]


def test_a_step_that_runs_is_told_and_that_it_takes_far_longer_than_usual(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        record = landing(time.time() - HOUR + n, str(CITIES), bytes_read=10_000)
        step_journal.note(shop.lake, replace(record, seconds=200.0))
    seen: list[Sequence[TableStatus]] = []

    def during() -> None:
        tables = quick_status(shop.lake, shop.pipeline.specs(shop.lake))
        seen.extend([tables, *(with_steps(shop.lake, tables, {}, time.time() + s) for s in (590, 610))])

    monkeypatch.setattr(shop, "during", during)
    began = time.time()
    shop.order()
    shop.step()
    now, usual, hangs = (of(tables, CITIES) for tables in seen)
    assert now.running is not None
    assert began - 1 <= now.running.since <= time.time()
    assert now.running.process == os.getpid()
    assert (now.overlong, usual.overlong, now.fails) == (None, None, False)
    assert hangs.overlong is not None
    assert hangs.overlong.limit == 600
    assert re.match(r"its step has run for 10 min \(since .+ UTC, process \d+\), and its last", hangs.overlong.text)
    assert ("red", hangs.overlong.text) in hangs.notes
    assert [(f.kind, f.what) for f in findings([hangs])] == [("late", hangs.overlong.text)]
    values = {
        family.name: sample.value
        for family in families(Reading(LakeStatus([hangs], {}, []), frozenset(), {}, {}))
        for sample in family.samples
    }
    assert values["lake_assets_table_step_overlong"] == 1
    assert values["lake_assets_table_step_running_seconds"] >= 0
    assert of(quick_status(shop.lake), CITIES).running is None


def test_a_step_that_catches_up_may_take_as_much_longer_as_it_has_more_to_read(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TableStatus | None] = []

    def during() -> None:
        shop.order()  # what comes while it runs gives it no more time
        tables = quick_status(shop.lake, shop.pipeline.specs(shop.lake))
        seen.extend(of(with_steps(shop.lake, tables, {}, time.time() + s), CITIES) for s in (900, 1_300))

    def orders_of(minutes: int) -> None:
        for _ in range(minutes):
            shop.order()

    size = number(summary_of(shop.lake.table(ORDERS).current_snapshot()), "added-files-size")
    for n in range(3):
        record = replace(landing(time.time() - HOUR + n, str(CITIES), bytes_read=2 * size), seconds=200.0)
        step_journal.note(shop.lake, record)
    orders_of(4)
    monkeypatch.setattr(shop, "during", during)
    shop.step()
    assert [t.overlong.limit if t and t.overlong else None for t in seen] == [None, pytest.approx(1_200, rel=0.01)]


def test_the_first_step_of_a_table_is_told_too_and_one_that_failed_is_not(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, seen = Shop(plain_lake, monkeypatch), list[TableStatus]()
    monkeypatch.setattr(shop, "during", lambda: seen.extend(quick_status(shop.lake, shop.pipeline.specs(shop.lake))))
    # It loses the catalog: what it wrote, and its note, stay for now.
    shop.fail(CatalogUnavailableError("away"))
    (first,) = seen
    assert (first.table, first.running is not None) == (str(CITIES), True)
    assert len(leftovers.notes(shop.lake)) == 1
    assert of(quick_status(shop.lake), CITIES).running is None
    shop.step()
    assert seen[-1].running is not None
    assert first.running is not None
    assert seen[-1].running.since > first.running.since


def test_a_table_that_somebody_drops_is_told_until_the_next_run_makes_it_again(shop: Shop) -> None:
    shop.lake.catalog.drop_table(CITIES.parts)
    found = of(lake_status(shop.lake, [shop.pipeline]).tables, CITIES)
    (text,) = found.lost
    assert text.startswith("agg.cities no longer exists: it was dropped or renamed. The next run computes it again")
    assert [f.kind for f in findings([found])] == ["failing"]
    shop.step()
    assert of(lake_status(shop.lake, [shop.pipeline]).tables, CITIES).lost == []


def test_a_disk_with_little_room_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(d.free <= d.total for d in disks(shop.lake.config))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=1 << 30))
    (disk,) = lake_status(shop.lake, []).disks[:1]
    assert disk.text.startswith("1,074 MB of 107 GB are free on the disk of ")
    assert composed_findings(shop.lake)[0].what == disk.advice
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=6 << 30))
    assert lake_status(shop.lake, []).disks == []


def composed_findings(lake: Lake) -> Sequence[Finding]:
    return report(lake, [], datetime.now(UTC)).findings


def test_the_longest_wait_of_a_batch_is_no_target_that_is_missed(shop: Shop) -> None:
    models = [
        {**MODEL, "max_wait": "30s"},
        {**MODEL, "name": "agg.others", "target_lag": "30s"},
    ]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "interval": "60s", "models": models}))
    assert [*late_tables(shop.lake, [pipeline])] == ["agg.others"]


def test_a_table_that_fails_is_not_told_as_one_that_has_stopped() -> None:
    claims = [Claim(name, "final.a", f"consumer.{name}", 1, 1, "p", False, 0.0, 9.0) for name in ("agg.b", "exports")]
    a = TableStatus("final.a", "p", 1, {}, {}, 0.0, None, claims=(*claims, replace(claims[0], is_warning=True)))
    b = TableStatus("agg.b", "p", 1, {}, {}, 0.0, None)
    assert [t.claims for t in without_explained_claims([a, b])] == [a.claims, ()]
    shown = without_explained_claims([a, replace(b, failure="ModelError: no column city")])[0].claims
    assert [(c.consumer, c.is_warning) for c in shown] == [("exports", False), ("agg.b", True)]
