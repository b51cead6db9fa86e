"""A project of Dagster: `init` writes one, and commands in its folder find its lake and its pipelines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.commands.table_lookup import default_files, known_pipelines, named_file, named_files, pipeline_of
from lake_assets.errors import ConfigError, PipelineError
from lake_assets.examples import shipped_pipeline
from lake_assets.examples.new_project import write_project
from lake_assets.examples.sample_orders import batches
from lake_assets.lake import TableId
from lake_assets.pipeline import own_pipelines
from lake_assets.pipeline.pipelines_of_lake import note_file, noted_files
from tests.support.cli import Done

Call = Callable[..., Done]
SHOP = """\
type: lake_assets.LakePipeline
attributes:
  name: shop
  models: [{name: agg.city_population, sql: "SELECT name AS city, count(*) AS n FROM final.users GROUP BY name"}]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, in which the user works."""
    for name in ("LAKE_HOME", "LAKE_CONFIG", "LAKE_PIPELINES"):
        monkeypatch.delenv(name, raising=False)
    write_project(tmp_path / "my-shop")
    monkeypatch.chdir(tmp_path / "my-shop")
    return tmp_path / "my-shop"


# --- a new project ----------------------------------------------------------------------------------------------------


def test_a_new_project_loads_in_dagster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    definitions = dg.load_from_defs_folder(project_root=project)
    dg.Definitions.validate_loadable(definitions)
    keys = {
        key.to_user_string() for a in definitions.assets or [] if isinstance(a, dg.AssetsDefinition) for key in a.keys
    }
    layers = {f"{layer}/{table}" for layer in ("staging", "final") for table in ("customers", "orders")}
    assert keys == {"raw/shop", *layers, "agg/revenue"}
    for module in [name for name in sys.modules if name.split(".")[0] == "my_shop"]:
        del sys.modules[module]


def test_a_new_project_has_the_settings_of_this_repository(project: Path) -> None:
    shipped = Path(__file__).parents[2] / "dagster_home" / "dagster.yaml"
    assert (project / "dagster_home" / "dagster.yaml").read_text() == shipped.read_text()


def test_a_new_project_is_private_where_its_data_are(project: Path) -> None:
    assert {oct((project / name).stat().st_mode & 0o77) for name in (".lake", "dagster_home")} == {"0o0"}


def test_the_sample_has_updates_and_deletes_in_each_further_batch() -> None:
    _, *further = batches().values()
    for lines in further:
        ops = [json.loads(line)["value"]["op"] for line in lines if json.loads(line)["value"]]
        assert {op: ops.count(op) for op in ops} == {"c": 10, "u": 6, "d": 3}
    assert batches() == batches()


def test_nothing_is_overwritten(project: Path, call: Call) -> None:
    before = {file: file.read_bytes() for file in project.rglob("*") if file.is_file()}
    done = call("init", project)
    assert (done.code, "exists already" in done.err) == (1, True)
    (project / "dagster_home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    done = call("init", "--dagster-home", project / "dagster_home")
    assert (done.code, "exists already and differs" in done.err) == (1, True)
    (project / "dagster_home" / "dagster.yaml").write_bytes(before[project / "dagster_home" / "dagster.yaml"])
    assert call("init", "--dagster-home", project / "dagster_home").code == 0
    assert {file: file.read_bytes() for file in project.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["dagster", "class", "1st", "söhne", "json", "a b"])
def test_names_that_python_cannot_import_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name for a project"):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()


# --- what commands find in it -----------------------------------------------------------------------------------------


def test_the_lake_and_the_pipelines_are_the_projects_in_each_of_its_folders(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / "my_shop" / "defs" / "sales" / "defs.yaml"
    for folder in (project, project / "tests", file.parent):
        monkeypatch.chdir(folder)
        assert LakeConfig.load().home == project / ".lake"
        assert LakeConfig.load().spark.driver_memory == "2g"
        assert [f.resolve() for f in default_files()] == [file]
        assert named_file("sales").resolve() == named_file(None).resolve() == file
    monkeypatch.setenv("LAKE_HOME", str(project / "elsewhere"))
    assert LakeConfig.load().home == project / "elsewhere"
    assert pipeline_of(Lake(LakeConfig.load()), TableId.parse("agg.revenue"), None).name == "sales"


def test_the_variables_of_env_are_those_that_dagster_has(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    (project / ".env").write_text("LAKE_HOME=from_env\nLAKE_NAME=other\n")
    os.environ["LAKE_NAME"] = "exported"
    done = call("status")
    assert f"no lake at {project / 'from_env'}" in done.err
    assert os.environ["LAKE_NAME"] == "exported"
    assert not (project / "from_env").exists()


def test_a_file_that_dagster_does_not_read_is_named(project: Path, call: Call) -> None:
    folder = project / "my_shop" / "defs"
    (folder / "sales" / "defs.yaml").rename(folder / "shop.yaml")
    with pytest.raises(PipelineError, match=r"ignored: .*shop\.yaml\. Move each to NAME/defs\.yaml"):
        named_files(None)
    pipelines, unread = known_pipelines(Lake(LakeConfig.load()))
    assert "sales" not in {p.name for p in pipelines}
    assert [text for text in unread if "shop.yaml" in text]


def test_other_components_and_files_are_no_pipelines(project: Path) -> None:
    folder = project / "my_shop" / "defs"
    (folder / "dbt").mkdir()
    (folder / "dbt" / "defs.yaml").write_text("type: dagster_dbt.DbtProjectComponent\nattributes: {project: x}\n")
    (folder / "notes.yaml").write_text("# type: lake_assets.LakePipeline\n")
    assert [f.parent.name for f in default_files()] == ["sales"]


def test_without_a_pipeline_it_is_said_where_one_would_be_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "my_shop" / "defs" / "sales" / "defs.yaml").unlink()
    with pytest.raises(PipelineError, match="`dg scaffold defs lake_assets.LakePipeline NAME` adds one"):
        named_files(None)
    monkeypatch.chdir(project.parent)
    with pytest.raises(PipelineError, match="`lake-assets init NAME` writes one"):
        named_files(None)


def test_a_command_for_one_pipeline_lists_several(project: Path) -> None:
    (project / "my_shop" / "defs" / "shop").mkdir()
    (project / "my_shop" / "defs" / "shop" / "defs.yaml").write_text(SHOP)
    assert len(named_files(None)) == 2
    with pytest.raises(PipelineError, match="name one of sales, shop"):
        named_file(None)
    assert named_file("shop") != shipped_pipeline("shop"), "a user's own comes first"


def test_a_broken_pyproject_is_an_error_that_names_it(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.dg.project\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml is no valid TOML"):
        LakeConfig.load()


# --- pipelines of the same name, and in files of other names -----------------------------------------------------------


def test_a_pipeline_that_has_run_is_known_and_not_taken_for_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAKE_PIPELINES", raising=False)
    lake, file = Lake(LakeConfig(home=tmp_path / "lake")), tmp_path / "shop.yaml"
    file.write_text(SHOP)

    def paths() -> list[Path | None]:
        return [p.path for p in known_pipelines(lake)[0] if p.name == "shop"]

    assert paths() == [shipped_pipeline("shop")]
    note_file(lake, "shop", file)
    assert paths() == [file]
    file.unlink()
    assert paths() == []
    assert [text for text in known_pipelines(lake)[1] if f"pipeline shop was last run from {file}" in text]
    # The demo in the same lake: the shipped one again.
    note_file(lake, "shop", shipped_pipeline("shop"))
    assert noted_files(lake) == {}
    assert paths() == [shipped_pipeline("shop")]


def test_each_pipeline_below_the_users_folder_is_found_whatever_its_file_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "shop.yaml").write_text(SHOP)
    (tmp_path / "a" / "b.yml").write_text(SHOP.replace("name: shop", "name: b").replace("agg.city_population", "agg.b"))
    (tmp_path / "a" / "values.yaml").write_text("image: x\n")
    monkeypatch.setenv("LAKE_PIPELINES", str(tmp_path))
    assert sorted(p.name for p in own_pipelines()) == ["b", "shop"]
    known = known_pipelines(Lake(LakeConfig(home=tmp_path / "lake")))[0]
    assert [p.path for p in known if p.name == "shop"] == [tmp_path / "shop.yaml"]


def test_pipelines_run_after_those_whose_tables_they_read(plain_lake: Lake, tmp_path: Path) -> None:
    from lake_assets.commands.run import in_order

    def pipeline(name: str, source: str) -> Pipeline:
        (file := tmp_path / f"{name}.yaml").write_text(
            f"type: lake_assets.LakePipeline\nattributes:\n  name: {name}\n"
            f"  models: [{{name: agg.{name}, sql: 'SELECT k FROM {source} GROUP BY k'}}]\n"
        )
        return Pipeline.load(file)

    a, b, c = pipeline("a", "agg.b"), pipeline("b", "agg.c"), pipeline("c", "final.x")
    assert [p.name for p in in_order(plain_lake, [a, b, c])] == ["c", "b", "a"]
