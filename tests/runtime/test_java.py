"""The Java that Spark runs on: which installation is chosen, and what is said if there is none."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lake_assets.errors import JavaNotFoundError
from lake_assets.runtime import java


def home(folder: Path, version: str | None, *, output: str = "") -> Path:
    """A made-up Java home: with a `release` file, or with a `java` that says its version itself."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    binary.chmod(0o755)
    if version:
        (folder / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def _no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME nor PATH nor the usual places of this machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "_USUAL", (str(tmp_path / "usual" / "*"),))


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home(tmp_path / "usual" / "a", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "mine", "21.0.2")))
    assert java.find_java() == tmp_path / "mine"


@pytest.mark.parametrize("version", ["25", "11.0.20", "1.8.0_392", None])
def test_a_java_home_that_spark_does_not_run_on_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    good = home(tmp_path / "usual" / "a", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "mine", version, output="no version")))
    assert java.find_java() == good


def test_the_java_on_the_path_is_followed_to_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = home(tmp_path / "real", "21")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(real / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert java.find_java() == real


@pytest.mark.parametrize(("declared", "expected"), [(None, "127.0.0.1"), ("10.0.0.1", "10.0.0.1")])
def test_a_machine_whose_name_has_no_address_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str | None, expected: str
) -> None:
    mine = home(tmp_path / "usual" / "a", "17.0.1")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_HOSTNAME", raising=False)
    assert java.jvm_variables() == {"JAVA_HOME": str(mine)}
    monkeypatch.setattr(socket, "gethostname", lambda: "has-no-address.invalid")
    if declared:
        monkeypatch.setenv("SPARK_LOCAL_IP", declared)
    assert java.jvm_variables() == {"JAVA_HOME": str(mine), "SPARK_LOCAL_IP": expected}


def test_the_usual_places_are_looked_at_last(tmp_path: Path) -> None:
    home(tmp_path / "usual" / "jdk-25", "25")
    good = home(tmp_path / "usual" / "jdk-7", "17.0.9")
    assert java.find_java() == good


@pytest.mark.parametrize(
    "output", ['openjdk version "17.0.9" 2023-10-17', 'java version "21" 2023-09-19 LTS', 'openjdk version "17-ea"']
)
def test_a_home_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setenv("PATH", os.defpath)  # for the shell of the made-up java
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "mine", None, output=output)))
    assert java.find_java() == tmp_path / "mine"


def test_without_any_the_error_says_what_was_found_and_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "mine", "25.0.1")))
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(JavaNotFoundError) as caught:
        java.find_java()
    message = str(caught.value)
    assert f"{tmp_path / 'mine'}: Java 25" in message
    assert "17 or 21" in message
    assert "apt-get install" in message
    assert "JAVA_HOME" in message


def test_a_java_home_that_does_not_exist_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaNotFoundError, match="gone: no working Java"):
        java.find_java()
