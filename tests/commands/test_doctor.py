"""What `doctor` finds wrong with a machine, and that it changes nothing; the options of the command line itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lake_assets import Lake, Pipeline
from lake_assets.errors import CatalogUnavailableError
from lake_assets.health import machine_checks
from tests.support.cli import Done

Call = Callable[..., Done]


@pytest.fixture
def findings(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, tuple[bool, str]]]:
    """What `doctor` says, by what it looks at."""
    monkeypatch.chdir(tmp_path)
    for name in ("LAKE_CONFIG", "LAKE_PIPELINES", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)

    def look(**settings: object) -> dict[str, tuple[bool, str]]:
        monkeypatch.setenv("LAKE_HOME", str(tmp_path / "lake"))
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        done = call("doctor", "--json")
        found = {f["what"]: (f["is_well"], f["text"]) for f in json.loads(done.out)}
        assert done.code == (0 if all(is_well for is_well, _ in found.values()) else 1)
        return found

    return look


def test_nothing_is_made(findings: Callable[..., dict[str, tuple[bool, str]]], tmp_path: Path) -> None:
    found = findings()
    assert all(is_well for is_well, _ in found.values()), found
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_comes_with_what_to_do(
    findings: Callable[..., dict[str, tuple[bool, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(0o777)
    (tmp_path / "home").mkdir()
    versions = {"dagster": "1.11.0"}
    known = metadata.version
    monkeypatch.setattr(machine_checks.metadata, "version", lambda name: versions.get(name) or known(name))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1, total=1 << 40))
    found = findings(LAKE_SPARK__DRIVER_MEMORY="9000g", DAGSTER_HOME=tmp_path / "home")
    wrong = {what: text for what, (is_well, text) in found.items() if not is_well}
    assert set(wrong) == {"versions", "memory", "disk", "home of the lake", "Dagster's settings"}
    assert wrong["versions"].startswith("dagster 1.11.0 is not ")
    assert "LAKE_SPARK__DRIVER_MEMORY" in wrong["memory"]
    assert "`spark.local.dir` moves" in wrong["disk"]
    assert f"`chmod o-w {tmp_path / 'lake'}`" in wrong["home of the lake"]
    assert f"`lake-assets init --dagster-home {tmp_path / 'home'}`" in wrong["Dagster's settings"]


def test_what_cannot_be_looked_at_hides_nothing_else(
    findings: Callable[..., dict[str, tuple[bool, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise CatalogUnavailableError("the catalog does not answer")

    def unexpected(_: Path) -> str:
        raise PermissionError("postgresql://me:pl4nted@db refuses")

    file = tmp_path / "pipelines" / "shop" / "defs.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("type: lake_assets.LakePipeline\nattributes:\n  name: shop\n", encoding="utf-8")
    monkeypatch.setattr(Pipeline, "specs", away)
    monkeypatch.setattr(machine_checks, "_writable", unexpected)
    wrong = {w: t for w, (is_well, t) in findings(LAKE_PIPELINES=file.parent.parent).items() if not is_well}
    assert wrong == {
        "home of the lake": "PermissionError: postgresql://me:***@db refuses",
        "sources of shop": "the catalog does not answer",
    }


def test_a_spark_connect_server_is_looked_for(findings: Callable[..., dict[str, tuple[bool, str]]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        remote = f"sc://127.0.0.1:{listener.getsockname()[1]}"
        assert findings(LAKE_SPARK__REMOTE=f"{remote}/;token=secret")["Spark Connect"] == (
            True,
            f"a server listens at {remote}/;token=***",
        )
    is_well, text = findings(LAKE_SPARK__REMOTE=remote)["Spark Connect"]
    assert not is_well
    assert "start one (`lake-assets spark-server`)" in text


def test_settings_that_do_not_fit_are_told_of_without_touching_the_instance(
    findings: Callable[..., dict[str, tuple[bool, str]]], tmp_path: Path
) -> None:
    (home := tmp_path / "home").mkdir()
    (home / "dagster.yaml").write_text("run_monitoring: {enabled: true}\n")
    is_well, text = findings(DAGSTER_HOME=home)["Dagster's settings"]
    assert not is_well
    assert "`concurrency.pools.default_limit: 1`" in text
    assert "WarmRunLauncher" in text
    for unusable, why in (
        ("run_monitoring: {enabled: perhaps}", "Invalid scalar at path root:run_monitoring:enabled"),
        (
            "storage: {sqlite: {base_dir: {env: IS_NOT_SET}}}",
            "it names IS_NOT_SET of the environment, which must be set",
        ),
        ("run_launcher: {module: no_module, class: Launcher}", "Couldn't import module no_module"),
        ("run_monitoring: [", "while parsing a flow node"),
    ):
        (home / "dagster.yaml").write_text(f"{unusable}\n")
        is_well, text = findings(DAGSTER_HOME=home)["Dagster's settings"]
        assert (is_well, "\n" in text) == (False, False)
        assert f"dagster.yaml cannot be used: {why}" in text
    assert os.listdir(home) == ["dagster.yaml"]  # noqa: PTH208 (the names only)


def test_a_table_of_the_future_is_named(
    findings: Callable[..., dict[str, tuple[bool, str]]], plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", Schema(NestedField(1, "id", LongType())))
    clock = time.time
    assert machine_checks._catalog(plain_lake).endswith("catalog.db, named lake; 1 namespace")
    assert machine_checks._clock(plain_lake.config, plain_lake) == "no table is of the future"
    monkeypatch.setattr(machine_checks.thresholds, "CLOCK_SECONDS", 10_000.0)
    monkeypatch.setattr(machine_checks.time, "time", lambda: clock() - 3_600)
    with pytest.raises(machine_checks.LakeError, match=r"raw\.t was written 3,\d\d\d s in the future"):
        machine_checks._clock(plain_lake.config, plain_lake)


def test_the_clock_of_a_home_that_may_only_be_read_is_not_compared(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(machine_checks.os, "access", lambda *_: False)
    monkeypatch.setattr(machine_checks.tempfile, "TemporaryFile", refuse)
    plain_lake.config.home.mkdir(parents=True)
    text = machine_checks._clock(plain_lake.config, plain_lake)
    assert text == f"not compared: {plain_lake.config.home} cannot be written to"


def test_the_version_is_that_of_the_package(call: Call) -> None:
    done = call("--version")
    assert (done.code, done.out) == (0, f"lake-assets {metadata.version('lake-assets')}\n")


def test_shells_complete_commands(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_LAKE_ASSETS_COMPLETE": "complete_bash",
        "COMP_WORDS": "lake-assets sta",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert call().out.split() == ["status"]


@pytest.mark.parametrize("memory", ["512m", "1gb", "1G", "1024"])
def test_sizes_of_memory_are_read_as_spark_reads_them(
    findings: Callable[..., dict[str, tuple[bool, str]]], memory: str
) -> None:
    assert findings(LAKE_SPARK__DRIVER_MEMORY=memory)["memory"][0]


def test_what_is_no_size_of_memory_is_told(findings: Callable[..., dict[str, tuple[bool, str]]]) -> None:
    is_well, text = findings(LAKE_SPARK__DRIVER_MEMORY="much")["memory"]
    assert not is_well
    assert "such as 4g" in text
