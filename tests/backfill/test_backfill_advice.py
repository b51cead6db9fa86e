"""What a backfill says is true, and what it advises works."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.backfill import cleanup, publishing
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import Records, State
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.publishing import settle_all, settled
from lake_assets.backfill.row_selection import Selection
from lake_assets.commands.backfill import show_plan
from lake_assets.commands.printing import console
from lake_assets.errors import AuditFailedError, BackfillError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.working_copies import COPIES
from lake_assets.pipeline import Pipeline
from lake_assets.runtime.processes import owner
from tests.support.backfilled_people import History, begin, complete
from tests.support.people import People
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make

LONG = pytest.mark.long
# A process that cannot exist.
GONE = owner((2**22 + 1, 1.0))


class Interrupted(BaseException):
    """The process ends here."""


def interrupted(*_: object) -> None:
    raise Interrupted


def end_of_process(people: People, backfill: str) -> None:
    """Let the record be that of a process that is gone."""
    records = Records(people.lake)
    records.save(replace(records.get(backfill), process=GONE))


@pytest.mark.long  # as a failed audit in the middle
def test_after_a_corrected_source_a_failed_backfill_is_resumed(lake: Lake) -> None:
    """A row of the source fails the audit of the table; its owner deletes it, and resumes, as the error says."""
    make(lake, "id INT, age INT", "(1, 10)", "(2, 20)")
    audits = [{"name": "not_so_old", "sql": "SELECT * FROM {table} WHERE age > 90"}]
    sql = "SELECT id, age FROM src.t"
    plain = yaml_of(Path(lake.config.home), [{"name": "agg.people", "sql": sql}])
    run(lake, Pipeline.load(plain))
    insert(lake, "(3, 95)")
    p = Pipeline.load(yaml_of(Path(lake.config.home), [{"name": "agg.people", "sql": sql, "audits": audits}]))
    backfill = Backfill.begin(lake, p, plan(lake, p, TableId.parse("agg.people"), Selection()))
    with pytest.raises(AuditFailedError):
        backfill.build()
    lake.spark().sql("DELETE FROM src.t WHERE id = 3")
    complete(Backfill.load(lake, p, backfill.record.id))
    assert lake.spark().table("agg.people").count() == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "state",
    ["running", *(pytest.param(s, marks=LONG) for s in ("failed", "building", "ready", "discarding", "publishing"))],
)
def test_a_second_backfill_is_told_how_the_first_one_comes_to_its_end(history: History, state: State | str) -> None:
    people, _ = history
    first = begin(people, publish="manual")
    if state == "ready":
        first.build()
    record, records = Records(people.lake).get(first.record.id), Records(people.lake)
    if state not in ("ready", "running"):
        records.save(replace(record, state=state, process=""))  # type: ignore[arg-type]
    with pytest.raises(BackfillError) as caught:
        begin(people)
    commands = re.findall(r"`lake-assets (\w+) (b[0-9a-f]{6})`", str(caught.value))
    assert [c for c, _ in commands] == {
        "building": ["resume", "discard"], "failed": ["resume", "discard"], "ready": ["publish", "discard"],
        "discarding": ["discard"], "publishing": ["publish"], "running": [],
    }[state]  # fmt: skip
    assert {b for _, b in commands} <= {first.record.id}
    if state == "running":
        assert "wait until it has ended" in str(caught.value)
        return
    command = commands[0][0] if commands else ""
    if state == "publishing":  # it was not: whoever looks finds that out
        settled(people.lake, records.get(first.record.id))
        assert records.get(first.record.id).state == "ready"
        return
    loaded = Backfill.load(people.lake, people.feed.pipeline, first.record.id)
    if command == "resume":
        loaded.build()
        loaded.publish()
    else:
        getattr(loaded, command)()
    complete(begin(people))


@pytest.mark.long
def test_an_undo_counts_the_rows_that_it_takes_back(history: History) -> None:
    people, damages = history
    done = complete(begin(people)).record
    back = complete(undo(people.lake, people.feed.pipeline, done.id)).record
    assert [(t.inserted, t.updated, t.deleted) for t in back.tables] == [
        (t.deleted, t.updated, t.inserted) for t in done.tables if t.after is not None
    ]
    assert sum(t.inserted + t.updated + t.deleted for t in back.tables)
    damages.check()


@pytest.mark.long
def test_a_backfill_that_changed_nothing_is_in_no_undos_way(history: History) -> None:
    people, damages = history
    first = complete(begin(people))
    second = complete(begin(people))
    assert second.record.changed_nothing
    complete(undo(people.lake, people.feed.pipeline, first.record.id))
    damages.check()


@pytest.mark.long
def test_an_undo_that_ends_before_the_other_record_is_marked_is_completed_by_whoever_looks(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, damages = history
    first = complete(begin(people)).record.id
    back = undo(people.lake, people.feed.pipeline, first)
    back.build()
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "mark_undone", interrupted)
        with pytest.raises(Interrupted):
            back.publish()
    end_of_process(people, back.record.id)
    assert Records(people.lake).get(first).state == "published"
    settle_all(people.lake)
    assert Records(people.lake).get(first).state == "undone"
    damages.check()
    complete(undo(people.lake, people.feed.pipeline, back.record.id))
    assert [Records(people.lake).get(b).state for b in (first, back.record.id)] == ["published", "undone"]
    people.check()


@pytest.mark.long
@pytest.mark.parametrize("at", [pytest.param("clean_up", marks=LONG), "_delete_folder"])
def test_nothing_of_a_backfill_stays_that_ended_while_it_was_cleaned_up(
    history: History, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    people, _ = history
    backfill = begin(people)
    backfill.build()
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, at, interrupted)
        with pytest.raises(Interrupted):
            backfill.publish()
    end_of_process(people, backfill.record.id)
    settle_all(people.lake)
    record = Records(people.lake).get(backfill.record.id)
    assert (record.state, record.is_clean) == ("published", True)
    left = list(people.lake.config.home.rglob(f"*{COPIES}{record.id}*/*.metadata.json"))
    assert left == []
    people.check()


@pytest.mark.long
def test_a_plan_gives_estimates_with_their_bounds_and_what_past_backfills_changed(history: History) -> None:
    people, _ = history

    def planned() -> dict[str, tuple[int, int, tuple[int, int] | None]]:
        selection = Selection(low="1", high="2", by="age")
        made = plan(people.lake, people.feed.pipeline, TableId.parse("final.people"), selection,
                    past=Records(people.lake).all())  # fmt: skip
        return {t.table: (t.rows, t.most, t.changed) for t in made.tables}

    for table, (rows, most, changed) in planned().items():
        assert rows <= most == people.rows(table).total(), table
        assert changed is None
    done = complete(begin(people, selection=Selection(low="1", high="2", by="age"))).record
    again = planned()
    for t in done.tables:
        count = t.inserted + t.updated + t.deleted
        assert again[t.table][2] == (count, count)
        assert count <= again[t.table][1] * 2  # a changed key is two rows


def test_a_plan_counts_rows_that_the_table_lacks_apart(lake: Lake, tmp_path: Path) -> None:
    """The number of stored rows is no bound: here, more rows are inserted."""
    make(lake, "id INT", *(f"({n})" for n in range(9)))
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.ids", "sql": "SELECT id FROM src.t"}]))
    run(lake, p)
    lake.spark().sql("DELETE FROM agg.ids WHERE id > 1")
    planned = plan(lake, p, TableId.parse("agg.ids"), Selection())
    with console.capture() as printed:
        show_plan(planned)
    assert "at most 2 stored" in printed.get()
    assert "plus new" in " ".join(printed.get().split())
    assert complete(Backfill.begin(lake, p, planned)).record.of("agg.ids").inserted == 7


def test_tables_that_reach_further_than_a_change_promise_no_share(lake: Lake, tmp_path: Path) -> None:
    make(lake, "day INT, n INT", *(f"({d}, 1)" for d in range(20)))
    models = [
        {"name": "agg.days", "sql": "SELECT day, n FROM src.t", "key": ["day"]},
        {"name": "agg.running", "write": "replace-ranges", "key": ["day"], "range": {"column": "day", "back": 3},
         "sql": "SELECT day, sum(n) OVER (ORDER BY day ROWS 3 PRECEDING) AS n FROM {{ affected('agg.days') }}"},
    ]  # fmt: skip
    p = Pipeline.load(yaml_of(tmp_path, models))
    run(lake, p)
    made = plan(lake, p, TableId.parse("agg.days"), Selection(low="1", high="2", by="day"))
    assert {t.table: t.rows for t in made.tables}["agg.running"] == 20


# --- a new definition waits for its review ----------------------------------------------------------------------------

OLD, NEW = "SELECT g, count(*) AS n FROM src.t GROUP BY g", "SELECT g, count(*) + 100 AS n FROM src.t GROUP BY g"


@pytest.mark.long
@pytest.mark.parametrize("end", ["publish", "discard"])
@pytest.mark.parametrize("on_query_change", ["rebuild", pytest.param("stop", marks=pytest.mark.long)])
def test_readers_see_a_new_query_only_when_its_backfill_is_published(
    lake: Lake, tmp_path: Path, end: str, on_query_change: str
) -> None:
    make(lake, "id INT, g STRING", "(1, 'a')", "(2, 'b')")

    def declared(sql: str) -> Pipeline:
        more = {"name": "agg.twice", "sql": "SELECT g, 2 * n AS n FROM agg.n"}
        return Pipeline.load(
            yaml_of(tmp_path, [{"name": "agg.n", "sql": sql, "on_query_change": on_query_change}, more])
        )

    def rows(table: str = "agg.n") -> dict[str, int]:
        return {r.g: r.n for r in lake.spark().table(table).collect()}

    run(lake, declared(OLD))
    p = declared(NEW)
    backfill = Backfill.begin(lake, p, plan(lake, p, TableId.parse("agg.n"), Selection()), publish="manual")
    backfill.build()
    insert(lake, "(3, 'a')")
    for runs in (p, declared(OLD)):  # by another deployment as well
        run(lake, runs)
        assert (rows(), rows("agg.twice")) == ({"a": 2, "b": 1}, {"a": 4, "b": 2})
    p = declared(NEW)
    assert p.pending(lake) == []
    loaded = Backfill.load(lake, p, backfill.record.id)
    getattr(loaded, end)()
    if end == "publish":
        assert rows() == {"a": 102, "b": 101}
        assert {o.status for o in run(lake, p).values()} <= {"nothing", "absorbed"}
    elif on_query_change == "stop":
        assert "on_query_change: stop" in str(p.run(lake)[0].error)
        p = declared(OLD)
    else:
        run(lake, p)
        assert rows() == {"a": 102, "b": 101}
    insert(lake, "(4, 'b')")
    run(lake, p)
    added = 0 if end == "discard" and on_query_change == "stop" else 100
    assert rows() == {"a": 2 + added, "b": 2 + added}


@pytest.mark.parametrize("end", ["publish", pytest.param("discard", marks=pytest.mark.long)])
def test_a_final_table_that_is_declared_otherwise_waits_for_its_backfill(lake: Lake, end: str) -> None:
    people = People(lake)
    people.land(10)
    people.run()
    people.declare(deletes="soft")
    backfill = begin(people, publish="manual")
    backfill.build()
    people.land(5)
    before = people.rows("final.people")
    outcomes = {o.table: o for o in people.feed.pipeline.run(lake)}
    text = outcomes["final.people"].error or ""
    assert f"`lake-assets {end} {backfill.record.id}`" in text
    assert people.rows("final.people") == before
    getattr(Backfill.load(lake, people.feed.pipeline, backfill.record.id), end)()
    people.check()
