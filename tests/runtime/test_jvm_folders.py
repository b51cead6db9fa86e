"""Temporary folders of JVMs: private, and gone with the process that they belong to."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.runtime import jvm_folders
from lake_assets.runtime.jvm_launch import with_folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def start(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("jvm_folder_owner.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], *, by: int | None) -> None:
    if by is not None:
        process.send_signal(by)
    process.communicate(timeout=60)


def test_what_a_killed_process_leaves_the_next_one_removes(tmp_path: Path) -> None:
    (one, killed), (two, alive) = start(tmp_path), start(tmp_path)
    try:
        assert stat.S_IMODE(killed.stat().st_mode) == 0o700
        assert jvm_folders.sweep() == [], "both are at work"
        end(one, by=signal.SIGKILL)
        assert (killed / "blockmgr" / "rows").exists()
        assert jvm_folders.sweep() == [killed]
        assert (alive / "blockmgr" / "rows").exists()
    finally:
        end(two, by=None)
    assert list(tmp_path.iterdir()) == [], "who ends removes its own"


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    process, killed = start(tmp_path)
    end(process, by=signal.SIGKILL)
    others = [
        killed.with_name(killed.name.replace(killed.name.split("-")[3][:8], "0" * 8)),  # of another container
        killed.with_name(killed.name.rsplit("-", 1)[0]),
        tmp_path / "lake-assets-jvm-abc",
        tmp_path / "spark-abc",
    ]
    for folder in others:
        folder.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = killed.with_name(f"{killed.name}x")
    link.symlink_to(target)
    jvm_folders.sweep()
    assert sorted(tmp_path.iterdir()) == sorted([*others, target, link])


def test_the_option_comes_after_the_others(tmp_path: Path) -> None:
    key = "spark.driver.defaultJavaOptions"
    assert with_folder({key: "-Da=b"}, tmp_path)[key] == f"-Da=b -Djava.io.tmpdir={tmp_path}"
    assert with_folder({}, Path("/a b"))[key] == '"-Djava.io.tmpdir=/a b"'
