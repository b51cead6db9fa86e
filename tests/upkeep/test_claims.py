"""Consumers lose their claims to a table's snapshots once they are dead: after a warning, and no living one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.catalog import Catalog

from lake_assets import Lake
from lake_assets.capture.source_tags import PREFIX
from lake_assets.formats import SourceTable
from lake_assets.ingest.raw_tables import ARRIVED_PROPERTY
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.tables.snapshot_retention import consumer_name
from lake_assets.tables.upkeep_policy import DAY
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.attend import look
from lake_assets.upkeep.claims import carry_out
from lake_assets.upkeep.services import _tag_absorbed
from tests.support.claims import POLICY, SOURCE, Claims, with_policy


@pytest.fixture
def world(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Claims:
    return Claims(plain_lake, monkeypatch)


def test_a_dead_consumer_is_announced_and_then_loses_its_claim(world: Claims) -> None:
    world.absorb("final.t")
    world.now += DAY
    world.change()
    world.passes(14, every=7)
    assert world.warned == set()
    (told,) = world.passes(2)
    assert told.done is not None
    assert (told.action.kind, told.done.files) == ("claims", 0)
    assert told.action.reason == "changes of staging.t have waited for final.t for 15 d"
    text = world.claims["final.t"].text
    assert "it keeps 1 snapshot" in text or "it keeps 0 snapshots" in text
    assert "after which final.t does what its `on_gap` says" in text
    assert 'lake.consumers.remove("staging.t", "final.t")' in text
    assert world.passes(12, every=4) == []
    assert world.tags == {"final.t"}
    (lost,) = world.passes(3, every=3)
    assert lost.done is not None
    assert (lost.action.kind, lost.done.files) == ("claims", 1)
    assert world.tags == set()
    done = upkeep_records.read(world.lake, SOURCE, world.now).done
    assert [d.reason for d in done] == [told.action.reason, lost.action.reason]


def test_it_gets_its_tag_back_by_no_upkeep_but_by_its_own_step(world: Claims) -> None:
    world.absorb("final.t")
    world.change()
    world.passes(40, every=8)
    assert world.tags == set()
    _tag_absorbed(world.lake, SOURCE)
    assert world.tags == set()
    world.absorb("final.t")
    assert world.tags == {"final.t"}
    world.change()
    assert world.passes(10, every=5) == []
    _tag_absorbed(world.lake, SOURCE)
    assert world.tags == {"final.t"}


@pytest.mark.parametrize("behind", [5, 14])
def test_a_slow_consumer_is_not_dead(world: Claims, behind: int) -> None:
    world.absorb("final.t")
    for _ in range(4):
        world.change()
        assert world.passes(behind, every=behind / 2) == []
        world.absorb("final.t")
    assert world.tags == {"final.t"}


def test_a_consumer_that_has_nothing_to_absorb_is_not_dead(world: Claims) -> None:
    world.absorb("final.t")
    assert world.passes(120, every=5) == []
    world.change()
    # What waits is a day old, whatever the age of the snapshot.
    assert world.passes(10, every=5) == []
    assert world.tags == {"final.t"}


def test_commits_that_change_no_row_do_not_wait(world: Claims) -> None:
    world.absorb("final.t")
    for _ in range(3):
        source = world.lake.table(SOURCE)
        source.append(source.scan().to_arrow().slice(0, 0))
    assert world.passes(60, every=3) == []


def test_a_table_that_does_not_exist_any_more_loses_its_claim_after_a_week(world: Claims) -> None:
    world.absorb("final.t")
    world.absorb("final.`a b`")
    world.drop("final.t")
    world.drop("final.`a b`")
    told = world.passes(1)
    assert [a.action.kind for a in told] == ["claims"]
    assert "final.t, which has absorbed staging.t, does not exist any more" in told[0].action.reason
    assert world.passes(6, every=3) == []
    assert world.tags == {"final.t", consumer_name(TableId.parse("final.`a b`"))}
    world.passes(1)
    assert world.tags == set()


def test_a_table_that_is_created_again_in_time_keeps_its_claim(world: Claims) -> None:
    world.absorb("final.t")
    world.drop("final.t")
    world.passes(5)
    world.absorb("final.t")
    world.passes(20)
    assert world.tags == {"final.t"}
    # That it was gone once is no warning that it is behind.
    world.change()
    world.passes(25, every=5)
    assert world.claims["final.t"].warned is not None
    assert world.tags == {"final.t"}


def test_a_table_of_a_pipeline_that_this_process_does_not_know_has_a_claim_like_others(world: Claims) -> None:
    world.create(TableId.parse("final.other"), owner="another")
    world.absorb("final.other")
    world.change()
    world.passes(14, every=7)
    assert (world.tags, world.warned) == ({"final.other"}, set())
    world.passes(18, every=6)
    assert world.tags == set()


def test_a_program_under_a_name_of_its_own_is_not_taken_for_a_dropped_table(world: Claims) -> None:
    for name in ("my-app", "app.reader"):
        world.lake.consumers.register(str(SOURCE), name)
    assert world.passes(20, every=10) == []
    world.change()
    world.passes(32, every=8)
    assert world.tags == set()


def test_what_is_no_consumers_stays(world: Claims) -> None:
    first = world.lake.table(SOURCE).metadata.current_snapshot_id
    assert first is not None
    names = ["mine", f"{PREFIX}capture.lasting.0", f"{PREFIX}backfill-1", f"{PREFIX}final.t.step"]
    for name in names[:-1]:
        refs.set_tag(world.lake.table(SOURCE), name, first, 36500)
    refs.set_tag(world.lake.table(SOURCE), names[-1], first, 7)
    refs.create_branch(world.lake.table(SOURCE), f"{PREFIX}final.branch", first, 36500)
    world.change()
    assert world.passes(100, every=10) == []
    assert {*names, f"{PREFIX}final.branch"} < world.lake.table(SOURCE).metadata.refs.keys()


def test_null_keeps_all_claims(world: Claims) -> None:
    with_policy(world, dead_after=None)
    world.absorb("final.t")
    world.absorb("final.gone")
    world.drop("final.gone")
    world.change()
    world.passes(200, every=10)
    assert world.tags == {"final.t", "final.gone"}
    assert world.warned == {"final.gone"}
    assert "until" not in world.claims["final.gone"].text


def test_changes_are_remembered_whose_snapshots_have_expired(world: Claims) -> None:
    world.absorb("final.t")
    for _ in range(4):
        world.change()
        world.passes(7, every=3.5)
        world.expire()
        assert world.tags == {"final.t"}
    world.passes(7, every=3.5)
    assert world.tags == set()
    assert world.tags == set()


def test_a_tag_that_lags_behind_its_table_says_nothing_about_it(world: Claims) -> None:
    world.absorb("final.t")
    world.change()
    world.now += 29 * DAY
    world.absorb("final.t", tags=False)
    assert world.passes(10, every=5) == []
    assert world.tags == {"final.t"}


def test_a_late_first_look_gives_a_week_of_notice(world: Claims) -> None:
    world.absorb("final.t")
    world.change()
    world.now += 300 * DAY
    world.upkeep()
    world.passes(6, every=3)
    assert world.tags == {"final.t"}
    world.passes(2)
    assert world.tags == set()


def test_a_clock_that_was_set_back_or_ahead_ends_no_claim(world: Claims) -> None:
    world.absorb("final.t")
    world.change()
    world.passes(5, every=5)
    world.now -= 400 * DAY
    assert world.passes(3) == []
    world.now += 1_400 * DAY  # a thousand days ahead: they are told, and it is noticed
    world.upkeep()
    world.now -= 1_000 * DAY
    assert world.passes(5) == []
    assert world.tags == {"final.t"}
    world.absorb("final.t")
    world.change()
    assert world.passes(14, every=7) == []


def test_records_about_other_tables_do_not_wait_for_a_staging_table(world: Claims) -> None:
    people, others = SourceTable.parse("public.people"), SourceTable.parse("public.others")
    world.create(TableId.parse("staging.people"), {SOURCE_TABLE_PROPERTY: str(people)})
    world.absorb("staging.people")
    for _ in range(3):
        world.change(**{ARRIVED_PROPERTY: f'{{"{others}": 2}}'})
        assert world.passes(20, every=10) == []
    world.change(**{ARRIVED_PROPERTY: f'{{"{people}": 2}}'})
    world.passes(32, every=8)
    assert world.tags == set()


def test_a_rollback_of_the_table_waits_since_it_was_made(world: Claims) -> None:
    world.now += DAY
    before = world.lake.table(SOURCE).metadata.current_snapshot_id
    world.change()
    world.now += 60 * DAY
    world.absorb("final.t")
    world.now += DAY

    def back(metadata: dict[str, object]) -> dict[str, object]:
        main = {**metadata["refs"]["main"], "snapshot-id": before}  # type: ignore[index]
        return refs.with_refs(metadata, {**metadata["refs"], "main": main}, int(world.now * 1000))  # type: ignore[dict-item]

    commit(world.lake.table(SOURCE), back)
    world.passes(14, every=7)
    assert world.warned == set()
    world.passes(18, every=6)
    assert world.tags == set()


def test_a_consumer_that_goes_on_at_the_last_moment_keeps_its_claim(world: Claims) -> None:
    world.absorb("final.t")
    world.change()
    world.passes(29, every=7.25)
    world.now += 2 * DAY
    (due,) = [a for a in look(world.lake, SOURCE, world.policy).due if a.kind == "claims"]
    assert [c.is_over for c in due.claims] == [True]
    world.absorb("final.t")
    assert carry_out(world.lake, SOURCE, due.claims, world.now) == 0
    assert world.tags == {"final.t"}


def test_a_table_that_cannot_be_read_keeps_its_claim(world: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    world.absorb("final.t")
    world.change()
    load: Callable[..., object] = world.lake.catalog.load_table

    def broken(name: object) -> object:
        if name == ("final", "t"):
            raise OSError("broken")
        return load(name)

    monkeypatch.setattr(world.lake.catalog, "load_table", broken)
    assert world.passes(60, every=5) == []
    assert world.tags == {"final.t"}
    assert isinstance(world.lake.catalog, Catalog)


def test_of_another_programs_table_only_tags_of_this_pipelines_tables_are_removed(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(POLICY, only_claims_of=frozenset(["p"]))
    world = Claims(plain_lake, monkeypatch, policy, owner="")
    world.absorb("final.t")
    world.create(TableId.parse("final.other"), owner="another")
    world.absorb("final.other")
    world.change()
    head = world.lake.table(SOURCE).metadata.current_snapshot_id
    world.passes(32, every=8)
    assert world.tags == {"final.other"}
    assert world.lake.table(SOURCE).metadata.current_snapshot_id == head
