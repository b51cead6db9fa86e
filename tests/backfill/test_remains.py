"""What others left behind is found by reading metadata, said in words, and put right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.backfill import cleanup, publishing
from lake_assets.backfill.backfill_record import Records, State
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.remains import Remains, remains
from lake_assets.backfill.side_lake import SideLake
from lake_assets.errors import BackfillError, ConcurrentWriteError
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import commit_together
from lake_assets.runtime.processes import owner
from tests.support.backfilled_people import begin
from tests.support.cli import caller
from tests.support.faults import path_of
from tests.support.kills import Killed
from tests.support.lakes import lake_on
from tests.support.people import AGES, CITIES, People
from tests.support.saved import SavedLake
from tests.support.streams import heads
from tests.support.upkeep import forget_history

# A process that cannot exist.
GONE = owner((2**22 + 1, 1.0))


@pytest.fixture(scope="module")
def saved(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> SavedLake:
    folder = tmp_path_factory.mktemp("saved")
    people = People(lake_on(spark_lake, folder / "lake"), CITIES, AGES)
    people.land(20)
    people.run()
    return SavedLake(people.lake, people, (people.feed.pipeline,), folder / "backup")


@pytest.fixture
def people(saved: SavedLake) -> People:
    return saved.put_back()


def found(people: People) -> dict[str, Remains]:
    return {r.what: r for r in remains(people.lake, [people.feed.pipeline])}


def mend(people: People) -> None:
    for item in found(people).values():
        if item.mend:
            item.mend()


def damaged(people: People) -> Backfill:
    people.sql("UPDATE lake.final.people SET age = 99 WHERE id = (SELECT min(id) FROM lake.final.people)")
    people.run()
    return begin(people)


def killed(people: People, backfill: Backfill, state: State) -> None:
    """Let the record be as a process that was killed in a state leaves it."""
    Records(people.lake).save(replace(Records(people.lake).get(backfill.record.id), state=state, process=GONE))


def kill(*_: object) -> None:
    raise Killed


def test_nothing_is_found_where_all_is_well(people: People) -> None:
    assert found(people) == {}
    people.land(5)
    assert found(people) == {}


def test_a_backfill_that_was_killed_while_it_was_built_is_the_users_to_decide(people: People) -> None:
    backfill = damaged(people)
    killed(people, backfill, "building")
    (item,) = found(people).values()
    assert (item.what, item.needs_user, item.mend) == (backfill.record.id, True, None)
    assert f"`lake-assets resume {backfill.record.id}` continues it" in item.remedy
    Backfill.load(people.lake, people.feed.pipeline, backfill.record.id).discard()
    assert found(people) == {}


@pytest.mark.long
@pytest.mark.parametrize("is_committed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_interrupted_publication_is_settled(
    people: People, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(changes: Any) -> None:
        if is_committed:
            commit_together(changes)
        raise Killed

    backfill = damaged(people)
    backfill.build()
    before = heads(people.lake)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "commit_together", interrupted)
        with pytest.raises(Killed):
            backfill.publish()
    killed(people, backfill, "publishing")
    at = heads(people.lake)
    assert "killed while it published" in found(people)[backfill.record.id].why
    assert heads(people.lake) == at, "finding changes nothing"
    mend(people)
    assert Records(people.lake).get(backfill.record.id).state == ("published" if is_committed else "ready")
    assert (heads(people.lake) == before) == (not is_committed)
    if not is_committed:
        assert f"`lake-assets publish {backfill.record.id}`" in found(people)[backfill.record.id].remedy
        backfill = Backfill.load(people.lake, people.feed.pipeline, backfill.record.id)
        backfill.publish()
    assert found(people) == {}
    people.check()


@pytest.mark.long
@pytest.mark.parametrize("state", [pytest.param("discarding", marks=pytest.mark.long), "published"])
def test_what_a_finished_backfill_left_is_removed(
    people: People, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = damaged(people)
    backfill.build()
    end = backfill.publish if state == "published" else backfill.discard
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "clean_up", kill)
        with pytest.raises(Killed):
            end()
    killed(people, backfill, state)
    assert found(people)[backfill.record.id].mend
    mend(people)
    assert found(people) == {}
    assert SideLake(people.lake, backfill.record).lake_tables() == []
    assert Records(people.lake).get(backfill.record.id).state == ("published" if state == "published" else "discarded")
    if state == "published":
        people.check()


def test_branches_of_dead_processes_are_dropped_and_those_of_users_stay(people: People) -> None:
    table = people.lake.table("final.people")
    at = table.metadata.current_snapshot_id
    assert at is not None
    for branch in (f"lake_assets_{GONE}_{'0' * 32}", "mine"):
        refs.create_branch(people.lake.table("final.people"), branch, at, 7)
    assert "1 branch of a run that was killed" in found(people)["final.people"].why
    mend(people)
    assert found(people) == {}
    assert "mine" in people.lake.table("final.people").metadata.refs


@pytest.mark.long
def test_a_source_that_was_rolled_back_is_taken_back_by_the_next_run(people: People) -> None:
    before = people.lake.table("final.people").metadata.current_snapshot_id
    people.land(5)
    people.run()
    people.sql(f"CALL lake.system.rollback_to_snapshot('final.people', {before})")
    items = found(people)
    assert {what: item.remedy for what, item in items.items()} == dict.fromkeys(
        ("agg.cities", "agg.ages"), "the next run takes back what was rolled back"
    )
    people.check()
    assert found(people) == {}


@pytest.mark.long
def test_a_source_that_was_replaced_in_one_commit_is_not_called_rolled_back(people: People) -> None:
    lost = people.lake.table("final.people").inspect.data_files()["file_path"].to_pylist()
    for file in lost:
        path_of(file).unlink()
    people.feed.pipeline.rebuild(people.lake, "final.people")
    items = found(people)
    assert {what: item.why for what, item in items.items()} == {
        t: f"final.people was computed again as a whole since {t} absorbed it" for t in ("agg.cities", "agg.ages")
    }
    assert {item.remedy for item in items.values()} == {"the next run absorbs the rows that differ"}
    failed = [t for t, o in people.run().items() if o.status == "failed"]
    assert failed, "what is lost has to be compared with"
    items = found(people)
    for table in failed:
        assert items[table].needs_user
        assert "`lake-assets status` has its error" in items[table].remedy
        people.feed.pipeline.rebuild(people.lake, table)
    people.check()
    assert found(people) == {}


@pytest.mark.parametrize("on_gap", [pytest.param("rebuild", marks=pytest.mark.long), "stop"])
def test_a_table_whose_source_has_no_history_is_named_with_what_its_next_run_does(lake: Lake, on_gap: str) -> None:
    people = People(lake, {**CITIES, "on_gap": on_gap})
    for _ in range(2):
        people.land(5)
        people.run("raw.events", "staging.people", "final.people")
        people.run("agg.cities") if not lake.exists("agg.cities") else None
    forget_history(lake, "final.people")
    item = found(people)["agg.cities"]
    assert "has expired" in item.why
    assert item.needs_user == (on_gap == "stop")
    if on_gap == "stop":
        assert "`lake-assets rebuild agg.cities`" in item.why
    else:
        assert item.remedy == "the next run rebuilds it from what its sources hold"
        people.check()
        assert found(people) == {}


def test_the_command_says_what_it_would_do_and_does_it(
    people: People, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Lake, "load_existing", lambda: people.lake)
    call = caller(monkeypatch, capsys)
    branch = f"lake_assets_{GONE}_{'0' * 32}"
    at = people.lake.table("agg.cities").metadata.current_snapshot_id
    assert at is not None
    refs.create_branch(people.lake.table("agg.cities"), branch, at, 7)
    dry = call("repair", "--dry-run")
    assert (dry.code, "repair drops what nobody has published" in dry.out) == (0, True)
    assert branch in people.lake.table("agg.cities").metadata.refs
    entries = [e for e in json.loads(call("repair", "--json").out) if e["state"] != "current"]
    assert [(e["table"], e["state"], e["repaired"]) for e in entries] == [("agg.cities", "killed run", True)]
    assert branch not in people.lake.table("agg.cities").metadata.refs
    backfill = damaged(people)
    killed(people, backfill, "building")
    assert call("repair").code == 1
    with pytest.raises(BackfillError, match="is in the backfill"):
        damaged(people)


@pytest.mark.long
def test_an_error_of_one_thing_leaves_the_others_repaired(
    people: People, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ConcurrentWriteError("somebody was faster")

    monkeypatch.setattr(Lake, "load_existing", lambda: people.lake)
    at = people.lake.table("agg.cities").metadata.current_snapshot_id
    assert at is not None
    refs.create_branch(people.lake.table("agg.cities"), f"lake_assets_{GONE}_{'0' * 32}", at, 7)
    backfill = damaged(people)
    backfill.build()
    killed(people, backfill, "discarding")
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "clean_up", fails)
        done = caller(patch, capsys)("repair")
    assert (done.code, "somebody was faster" in done.out) == (1, True)
    assert list(found(people)) == [backfill.record.id]


@pytest.mark.long
def test_what_a_backfill_published_stays_after_it_is_undone_and_repaired(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, pipeline = people.lake, people.feed.pipeline
    first = damaged(people)
    first.build()
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "clean_up", kill)
        with pytest.raises(Killed):
            first.publish()
    second = undo(lake, pipeline, first.record.id)
    second.build()
    second.publish()
    assert found(people) == {}, "whoever looks at a backfill next completes what was left to do"
    third = undo(lake, pipeline, second.record.id)
    third.build()
    third.publish()
    people.check()
