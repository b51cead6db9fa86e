"""The component in Dagster's tools: registry, YAML and starter file."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import dagster as dg
import pytest
import yaml
from jsonschema import Draft202012Validator

import lake_assets
from lake_assets import LakePipeline
from lake_assets.examples import shop
from lake_assets.orchestration.component import PipelineScaffolder

DG = Path(sys.executable).parent / "dg"
# Expected output of `dg check yaml`: every mistake with its line.
WRONG = """\
type: lake_assets.LakePipeline

attributes:
  name: my shop
  streams:
    - name: events
      format: csv
      tables:
        - public.users
        - tabel: public.orders
        - table: public.accounts
          key: [1]
      exclude: 7
  model: []
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's Dagster project with one pipeline."""
    for name in [n for n in sys.modules if n.split(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)  # of the test before
    folder = tmp_path / "mine"
    defs = folder / "mine" / "defs" / "shop"
    defs.mkdir(parents=True)
    (folder / "mine" / "__init__.py").touch()
    (folder / "mine" / "defs" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "mine"\n'
        '[tool.dg.cli]\nsuppress_warnings = ["project_and_activated_venv_mismatch"]\n'
    )
    return folder


def run_dg(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LAKE_HOME": str(project / "lake"), "PYTHONPATH": str(project), "DG_CLI_CONFIG": os.devnull}
    return subprocess.run(
        [str(DG), *arguments],
        cwd=project, env={**env, "DAGSTER_DISABLE_TELEMETRY": "yes"}, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip


@pytest.mark.long  # dg checks the schema, which the next test reads
def test_mistakes_in_yaml_are_shown_all_at_once_with_their_lines(project: Path) -> None:
    (project / "mine" / "defs" / "shop" / "defs.yaml").write_text(WRONG)
    done = run_dg(project, "check", "yaml")
    assert done.returncode != 0
    output = done.stdout + done.stderr
    lines = {int(line.split(":", 1)[1].split(" ")[0]) for line in output.splitlines() if "defs.yaml:" in line}
    assert {4, 7, 10, 12, 13, 14} <= lines, output


def test_the_shipped_pipeline_fits_the_schema_that_editors_use() -> None:
    schema = LakePipeline.model().model_json_schema()
    attributes = yaml.safe_load(shop.PIPELINE.read_text(encoding="utf-8"))["attributes"]
    assert not list(Draft202012Validator(schema).iter_errors(attributes))


def test_importing_the_package_does_not_import_dagster() -> None:
    code = "import sys, lake_assets; sys.exit('dagster' in sys.modules or 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_registry_finds_the_component_by_its_yaml_name() -> None:
    assert "LakePipeline" in dir(lake_assets)
    assert lake_assets.LakePipeline is LakePipeline


def test_wrong_settings_of_a_model_are_rejected_with_their_place() -> None:
    with pytest.raises(Exception, match=r"models\.0\.kye"):
        LakePipeline.from_attributes_dict(
            attributes={"name": "p", "models": [{"name": "agg.a", "sql": "SELECT 1 AS a", "kye": "a"}]}
        )


def test_settings_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE_EVENTS_LAND", "/somewhere")
    stream = {"name": "e", "landing": "{{ env.WHERE_EVENTS_LAND }}/e", "tables": ["public.a"]}
    component = LakePipeline.from_attributes_dict(attributes={"name": "p", "streams": [stream]})
    assert component.streams[0].landing == "/somewhere/e"


def test_texts_that_look_like_numbers_stay_texts_in_the_component() -> None:
    table = {"table": "public.a", "properties": {"write.metadata.previous-versions-max": "10"}}
    component = LakePipeline.from_attributes_dict(
        attributes={"name": "p", "streams": [{"name": "e", "tables": [table], "max_wait": "30", "max_rows": 5}]}
    )
    assert component.streams[0].tables[0].properties == {"write.metadata.previous-versions-max": "10"}
    assert (component.streams[0].max_wait, component.streams[0].max_rows) == ("30", 5)


def test_a_model_with_invalid_sql_is_an_asset_that_says_why(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / "mine" / "defs" / "shop"
    (folder / "defs.yaml").write_text(
        "type: lake_assets.LakePipeline\nattributes:\n  name: p\n  models:\n    - name: agg.m\n      sql_file: m.sql\n"
    )
    (folder / "m.sql").write_text("SELECT id\nFROM users\n")
    monkeypatch.syspath_prepend(str(project))
    defs = dg.ComponentTree.from_module(defs_module=import_module("mine.defs"), project_root=project).build_defs()
    asset = defs.get_assets_def(dg.AssetKey(["agg", "m"])).specs_by_key[dg.AssetKey(["agg", "m"])]
    assert asset.deps == []
    assert "m.sql, line 2: model agg.m: table users is named without its layer" in (asset.description or "")


def test_a_duplicate_setting_is_rejected_in_dagster_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's own YAML parser silently keeps the last one."""
    (project / "mine" / "defs" / "shop" / "defs.yaml").write_text(
        "type: lake_assets.LakePipeline\nattributes:\n  name: p\n  name: q\n"
    )
    monkeypatch.syspath_prepend(str(project))
    with pytest.raises(Exception, match="Error while building definitions") as caught:
        dg.ComponentTree.from_module(defs_module=import_module("mine.defs"), project_root=project).build_defs()
    assert "defs.yaml, line 4: name: set twice in one place" in str(caught.value.__cause__)


def test_the_starter_file_is_valid_unchanged(project: Path) -> None:
    folder = project / "mine" / "defs" / "web-shop"
    folder.mkdir()
    PipelineScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="lake_assets.LakePipeline", target_path=folder, scaffold_format="yaml", project_root=project,
            params=PipelineScaffolder.get_scaffold_params()(),
        )
    )  # fmt: skip
    content = yaml.safe_load((folder / "defs.yaml").read_text(encoding="utf-8"))
    assert content["type"] == "lake_assets.LakePipeline"
    component = LakePipeline.from_attributes_dict(attributes=content["attributes"])
    assert component.name == "web_shop"
    assert component.streams[0].name == "web_shop_events"
