"""The backfill job: the plan first, then one publication, then what changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake
from lake_assets.backfill import publishing
from lake_assets.backfill.backfill_record import Records
from lake_assets.lake.metadata.metadata_commits import commit_together
from tests.support.dagster_harness import Harness
from tests.support.html_pages import check_accessible, check_alone
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.streams import heads


def redo(harness: Harness, **options: Any) -> dg.ExecuteInProcessResult:
    job = harness.defs.get_repository_def().get_job("made_up_backfill")
    config = {"ops": {"redo_made_up": {"config": options}}}
    return job.execute_in_process(run_config=config, instance=harness.instance, raise_on_error=False)


def observed(result: dg.ExecuteInProcessResult) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for event in result.all_events:
        if event.event_type_value == "ASSET_OBSERVATION":
            data: Any = event.event_specific_data
            observation = data.asset_observation
            metadata = {k: v.value for k, v in observation.metadata.items()}
            found.append((observation.asset_key.to_user_string(), metadata))
    return found


@pytest.fixture
def people(lake: Lake) -> People:
    people = People(lake, CITIES, OLDEST, AGES)
    people.land(20)
    people.run()
    people.sql("UPDATE lake.final.people SET age = 99 WHERE id = 4 OR id = 7")
    people.run()
    return people


def test_the_job_shows_its_plan_publishes_and_says_what_changed(
    lake: Lake, instance: dg.DagsterInstance, people: People
) -> None:
    harness = Harness(people.feed.pipeline, lake, instance)
    result = redo(harness, table="final.people", html="pages/people.html")
    assert result.success
    (first, plan), *rest, (of, page) = observed(result)
    assert first == "final/people"
    assert "agg.oldest" in plan["plan"]
    assert {table for table, _ in rest} == {"final/people", "agg/cities", "agg/oldest", "agg/ages"}
    changed = dict(rest)["final/people"]
    assert (changed["inserted"], changed["updated"], changed["deleted"]) == (0, 2, 0)
    assert "| age | 198 |" in changed["sums of changed rows"]
    assert "| changed |" in changed["samples"]
    assert (of, Path(page["page"])) == ("final/people", lake.config.home / "pages" / "people.html")
    html = Path(page["page"]).read_text("utf-8")
    check_alone(html)
    check_accessible(html)
    assert "Published. It has changed" in html
    # Rows of the past that were redone do not make a table fresh.
    assert not [e for e in result.all_events if e.event_type_value == "ASSET_MATERIALIZATION"]
    people.check()
    assert harness.skipped().startswith("nothing new")


@pytest.mark.long
def test_a_plan_alone_starts_nothing(lake: Lake, instance: dg.DagsterInstance, people: People) -> None:
    before = heads(lake)
    result = redo(Harness(people.feed.pipeline, lake, instance), table="final.people", plan_only=True)
    assert result.success
    assert [table for table, _ in observed(result)] == ["final/people"]
    assert (heads(lake), Records(lake).all()) == (before, [])


@pytest.mark.long
def test_a_mistake_in_the_options_is_the_error_of_the_run(
    lake: Lake, instance: dg.DagsterInstance, people: People
) -> None:
    result = redo(Harness(people.feed.pipeline, lake, instance), table="final.person")
    assert not result.success
    assert "has no table final.person (did you mean final.people?)" in str(result.all_events)


@pytest.mark.long
def test_a_tick_completes_what_a_killed_process_has_published(
    lake: Lake, instance: dg.DagsterInstance, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(changes: Any) -> None:
        commit_together(changes)
        raise Killed

    harness = Harness(people.feed.pipeline, lake, instance)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "commit_together", killed)
        assert not redo(harness, table="final.people").success
    (record,) = Records(lake).all()
    assert record.state == "publishing"
    Records(lake).save(replace(record, process=""))
    harness.tick()
    (record,) = Records(lake).all()
    assert record.state == "published"
    people.check()
