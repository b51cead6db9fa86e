"""Own code over a catalog in Postgres: a Python model and a step that are killed after their commit, and run again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from tests.support.daily_job import PLAYS, job, killed, play, rows_of
from tests.support.postgres import database, server, unprivileged
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


@pytest.mark.servers
def test_both_engines_reach_a_server_that_asks_for_tls(tmp_path: Path) -> None:
    with server(with_tls=True) as found:
        data, root = found.folder / "data", tmp_path / "root.crt"
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        )
        subprocess.run([*command.split(), "-keyout", data / "server.key", "-out", data / "server.crt"], check=True)
        shutil.copy(data / "server.crt", root)
        (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\nhostssl all all ::1/128 trust\n")
        for file in ("server.key", "server.crt"):
            (data / file).chmod(0o600)
            if user := unprivileged():
                shutil.chown(data / file, user)
        found.settings["ssl"] = "on"
        found.restart()
        uri = f"postgresql+psycopg2://lake@localhost:{found.port}/postgres?sslmode=verify-full&sslrootcert={root}"
        for text, is_let_in in ((uri, True), (uri.replace("verify-full", "disable"), False)):
            catalog = {"type": "sql", "uri": text}
            lake = Lake(LakeConfig(home=tmp_path / f"lake {is_let_in}", catalog=catalog))
            if is_let_in:
                play(lake, (1, 1, 10))
                assert lake.spark().table(PLAYS).count() == 1
                continue
            with pytest.raises(Exception, match="no encryption|no pg_hba.conf entry"):
                lake.ensure_namespace(("raw",))
            with pytest.raises(Exception, match="no encryption|no pg_hba.conf entry|SQL exception"):
                lake.spark().sql("SHOW NAMESPACES").collect()


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
