"""Each step leaves one record in a table of the lake, whatever happens to the process that writes it."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import ModelError
from lake_assets.journal import recent_steps, resource_use, step_journal
from lake_assets.journal.resource_use import ResourceUse, measured
from lake_assets.journal.step_costs import step_costs
from lake_assets.journal.step_journal import TABLE, flush, note, read
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.outcome import Outcome
from lake_assets.upkeep.upkept_tables import policies
from tests.support.people import CITIES, People

NOW = datetime.now(UTC)
HOUR_AGO = NOW - timedelta(hours=1)


def record(n: int = 1, at: datetime = NOW, **more: Any) -> StepRecord:
    return StepRecord("shop", f"final.t{n}", "absorbed", at.timestamp(), 1.5, 2.5, **more)


def ids(lake: Lake) -> list[str]:
    return sorted(lake.table(TABLE).scan().to_arrow()["id"].to_pylist())


def test_records_wait_in_files_and_are_written_together(plain_lake: Lake) -> None:
    window = {"source": "raw.a", "start_snapshot": None, "end_snapshot": 2**62, "files": 3, "bytes": 10}
    full = record(
        2,
        sources=[window],
        failed_audits=["unique"],
        not_exact=["a reason"],
        lag_seconds=0.25,
        table_rows=7,
        snapshot=5,
    )
    for r in (record(1), full):
        note(plain_lake, r)
    assert not plain_lake.exists(TABLE)
    assert {r.table for r in read(plain_lake, HOUR_AGO)} == {"final.t1", "final.t2"}
    assert flush(plain_lake, older_than=60) == 0
    assert flush(plain_lake) == 2
    assert flush(plain_lake) == 0
    stored = {r.table: r for r in read(plain_lake, HOUR_AGO)}
    assert stored["final.t2"] == full
    assert [r.table for r in read(plain_lake, HOUR_AGO, table="final.t1")] == ["final.t1"]
    assert read(plain_lake, HOUR_AGO, NOW - timedelta(minutes=1)) == []
    assert not list((plain_lake.config.home / "journal").iterdir())


def test_a_kill_after_the_commit_repeats_no_record(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = record(1), record(2)
    note(plain_lake, first)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            flush(plain_lake)
    # What was written is there once, with its file and without.
    assert [r.id for r in read(plain_lake, HOUR_AGO)] == [first.id]
    note(plain_lake, second)
    assert flush(plain_lake) == 1
    assert ids(plain_lake) == sorted([first.id, second.id])


def test_processes_that_write_at_once_lose_and_repeat_nothing(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(TABLE.namespace)
    records = [record(n) for n in range(24)]
    failures: list[Exception] = []

    def work(part: list[StepRecord]) -> None:
        lake = Lake(plain_lake.config)
        for r in part:
            note(lake, r)
            try:
                flush(lake)
            except Exception as e:
                failures.append(e)

    threads = [threading.Thread(target=work, args=(records[n::3],)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    flush(plain_lake)
    assert ids(plain_lake) == sorted(r.id for r in records)
    assert failures == []


def test_old_days_are_removed_and_a_broken_file_stops_nothing(plain_lake: Lake) -> None:
    old = record(1, NOW - timedelta(days=thresholds.JOURNAL_DAYS + 2))
    note(plain_lake, old)
    note(plain_lake, record(2))
    (plain_lake.config.home / "journal" / "cut.json").write_text('{"id": "ab')
    assert flush(plain_lake) == 2
    assert {r.table for r in read(plain_lake, old_days())} == {"final.t2"}
    note(plain_lake, record(3))
    assert flush(plain_lake) == 1
    assert [p.name for p in (plain_lake.config.home / "journal").iterdir()] == ["cut.broken"]


def test_records_that_can_never_be_written_are_bounded(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "JOURNAL_WAITING", 3)
    monkeypatch.setattr(step_journal, "_table", lambda _: (_ for _ in ()).throw(PermissionError("not allowed")))
    for n in range(5):
        note(plain_lake, record(n))
    step_journal.try_flush(plain_lake, older_than=0)
    assert len(read(plain_lake, HOUR_AGO)) == 3


def test_upkeep_looks_after_the_table(plain_lake: Lake) -> None:
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p"}))
    assert TABLE not in policies(pipeline, plain_lake)
    note(plain_lake, record())
    flush(plain_lake)
    assert policies(pipeline, plain_lake)[TABLE].is_on
    off = Pipeline(PipelineConfig.model_validate({"name": "p", "upkeep": False}))
    assert not policies(off, plain_lake)[TABLE].is_on


def old_days() -> datetime:
    return NOW - timedelta(days=400)


def test_a_table_of_an_older_version_gets_the_new_columns(plain_lake: Lake) -> None:
    note(plain_lake, record(1))
    flush(plain_lake)
    with plain_lake.table(TABLE).update_schema() as update:
        update.delete_column("host")
    note(plain_lake, replace(record(2), host="there"))
    flush(plain_lake)
    assert {r.table: r.host for r in read(plain_lake, HOUR_AGO)}["final.t2"] == "there"


def test_a_failure_is_recorded_without_secrets_and_no_record_stops_no_step(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(plain_lake.config), "hidden", lambda _, text: str(text).replace("s3cret", "***"))

    def fail() -> Outcome:
        raise ValueError("cannot log in with s3cret: " + "x" * 5_000)

    with pytest.raises(ValueError, match=r"cannot log in with \*\*\*"), step_journal.executed_by("dagster 1"):
        step_journal.recorded(plain_lake, "shop", TableId.parse("final.users"), fail)
    (found,) = read(plain_lake, HOUR_AGO)
    assert (found.status, found.run) == ("failed", "dagster 1")
    assert found.error.startswith("ValueError: cannot log in with ***: xxx")
    assert len(found.error) == thresholds.JOURNAL_ERROR_CHARACTERS
    # The folder cannot be written.
    monkeypatch.setattr(step_journal, "write_private", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    outcome = Outcome("final.users", "absorbed")
    assert step_journal.recorded(plain_lake, "shop", TableId.parse("final.users"), lambda: outcome).status == "absorbed"


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_steps_that_run_beside_each_other_share_what_is_used(plain_lake: Lake) -> None:
    uses = [ResourceUse(time.time()) for _ in range(3)]
    before = time.process_time()

    def work(use: ResourceUse) -> None:
        with measured(plain_lake, use):
            busy(0.15)

    threads = [threading.Thread(target=work, args=(u,)) for u in uses]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    used = time.process_time() - before
    assert 0.4 <= sum(u.cpu_seconds for u in uses) <= used + 0.1
    assert all(u.cpu_seconds > 0.05 for u in uses)


def test_what_an_older_jvm_has_used_before_is_not_the_steps(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    used = {os.getppid(): 1000.0}
    monkeypatch.setattr(resource_use, "_of_spark", lambda _: dict(used))
    monkeypatch.setattr(resource_use, "_meter", resource_use._Meter())
    monkeypatch.setattr(resource_use, "_cpu_seconds", lambda _: 0.0)
    use, later = ResourceUse(time.time()), ResourceUse(time.time())
    with measured(plain_lake, use):
        pass
    with measured(plain_lake, later):
        used[os.getppid()] += 3.0
    assert (use.cpu_seconds, later.cpu_seconds) == (0.0, 3.0)


def test_a_jvm_that_a_step_starts_is_the_steps(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, float] = {}
    monkeypatch.setattr(resource_use, "_of_spark", lambda _: dict(used))
    monkeypatch.setattr(resource_use, "_meter", resource_use._Meter())
    monkeypatch.setattr(resource_use, "_cpu_seconds", lambda _: 0.0)
    # A process that is younger than the step, as far as the step says.
    use = ResourceUse(0.0)
    with measured(plain_lake, use):
        used[os.getppid()] = 5.0
        monkeypatch.setattr(plain_lake, "_session", object())
    assert (use.cpu_seconds, use.started_spark) == (5.0, True)
    with measured(plain_lake, later := ResourceUse(time.time())):
        pass
    assert not later.started_spark


def test_the_records_of_a_run_say_what_its_steps_did(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(lake, CITIES)
    people.land(20)
    people.run()
    specs = {str(s.table): s for s in people.feed.pipeline.specs(lake)}
    records = {r.table: r for r in read(lake, HOUR_AGO)}
    assert records.keys() == specs.keys()
    final = records["final.people"]
    table, staging = lake.table("final.people"), lake.table("staging.people")
    assert final.snapshot == table.metadata.current_snapshot_id
    assert final.rows_inserted == final.table_rows == table.scan().to_arrow().num_rows
    size = int(summary_of(staging.current_snapshot())["total-files-size"])
    assert (final.source_bytes, final.bytes_read, final.files_read) == (size, size, 1)
    assert final.bytes_written > 0
    assert final.cpu_seconds > 0
    assert 0 <= (final.lag_seconds or 0) < 600
    assert (final.in_full_cpu_seconds, final.in_full_basis) == (final.cpu_seconds, "measured")
    # A change: what computing everything would have used is estimated from the first step.
    people.land(2)
    outcome = people.run()["final.people"]
    change = read(lake, HOUR_AGO, table="final.people")[-1]
    assert (change.in_full_basis, change.computed_all) == ("table", False)
    assert outcome.in_full_cpu_seconds == change.in_full_cpu_seconds == step_costs([final, change])[1].in_full
    records = {r.id: r for r in read(lake, HOUR_AGO)}
    # Nothing new: no record.
    people.run()
    assert len(read(lake, HOUR_AGO)) == len(records)
    # A step that fails.
    monkeypatch.setattr(SqlModelStep, "absorb", lambda *_, **__: (_ for _ in ()).throw(ModelError("broken")))
    with pytest.raises(ModelError, match="broken"):
        absorb(lake, specs["agg.cities"])
    assert [r.status for r in read(lake, HOUR_AGO, table="agg.cities")][-2:] == ["absorbed", "failed"]
    flush(lake)
    (count,) = lake.spark().sql("SELECT count(*) FROM lake_assets.steps WHERE status = 'failed'").first()
    assert count == 1
    assert json.dumps([r.to_row()["sources"] for r in read(lake, HOUR_AGO)])


def test_a_journal_that_cannot_be_read_stops_no_forecast(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("a file of the journal")

    with monkeypatch.context() as patch:
        patch.setattr(step_journal, "read", gone)
        assert recent_steps.recent_steps(plain_lake) == recent_steps.RecentSteps()
    assert "lake_assets.steps cannot be read: FileNotFoundError: a file of the journal" in caplog.text


def test_a_text_that_cannot_be_encoded_keeps_no_record_out_of_the_table(plain_lake: Lake) -> None:
    for r in (record(1, error="ValueError: half of a pair: \ud83d", not_exact=["\udcff"]), record(2)):
        note(plain_lake, r)
    assert flush(plain_lake) == 2
    first, _ = sorted(read(plain_lake, HOUR_AGO), key=lambda r: r.table)
    assert (first.error, first.not_exact) == ("ValueError: half of a pair: \\ud83d", ["\\udcff"])


def test_a_record_of_a_later_version_is_kept_without_what_is_not_known(plain_lake: Lake) -> None:
    later = record(1)
    note(plain_lake, later)
    file = plain_lake.config.home / "journal" / f"{later.id}.json"
    file.write_text(json.dumps({**vars(later), "of_tomorrow": 1}), encoding="utf-8")
    for n, text in enumerate(("[]", "{}", "nothing")):
        file.with_name(f"{n}.json").write_text(text, encoding="utf-8")
    assert flush(plain_lake) == 1
    assert [r.table for r in read(plain_lake, HOUR_AGO)] == ["final.t1"]
    assert len([*file.parent.glob("*.broken")]) == 3
