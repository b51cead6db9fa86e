"""Own code over a catalog in Postgres: a Python model and a step that are killed after their commit, and run again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from tests.support.daily_job import PLAYS, job, killed, play, rows_of
from tests.support.postgres import database
from tests.support.processes import SMALL_SPARK, python, started

pytestmark = [pytest.mark.system, pytest.mark.spark]

MODEL = """
from lake_assets import Changes, model

@model("agg.log", write="append", inputs={"plays": "raw.playback"})
def log(plays: Changes):
    return plays.rows
"""


@pytest.fixture
def uri() -> Iterator[str]:
    """A database that is empty."""
    with database() as uri:
        yield uri


@pytest.fixture
def media(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with two plays; processes of the test open the same one."""
    for name, value in {"LAKE_CATALOG__TYPE": "sql", "LAKE_CATALOG__URI": uri, **SMALL_SPARK}.items():
        monkeypatch.setenv(name, value)
    lake = Lake(LakeConfig(home=tmp_path / "lake"))
    play(lake, (1, 1, 10), (2, 2, 20))
    return lake


@pytest.mark.long
def test_a_python_model_killed_after_its_commit_appends_each_row_once(media: Lake, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODEL)
    file, log = tmp_path / "defs.yaml", tmp_path / "run.log"
    file.write_text("type: lake_assets.LakePipeline\nattributes: {name: own}\n")

    def run(*command: str) -> int:
        with started(command, log) as process:
            return process.wait(timeout=600)

    once = python("tests.system.run_pipeline", media.config.home, file)
    assert run(*once) == 0, log.read_text()
    play(media, (3, 3, 3))
    script = Path(__file__).with_name("killed_run.py")
    kill = [sys.executable, str(script), str(media.config.home), "publish", "after", "1", str(file)]
    assert run(*kill) == -signal.SIGKILL, log.read_text()
    assert rows_of(media, "agg.log") == rows_of(media, PLAYS), "its commit is there"
    play(media, (3, 3, 3), (4, 4, 4))
    assert run(*once) == 0, log.read_text()
    assert rows_of(media, "agg.log") == rows_of(media, PLAYS)


@pytest.mark.parametrize("carries", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_step_killed_after_its_commit_or_before_gives_each_change_once(media: Lake, carries: bool) -> None:
    killed(media, "before the job", carries=carries)
    killed(media, "before the watermark" if carries else "before the note is removed", carries=carries)
    play(media, (3, 3, 3))
    job(media, carries=carries)
    assert rows_of(media) == rows_of(media, PLAYS)
