"""`lake-assets upkeep`, and what `run` and `status` do and say about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.lake import thresholds
from tests.support.cli import Done
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines
from tests.support.lakes import lake_on
from tests.support.pipeline_files import write_pipeline
from tests.support.pipeline_runs import run
from tests.support.saved import SavedLake

pytestmark = pytest.mark.usefixtures("eager")
T = Table({"id": BIGINT, "n": BIGINT})
Call = Callable[..., Done]


def declare(folder: Path) -> Path:
    (folder / "p").mkdir()
    return write_pipeline(
        folder / "p" / "defs.yaml",
        {
            "name": "p",
            "upkeep": {"commits": 4, "keep": "0s"},
            "streams": [{"name": "events", "tables": ["public.t"]}],
        },
    )


def let_commands_find(lake: Lake, pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "load_existing"):
        monkeypatch.setattr(LakeOfCommands, name, classmethod(lambda *_: lake))
    monkeypatch.setenv("LAKE_PIPELINES", str(pipeline.parents[1]))


@pytest.fixture
def pipeline(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a pipeline, in a lake that commands find."""
    file = declare(tmp_path)
    let_commands_find(lake, file, monkeypatch)
    return file


@pytest.fixture(scope="module")
def saved(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> SavedLake:
    """A lake after five batches without upkeep."""
    folder = tmp_path_factory.mktemp("saved")
    lake, file = lake_on(spark_lake, folder / "lake"), declare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "SNAPSHOTS_KEPT", 3)  # steps let their tables keep so many
        for n in range(1, 6):
            land(lake, n)
            run(lake, Pipeline.load(file))
    return SavedLake(lake, file, (), folder / "backup")


@pytest.fixture
def neglected(saved: SavedLake, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a pipeline after five batches without upkeep, in a lake that commands find."""
    file = saved.put_back()
    let_commands_find(saved.lake, file, monkeypatch)
    return file


def land(lake: Lake, number: int) -> None:
    folder = lake.config.home / "landing" / "events"
    folder.mkdir(parents=True, exist_ok=True)
    events = [Event(T, "c", (number * 10 + i, number * 10 + i), {"id": number * 10 + i, "n": i}) for i in range(3)]
    write_lines(folder / f"{number:04}.jsonl", to_lines(events))


@pytest.mark.long
def test_upkeep_says_what_is_due_and_does_it_when_it_is_asked_to(saved: SavedLake, neglected: Path, call: Call) -> None:
    lake, pipeline = saved.lake, neglected
    heads = {t: lake.table(t).metadata.current_snapshot_id for t in ("raw.events", "staging.t", "final.t")}
    planned = call("upkeep", "--pipeline", pipeline, "--dry-run")
    assert planned.code == 0, planned.err
    assert "combine: 5 of 5 data files are small: 5 together" in " ".join(planned.out.split())
    assert {t: lake.table(t).metadata.current_snapshot_id for t in heads} == heads
    shown = json.loads(call("upkeep", "--pipeline", pipeline, "--dry-run", "--json").out)
    due = {t["table"]: {a["kind"] for a in t["due"]} for t in shown}
    assert due["final.t"] == {"combine", "expire", "orphans"}
    assert {s["table"]: s["upkeep"] for s in json.loads(call("status", "--json").out)}["final.t"] == [
        "combine",
        "expire",
        "orphans",
    ]

    done = call("upkeep", "final.t", "--pipeline", pipeline)
    assert done.code == 0, done.err
    assert "final.t: combine, since 5 of 5 data files are small: 5 together: 4 files fewer" in done.out
    assert lake.table("staging.t").metadata.current_snapshot_id == heads["staging.t"]
    done = call("upkeep", "--pipeline", pipeline, "--json")
    result = json.loads(done.out)
    assert {t["table"]: t["files"] for t in result["tables"]}["staging.t"] == 1
    assert all(a["done"] and not a["done"]["error"] for a in result["actions"])
    assert call("upkeep", "--pipeline", pipeline).code == 0
    verified = call("verify", "final.t", "--pipeline", pipeline)
    assert "equal: 15 rows" in verified.out, verified.err


def test_run_does_what_is_due(saved: SavedLake, neglected: Path, call: Call) -> None:
    lake, pipeline = saved.lake, neglected
    assert len(lake.table("final.t").inspect.data_files()) == 5
    land(lake, 6)
    assert call("run", pipeline).code == 0
    assert len(lake.table("final.t").inspect.data_files()) == 1
    assert "equal: 18 rows" in call("verify", "final.t", "--pipeline", pipeline).out


NOT_LOOKED_AFTER = {
    "final.tt": "there is no table final.tt (did you mean final.t?)",
    "src.others": "src.others belongs to another program, which looks after it",
    "final.another": "final.another belongs to pipeline 'q': name the file of that pipeline with --pipeline",
}


@pytest.mark.long
def test_tables_that_it_does_not_look_after_are_named(lake: Lake, pipeline: Path, call: Call) -> None:
    land(lake, 1)
    assert call("run", pipeline).code == 0
    lake.ensure_namespace(("src",))
    lake.spark().sql("CREATE TABLE src.others (id INT) USING iceberg")
    lake.spark().sql("CREATE TABLE final.another (id INT) USING iceberg TBLPROPERTIES ('lake-assets.pipeline' = 'q')")
    for name, message in NOT_LOOKED_AFTER.items():
        done = call("upkeep", name, "--pipeline", pipeline)
        assert done.code == 1, name
        assert message in " ".join(done.err.split())


@pytest.mark.long
def test_a_table_whose_file_is_lost_fails_and_the_others_are_looked_after(
    saved: SavedLake, neglected: Path, call: Call
) -> None:
    lake, pipeline = saved.lake, neglected
    lost = Path(next(iter(lake.table("final.t").inspect.files().to_pylist()))["file_path"].removeprefix("file:"))
    lost.unlink()
    done = call("upkeep", "--pipeline", pipeline)
    assert done.code == 1
    assert lost.name in done.out
    assert "staging.t: combine, since 5 of 5 data files are small: 5 together: 4 files fewer" in done.out
