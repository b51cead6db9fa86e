"""Jars of Spark: downloaded once, and used only with the content that is known of them."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets.errors import JarsError
from lake_assets.lake import LakeBase, LakeConfig, connect_server, spark_session
from lake_assets.lake.spark_session import packages
from lake_assets.orchestration import LakePySparkResource
from lake_assets.orchestration.runs import resources
from lake_assets.runtime import jars, warm_jvm

NAMES = ("org.one_a-1.jar", "org.two_b-2.jar")


class Resolver:
    """Stands for spark-submit: fills the Ivy folder that it is told, or fails as Ivy does."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[list[str]] = []
        self.fails = fails

    def __call__(self, command: Sequence[str], **_: Any) -> SimpleNamespace:
        self.calls.append(list(command))
        if self.fails:
            return SimpleNamespace(returncode=1, stderr=self.fails)
        ivy = next(a for a in command if a.startswith("spark.jars.ivy=")).split("=", 1)[1]
        folder = Path(ivy) / "jars"
        folder.mkdir(parents=True)
        for name in NAMES:
            (folder / name).write_bytes(name.encode())
        return SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """No network and no Java: whatever would be downloaded is made up."""
    made_up = Resolver()
    monkeypatch.setenv("LAKE_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr(subprocess, "run", made_up)
    monkeypatch.setattr(jars, "jvm_variables", dict)
    return made_up


def test_jars_are_downloaded_once_for_a_set_of_coordinates(resolver: Resolver, tmp_path: Path) -> None:
    first = jars.resolve(["a:b:1", "c:d:2"])
    assert [f.name for f in first] == list(NAMES)
    assert all(f.is_file() and f.is_relative_to(tmp_path / "jars") for f in first)
    assert jars.resolve(["c:d:2", "a:b:1"]) == first
    assert len(resolver.calls) == 1
    assert jars.resolve(["a:b:1"]) != first
    assert len(resolver.calls) == 2


@pytest.mark.parametrize("harm", ["missing", "cut", "one bit", "no list", "a broken list"])
def test_what_is_not_as_it_was_kept_is_downloaded_again(resolver: Resolver, harm: str) -> None:
    kept = jars.resolve(["a:b:1"])[0]
    match harm:
        case "missing":
            kept.unlink()
        case "cut":
            kept.write_bytes(b"x")
        case "one bit":
            kept.write_bytes(bytes([NAMES[0].encode()[0] ^ 1]) + NAMES[0].encode()[1:])
        case "no list":
            (kept.parent / "jars.json").unlink()
        case _:
            (kept.parent / "jars.json").write_text("{")
    assert jars.resolve(["a:b:1"])[0].read_bytes() == NAMES[0].encode()
    assert len(resolver.calls) == 2


def test_a_failed_download_leaves_nothing_behind_and_says_why(resolver: Resolver, tmp_path: Path) -> None:
    resolver.fails = "noise\n:: unresolved dependency: a#b;1: not found\n"
    with pytest.raises(JarsError, match=r"a:b:1.*unresolved dependency"):
        jars.resolve(["a:b:1"])
    assert list((tmp_path / "jars").iterdir()) == []
    resolver.fails = ""
    assert jars.resolve(["a:b:1"])


def test_a_known_jar_with_another_content_is_not_used(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jars.SHA256, NAMES[0], hashlib.sha256(b"what it was").hexdigest())
    with pytest.raises(JarsError, match="SHA-256"):
        jars.resolve(["a:b:1"])
    monkeypatch.setitem(jars.SHA256, NAMES[0], hashlib.sha256(NAMES[0].encode()).hexdigest())
    assert jars.resolve(["a:b:1"])


def test_a_cache_that_cannot_be_written_is_named(
    resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAKE_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(JarsError, match="LAKE_JARS"):
        jars.resolve(["a:b:1"])
    assert not resolver.calls


def _locally(config: LakeConfig) -> object:
    return LakeBase(config).spark()


def _through_dagster(config: LakeConfig) -> object:
    return LakePySparkResource().session_of(config)


def _as_a_warm_jvm(config: LakeConfig) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_jvm._Loan, "settings", warm_jvm.KeeperSettings(str(config.home), (), 1, 1))
        return LakePySparkResource().session_of(config)


def _as_a_server(config: LakeConfig) -> object:
    return connect_server.command(config)


@pytest.mark.parametrize("start", [_locally, _through_dagster, _as_a_warm_jvm, _as_a_server])
def test_no_spark_is_started_with_a_changed_jar(
    resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[LakeConfig], object]
) -> None:
    """Java is missing, too: whatever came as far as starting it would say that."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))  # a start sets it for the process, and this takes it back
    config = LakeConfig(home=tmp_path / "lake")
    kept = jars.resolve(packages(config))
    for module in (spark_session, resources, connect_server):
        monkeypatch.setattr(module, "jvm_variables", dict)
    resolver.fails = "unresolved: no network"
    changed = bytearray(kept[1].read_bytes())
    changed[3] ^= 1
    kept[1].write_bytes(changed)
    with pytest.raises(JarsError, match="no network"):
        start(config)
    assert len(resolver.calls) == 2


@pytest.mark.parametrize("listed", ["{}", "[]", '["a"]', '{"../../elsewhere.jar": "0"}', "null", '{"a.jar": 1}'])
def test_a_list_of_jars_that_is_no_list_of_them_is_made_again(resolver: Resolver, listed: str) -> None:
    kept = jars.resolve(["a:b:1"])
    (kept[0].parent / "jars.json").write_text(listed)
    assert jars.resolve(["a:b:1"]) == kept
    assert len(resolver.calls) == 2
