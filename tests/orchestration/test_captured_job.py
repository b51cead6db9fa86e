"""A job of one's own in Dagster: an asset that the capture sensor triggers, beside ordinary assets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import CapturedJob, Lake, Pipeline
from lake_assets.orchestration import build_definitions
from lake_assets.orchestration.component import JobScaffolder
from tests.support.dagster_harness import Harness, OtherSession, selected
from tests.support.daily_job import DAILY, PLAYS, play, rows_of

KEY = dg.AssetKey(DAILY.split("."))
YAML = f"""\
type: lake_assets.CapturedJob
attributes:
  table: {DAILY}
  inputs: [{PLAYS}]
  ranges: [day]
  python: NAME:daily
  depends_on: other/asset
  owners: team:data
  group: media
"""
FUNCTION = """
from lake_assets.orchestration.component import JobScaffolder
from tests.support.daily_job import append, new_rows

def daily(step, context):
    context.log.info("called")
    append(step.lake, new_rows(step.lake, step), step.properties)
    return {"run": context.run.run_id}
"""


@pytest.fixture
def declared(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The YAML of a job and its function."""
    name = f"job_of_{request.node.name}"
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / f"{name}.py").write_text(FUNCTION)
    (folder / "defs.yaml").write_text(YAML.replace("NAME", name))
    return folder / "defs.yaml"


@pytest.fixture
def media(plain_lake: Lake) -> Lake:
    play(plain_lake, (1, 1, 10), (2, 2, 20))
    return plain_lake


def test_the_sensor_asks_for_a_run_that_tells_what_it_did(
    media: Lake, declared: Path, instance: dg.DagsterInstance
) -> None:
    harness = Harness(Pipeline.load(declared), media, instance)
    request = harness.request()
    assert selected(request) == {DAILY}
    assert any(PLAYS in value for value in request.tags.values())
    result = harness.run(request)
    assert result.success
    (event,) = result.get_asset_materialization_events()
    metadata: Any = event.materialization.metadata
    assert metadata["rows_inserted"].value == 2
    assert metadata["detail/run"].value == result.run_id
    assert metadata["detail/watermark"].value == "with the job's commit"
    (window,) = metadata["windows"].value.records
    assert window.data["source"] == PLAYS
    assert [r.data["range"] for r in metadata["ranges"].value.records if r.data["column"] == "day"] == [
        "2024-01-01..2024-01-02"
    ]
    harness.skipped()
    play(media, (3, 3, 3))
    assert harness.run(harness.request()).success
    assert rows_of(media) == rows_of(media, PLAYS)


def test_it_mixes_with_ordinary_assets_in_one_run(media: Lake, declared: Path, instance: dg.DagsterInstance) -> None:
    """Given assets of a user's before and after the job; then one run materializes all three in order."""
    order: list[str] = []

    @dg.asset(key=["other", "asset"])
    def before() -> None:
        order.append("before")
        play(media, (7, 7, 7))

    @dg.asset(deps=[KEY])
    def after() -> None:
        order.append(f"after {sum(rows_of(media).values())} rows")

    everything = dg.define_asset_job("everything", selection="*")
    own = dg.Definitions([before, after], jobs=[everything])
    job = build_definitions(Pipeline.load(declared), media, pyspark=OtherSession(media))
    defs = dg.Definitions.merge(job, own)
    assert defs.resolve_job_def("everything").execute_in_process(instance=instance).success
    assert order == ["before", "after 3 rows"]
    spec = defs.resolve_asset_graph().get(KEY)
    assert spec.parent_keys == {dg.AssetKey(PLAYS.split(".")), dg.AssetKey(["other", "asset"])}
    assert spec.group_name == "media"
    assert spec.owners == ["team:data"]


def test_a_failed_job_fails_its_run_with_the_error(media: Lake, declared: Path, instance: dg.DagsterInstance) -> None:
    declared.write_text(declared.read_text().replace(":daily", ":dialy"))
    harness = Harness(Pipeline.load(declared), media, instance)
    result = harness.run(harness.request())
    assert not result.success
    (failure,) = [e for e in result.all_events if e.is_step_failure]
    assert "has no function 'dialy'" in str(failure.event_specific_data)


def test_the_component_builds_the_same_definitions(
    media: Lake, declared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the YAML in a project's folder of definitions; then Dagster loads the job's asset, sensor and job."""
    monkeypatch.setenv("LAKE_HOME", str(media.config.home))
    monkeypatch.syspath_prepend(tmp_path)
    declared.write_text(declared.read_text() + "  description: 'Plays, for {{ env.AUDIENCE }}.'\n")
    monkeypatch.setenv("AUDIENCE", "the board")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "users_project"\n'
    )
    package = tmp_path / "users_project"
    (package / "defs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    declared.parent.rename(package / "defs" / "job")
    for name in [n for n in sys.modules if n.split(".")[0] == "users_project"]:
        monkeypatch.delitem(sys.modules, name)
    defs: Any = dg.load_from_defs_folder(path_within_project=package)
    node = defs.resolve_asset_graph().get(KEY)
    assert str(node.description).startswith("Plays, for the board.")
    repository = defs.get_repository_def()
    assert "agg_playback_daily" in repository.job_names
    assert [s.name for s in repository.sensor_defs] == [
        "agg_playback_daily_capture_sensor",
        "agg_playback_daily_outside_steps_sensor",
        "agg_playback_daily_upkeep_sensor",
    ]
    assert CapturedJob.model().model_json_schema()["properties"]["command"]


def test_its_audits_are_checks_of_the_published_rows(lake: Lake, declared: Path, instance: dg.DagsterInstance) -> None:
    """Given an audit that the second batch violates; then the run tells, and the check runs by itself too."""
    play(lake, (1, 1, 10))
    declared.write_text(declared.read_text() + "  audits: [{accepted_values: {seconds: [10]}}]\n")
    harness = Harness(Pipeline.load(declared), lake, instance)
    request = harness.request()
    (passed,) = harness.run(request).get_asset_check_evaluations()
    assert passed.passed
    play(lake, (2, 2, 20))
    (failed,) = harness.run(harness.request()).get_asset_check_evaluations()
    assert not failed.passed
    assert rows_of(lake) == rows_of(lake, PLAYS)
    (alone,) = harness.run(
        dg.RunRequest(asset_selection=[], asset_check_keys=[failed.asset_check_key])
    ).get_asset_check_evaluations()
    assert not alone.passed


def test_the_starter_file_is_a_valid_job(tmp_path: Path) -> None:
    folder = tmp_path / "daily-plays"
    folder.mkdir()
    JobScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="lake_assets.CapturedJob", target_path=folder, scaffold_format="yaml", project_root=tmp_path,
            params=JobScaffolder.get_scaffold_params()(),
        )
    )  # fmt: skip
    assert Pipeline.load(folder / "defs.yaml").name == "agg_daily_plays"
