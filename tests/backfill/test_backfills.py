"""A backfill redoes tables aside and publishes them together: main shows all of it or nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from lake_assets import Lake
from lake_assets.backfill import backfills as backfills_module
from lake_assets.backfill import publishing
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.publishing import settled
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import AuditFailedError, BackfillError, ConcurrentWriteError, StaleBackfillError
from lake_assets.journal import step_journal
from lake_assets.lake.metadata import metadata_commits
from lake_assets.pipeline import Pipeline
from lake_assets.tables.partitioning.partition_keys import NULL
from tests.support.backfilled_people import TABLES, History, begin, complete, damaged
from tests.support.damages import Damages
from tests.support.killed_backfills import (
    around_backfills,
    check_journal,
    killed_backfill,
    killed_discard,
    killed_undo,
    published_all_at_once,
)
from tests.support.kills import Points
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.streams import heads
from tests.support.upkeep import compact_and_expire


def test_nobody_sees_a_backfill_until_it_is_published_and_then_all_of_it(history: History) -> None:
    published_all_at_once(history)


@pytest.mark.long  # an undo after upkeep is compared with those rows in every run
def test_an_undone_backfill_leaves_the_rows_that_there_would_be_without_it(new_lake: Callable[[str], Lake]) -> None:
    twins = [damaged(new_lake(name))[0] for name in ("with", "without")]
    made = complete(begin(twins[0]))
    for people in twins:
        people.land(6)
        people.run()
    compact_and_expire(twins[0].lake, *TABLES, "staging.people")
    for people in twins:
        people.land(6)
        people.run("raw.events", "staging.people")
    complete(undo(twins[0].lake, twins[0].feed.pipeline, made.record.id))
    twins[1].run()
    with_it, without = ({t: people.rows(t) for t in TABLES} for people in twins)
    assert with_it == without
    assert Records(twins[0].lake).get(made.record.id).state == "undone"
    for people in twins:
        people.land(6)
        people.run()
    with_it, without = ({t: people.rows(t) for t in TABLES} for people in twins)
    assert with_it == without


@pytest.mark.long  # test_backfill_expiry does so where one snapshot is kept
def test_a_published_backfill_survives_the_upkeep_of_others(history: History) -> None:
    people, _ = history
    lake = people.lake
    complete(begin(people))
    for _ in range(2):
        people.land(4)
        people.run()
        compact_and_expire(lake, *TABLES)
    people.check()


@pytest.mark.long  # test_backfill_expiry does so where one snapshot is kept
def test_snapshots_that_a_copy_starts_from_outlive_upkeep(history: History) -> None:
    people, _ = history
    lake = people.lake
    backfill = begin(people, publish="manual")
    backfill.build()
    for _ in range(2):
        people.land(4)
        people.run()
        compact_and_expire(lake, *TABLES, "staging.people")
    backfill.publish()
    people.check()


@pytest.mark.parametrize(
    ("selection", "redone"),
    [
        (Selection(low="1", high="2", by="age"), {"ages": range(1, 3)}),
        pytest.param(Selection(keys=Path("keys.csv")), {"ids": [0, 2, 4]}, marks=pytest.mark.long),
        pytest.param(Selection(keys=Path("keys.jsonl")), {"ids": [0, 2, 4]}, marks=pytest.mark.long),
    ],
)
def test_chosen_rows_are_redone_and_others_stay(history: History, selection: Selection, redone: dict[str, Any]) -> None:
    people, damages = history
    lake = people.lake
    if selection.keys:
        file = lake.config.home / selection.keys.name
        lines = ["id", "0", "2", "4"] if file.suffix == ".csv" else [json.dumps({"id": i}) for i in (0, 2, 4)]
        file.write_text("\n".join(lines))
        selection = Selection(keys=file)
    complete(begin(people, selection=selection))
    damages.wrong = damages.healed(**redone)
    damages.check()
    if selection.keys:
        complete(begin(people))
        people.check()


def test_a_range_of_events_becomes_the_keys_that_they_touch(history: History) -> None:
    people, damages = history
    # The source time of an event is its number, in milliseconds after this second.
    ids = {e.row["id"] for e in people.log if 3 <= e.sequence[0] <= 9}
    low, high = "2023-11-14T22:13:20.003Z", "2023-11-14T22:13:20.009Z"
    complete(begin(people, selection=Selection(low=low, high=high)))
    damages.wrong = damages.healed(ids=ids)
    damages.check()


@pytest.mark.long  # as a backfill that is killed at any point
def test_partitions_are_redone_in_pieces_and_a_killed_backfill_continues_with_the_next(lake: Lake) -> None:
    by_city = {**CITIES, "partitions": "city"}
    people = People(lake, by_city, partitions="city")
    people.land(30)
    people.run()
    damages = Damages(people, 1)
    damages.events_absorbed()
    damages.happen()
    people.run()
    backfill = begin(people, selection=Selection(partitions=("a", "b", NULL)), max_rows=1)
    done: list[int] = []

    def interrupt(record: Any, table: Any) -> None:
        done.append(table.done)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill.build(interrupt)
    again = Backfill.load(lake, people.feed.pipeline, backfill.record.id)
    assert (again.record.of("final.people").done, len(again.record.of("final.people").chunks)) == (2, 3)
    complete(again)
    people.check()


@pytest.mark.long  # those redone in pieces are, too
def test_partitions_one_after_the_other_are_the_same_as_all_at_once(lake: Lake) -> None:
    people = People(lake, {**CITIES, "partitions": "city"}, OLDEST, partitions="city")
    people.land(30)
    people.run()
    damages = Damages(people, 1)
    damages.events_absorbed()
    damages.happen()
    people.run()
    for city in ("a", "b", NULL):
        complete(begin(people, selection=Selection(partitions=(city,))))
        key = None if city == NULL else city
        assert Counter(r for r in people.rows("final.people").elements() if r[1] == key) == Counter(
            r for r in damages.truth().elements() if r[1] == key
        )
    people.check()  # also the aggregate without partitions


@pytest.mark.long
def test_micro_batches_in_every_phase_of_a_backfill_are_absorbed(history: History, everywhere: Points) -> None:
    people, damages = history
    crossed: list[str] = []

    def batch(what: str) -> None:
        # Each point once, since publishing is repeated after a batch. The batch's own points are none.
        if what not in crossed:
            crossed.append(what)
            everywhere.hook = None
            people.land(2)
            people.run()
            everywhere.hook = batch

    backfill = begin(people)
    everywhere.hook = batch
    backfill.build()
    for _ in range(len(crossed)):
        try:
            backfill.publish()
        except BackfillError as e:
            assert "when fewer micro-batches run" in str(e)  # noqa: PT017
        else:
            break
    everywhere.hook = None
    damages.events_absorbed()
    assert backfill.record.state == "published"
    assert {"before commit_together", "after commit_together", "after pin_sources", "after MERGE INTO"} <= {*crossed}
    people.check()


@pytest.mark.long
def test_a_failed_audit_in_the_middle_publishes_nothing(lake: Lake) -> None:
    audited = {**OLDEST, "audits": [{"name": "not_so_old", "sql": "SELECT * FROM {table} WHERE age > 90"}]}
    people = People(lake, CITIES, OLDEST, AGES)
    people.land(20)
    people.run()
    people.sql("UPDATE lake.staging.people SET age = 95 WHERE id = 4 OR id = 7")
    people.declare(CITIES, audited, AGES)
    before = heads(lake)
    backfill = begin(people)
    with pytest.raises(AuditFailedError, match=r"(?s)agg\.oldest: 1 of 1 audits do not pass.*95"):
        backfill.build()
    assert heads(lake) == before
    failed = Records(lake).get(backfill.record.id)
    assert (failed.state, failed.of("final.people").is_done, failed.of("agg.oldest").is_done) == ("failed", True, False)
    with pytest.raises(BackfillError, match=f"lake-assets resume {failed.id}"):
        backfill.publish()
    people.declare(CITIES, OLDEST, AGES)
    complete(Backfill.load(lake, people.feed.pipeline, failed.id))
    assert [r for r in people.rows("agg.oldest") if r[1] == 95]


@pytest.fixture
def everywhere(points: Points, monkeypatch: pytest.MonkeyPatch) -> Points:
    return around_backfills(points, monkeypatch)


@pytest.mark.long
def test_a_backfill_that_is_killed_at_any_point_is_continued_and_published_once(
    history: History, everywhere: Points
) -> None:
    killed_backfill(history, everywhere)


@pytest.mark.long
def test_an_undo_that_is_killed_at_any_point_is_completed(history: History, everywhere: Points) -> None:
    killed_undo(history, everywhere)


@pytest.mark.long
def test_a_discard_that_is_killed_can_only_be_completed(history: History, everywhere: Points) -> None:
    killed_discard(history, everywhere)


@pytest.mark.long
def test_an_undo_without_new_changes_gives_way_to_a_micro_batch_and_is_repeated(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, damages = history
    lake = people.lake
    first = complete(begin(people)).record.id
    again = undo(lake, people.feed.pipeline, first)
    again.build()
    commit, late = publishing.commit_together, [True]

    def after_a_batch(changes: Any) -> None:
        if late.pop() if late else False:
            people.land(3)
            people.run()
        commit(changes)

    monkeypatch.setattr(publishing, "commit_together", after_a_batch)
    again.publish()
    damages.events_absorbed()
    damages.check()
    assert Records(lake).get(first).state == "undone"


@pytest.mark.long
def test_what_another_process_publishes_is_neither_settled_nor_discarded(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, _ = history
    lake = people.lake
    backfill = begin(people)
    commit = publishing.commit_together

    def while_others_look(changes: Any) -> None:
        with monkeypatch.context() as patch:
            # As seen from another process, whose name is another one.
            for module in (publishing, backfills_module):
                patch.setattr(module, "owner", lambda: "another")
            assert settled(lake, Records(lake).get(backfill.record.id)).state == "publishing"
            with pytest.raises(BackfillError, match="another process is at work"):
                Backfill.load(lake, people.feed.pipeline, backfill.record.id)
        commit(changes)

    monkeypatch.setattr(publishing, "commit_together", while_others_look)
    complete(backfill)
    people.check()


@pytest.mark.long
def test_an_undone_undo_is_in_effect_again_for_whoever_undoes_more(history: History) -> None:
    people, damages = history
    lake = people.lake
    some = lake.config.home / "keys.csv"
    some.write_text(f"id\n{next(iter(damages.wrong))}\n")
    pipeline = people.feed.pipeline
    first = complete(begin(people, selection=Selection(keys=some)))
    second = complete(begin(people))
    third = complete(undo(lake, pipeline, second.record.id))
    complete(undo(lake, pipeline, third.record.id))
    people.check()
    with pytest.raises(BackfillError, match=f"Undo {second.record.id} first"):
        undo(lake, pipeline, first.record.id)
    complete(undo(lake, pipeline, second.record.id))
    complete(undo(lake, pipeline, first.record.id))
    damages.check()


@pytest.mark.long  # as a kill at any point
def test_an_interrupt_right_after_the_commit_loses_no_file(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    people, _ = history
    lake = people.lake
    backfill = begin(people)
    backfill.build()
    point = metadata_commits._point_all_at

    def interrupted(*args: Any) -> bool:
        assert point(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(metadata_commits, "_point_all_at", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backfill.publish()
    assert settled(lake, Records(lake).get(backfill.record.id)).state == "published"
    people.check()


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_tables_of_an_open_backfill_belong_to_it(history: History) -> None:
    people, _ = history
    backfill = begin(people, publish="manual")
    with pytest.raises(BackfillError, match=rf"agg\.cities is in the backfill {backfill.record.id}.*wait until"):
        begin(people, "agg.cities")
    backfill.build()
    backfill.discard()
    assert complete(begin(people, "agg.cities")).record.state == "published"


@pytest.mark.long
def test_a_table_that_changed_otherwise_than_by_micro_batches_makes_a_backfill_stale(history: History) -> None:
    people, damages = history
    lake = people.lake
    backfill = begin(people, publish="manual")
    backfill.build()
    before = heads(lake)
    damages.happen()
    with pytest.raises(StaleBackfillError, match=r"final\.people has changed since.*another program wrote to it"):
        backfill.publish()
    backfill.discard()
    assert {t: h for t, h in heads(lake).items() if t != "final.people"} == {
        t: h for t, h in before.items() if t != "final.people"
    }


@pytest.mark.long
def test_a_backfill_that_another_one_built_on_is_not_undone(history: History) -> None:
    people, damages = history
    lake = people.lake
    wrong = dict(damages.wrong)
    some = lake.config.home / "keys.csv"
    some.write_text(f"id\n{next(iter(wrong))}\n")
    first = complete(begin(people, selection=Selection(keys=some)))
    second = complete(begin(people))
    with pytest.raises(BackfillError, match=f"Undo {second.record.id} first"):
        undo(lake, people.feed.pipeline, first.record.id)
    complete(undo(lake, people.feed.pipeline, second.record.id))
    complete(undo(lake, people.feed.pipeline, first.record.id))
    damages.check()


@pytest.mark.long
def test_a_changed_query_is_built_aside_and_not_undone(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land(10)
    people.run()
    before = heads(lake)
    changed = {**CITIES, "sql": "SELECT city, count(*) AS n, max(age) AS oldest FROM final.people GROUP BY city"}
    people.declare(changed)
    backfill = begin(people, "agg.cities")
    backfill.build()
    assert heads(lake) == before
    backfill.publish()
    people.check()
    with pytest.raises(BackfillError, match=r"the declaration of agg\.cities changed with it"):
        undo(lake, people.feed.pipeline, backfill.record.id)


def test_rows_that_do_not_differ_are_not_published(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land(10)
    people.run()
    before = heads(lake)
    backfill = complete(begin(people))
    assert (heads(lake), backfill.record.state) == (before, "published")
    check_journal(lake, backfill.record)
    # What was done to the working copies is no step.
    assert step_journal.read(lake, datetime.fromtimestamp(backfill.record.created, UTC)) == []
    with pytest.raises(BackfillError, match="changed no row"):
        undo(lake, people.feed.pipeline, backfill.record.id)


@pytest.mark.long
def test_publishing_gives_way_to_micro_batches_that_keep_coming(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, _ = history
    backfill = begin(people, publish="manual")
    backfill.build()
    rounds: list[int] = []

    def always_late(*_: Any) -> None:
        rounds.append(1)
        raise ConcurrentWriteError("late")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "publish", always_late)
        with pytest.raises(BackfillError, match=f"lake-assets publish {backfill.record.id}"):
            backfill.publish()
    assert len(rounds) > 1
    backfill.publish()
    people.check()


def test_a_pipeline_that_no_longer_declares_a_table_says_what_to_do(history: History) -> None:
    people, _ = history
    lake = people.lake
    backfill = begin(people)
    people.declare(CITIES)
    with pytest.raises(
        BackfillError, match=rf"no longer declares agg\.oldest, agg\.ages.*discard {backfill.record.id}"
    ):
        Backfill.load(lake, people.feed.pipeline, backfill.record.id).build()
    Backfill.load(lake, people.feed.pipeline, backfill.record.id).discard()


def test_other_pipelines_do_not_continue_a_backfill(history: History) -> None:
    people, _ = history
    lake = people.lake
    backfill = begin(people)
    other = Pipeline(people.feed.pipeline.config.model_copy(update={"name": "other"}))
    with pytest.raises(BackfillError, match="'made_up', not 'other'"):
        Backfill.load(lake, other, backfill.record.id)


@pytest.mark.long  # as a changed query
def test_a_changed_declaration_of_a_final_table_is_not_undone(lake: Lake) -> None:
    people = People(lake, CITIES, deletes="ignore")
    people.land(40)
    people.run()
    people.declare(CITIES, deletes="hard")
    made = complete(begin(people))
    assert made.record.of("final.people").deleted
    with pytest.raises(BackfillError, match=r"the declaration of final\.people changed with it"):
        undo(lake, people.feed.pipeline, made.record.id)
    people.check()


@pytest.mark.long
def test_an_undo_finds_the_watermark_also_if_upkeep_came_after_it(lake: Lake) -> None:
    people, damages = damaged(lake)
    backfill = begin(people)
    backfill.build()
    people.land(4)
    people.run()
    damages.events_absorbed()
    compact_and_expire(lake, *TABLES)
    backfill.publish()
    # Main now comes from before the micro-batch: what was there is kept by tags alone.
    compact_and_expire(lake, *TABLES)
    complete(undo(lake, people.feed.pipeline, backfill.record.id))
    damages.check()


@pytest.mark.long
def test_a_discarded_backfill_leaves_no_tag(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    people, _ = damaged(lake)
    backfill = begin(people, publish="manual")
    backfill.build()
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "commit_together", refuse)
        with pytest.raises(BackfillError, match="was not published"):
            backfill.publish()
    backfill.discard()
    for table in ("raw.events", "staging.people", *TABLES):
        assert not [ref for ref in lake.table(table).metadata.refs if backfill.record.id in ref]


def refuse(*_: Any) -> None:
    raise CommitFailedException("late")
