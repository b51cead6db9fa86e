"""A run has the tables that its code location was loaded with, whatever the lake and the files hold since."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.code_pointer import FileCodePointer
from dagster._core.definitions.reconstruct import (
    initialize_repository_def_from_pointer,
    reconstruct_repository_def_from_pointer,
)

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw_tables import ensure_raw
from lake_assets.orchestration._compat import EngineEventData, serializable_error_info_from_exc_info
from lake_assets.pipeline.config.stream_contents import StreamContents
from tests.support.dagster_harness import Harness
from tests.support.dagster_shop import RAW, feed, landing

CODE = """
import dagster as dg
from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.examples import shop
from lake_assets.orchestration import build_definitions

@dg.definitions
def defs():
    return build_definitions(Pipeline.load(shop.PIPELINE), Lake(LakeConfig(home={home!r})))
"""


def stream(dry: Harness) -> None:
    feed(dry)
    ensure_raw(dry.lake, RAW, "shop")
    land(dry.lake, RawSpec(RAW, landing(dry), "debezium", "shop"))


@pytest.fixture
def pointer(dry: Harness, tmp_path: Path) -> FileCodePointer:
    file = tmp_path / "recorded_definitions.py"
    file.write_text(CODE.format(home=str(dry.lake.config.home)), encoding="utf-8")
    return FileCodePointer(str(file), "defs", str(tmp_path))


def names(repository: dg.RepositoryDefinition) -> set[str]:
    return {".".join(key.path) for key in repository.asset_graph.get_all_asset_keys()}


def test_a_run_has_the_tables_of_its_code_location_after_the_lake_was_reset(
    dry: Harness, pointer: FileCodePointer
) -> None:
    stream(dry)
    server = initialize_repository_def_from_pointer(pointer)
    assert "final.checkpoint_marker" in names(server)
    dry.lake.catalog.close()
    shutil.rmtree(dry.lake.config.home)
    run = reconstruct_repository_def_from_pointer(pointer, server.repository_load_data)
    assert names(run) == names(server)
    assert "final.checkpoint_marker" not in names(initialize_repository_def_from_pointer(pointer))


def test_a_run_has_no_asset_of_a_table_that_has_appeared_since(dry: Harness, pointer: FileCodePointer) -> None:
    server = initialize_repository_def_from_pointer(pointer)
    stream(dry)
    run = reconstruct_repository_def_from_pointer(pointer, server.repository_load_data)
    assert names(run) == names(server)
    assert "final.checkpoint_marker" in names(initialize_repository_def_from_pointer(pointer))


def test_recorded_answers_are_given_without_the_lake(dry: Harness) -> None:
    stream(dry)
    contents = StreamContents(dry.lake)
    specs = dry.pipeline.specs(dry.lake, alone=False, contents=contents)
    elsewhere = Lake(dry.lake.config)
    again = dry.pipeline.specs(elsewhere, alone=False, contents=StreamContents(elsewhere, contents.text))
    assert again == specs
    assert "catalog" not in vars(elsewhere)


def test_a_run_that_lacks_an_asset_is_told_and_waits_for_a_reload(dry: Harness) -> None:
    feed(dry)
    request = dry.request()
    asset = dg.AssetKey(["raw", "shop_events"])
    run = dry.instance.create_run_for_job(
        dry.job, tags=request.tags, asset_selection=frozenset({asset}), status=dg.DagsterRunStatus.STARTED
    )
    # As Dagster's process of a run reports it.
    with pytest.raises(dg.DagsterInvalidSubsetError) as error:
        dry.job.get_subset(asset_selection=frozenset({dg.AssetKey(["final", "gone"])}))
    found = serializable_error_info_from_exc_info((error.type, error.value, error.tb))
    dry.instance.report_engine_event("a framework error", run, EngineEventData.engine_error(found))
    dry.instance.report_run_failed(run)
    text = dry.skipped()
    assert text.startswith(f"run {run.run_id[:8]} found no asset of raw.shop_events: the pipeline's files have changed")
    dry.reload()
    assert dry.request().run_key != request.run_key
