"""Runs that are killed with SIGKILL at random moments: the next run ends in the right tables, and nothing is left."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.capture import icdc
from lake_assets.runtime import jvm_folders
from lake_assets.tables import leftovers
from tests.support.faults import Faults, all_files, path_of
from tests.support.people import AGES, CITIES, People
from tests.support.pipeline_files import write_pipeline
from tests.support.processes import SMALL_SPARK, python, started

pytestmark = [pytest.mark.system, pytest.mark.long]
KILLS = int(os.environ.get("KILLS", "10"))
# About as long as a run takes.
LONGEST_SECONDS = 12.0


def killed(home: Path, declaration: Path, folder: Path, delay: float) -> bool:
    """Run, and kill the run and its JVM after so many seconds; returns whether it was still at work."""
    start, env = folder / "start", {**SMALL_SPARK, "TMPDIR": str(folder / "tmp")}
    start.unlink(missing_ok=True)
    for ready in folder.glob("start.ready*"):
        ready.unlink()
    command = python("tests.system.run_pipeline", home, declaration, start)
    with started(command, folder / "runs.log", env) as process:
        until = time.monotonic() + 300
        while not list(folder.glob("start.ready*")):
            assert process.poll() is None, (folder / "runs.log").read_text()[-2000:]
            assert time.monotonic() < until, "it never began"
            time.sleep(0.05)
        start.touch()
        time.sleep(delay)
        is_at_work = process.poll() is None
        if is_at_work:
            for victim in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                victim.kill()
        return is_at_work


def remaining(lake: Lake, tables: list[str]) -> Iterator[str]:
    """What is there and should not be."""
    yield from (f"ICDC table {t}" for t in lake.tables(icdc.NAMESPACE))
    yield from (f"note {f.name}" for f in (lake.config.home / "at-work").iterdir())
    for name in tables:
        table = lake.table(name)
        yield from (f"branch {b} of {name}" for b in table.metadata.refs if b.startswith("lake_assets_"))
        named = {path_of(entry.metadata_file) for entry in table.metadata.metadata_log}
        named |= {path_of(table.metadata_location), *(f for s in table.metadata.snapshots for f in all_files(table, s))}
        for folder in ("data", "metadata", "icdc"):
            for file in (path_of(table.location()) / folder).rglob("*"):
                # Checksums beside files go with these; versions of metadata are kept by the hour.
                if file.is_file() and file.suffix not in (".crc", ".json") and file not in named:
                    yield f"file {file.name} of {name}"


def test_nothing_of_killed_runs_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    choose, home, temporary = random.Random(30), tmp_path / "lake", tmp_path / "tmp"
    temporary.mkdir()
    lake = Lake(LakeConfig(home=home))
    people = People(lake, CITIES, AGES, seed=30)
    faults = Faults(people, tmp_path, monkeypatch)
    config = people.feed.pipeline.config.model_dump(exclude_defaults=True, mode="json")
    declaration = write_pipeline(tmp_path / "people.yaml", config)
    kills = 0
    for _ in range(KILLS):
        people.land()
        kills += killed(home, declaration, tmp_path, choose.uniform(0, LONGEST_SECONDS))
    before = list(remaining(lake, faults.tables)) + [f.name for f in temporary.glob(f"{jvm_folders.PREFIX}-*")]

    people.land()
    with started(python("tests.system.run_pipeline", home, declaration), tmp_path / "runs.log",
                 {**SMALL_SPARK, "TMPDIR": str(temporary)}) as last:  # fmt: skip
        assert last.wait(600) == 0, (tmp_path / "runs.log").read_text()[-3000:]
    assert not list(temporary.glob(f"{jvm_folders.PREFIX}-*"))
    leftovers.sweep(lake, timedelta(0))  # as a run of the next day does

    faults.compare()
    assert list(remaining(lake, faults.tables)) == []
    record_property("summary", f"{kills} kills left {len(before)} things behind, the next run none")
