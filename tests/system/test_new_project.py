"""The README of a new project: its commands, as they are written there, and what a reader gets from them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.examples.new_project import write_project
from lake_assets.runtime import jars
from tests.support.dagster_process import Dagster, wait_for
from tests.support.processes import ROOT, SMALL_SPARK, free_port, started

pytestmark = [pytest.mark.system, pytest.mark.long]

# It installs the package, which the environment of the tests has.
INSTALLS = "pip install"
# It runs until it is interrupted.
SERVER = "dg dev"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "my-shop")
    return tmp_path / "my-shop"


@pytest.fixture
def env(project: Path) -> dict[str, str]:
    return {
        "HOME": str(project.parent),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PWD": str(project),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "LAKE_JARS": str(jars._cache()),  # otherwise they were downloaded
        **SMALL_SPARK,
    }


def commands(project: Path) -> list[str]:
    """The commands of the README, without their comments."""
    readme = (project / "README.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```bash\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line and INSTALLS not in line.partition("#")[0]]


def rows(project: Path) -> int:
    return Lake(LakeConfig(home=project / ".lake")).table("final.orders").scan().count()


def test_the_readme_of_a_new_project_does_what_it_says(project: Path, env: dict[str, str], tmp_path: Path) -> None:
    before, after = (part.split("\n") for part in "\n".join(commands(project)).split(f"\n{SERVER}\n"))
    printed = [do(command, project, env) for command in before]
    runs = [text for command, text in zip(before, printed, strict=True) if command == "lake-assets run"]
    assert re.search(r"^agg\.revenue .* full", runs[0], re.MULTILINE)
    assert re.search(r"^agg\.revenue .* (retract|keys)", runs[1], re.MULTILINE), runs[1]
    assert rows(project) == 600 + 10 - 3

    port, log = free_port(), tmp_path / "dagster.log"
    dev = f"cd {project} && exec {SERVER} -p {port}"
    with started(["bash", "-c", dev], log, env):
        dagster = Dagster(port, log)
        wait_for("Dagster's start", dagster.is_up, 300, log)
        (start,) = re.findall(r"`(dagster sensor start \w+)`", (project / "README.md").read_text(encoding="utf-8"))
        do(start, project, env)
        delivered, *rest = after
        do(delivered, project, env)
        wait_for("the third file", lambda: rows(project) == 600 + 2 * (10 - 3), 300, log)
        assert not re.findall(r".*(?:InstanceSettings|Beta|Preview)Warning.*", log.read_text())
    assert (project / "dagster_home" / "schedules").is_dir(), "the instance of .env"
    for command in rest:
        do(command, project, env)


def do(command: str, project: Path, env: dict[str, str]) -> str:
    """Return what a command prints, which has to succeed."""
    done = subprocess.run(["bash", "-c", command], cwd=project, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout
