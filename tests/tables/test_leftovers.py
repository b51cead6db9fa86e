"""Leftovers of killed runs are removed, and nothing else; without Spark."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.capture import icdc, icdc_metadata
from lake_assets.lake import TableId, caching_catalog
from lake_assets.lake.metadata import refs
from lake_assets.runtime.processes import is_gone, owner
from lake_assets.tables import leftovers
from lake_assets.tables.leftovers import at_work, drop_branches, sweep
from tests.support.faults import files_of

T = TableId.parse("raw.t")
GONE, ELSEWHERE = owner((2**22 + 1, 1.0)), f"{'0' * 8}_1_1"
NOW = timedelta(0)
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


def rows(*ns: int) -> pa.Table:
    return pa.table({"n": pa.array(ns, pa.int64())})


def make(lake: Lake) -> Table:
    lake.ensure_namespace(("raw",))
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "3"}
    lake.catalog.create_table(T.parts, rows().schema, properties=properties)
    lake.table(T).append(rows(1, 2))
    return lake.table(T)


def note(lake: Lake, process: str, began: float, *tables: TableId) -> Path:
    file = lake.config.home / "at-work" / f"{process}-0123456789ab.json"
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps({"tables": [t.parts for t in tables or (T,)], "began": int(began * 1000)}))
    return file


def stray(lake: Lake, name: str) -> Path:
    """Create a file as a killed writer leaves it."""
    file = Path(lake.table(T).location().removeprefix("file://")) / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(b"PAR1")
    return file


def captured(lake: Lake) -> object:
    """Create an ICDC table as a killed run leaves it; it is dropped with the returned object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(icdc_metadata, "owner", lambda: GONE)
        table = lake.capture(str(T)).icdc()
        table.__enter__()
        return table


def disk_is_full(file: Path, *_: object) -> None:
    file.touch()
    raise OSError("the disk is full")


def test_a_note_is_there_while_a_step_is_at_work_and_after_a_kill(plain_lake: Lake) -> None:
    folder = plain_lake.config.home / "at-work"
    with at_work(plain_lake, [T]):
        (file,) = folder.iterdir()
        assert json.loads(file.read_text())["tables"] == [["raw", "t"]]
    assert list(folder.iterdir()) == []
    with pytest.raises(ValueError, match="its own"), at_work(plain_lake, [T]):
        raise ValueError("its own")
    assert list(folder.iterdir()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", disk_is_full)
        with pytest.raises(OSError, match="full"), at_work(plain_lake, [T]):
            raise AssertionError("unreachable")
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), at_work(plain_lake, [T]):
        raise KeyboardInterrupt
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("seed", range(8))
def test_files_that_no_snapshot_names_go_and_all_others_stay(plain_lake: Lake, seed: int) -> None:
    choose = random.Random(seed)
    make(plain_lake)
    began = time.time()
    file = note(plain_lake, GONE, began)
    strays: list[Path] = []
    expected = {1, 2}
    for n in range(10, 18):
        table = plain_lake.table(T)
        match choose.randrange(6):
            case 0:
                table.delete(EqualTo("n", next(iter(expected))) if expected else EqualTo("n", 0))
                expected -= {next(iter(expected))} if expected else set()
            case 1:
                table.overwrite(rows(n))
                expected = {n}
            case 2:
                strays.append(stray(plain_lake, f"data/{n}.parquet"))
            case 3:
                strays.append(stray(plain_lake, f"metadata/{choose.choice(['snap-', '', '00099-'])}{n}.avro"))
            case 4 if len(table.metadata.snapshots) > 2:
                table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
            case _:
                table.append(rows(n))
                expected.add(n)
    plain_lake.table(T).append(rows(99))
    swept = sweep(plain_lake, NOW)
    assert not [f for f in strays if f.exists()]
    assert {str(f) for f in strays} <= set(swept)
    assert not file.exists()
    table = plain_lake.table(T)
    assert set(table.scan().to_arrow()["n"].to_pylist()) == {*expected, 99}
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow() is not None, "every snapshot can be read still"
    assert sweep(plain_lake, NOW) == []


def test_a_file_that_was_restored_from_a_backup_stays_though_it_is_newer_than_what_names_it(plain_lake: Lake) -> None:
    table = make(plain_lake)
    began = time.time() + 7_200
    for folder in ("data", "metadata"):
        for file in Path(table.location().removeprefix("file://"), folder).iterdir():
            if file.suffix == ".parquet":
                os.utime(file, (began + 1, began + 1))
    note(plain_lake, GONE, began)
    assert sweep(plain_lake, -timedelta(hours=3)) == []
    assert plain_lake.table(T).scan().to_arrow().num_rows == 2


def test_files_stay_until_nobody_can_be_at_work_on_them(plain_lake: Lake) -> None:
    make(plain_lake)
    stray_file = stray(plain_lake, "data/a.parquet")
    file = note(plain_lake, GONE, time.time() - 60)
    assert sweep(plain_lake) == [], "a server may continue the step, and commit it"
    file.unlink()
    for process in (owner(), ELSEWHERE):
        file = note(plain_lake, process, time.time() - 60)
        assert sweep(plain_lake, NOW) == []
        assert stray_file.exists()
        other = note(plain_lake, GONE, time.time() - 60)
        assert sweep(plain_lake, NOW) == [], "another one is at work on the same table"
        other.unlink()
        file.unlink()
    before = stray(plain_lake, "data/b.parquet")
    os.utime(before, (time.time() - 7200,) * 2)
    note(plain_lake, GONE, time.time() - 60)
    assert sweep(plain_lake, NOW) == [str(stray_file)], "what was there before the step is none of its"
    assert before.exists()
    file = note(plain_lake, ELSEWHERE, time.time() - 90_000)
    os.utime(file, (time.time() - 90_000,) * 2)
    late = stray(plain_lake, "data/c.parquet")
    assert sweep(plain_lake, NOW) == [str(before), str(late)], "of another machine, a day ago"


def test_what_a_step_wrote_after_its_note_goes_when_it_is_old_enough_as_well(plain_lake: Lake) -> None:
    """A step writes for a while: when its note is a day old, its last files are not."""
    make(plain_lake)
    day, now = timedelta(hours=24), time.time()
    file = note(plain_lake, GONE, now - 90_000)
    os.utime(file, (now - 90_000,) * 2)
    old, young = stray(plain_lake, "data/old.parquet"), stray(plain_lake, "data/young.parquet")
    for stray_file, age in ((old, 89_000), (young, 80_000)):
        os.utime(stray_file, (now - age,) * 2)
    assert sweep(plain_lake, day) == [str(old)]
    assert file.exists(), "the other one is to be found again"
    assert sweep(plain_lake, day) == []
    os.utime(young, (now - 87_000,) * 2)
    os.utime(file, (now - 87_000,) * 2)
    assert sweep(plain_lake, day) == [str(young)]
    assert not file.exists()


@pytest.mark.parametrize("part", ["metadata", "manifest list", "manifest"])
@pytest.mark.parametrize("length", [None, 0, 30, -8])
def test_a_table_that_cannot_be_read_stops_neither_the_run_nor_the_sweep_of_others(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, part: str, length: int | None
) -> None:
    other = TableId.parse("raw.other")
    make(plain_lake)
    plain_lake.catalog.create_table(other.parts, rows().schema)
    note(plain_lake, GONE, time.time(), other).rename(plain_lake.config.home / f"at-work/{GONE}-fedcba987654.json")
    note(plain_lake, GONE, time.time())
    stray_file = Path(plain_lake.table(other).location().removeprefix("file://")) / "data" / "left.parquet"
    stray_file.parent.mkdir(parents=True, exist_ok=True)
    stray_file.write_bytes(b"PAR1")
    (broken,) = files_of(plain_lake, str(T), part)[-1:]
    if length is None:
        broken.unlink()
    else:
        broken.write_bytes(broken.read_bytes()[:length])
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())
    assert sweep(plain_lake, NOW) == [str(stray_file)]


def test_two_sweeps_beside_each_other_remove_everything_once(plain_lake: Lake) -> None:
    make(plain_lake)
    tables = [captured(plain_lake) for _ in range(10)]
    assert len(plain_lake.tables(icdc.NAMESPACE)) == len(tables)
    files = [stray(plain_lake, f"data/{n}.parquet") for n in range(20)]
    note(plain_lake, GONE, time.time() - 60)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda lake: sweep(lake, NOW), [Lake(plain_lake.config) for _ in range(4)]))
    sweep(plain_lake, NOW)  # files that one sweep could not remove, another one has removed, or the next sweep does
    assert plain_lake.tables(icdc.NAMESPACE) == []
    assert not [f for f in files if f.exists()]
    assert list((plain_lake.config.home / "at-work").iterdir()) == []
    assert plain_lake.table(T).scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tables": 1, "began": 2}', '{"tables": [["x"]], "began": 2}'])
def test_a_note_that_was_cut_is_dropped(plain_lake: Lake, content: str) -> None:
    make(plain_lake)
    file, own = note(plain_lake, GONE, time.time()), note(plain_lake, owner(), time.time())
    for cut_note in (file, own):
        cut_note.write_text(content)
    assert sweep(plain_lake, NOW) == []
    assert not file.exists()
    assert own.exists(), "it is about to be written"


def test_a_table_that_is_gone_has_nothing_to_sweep(plain_lake: Lake) -> None:
    file = note(plain_lake, GONE, time.time())
    assert sweep(plain_lake, NOW) == []
    assert not file.exists()


def test_branches_go_with_the_process_that_made_them(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(plain_lake)
    head = table.metadata.current_snapshot_id
    assert head is not None
    own = leftovers.branch_name()
    monkeypatch.setattr(leftovers, "owner", lambda: GONE)
    dead = leftovers.branch_name()
    monkeypatch.setattr(leftovers, "owner", lambda: ELSEWHERE)
    elsewhere = leftovers.branch_name()
    for branch in (own, dead, elsewhere, "lake_assets_failed", "mine"):
        refs.create_branch(table, branch, head, days=1)
    assert drop_branches(plain_lake, T, plain_lake.table(T)) == [dead]
    remaining = set(plain_lake.table(T).metadata.refs)
    assert remaining == {"main", own, elsewhere, "lake_assets_failed", "mine"}


def test_processes_are_told_apart() -> None:
    assert is_gone(owner()) is False
    assert is_gone(owner((os.getpid(), 1.0))) is True
    assert is_gone(GONE) is True
    assert is_gone(ELSEWHERE) is None
