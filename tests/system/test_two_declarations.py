"""Two deployments with two declarations of a table: the older one is paused at its calls while the other one runs.

Each is a process with a Spark of its own. Then both are run to their end in turn, and each time the table has to hold
the rows of the declaration.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lake_assets import Lake
from tests.support.people import AGES, CITIES, TABLE, People
from tests.support.processes import ROOT, SMALL_SPARK, python
from tests.support.seeds import HISTORIES

pytestmark = [pytest.mark.system, pytest.mark.long]

# At so many of a step's calls, evenly spread, it is paused.
PAUSES = 6 * HISTORIES


@dataclass
class Deployment:
    """A process that runs one declaration."""

    process: subprocess.Popen[bytes]

    def send(self, **command: object) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write((json.dumps(command) + "\n").encode())
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def do(self, **command: object) -> int:
        """Send a command that does not fail; return the number of its calls."""
        answer = self.send(**command)
        assert answer["error"] == "", (command, answer)
        return answer["done"]

    def settle(self, table: str) -> None:
        """Run everything, and check the table."""
        self.do(do="run")
        self.do(do="check", table=table)


@contextlib.contextmanager
def deployed(lake: Lake, folder: Path, name: str, table: dict[str, Any], *models: Any) -> Generator[Deployment]:
    file = folder / f"{name}.yaml"
    streams = [{"name": "events", "tables": [table]}]
    attributes = {"name": "made_up", "streams": streams, "models": list(models)}
    file.write_text(yaml.safe_dump({"type": "lake_assets.LakePipeline", "attributes": attributes}), encoding="utf-8")
    env = {**os.environ, **SMALL_SPARK, "LAKE_HOME": str(lake.config.home)}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            python("tests.system.paused_step", file), cwd=ROOT, env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield Deployment(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


OTHER_AGES = {**AGES, "sql": "SELECT city, age + 100 AS age FROM final.people"}
OTHER_CITIES = {**CITIES, "sql": "SELECT city, count(*) + 100 AS n FROM final.people GROUP BY city"}
SOFT = {**TABLE, "deletes": "soft"}


@pytest.mark.parametrize(
    ("table", "rebuild", "old", "new"),
    [
        pytest.param("agg.ages", True, (TABLE, AGES), (TABLE, OTHER_AGES), id="rebuild of copies"),
        pytest.param("agg.ages", False, (TABLE, AGES), (TABLE, OTHER_AGES), id="copies"),
        pytest.param("agg.cities", False, (TABLE, CITIES), (TABLE, OTHER_CITIES), id="groups"),
        pytest.param("final.people", False, (TABLE,), (SOFT,), id="rows"),
        pytest.param("final.people", True, (TABLE,), (SOFT,), id="rebuild of rows"),
    ],
)
def test_a_step_that_another_declaration_overtakes_leaves_none_of_its_rows(
    plain_lake: Lake, tmp_path: Path, table: str, *, rebuild: bool, old: tuple[Any, ...], new: tuple[Any, ...]
) -> None:
    people = People(plain_lake)
    with deployed(plain_lake, tmp_path, "old", *old) as former, deployed(plain_lake, tmp_path, "new", *new) as latter:
        people.land()
        for deployment in (former, latter, former):
            deployment.settle(table)

        def arrive() -> None:
            people.land()
            upstream = ["raw.events", "staging.people", *(["final.people"] if table.startswith("agg") else [])]
            former.do(do="run", tables=upstream)

        arrive()
        calls = former.do(do="step", table=table, rebuild=rebuild)
        former.settle(table)
        seen: list[str] = []
        for call in sorted({1 + n * (calls - 1) // (PAUSES - 1) for n in range(PAUSES)}):
            arrive()
            paused = former.send(do="step", table=table, rebuild=rebuild, pause=call)
            assert "paused" in paused, paused
            seen.append(f"call {call} of {calls}: {paused['paused']}")
            latter.do(do="run")
            ended = former.send()
            assert ended["error"] == "" or "ConcurrentWriteError" in ended["error"], (seen[-1], ended)
            try:
                latter.settle(table)
                former.settle(table)
            except AssertionError as e:
                raise AssertionError(f"{seen[-1]}: {e}") from e
        assert len(seen) >= min(PAUSES, calls) - 1
