"""Folders of dumps: which are complete, in which order, and when they were made."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lake_assets.errors import LandingFolderError, PipelineError
from lake_assets.sources.dump_folders import Completeness, complete_dumps, late_dumps, time_of
from tests.support.dumps import touch

MARKED, QUIET = Completeness(), Completeness.parse("1h quiet")


def write(folder: Path, *names: str, age: float = 0.0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("x")
        touch(folder / name, -age)


def names(folder: Path, rule: Completeness = MARKED, **options: object) -> list[str]:
    return [d.name for d in complete_dumps(folder, rule, **options)]  # pyright: ignore[reportArgumentType]


def test_a_dump_with_a_marker_is_complete_whatever_else_lies_there(tmp_path: Path) -> None:
    write(tmp_path / "2", "b.parquet", "a.parquet", "_SUCCESS", "_committed", ".a.parquet.crc", "c.parquet.tmp")
    write(tmp_path / "1", "a.parquet")
    write(tmp_path / "3", "_SUCCESS")
    write(tmp_path / "4.tmp", "a.parquet", "_SUCCESS")
    write(tmp_path / "_5", "_SUCCESS")
    assert names(tmp_path) == ["2", "3"]
    two, three = complete_dumps(tmp_path, MARKED)
    assert ([f.name for f in two.files], two.bytes) == (["a.parquet", "b.parquet"], 2)
    assert (three.files, three.paths) == ((), (tmp_path / "3",))


def test_another_marker_is_no_file_of_rows(tmp_path: Path) -> None:
    write(tmp_path / "1", "a.csv", "done.txt")
    (dump,) = complete_dumps(tmp_path, Completeness.parse("done.txt"))
    assert [f.name for f in dump.files] == ["a.csv"]


def test_a_quiet_dump_is_complete(tmp_path: Path) -> None:
    write(tmp_path / "1", "a.csv", age=3601)
    write(tmp_path / "2", "a.csv", age=3601)
    write(tmp_path / "2", "b.csv", age=3500)
    write(tmp_path / "3", "a.csv", "b.csv.part", age=3601)
    (tmp_path / "4").mkdir()
    assert names(tmp_path, QUIET) == ["1"]


def test_a_fingerprint_tells_files_that_were_written_again(tmp_path: Path) -> None:
    write(tmp_path / "1", "a.csv", "_SUCCESS")
    before = complete_dumps(tmp_path, MARKED)[0]
    assert complete_dumps(tmp_path, MARKED) == [before]
    touch(tmp_path / "1" / "a.csv", 1)
    assert complete_dumps(tmp_path, MARKED)[0].fingerprint != before.fingerprint


def test_older_dumps_are_not_looked_into(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        write(tmp_path / name, "_SUCCESS")
    (tmp_path / "1" / "a_folder").mkdir()
    assert names(tmp_path, since="2", known=["2", "3"]) == ["2"]
    assert names(tmp_path, since="2", known=["1", "2"]) == ["2", "3"]
    assert late_dumps(tmp_path, MARKED, "3", ["1"]) == ["2"]


def test_a_missing_folder_has_no_dumps_and_a_file_is_an_error(tmp_path: Path) -> None:
    assert names(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(LandingFolderError, match="cannot be read: it is a file"):
        names(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("date=20261101", datetime(2026, 11, 1, tzinfo=UTC)),
        ("users_2026-11-01T06-30-05Z", datetime(2026, 11, 1, 6, 30, 5, tzinfo=UTC)),
        ("20261101_0630", datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        ("2026-02-30", None),
        ("0000000123", None),
        ("full", None),
        ("1234567890123", None),
    ],
)
def test_the_time_of_a_dump_is_in_its_name(name: str, time: datetime | None) -> None:
    assert time_of(name) == time


@pytest.mark.parametrize(
    ("text", "rule"),
    [("_SUCCESS", MARKED), ("10m quiet", Completeness("", 600.0)), ("1.5 h  quiet", Completeness("", 5400.0))],
)
def test_rules_are_read(text: str, rule: Completeness) -> None:
    assert Completeness.parse(text) == rule
    assert Completeness.parse(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "10m", "quiet", "a/b", "10 minutes quiet"])
def test_other_rules_are_refused(text: str) -> None:
    if text in ("10m", "quiet"):  # names of files
        assert Completeness.parse(text).marker == text
        return
    with pytest.raises(PipelineError, match="does not say when a dump is complete"):
        Completeness.parse(text)
