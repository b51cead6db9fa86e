"""Hostile files: records, rejects with a reason, or an error that names the file; other streams go on."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import InputError, LandingFolderError
from lake_assets.formats import SourceTable
from lake_assets.formats.files.limited_files import Limits
from lake_assets.formats.files.record_files import LocalFile
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw.folder_listings import listing
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw.landing_folder import records_of
from lake_assets.ingest.records.routing import replay
from lake_assets.lake import TableId
from tests.support.hostile_files import FILES, NO_UTF8, flipped, make_special, parquet

GOOD = b'{"action":"I","schema":"public","table":"t","columns":[{"name":"id","type":"integer","value":1}]}\n'
LIMITS = Limits(record=1 << 20, file=24 << 20)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_or_named(tmp_path: Path, name: str) -> None:
    data, expected = FILES[name]
    (file := tmp_path / name).write_bytes(data)
    assert listing(Landing(str(tmp_path)), {}) == [LocalFile(file)]
    try:
        problems = [r.problem for r in records_of(LocalFile(file), LIMITS) if r.problem]
    except InputError as e:
        problems = [str(e)]
        assert str(file) in problems[0]
    assert all(re.search(expected or "$^", p) for p in problems), problems
    assert bool(problems) == bool(expected)


def test_no_flipped_byte_of_a_parquet_file_is_an_error_without_a_name(tmp_path: Path) -> None:
    good = parquet(id=[1, 2], text=["a", "b"])
    file, named = tmp_path / "a.parquet", 0
    for at in range(0, len(good), 3):
        file.write_bytes(flipped(good, at))
        try:
            list(records_of(LocalFile(file), LIMITS))
        except InputError as e:
            named += str(file) in str(e)
    assert named > 50


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (folder := tmp_path / "in").mkdir()
    for make in make_special(folder).values():
        make()
    (folder / "a.jsonl").write_bytes(b'{"id":1}\n')
    assert listing(Landing(str(folder)), {}) == [LocalFile(folder / "a.jsonl")]


def test_a_file_that_becomes_a_pipe_after_it_was_listed_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "a.jsonl")
    raised: list[Exception] = []

    def read() -> None:
        try:
            LocalFile(pipe).open()
        except LandingFolderError as e:
            raised.append(e)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(10)
    assert [str(e) for e in raised] == [f"{pipe} is no longer a file, but a pipe or a device: remove it"]


def test_a_row_that_is_kept_in_part_is_not_taken_in_by_a_replay(plain_lake: Lake, tmp_path: Path) -> None:
    """Its unreadable value would be null."""
    (tmp_path / "a.parquet").write_bytes(parquet(FLAG=["I"], id=[1], text=NO_UTF8))
    spec = RawSpec(TableId(("raw",), "s"), tmp_path, "change-set", "p", about=SourceTable("public", "t"))
    landed = land(plain_lake, spec)
    assert (landed.records, landed.rejected) == (1, 1)
    assert replay(plain_lake, spec) == 0


def test_bad_files_stop_their_own_stream_alone(plain_lake: Lake, tmp_path: Path) -> None:
    """Each stream gets a good file, and a bad one after it: what is good is taken in, with each run nothing twice."""
    for i, name in enumerate(("cut.csv.gz", "bomb.jsonl.gz", "quote.csv", "twice.parquet", "dates.parquet")):
        (folder := tmp_path / str(i)).mkdir()
        (folder / "a.jsonl").write_bytes(GOOD)
        (folder / f"b {name}").write_bytes(FILES[name][0])
        spec = RawSpec(TableId(("raw",), f"s{i}"), folder, "wal2json-v2", "p", limits=LIMITS)
        for _ in range(2):
            with contextlib.suppress(InputError):
                land(plain_lake, spec)
        files = plain_lake.table(spec.table).scan(selected_fields=("source_file", "problem")).to_arrow().to_pylist()
        assert [f["problem"] for f in files if f["source_file"] == "a.jsonl"] == [None], name
        assert all(f["problem"] for f in files if f["source_file"] != "a.jsonl" and "jsonl" not in f["source_file"])
