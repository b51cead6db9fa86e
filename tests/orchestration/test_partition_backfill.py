"""A backfill of partitions in Dagster: whatever runs it is split into, all of its tables show it at once, or none."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from lake_assets import Lake
from lake_assets.backfill import backfills
from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.errors import BackfillError
from lake_assets.lake import TableId
from lake_assets.orchestration import build_definitions
from lake_assets.orchestration._compat import DagsterExecutionInterruptedError
from lake_assets.orchestration.asset_names import pool
from lake_assets.pipeline import ModelSpec, Pipeline, PipelineConfig, grouped
from lake_assets.pipeline.verification import verify
from tests.support.dagster_harness import Harness, OtherSession
from tests.support.lakes import lake_on
from tests.support.partitioned_orders import BERLIN, MODELS, Days
from tests.support.saved import SavedLake
from tests.support.streams import heads

TABLES = ("final.orders", "agg.wide", "agg.days", "agg.countries", "agg.totals")
# Follows the others; it has no partitions.
TOTALS = {"name": "agg.totals", "sql": "SELECT count(*) AS n, sum(twice) AS total FROM agg.wide"}
AMOUNTS = "SELECT * FROM {table} WHERE twice > 100"


def key(table: str) -> dg.AssetKey:
    return dg.AssetKey(table.split("."))


class Redone:
    """Damaged tables, and a Dagster backfill of the damaged day with everything downstream."""

    def __init__(
        self, lake: Lake, instance: dg.DagsterInstance, audits: Any = (), others: Any = (*MODELS[1:3], TOTALS)
    ) -> None:
        wide = {**MODELS[0], "audits": list(audits)}
        self.days = Days(lake, instance, 2, models=[wide, *others])
        self.lake, self.instance = lake, instance
        self.days.land(40)
        self.days.run()
        by = self.days.partitioned["final.orders"]
        at = {row[0]: str(by.key_of(row[1])) for row in self.days.rows("final.orders")}
        ((self.day, _),) = Counter(at.values()).most_common(1)
        self.damaged = min(i for i, day in at.items() if day == self.day)
        self.at = at

    def damage(self, amount: int, *more: int) -> None:
        """Let a row of the day, and other rows, be wrong in all tables."""
        table = self.lake.sql_name("final.orders")
        ids = ", ".join(map(str, (self.damaged, *more)))
        self.lake.spark().sql(f"UPDATE {table} SET amount = {amount} WHERE id IN ({ids})")
        assert self.days.harness.run(self.days.harness.request()).success

    def launch(self, backfill: str, *more: str, **tags: str) -> None:
        """Launch the backfill of the day, and of other days, as the UI does."""
        graph, days = self.days.harness.defs.get_repository_def().asset_graph, [self.day, *more]
        self.instance.add_backfill(
            PartitionBackfill.from_asset_partitions(
                backfill, graph, days, [*map(key, TABLES)], time.time(), tags, self.instance, False, None, None, None
            )
        )  # fmt: skip

    def step(
        self, backfill: str, *tables: str, whole: bool = False, day: str = "", **tags: str
    ) -> dg.ExecuteInProcessResult:
        """Run one of the runs that the daemon splits the backfill into."""
        data: Any = self.instance.get_backfill(backfill)
        subset = data.asset_backfill_data.target_subset
        keys = [] if whole else sorted(subset.get_partitions_subset(key(tables[0])).get_partition_keys())
        keys = [day] if day else keys
        start, end = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
        tags |= {"dagster/backfill": backfill} | ({start: keys[0], end: keys[-1]} if keys else {})
        job = self.days.harness.job.get_subset(asset_selection=frozenset(map(key, tables)))
        return job.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False)

    def end(self, backfill: str, status: BulkActionStatus) -> None:
        data: Any = self.instance.get_backfill(backfill)
        self.instance.update_backfill(data.with_status(status))

    @property
    def record(self) -> BackfillRecord:
        return Records(self.lake).all()[-1]


# Output that several threads capture at once is waited for, for a minute.
NO_OUTPUT = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}


def instance_in(folder: Path) -> contextlib.AbstractContextManager[dg.DagsterInstance]:
    """An instance on disk: tables in memory are locked while another thread reads them."""
    return dg.DagsterInstance.local_temp(str(folder), overrides={"compute_logs": NO_OUTPUT})


@dataclass
class Saved:
    """Damaged tables, and the instance's files."""

    lake: SavedLake
    redone: Redone
    instance: Path


@pytest.fixture(scope="module")
def saved(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "dagster").mkdir()
    with instance_in(folder / "dagster") as instance:
        redone = Redone(lake_on(spark_lake, folder / "lake"), instance)
        redone.damage(77)
    return Saved(SavedLake(redone.lake, redone, (), folder / "backup"), redone, folder / "dagster")


@pytest.fixture
def redone(saved: Saved, tmp_path: Path) -> Iterator[Redone]:
    shutil.copytree(saved.instance, tmp_path / "dagster")
    before = saved.redone.days.harness
    with instance_in(tmp_path / "dagster") as instance:
        harness = Harness(before.pipeline, saved.redone.lake, instance)
        yield saved.lake.put_back(instance=(saved.redone.instance, instance), harness=(before, harness))


def interrupted(*args: object, **kwargs: object) -> None:
    raise DagsterExecutionInterruptedError


def errors(result: dg.ExecuteInProcessResult) -> str:
    return "\n".join(str(e.event_specific_data) for e in result.all_events if e.is_failure)


def observed(result: dg.ExecuteInProcessResult) -> Iterator[tuple[str, dict[str, Any]]]:
    for event in result.all_events:
        if event.event_type_value == "ASSET_OBSERVATION":
            data: Any = event.event_specific_data
            metadata = {k: v.value for k, v in data.asset_observation.metadata.items()}
            # Neither the progress of marks, nor the figures of a whole step.
            if not metadata.keys() & {"lake_assets/marked", "core_seconds"}:
                yield ".".join(data.asset_observation.asset_key.path), metadata


@pytest.mark.long
def test_the_first_run_publishes_all_tables_and_the_others_mark_their_partitions(redone: Redone) -> None:
    redone.launch("one")
    first = redone.step("one", "final.orders", "agg.wide")
    assert first.success, errors(first)
    redone.days.check()  # also the tables whose runs have not begun
    (plan, *compared) = observed(first)
    assert plan[0] == "final.orders"
    assert "agg.totals" in plan[1]["plan"]
    assert {table for table, _ in compared} == set(TABLES)
    assert redone.record.state == "published"
    assert [t.table for t in redone.record.tables] == list(TABLES)
    published = heads(redone.lake)
    marks = redone.days.marks(first)
    assert redone.day in marks["final.orders"]
    assert redone.day in marks["agg.wide"]
    later = redone.step("one", "agg.days")
    assert later.success, errors(later)
    assert redone.day in redone.days.marks(later)["agg.days"]
    whole = redone.step("one", "agg.totals", whole=True)
    assert whole.success, errors(whole)
    (event,) = whole.get_asset_materialization_events()
    counts = event.materialization.metadata
    assert counts["rows_inserted"].value == counts["rows_deleted"].value == 1
    assert heads(redone.lake) == published
    undo_of = undo(redone.lake, redone.days.harness.pipeline, redone.record.id)
    undo_of.build()
    undo_of.publish()
    assert (redone.damaged, 77) in {(row[0], row[3]) for row in redone.days.rows("final.orders")}


@pytest.mark.long
def test_the_metadata_of_a_partition_is_its_own_in_whatever_run_it_is(redone: Redone) -> None:
    other = next(day for day in redone.at.values() if day != redone.day)
    redone.damage(78, next(i for i, day in redone.at.items() if day == other))
    redone.launch("one", other)
    # One row of each day was wrong.
    for day in (redone.day, other):
        run = redone.step("one", "final.orders", "agg.wide", day=day)
        assert run.success, errors(run)
        for table in ("final.orders", "agg.wide"):
            metadata = redone.days.marks(run)[table][day]
            assert (metadata["rows_written"], metadata["rows_removed"]) == (1, 1), (table, day)
    redone.days.check()


@pytest.mark.long
def test_a_table_that_follows_says_so(redone: Redone) -> None:
    redone.launch("one")
    assert redone.step("one", "final.orders", "agg.wide").success
    assert redone.record.request.startswith("final.orders: ")
    why = redone.record.of("agg.wide").why
    assert why.endswith("; 1 partition: no row differs")
    assert redone.record.of("final.orders").why == "1 partition: rows that differ are written"


@pytest.mark.long
def test_a_failed_audit_of_one_table_publishes_none_and_a_repetition_goes_on(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    redone = Redone(lake, instance, [{"name": "small", "sql": AMOUNTS, "severity": "error"}])
    redone.damage(20)
    before = heads(lake)
    # The source has a value that the audit of the second table does not accept.
    audits: list[Any] = [{"name": "small", "sql": "SELECT * FROM {table} WHERE twice < 30", "severity": "error"}]
    strict = {**MODELS[0], "audits": audits}
    redone.days.harness.pipeline = Days(lake, instance, 2, models=[strict, *MODELS[1:3], TOTALS]).harness.pipeline
    redone.days.harness.reload()
    redone.launch("one")
    failed = redone.step("one", "final.orders", "agg.wide")
    assert not failed.success
    assert "agg.wide: 1 of 1 audits do not pass" in errors(failed)
    assert f"nothing of the backfill {redone.record.id} is published" in errors(failed)
    evaluations = failed.get_asset_check_evaluations()
    assert [(e.asset_key, e.check_name, e.passed) for e in evaluations] == [(key("agg.wide"), "small", False)]
    assert heads(lake) == before
    assert redone.record.state == "failed"

    audits[0]["sql"] = AMOUNTS
    redone.days.harness.pipeline = Days(lake, instance, 2, models=[strict, *MODELS[1:3], TOTALS]).harness.pipeline
    redone.days.harness.reload()
    redone.launch("two", **{"dagster/parent_backfill_id": "one", "dagster/root_backfill_id": "one"})
    again = redone.step("two", "final.orders", "agg.wide", **{"dagster/parent_backfill_id": "one"})
    assert again.success, errors(again)
    assert len(Records(lake).all()) == 1
    assert redone.record.state == "published"
    redone.days.check()


@pytest.mark.long  # as a cancelled run over one partition
def test_what_a_cancelled_backfill_has_built_is_discarded_by_the_next_tick(
    redone: Redone, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = heads(redone.lake)
    redone.launch("one")
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "publish", interrupted)
        assert not redone.step("one", "final.orders", "agg.wide").success
    assert heads(redone.lake) == before
    # Its process has ended.
    Records(redone.lake).save(replace(redone.record, process=""))
    redone.days.harness.skipped()
    assert redone.record.is_open
    redone.end("one", BulkActionStatus.CANCELED)
    redone.days.harness.skipped()
    assert redone.record.state == "discarded"
    assert heads(redone.lake) == before
    # Executed again, it begins anew.
    redone.launch("two")
    assert redone.step("two", "final.orders", "agg.wide", **{"dagster/parent_backfill_id": "one"}).success
    redone.days.check()


@pytest.mark.long
@pytest.mark.parametrize("state", ["building", pytest.param("ready", marks=pytest.mark.long)])
def test_an_interrupted_run_is_continued_by_its_repetition(
    redone: Redone, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redone.launch("one")
    where, call = (backfills, "redo") if state == "building" else (Backfill, "publish")
    with monkeypatch.context() as patch:
        patch.setattr(where, call, interrupted)
        assert not redone.step("one", "final.orders", "agg.wide").success
    assert redone.record.state == state
    assert redone.step("one", "final.orders", "agg.wide").success
    assert [r.state for r in Records(redone.lake).all()] == ["published"]
    redone.days.check()


@pytest.mark.long  # as an interrupted run
def test_the_repetition_of_a_run_of_an_ended_backfill_continues_it(
    redone: Redone, monkeypatch: pytest.MonkeyPatch
) -> None:
    redone.launch("one")
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "publish", interrupted)
        failed = redone.step("one", "final.orders", "agg.wide")
    # Its process has ended.
    Records(redone.lake).save(replace(redone.record, process=""))
    redone.end("one", BulkActionStatus.COMPLETED_FAILED)
    # Dagster leaves out the tags of the backfill, and repeats what failed: here a single table.
    request = redone.instance.get_run_by_id(failed.run_id)
    assert request is not None
    tags = {k: v for k, v in request.tags.items() if k != "dagster/backfill"}
    tags |= {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    job = redone.days.harness.job.get_subset(asset_selection=frozenset([key("final.orders")]))
    again = job.execute_in_process(instance=redone.instance, tags=tags, raise_on_error=False)
    assert again.success, errors(again)
    assert [r.state for r in Records(redone.lake).all()] == ["published"]
    assert redone.instance.get_run_by_id(again.run_id).tags["lake_assets/backfill"] == redone.record.id  # type: ignore[union-attr]
    redone.days.check()


@pytest.mark.long  # as steps at the same time
def test_a_run_that_another_one_was_faster_than_finds_its_work_done(
    redone: Redone, monkeypatch: pytest.MonkeyPatch
) -> None:
    redone.launch("one")
    begin = Backfill.begin

    def late(*args: Any, **kwargs: Any) -> Backfill:
        faster = begin(*args, **kwargs)
        faster.build()
        faster.publish()
        return begin(*args, **kwargs) if faster.record.is_open else refused()

    def refused() -> Backfill:
        raise BackfillError("final.orders is in another backfill")

    monkeypatch.setattr(Backfill, "begin", late)
    run = redone.step("one", "final.orders", "agg.wide")
    assert run.success, errors(run)
    assert [r.state for r in Records(redone.lake).all()] == ["published"]
    redone.days.check()


@pytest.mark.long  # as several tables of one pipeline
def test_tables_of_several_pipelines_are_one_backfill(redone: Redone, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, instance, harness = redone.lake, redone.instance, redone.days.harness
    model = {"name": "agg.again", "sql": "SELECT id, at, twice FROM agg.wide", "partitions": BERLIN}
    others = Pipeline(PipelineConfig.model_validate({"name": "q", "models": [model]}))
    assert {o.status for o in others.run(lake)} == {"absorbed"}
    session = OtherSession(lake)
    both = dg.Definitions.merge(*(build_definitions(p, lake, pyspark=session) for p in (harness.pipeline, others)))
    tables = ("final.orders", "agg.wide", "agg.again")
    job = both.get_repository_def().get_implicit_global_asset_job_def()
    job = job.get_subset(asset_selection=frozenset(map(key, tables)))
    before, publish = heads(lake), Backfill.publish

    def nothing_yet(self: Backfill) -> None:
        assert heads(lake) == before
        publish(self)
        assert all(heads(lake)[table] != before[table] for table in tables)

    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "publish", interrupted)
        failed = job.execute_in_process(instance=instance, partition_key=redone.day, raise_on_error=False)
    assert (failed.success, heads(lake)) == (False, before)
    monkeypatch.setattr(Backfill, "publish", nothing_yet)
    tags = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    again = job.execute_in_process(instance=instance, partition_key=redone.day, tags=tags, raise_on_error=False)
    assert again.success, errors(again)
    assert [(r.pipeline, r.state) for r in Records(lake).all()] == [("p + q", "published")]
    assert {t.table for t in redone.record.tables} == {*tables}
    for spec in others.specs(lake):
        assert isinstance(spec, ModelSpec)
        assert verify(lake, spec).equal
    monkeypatch.setattr(Backfill, "publish", publish)
    taken_back = undo(lake, grouped([others, harness.pipeline]), redone.record.id)
    taken_back.build()
    taken_back.publish()


@pytest.mark.long
def test_steps_of_one_backfill_at_the_same_time_do_its_work_once(redone: Redone) -> None:
    redone.launch("one")
    results: list[dg.ExecuteInProcessResult] = []
    # Two tables of which neither reads the other.
    runs = [
        threading.Thread(target=lambda t=table: results.append(redone.step("one", t)))
        for table in ("agg.wide", "final.orders")
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [r.success for r in results] == [True, True]
    assert [r.state for r in Records(redone.lake).all()] == ["published"]
    redone.days.check()


@pytest.mark.long
def test_a_backfill_that_was_undone_meanwhile_does_not_go_on(redone: Redone) -> None:
    redone.launch("one")
    assert redone.step("one", "final.orders", "agg.wide").success
    taken_back = undo(redone.lake, redone.days.harness.pipeline, redone.record.id)
    taken_back.build()
    taken_back.publish()
    after = heads(redone.lake)
    failed = redone.step("one", "agg.days")
    assert "was undone, so it cannot go on: launch a new one" in errors(failed)
    assert heads(redone.lake) == after


@pytest.mark.long
def test_a_run_over_one_partition_of_one_table_writes_to_the_table_itself(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    redone = Redone(lake, instance, others=())
    redone.damage(77)
    job = redone.days.harness.job.get_subset(asset_selection=frozenset([key("final.orders")]))
    assert job.execute_in_process(instance=redone.instance, partition_key=redone.day).success
    assert Records(redone.lake).all() == []
    assert redone.days.harness.run(redone.days.harness.request()).success
    redone.days.check()


@pytest.mark.long
def test_what_a_cancelled_run_over_one_partition_of_several_tables_has_built_is_discarded(
    redone: Redone, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = heads(redone.lake)
    job = redone.days.harness.job.get_subset(asset_selection=frozenset(map(key, ("final.orders", "agg.wide"))))
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "publish", interrupted)
        run = job.execute_in_process(instance=redone.instance, partition_key=redone.day, raise_on_error=False)
    # Its process has ended.
    Records(redone.lake).save(replace(redone.record, process=""))
    redone.days.harness.skipped()
    assert redone.record.is_open
    found = redone.instance.get_run_by_id(run.run_id)
    assert found is not None
    redone.instance.report_run_canceled(found)
    redone.days.harness.skipped()
    assert redone.record.state == "discarded"
    assert heads(redone.lake) == before


@pytest.mark.long
def test_a_rebuild_of_several_tables_is_one_backfill_of_everything(redone: Redone) -> None:
    job = redone.days.harness.job.get_subset(asset_selection=frozenset(map(key, TABLES)))
    result = job.execute_in_process(instance=redone.instance, tags={"lake_assets/rebuild": "yes"}, raise_on_error=False)
    assert result.success, errors(result)
    assert {t.redo for t in redone.record.tables} == {"everything"}
    assert redone.record.state == "published"
    redone.days.check()
    (event,) = (e for e in result.get_asset_materialization_events() if e.asset_key == key("agg.totals"))
    assert str(event.materialization.metadata["strategy"].value).startswith(
        "backfill: a rebuild was requested; published"
    )


@pytest.mark.long  # as a backfill whose audit fails
def test_a_rebuild_whose_audit_fails_in_the_middle_publishes_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    redone = Redone(lake, instance)
    redone.damage(20)
    strict = {**MODELS[0], "audits": [{"name": "small", "sql": "SELECT * FROM {table} WHERE twice > 1"}]}
    redone.days.harness.pipeline = Days(lake, instance, 2, models=[strict, *MODELS[1:3], TOTALS]).harness.pipeline
    redone.days.harness.reload()
    before = heads(lake)
    job = redone.days.harness.job.get_subset(asset_selection=frozenset(map(key, TABLES)))
    result = job.execute_in_process(instance=instance, tags={"lake_assets/rebuild": "yes"}, raise_on_error=False)
    assert "agg.wide: 1 of 1 audits do not pass" in errors(result)
    assert heads(lake) == before


@pytest.mark.long  # as a cancelled backfill
def test_what_a_cancelled_rebuild_has_built_is_discarded(redone: Redone, monkeypatch: pytest.MonkeyPatch) -> None:
    job = redone.days.harness.job.get_subset(asset_selection=frozenset(map(key, TABLES)))
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "publish", interrupted)
        run = job.execute_in_process(
            instance=redone.instance, tags={"lake_assets/rebuild": "yes"}, raise_on_error=False
        ).dagster_run
    Records(redone.lake).save(replace(redone.record, process=""))
    redone.instance.report_run_canceled(run)
    redone.days.harness.skipped()
    assert redone.record.state == "discarded"


@pytest.mark.long  # as the first run that publishes all tables
@pytest.mark.parametrize("is_rebuild", [pytest.param(False, marks=pytest.mark.long), True])
def test_micro_batches_do_not_wait_for_what_is_built_aside(
    redone: Redone, monkeypatch: pytest.MonkeyPatch, is_rebuild: bool
) -> None:
    publish, harness, storage = Backfill.publish, redone.days.harness, redone.instance.event_log_storage
    pools = [pool(TableId.parse(table)) for table in TABLES]
    for name in pools:
        storage.set_concurrency_slots(name, 1)
    requested: list[dg.RunRequest] = []

    def after_a_batch(self: Backfill) -> None:
        redone.days.land(10)
        requested.append(harness.request())
        assert [storage.get_concurrency_info(name).active_slot_count for name in pools] == [0] * len(pools)
        # Steps of one process take turns with its session: this stands for a run in another one.
        assert {o.status for o in harness.pipeline.run(redone.lake)} == {"absorbed"}
        publish(self)

    monkeypatch.setattr(Backfill, "publish", after_a_batch)
    if is_rebuild:
        job = harness.job.get_subset(asset_selection=frozenset(map(key, TABLES)))
        done = job.execute_in_process(
            instance=redone.instance, tags={"lake_assets/rebuild": "yes"}, raise_on_error=False
        )
    else:
        redone.launch("one")
        done = redone.step("one", "final.orders", "agg.wide")
    assert done.success, errors(done)
    assert len(requested) == 1
    redone.days.check()


@pytest.mark.long
def test_redone_partitions_do_not_make_a_table_fresh(lake: Lake, instance: dg.DagsterInstance) -> None:
    wide = {**MODELS[0], "freshness": "2h"}
    days = Days(lake, instance, 2, {"freshness": "2h"}, models=[wide])
    days.land(40)
    days.run()
    tables = ("final.orders", "agg.wide")
    by = days.partitioned["final.orders"]
    day, *_ = sorted({str(by.key_of(row[1])) for row in days.rows("final.orders")} - {"None"})

    def times() -> dict[str, float]:
        return {table: updated(instance, table) for table in tables}

    def redo(*chosen: str) -> None:
        job = days.harness.job.get_subset(asset_selection=frozenset(map(key, chosen)))
        assert job.execute_in_process(instance=instance, partition_key=day).success

    for chosen in (["final.orders"], tables):
        lake.spark().sql(f"UPDATE {lake.sql_name('final.orders')} SET amount = amount + 1")
        assert days.harness.run(days.harness.request()).success
        before = times()
        redo(*chosen)
        assert times() == before
    days.land(10)
    assert days.harness.run(days.harness.request()).success
    later = times()
    assert all(later[table] > before[table] for table in tables)
    redo(*tables)
    assert times() == later
    assert day in instance.get_materialized_partitions(key("agg.wide"))


def updated(instance: dg.DagsterInstance, table: str) -> float:
    """The time from which Dagster's freshness policies take the age of a table."""
    (record,) = instance.get_asset_records([key(table)])
    assert record.asset_entry.last_materialization is not None
    return record.asset_entry.last_materialization.timestamp
