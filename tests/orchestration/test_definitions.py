"""The asset graph of a pipeline, and errors when definitions are loaded."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline, definitions
from lake_assets.errors import ConfigError, PipelineError, TableClaimedError
from lake_assets.orchestration import build_definitions, check_claims
from lake_assets.orchestration.asset_names import op_name
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness
from tests.support.dagster_shop import SHOP


def graph(defs: dg.Definitions) -> dict[str, set[str]]:
    return {
        spec.key.to_user_string(): {d.asset_key.to_user_string() for d in spec.deps}
        for spec in defs.resolve_all_asset_specs()
    }


def test_the_shop_on_an_empty_lake_is_this_graph(dry: Harness) -> None:
    assert graph(dry.defs) == SHOP


def test_a_run_loads_the_same_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded() -> tuple[dict[str, set[str]], dict[str, str], set[str]]:
        repository = definitions.defs().get_repository_def()
        jobs = {j.name: j.get_job_snapshot_id() for j in repository.get_all_jobs()}
        return graph(definitions.defs()), jobs, {s.name for s in repository.sensor_defs}

    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "lake"))
    elsewhere = loaded()
    monkeypatch.setenv(definitions.RUN_PROCESS, "its run")
    assert loaded() == elsewhere
    assert {"shop", "population"} <= set(elsewhere[1])


def test_every_asset_has_a_description_and_a_location(dry: Harness) -> None:
    for spec in dry.defs.resolve_all_asset_specs():
        assert spec.group_name == ("shop" if spec.key.path[0] == "shop" else f"shop/{spec.key.path[0]}")
        assert spec.description
        assert "iceberg" in spec.kinds
        assert ("spark" in spec.kinds) == (spec.key.path[0] != "raw")
        if spec.key.path[0] != "shop":
            assert spec.tags["lake_assets/layer"] == spec.key.path[0]
            assert spec.metadata["dagster/table_name"] == "lake." + ".".join(spec.key.path)


def test_each_table_has_its_own_pool(dry: Harness) -> None:
    pools = [a.node_def.pool for a in dry.defs.assets or [] if isinstance(a, dg.AssetsDefinition)]  # type: ignore[attr-defined]
    assert "lake_assets/final.users" in pools
    assert len(set(pools)) == len(SHOP)


def test_tables_of_other_pipelines_are_dependencies(plain_lake: Lake) -> None:
    model = {"name": "agg.n", "sql": "SELECT k, count(*) AS n FROM final.elsewhere GROUP BY k"}
    defs = build_definitions(Pipeline(PipelineConfig.model_validate({"name": "p", "models": [model]})), plain_lake)
    assert graph(defs)["agg/n"] == {"final/elsewhere"}


def test_loading_named_tables_does_not_touch_the_lake(plain_lake: Lake) -> None:
    stream = {"name": "e", "tables": ["public.a"]}
    build_definitions(Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [stream]})), plain_lake)
    assert not plain_lake.config.home.exists()


def test_tables_with_forbidden_names_have_distinct_steps() -> None:
    assert op_name("final", "users") == "final__users"
    assert op_name("final", "a-b").isidentifier()
    assert op_name("final", "a-b") != op_name("final", "a.b")


def test_a_table_of_two_pipelines_is_an_error_that_names_it(shop_pipeline: Pipeline, plain_lake: Lake) -> None:
    model = {"name": "agg.city_population", "sql": "SELECT id, count(*) AS n FROM final.users GROUP BY id"}
    other = Pipeline(PipelineConfig.model_validate({"name": "other", "models": [model]}))
    definitions = [build_definitions(p, plain_lake) for p in (shop_pipeline, other)]
    with pytest.raises(TableClaimedError, match=r"agg\.city_population .*'shop'.*'other'"):
        check_claims(definitions)


STREAM = "type: lake_assets.LakePipeline\nattributes:\n  name: mine\n  streams: [{name: mine, tables: [public.a]}]\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pipelines"
    (folder / "mine").mkdir(parents=True)
    monkeypatch.setenv("LAKE_PIPELINES", str(folder))
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "lake"))
    return folder


def test_the_code_location_has_the_shipped_pipelines_and_those_of_the_users_folder(own: Path) -> None:
    (own / "mine" / "defs.yaml").write_text(STREAM)
    merged = definitions.defs()
    assert set(graph(merged)) >= {*SHOP, "raw/mine", "staging/a", "final/a"}
    assert graph(merged)["agg/city_population_tbl"] == {"agg/user_name_city_tbl"}
    assert graph(merged)["agg/user_name_city_tbl"] == {"final/user_name_tbl", "final/user_city_tbl"}
    pipelines = {"shop", "population", "playback", "flights", "mine"}
    expected = pipelines | {f"{name}_{job}" for name in pipelines for job in ("backfill", "micro_batch", "upkeep")}
    assert {j.name for j in merged.jobs or []} == expected
    dg.Definitions.validate_loadable(merged)


def test_a_table_claimed_in_the_users_folder_stops_the_location(own: Path) -> None:
    (own / "mine" / "defs.yaml").write_text(STREAM.replace("public.a", "public.users"))
    with pytest.raises(TableClaimedError, match=r"staging\.users"):
        definitions.defs()


def test_mistakes_in_the_users_folder_are_named_with_file_and_line(own: Path) -> None:
    file = own / "mine" / "defs.yaml"
    file.write_text(STREAM.replace("tables", "tabels"))
    with pytest.raises(PipelineError, match=r"mine/defs\.yaml, line 4"):
        definitions.defs()


def test_a_missing_users_folder_is_an_error(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_PIPELINES", str(own / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        definitions.defs()


@pytest.mark.parametrize(("interval", "rounds"), [("1s", 1), ("5s", 1), ("15s", 3), ("7s", 2)])
def test_a_sensor_ticks_when_its_interval_ends(plain_lake: Lake, interval: str, rounds: int) -> None:
    """The daemon checks every five seconds, a few milliseconds early."""
    definitions = build_definitions(
        Pipeline(PipelineConfig.model_validate({"name": "p", "interval": interval, "streams": [{"name": "s"}]})),
        plain_lake,
    )
    sensor, *_ = definitions.sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    assert sensor.minimum_interval_seconds
    assert next(n for n in range(1, 9) if n * 5 - 0.01 >= sensor.minimum_interval_seconds) == rounds
