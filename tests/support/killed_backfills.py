"""Backfills that are watched, or killed at every point, while they build, publish, undo and discard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from lake_assets import Lake
from lake_assets.backfill import cleanup, publishing
from lake_assets.backfill.after_publication import follow_up
from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.publishing import settled
from lake_assets.backfill.side_lake import BACKFILL_PROPERTY, SideLake
from lake_assets.errors import BackfillError
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import BACKFILL
from lake_assets.lake.metadata.row_counts import summary_of
from tests.support.backfilled_people import TABLES, History, begin, cities_of, complete
from tests.support.kills import Points, killed_everywhere
from tests.support.people import People
from tests.support.streams import heads


def published_all_at_once(history: History) -> None:
    """Nobody sees a backfill until it is published, and then all of it."""
    people, damages = history
    lake = people.lake
    before, rows = heads(lake), {t: people.rows(t) for t in TABLES}
    backfill = begin(people)
    backfill.build()
    assert (heads(lake), {t: people.rows(t) for t in TABLES}) == (before, rows)
    people.land(6)
    people.run()
    damages.events_absorbed()
    damages.check()
    people.land(6)
    people.run("raw.events", "staging.people")
    backfill.publish()
    people.check()
    check_journal(lake, backfill.record)
    assert {o.status for o in people.run().values()} == {"nothing"}
    people.land(6)
    people.check()


def check_journal(lake: Lake, backfill: BackfillRecord) -> None:
    """The journal tells of each table of a published backfill once, and to those alone who ask for backfills."""
    since = datetime.fromtimestamp(backfill.created - 60, UTC)
    for _ in range(2):
        records = [r for r in step_journal.read(lake, since, backfills=True) if r.strategy == BACKFILL]
        assert sorted(r.table for r in records) == sorted(t.table for t in backfill.tables)
        for r in records:
            t = backfill.of(r.table)
            assert (r.run, r.status, r.computed_all) == (f"backfill {backfill.id}", "absorbed", False)
            assert (r.seconds, r.cpu_seconds) == (t.seconds, t.cpu_seconds)
            assert r.ended_at == pytest.approx(backfill.published)
            is_published = t.after not in (None, t.start)
            assert r.snapshot == (t.after if is_published else None)
            assert r.rows_changed == (t.inserted + t.updated + t.deleted if is_published else 0)
            if t.after is not None and is_published:
                # The commit says so too, whether Spark or this process has made it.
                assert summary_of(lake.table(r.table).snapshot_by_id(t.after))[BACKFILL_PROPERTY] == backfill.id
            assert (r.bytes_written > 0, r.table_rows is not None) == (is_published, is_published), vars(r)
        # Its process was killed before it had noted that all is done, and the records are in the table by now.
        step_journal.flush(lake)
        follow_up(lake, backfill)
    assert BACKFILL not in {r.strategy for r in (*step_journal.read(lake, since), *step_journal.waiting(lake))}


def around_backfills(points: Points, monkeypatch: pytest.MonkeyPatch) -> Points:
    """Points around everything that a backfill writes."""
    for owner, call in (
        (publishing, "commit_together"),
        (cleanup, "clean_up"),
        (publishing, "mark_undone"),
        (cleanup, "_delete_folder"),
        (SideLake, "copy_tables"),
        (SideLake, "pin_sources"),
        (SideLake, "drop"),
        (Records, "save"),
    ):
        monkeypatch.setattr(owner, call, points.around(getattr(owner, call), lambda *_, c=call: c))
    return points


def continue_until_published(people: People, points: Points, start: Callable[[], Backfill]) -> None:
    """Continue the open backfill as a new process would, or start one, unless it turns out to be published."""
    is_armed, points.armed = points.armed, False
    newest = [settled(people.lake, r) for r in Records(people.lake).all()]
    points.armed = is_armed
    if newest and newest[-1].state == "published" and "after commit_together" in points.seen:
        return
    opened = [r for r in newest if r.is_open]
    backfill = Backfill.load(people.lake, people.feed.pipeline, opened[-1].id) if opened else start()
    if backfill.record.state != "ready":
        backfill.build()
    backfill.publish()


def killed_backfill(history: History, everywhere: Points) -> None:
    """A backfill that is killed at any point is continued and published once; readers see all of it or nothing."""
    people, damages = history
    lake = people.lake
    old = {t: people.rows(t) for t in TABLES}
    cities = Counter(tuple(r) for r in cities_of(damages).items())

    def step() -> None:
        is_armed, everywhere.armed = everywhere.armed, False
        now = people.rows("final.people"), people.rows("agg.cities")
        assert now in ((old["final.people"], old["agg.cities"]), (damages.truth(), cities)), "a part is published"
        everywhere.armed = is_armed
        continue_until_published(people, everywhere, lambda: begin(people))

    killed = killed_everywhere(everywhere, step)
    people.check()
    assert "after commit_together" in killed
    assert [r.state for r in Records(lake).all()] == ["published"]


def killed_undo(history: History, everywhere: Points) -> None:
    """An undo that is killed at any point is completed."""
    people, damages = history
    lake = people.lake
    first = complete(begin(people)).record.id

    def step() -> None:
        continue_until_published(people, everywhere, lambda: undo(lake, people.feed.pipeline, first))

    killed = killed_everywhere(everywhere, step)
    damages.check()
    assert "after commit_together" in killed
    assert [r.state for r in Records(lake).all()] == ["undone", "published"]


def killed_discard(history: History, everywhere: Points) -> None:
    """A discard that is killed can only be completed."""
    people, damages = history
    lake = people.lake
    before = heads(lake)
    backfill = begin(people, publish="manual")
    backfill.build()
    pipeline = people.feed.pipeline

    def step() -> None:
        record = Records(lake).get(backfill.record.id)
        if record.state == "discarded":
            return
        opened = Backfill.load(lake, pipeline, record.id)
        if record.state == "discarding":
            for forbidden in (opened.publish, opened.build):
                with pytest.raises(BackfillError, match="discard"):
                    forbidden()
        opened.discard()

    assert "after drop" in killed_everywhere(everywhere, step)
    assert Records(lake).get(backfill.record.id).state == "discarded"
    assert heads(lake) == before
    damages.check()
