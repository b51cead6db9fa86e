"""Upkeep beside steps, other upkeep and broken tables: everybody gets a turn, and nothing fails because of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import ConcurrentWriteError
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables import table_lock
from lake_assets.tables.upkeep_policy import DEFAULT_POLICY, Budget
from lake_assets.upkeep import attend as attend_module
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.attend import attend, attend_after_run, due_tables, look
from lake_assets.upkeep.upkeep_records import Done
from lake_assets.upkeep.upkept_tables import policies
from tests.support.cli import Done as Called
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines
from tests.support.pipeline_files import write_pipeline

A, B = TableId(("raw",), "a"), TableId(("raw",), "b")
POLICY = replace(DEFAULT_POLICY, commits=5)
WANTED = {A: POLICY, B: POLICY}
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
T = Table({"id": BIGINT})


@pytest.fixture
def two(plain_lake: Lake) -> Lake:
    """A lake with two tables of six small files."""
    plain_lake.ensure_namespace(("raw",))
    for name in (A, B):
        made = plain_lake.catalog.create_table(name.parts, ROWS.schema, properties={PIPELINE_PROPERTY: "p"})
        for _ in range(6):
            made.append(ROWS)
    return plain_lake


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables of actions, none of which does anything."""
    tables: list[str] = []

    def carry_out(_: Lake, name: TableId, action: Any, *__: object) -> Done:
        tables.append(str(name))
        return Done(action.kind, action.reason, time.time(), 40.0, files=0, bytes=1 << 30)

    monkeypatch.setattr(attend_module, "carry_out", carry_out)
    return tables


def lose_manifest_list(lake: Lake, name: TableId) -> str:
    snapshot = lake.table(name).current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file:")).unlink()
    return Path(snapshot.manifest_list).name


def test_a_table_that_cannot_be_looked_at_does_not_keep_the_others_waiting(two: Lake, carried_out: list[str]) -> None:
    lost = lose_manifest_list(two, A)
    attended = attend(two, WANTED, is_forced=True)
    assert carried_out == ["raw.b"]
    assert [(a.action.table, a.action.kind) for a in attended if a.done and a.done.error] == [("raw.a", "look")]
    assert lost in str(attended[0].done)
    due, reasons = due_tables(two, WANTED)
    assert due == []  # b's action gained nothing and waits
    assert [r for r in reasons if r.startswith("raw.a: ") and lost in r]


def test_upkeep_that_fails_in_any_way_fails_no_run(two: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Done:
        raise RuntimeError("of a kind that nobody expects")

    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "upkeep": {"commits": 5}}))
    monkeypatch.setattr(attend_module, "carry_out", fail)
    errors = [a.done.error for a in attend_after_run(two, pipeline) if a.done]
    assert errors == ["RuntimeError: of a kind that nobody expects"] * 2
    assert attend_after_run(two, pipeline) == []  # both wait
    monkeypatch.setattr(attend_module, "policies", fail)
    assert attend_after_run(two, pipeline) == []


def test_the_budget_is_of_all_tables_of_the_pipeline(two: Lake, carried_out: list[str]) -> None:
    spent = Done("combine", "", time.time(), 400.0, files=3)
    upkeep_records.add(two, B, [spent], time.time())
    assert {a.why_not for a in attend(two, {A: POLICY}, beside=WANTED)} == {
        "the budget of 10% of the time is used up for this hour"
    }
    assert due_tables(two, WANTED) == ([], ["the budget of 10% of the time is used up for this hour"])
    assert carried_out == []
    all_of_it = replace(POLICY, budget=Budget(share=1.0))
    assert due_tables(two, dict.fromkeys(WANTED, all_of_it))[0] == [A, B]


def test_who_loses_a_race_has_spent_its_budget_and_waits(two: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> Done:
        time.sleep(0.05)
        raise ConcurrentWriteError("the step was first")

    monkeypatch.setattr(attend_module, "carry_out", lose)
    (lost,) = attend(two, {A: POLICY})
    assert lost.done is None
    assert lost.why_not == "a writer was faster: the step was first"
    assert look(two, A, POLICY).due == []
    record = upkeep_records.read(two, A, time.time())
    assert sum(d.seconds for d in record.done) >= 0.05
    # A person may try at once.
    assert len(attend(two, {A: POLICY}, is_forced=True)) == 1


@pytest.mark.parametrize("created_again", [False, True])
def test_a_table_that_is_dropped_meanwhile_is_left_alone(
    two: Lake, carried_out: list[str], monkeypatch: pytest.MonkeyPatch, created_again: bool
) -> None:
    real = attend_module.table_lock.alone

    def alone(lake: Lake, name: TableId) -> Any:
        if name == A:
            lake.catalog.drop_table(A.parts)
            if created_again:
                lake.catalog.create_table(A.parts, ROWS.schema)
        return real(lake, name)

    monkeypatch.setattr(attend_module.table_lock, "alone", alone)
    attended = {a.action.table: a for a in attend(two, WANTED)}
    assert attended["raw.a"].why_not == "the table was dropped, or created again"
    assert carried_out == ["raw.b"]


def test_a_step_that_waits_gets_the_table_before_the_next_piece(two: Lake) -> None:
    is_waiting, has_it, may_end = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        is_waiting.set()
        with table_lock.shared(two, A):
            has_it.set()
            may_end.wait(10)

    with table_lock.alone(two, A) as is_held:
        assert is_held
        thread = threading.Thread(target=step)
        thread.start()
        is_waiting.wait(10)
        time.sleep(0.2)
    # As quickly as nothing but a loop would try.
    with table_lock.alone(two, A) as is_held:
        assert not is_held
    assert has_it.wait(10)
    may_end.set()
    thread.join(10)
    with table_lock.alone(two, A) as is_held:
        assert is_held


def test_steps_share_a_table_and_a_step_goes_on_if_upkeep_never_ends(
    two: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with table_lock.shared(two, A), table_lock.shared(two, A), table_lock.alone(two, A) as is_held:
        assert not is_held
    monkeypatch.setattr(thresholds, "UPKEEP_WAIT_SECONDS", 0.1)
    with table_lock.alone(two, A) as is_held, table_lock.shared(two, A):
        assert is_held
    assert "upkeep has held the table for 0.1 s" in caplog.text


def land(lake: Lake, number: int) -> None:
    folder = lake.config.home / "landing" / "events"
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / f"{number:04}.jsonl", to_lines([Event(T, "c", (number, number), {"id": number})]))


def streams(tmp_path: Path) -> Path:
    declared = {"name": "p", "upkeep": {"commits": 3}, "streams": [{"name": "events", "tables": ["public.t"]}]}
    (tmp_path / "pipelines").mkdir()
    return write_pipeline(tmp_path / "pipelines" / "defs.yaml", declared)


def test_the_ledger_of_a_raw_table_is_looked_after_with_it(plain_lake: Lake, tmp_path: Path) -> None:
    pipeline, raw = Pipeline.load(streams(tmp_path)), TableId(("raw",), "events")
    for n in (1, 2):
        land(plain_lake, n)
        assert [o.status for o in pipeline.run(plain_lake, ["raw.events"])] == ["absorbed"]
    # Another program's table of such a name is not.
    plain_lake.catalog.create_table(("raw", "events_rejected_files"), ROWS.schema)
    assert set(policies(pipeline, plain_lake)) == {raw, ledger_of(raw)}
    assert policies(pipeline, plain_lake)[ledger_of(raw)].commits == 3


def test_status_does_not_take_a_pipeline_that_it_cannot_read_for_one_without_anything_due(
    plain_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Called]
) -> None:
    for name in ("load", "load_existing"):
        monkeypatch.setattr(LakeOfCommands, name, classmethod(lambda *_: plain_lake))
    monkeypatch.setenv("LAKE_PIPELINES", str(tmp_path / "pipelines"))
    file = streams(tmp_path)
    text = file.read_text()
    for n in range(6):
        land(plain_lake, n)
        assert call("run", file, "--table", "raw.events", "--no-upkeep").code == 0
    assert '"upkeep": [\n' in call("status", "--json").out
    # Quiet hours do not hide it.
    at = datetime.now(UTC)
    hours = f"{at - timedelta(hours=1):%H:%M}-{at + timedelta(hours=1):%H:%M}"
    file.write_text(text.replace("commits: 3", f"commits: 3\n    quiet: [{hours}]"))
    assert '"upkeep": [\n' in call("status", "--json").out
    file.write_text(text.replace("public.t", "[]"))
    assert '"upkeep": null' in call("status", "--json").out
    assert "unknown" in call("status").out
