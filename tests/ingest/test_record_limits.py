"""Records and files that are too large, too deep, or have names that are no text: catalog and files only."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from lake_assets import Lake
from lake_assets.errors import InputTooLargeError, LandingFolderError, PipelineError
from lake_assets.formats import SourceTable
from lake_assets.formats.files.limited_files import Limits
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import RawStep, land, land_records
from lake_assets.lake import TableId
from lake_assets.pipeline import Pipeline, PipelineConfig
from tests.support.debezium import BIGINT, Event, Table, to_lines

RAW = TableId.parse("raw.events")
USERS = Table({"id": BIGINT}, name="public.users")
LARGEST = 5_000


def line(n: int) -> bytes:
    return next(iter(to_lines([Event(USERS, "c", (1, n), {"id": n})])))


def spec(folder: Path, wire: str = "debezium", **limits: int) -> RawSpec:
    about = SourceTable("public", "users") if wire == "change-set" else None
    return RawSpec(RAW, folder, wire, "p", about=about, limits=Limits(**{"record": LARGEST, **limits}))


def rows(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    found = lake.table(RAW).scan(selected_fields=("position", *columns)).to_arrow().to_pylist()
    return [tuple(r[c] for c in columns) for r in sorted(found, key=lambda r: r["position"])]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""], ids=["LF", "CRLF", "end of file"])
@pytest.mark.parametrize("more", [1, 2, 3_000_000])
def test_a_record_that_is_too_large_is_rejected_with_its_beginning(
    plain_lake: Lake, tmp_path: Path, name: str, end: bytes, more: int
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    first, last = (line(1), b"") if end == b"" else (line(1), line(2))
    content = first + b"x" * (LARGEST + more) + end + last
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    landed = land(plain_lake, spec(folder))
    assert (landed.records, landed.rejected) == (3 if last else 2, 1)
    found = rows(plain_lake, "source_line", "record", "problem")
    assert found[1] == (2, "x" * 1_000, "larger than 4.9 KiB (`max_record`), and only its beginning is kept")
    assert [(r[0], r[2]) for r in found if r[0] != 2] == ([(1, None), (3, None)] if last else [(1, None)])


def test_a_record_of_the_largest_size_is_taken_in(plain_lake: Lake, tmp_path: Path) -> None:
    text = line(1).strip()
    text = text[:-1] + b" " * (LARGEST - len(text)) + text[-1:]
    for name, end in (("a", b"\n"), ("b", b"\r\n"), ("c", b"")):
        (tmp_path / f"{name}.jsonl").write_bytes(text + end)
    landed = land(plain_lake, spec(tmp_path))
    assert (landed.records, landed.rejected) == (3, 0)


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.csv", "b.csv.gz", "b.parquet"])
def test_a_file_that_is_too_large_is_named_and_waits(plain_lake: Lake, tmp_path: Path, name: str) -> None:
    wire = "change-set" if "jsonl" not in name else "debezium"
    if name.endswith("parquet"):
        pa_parquet.write_table(pa.table({"id": list(range(100_000))}), tmp_path / name)
    else:
        content = b"id\n" + b"1\n" * 100_000 if "csv" in name else line(1) * 1_000
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    few = b"id\n7\n" if wire == "change-set" else line(7)
    (tmp_path / ("a.csv" if wire == "change-set" else "a.jsonl")).write_bytes(few)
    with pytest.raises(InputTooLargeError, match=rf"{name} has more than 97\.7 KiB.*`max_file`"):
        land(plain_lake, spec(tmp_path, wire, file=100_000))
    assert len(rows(plain_lake)) == 1
    assert [f.name for f in RawStep(spec(tmp_path, wire)).new_files(plain_lake)] == [name]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_rows_of_files_are_measured_too(plain_lake: Lake, tmp_path: Path, name: str) -> None:
    values = ["1", "v" * 2 * LARGEST, "3"]
    if name.endswith("csv"):
        (tmp_path / name).write_text("\n".join(["id", *values]) + "\n")
    else:
        pa_parquet.write_table(pa.table({"id": values}), tmp_path / name)
    land(plain_lake, spec(tmp_path, "change-set"))
    found = rows(plain_lake, "record", "problem")
    assert [len(r) == 1_000 and p.startswith("larger than 4.9 KiB") for r, p in found] == [False, True, False]


def test_records_of_python_are_measured_too(plain_lake: Lake, tmp_path: Path) -> None:
    def read(after: Any) -> Iterator[tuple[int, str | bytes]]:
        return iter([(i, r) for i, r in enumerate([line(1), "y" * (LARGEST + 1), line(2)]) if after is None])

    landed = land_records(plain_lake, spec(tmp_path), read)
    assert (landed.records, landed.rejected) == (3, 1)


@pytest.mark.parametrize("end", [b"\n", b""], ids=["LF", "end of file"])
def test_a_whole_record_that_is_too_deep_is_rejected_and_not_called_cut(
    plain_lake: Lake, tmp_path: Path, end: bytes
) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + b'{"a":' * 1_200 + b"1" + b"}" * 1_200 + end)
    landed = land(plain_lake, spec(tmp_path, record=100_000))
    assert (landed.records, landed.rejected) == (2, 1)
    assert rows(plain_lake, "problem")[1] == ("nested deeper than 200 levels",)


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.csv", "b.parquet"])
def test_links_are_not_followed_and_files_before_them_are_taken_in(plain_lake: Lake, tmp_path: Path, name: str) -> None:
    folder, secret = tmp_path / "in", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(line(2))
    (folder / "a.jsonl").write_bytes(line(1))
    (folder / "0.jsonl").symlink_to(tmp_path / "nowhere")
    (folder / name).symlink_to(secret)
    with pytest.raises(LandingFolderError, match=rf"{name} is a link.*put the file itself there"):
        land(plain_lake, spec(folder))
    assert rows(plain_lake, "source_file") == [("a.jsonl",)]
    (folder / name).unlink()
    assert land(plain_lake, spec(folder)).records == 0


def test_names_that_are_no_text_are_taken_in_once_and_shown_in_escapes(plain_lake: Lake, tmp_path: Path) -> None:
    for name in (b"a\xff.jsonl", b"a\\xff.jsonl", b"b\n\t'\".jsonl", "ü.jsonl".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(line(1))
    assert land(plain_lake, spec(tmp_path)).records == 4
    assert land(plain_lake, spec(tmp_path)).records == 0
    assert rows(plain_lake, "source_file") == [("a\\xff.jsonl",), ("a/xff.jsonl",), ("b\n\t'\".jsonl",), ("ü.jsonl",)]


@pytest.mark.parametrize(("declared", "bytes_"), [("1MB", 1_000_000), ("2KiB", 2_048), (77, 77)])
def test_limits_are_declared_for_a_stream(plain_lake: Lake, declared: str | int, bytes_: int) -> None:
    stream = {"name": "s", "tables": ["public.users"], "max_record": declared, "max_file": declared}
    raw = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [stream]})).specs(plain_lake)[0]
    assert isinstance(raw, RawSpec)
    assert raw.limits == Limits(bytes_, bytes_)


@pytest.mark.parametrize("declared", ["much", 0, "-1MB"])
def test_limits_that_are_none_are_refused(tmp_path: Path, declared: str | int) -> None:
    file = tmp_path / "defs.yaml"
    stream = {"name": "s", "tables": ["public.users"], "max_record": declared}
    file.write_text(
        json.dumps({"type": "lake_assets.LakePipeline", "attributes": {"name": "p", "streams": [stream]}}, indent=1)
    )
    with pytest.raises(PipelineError, match="max_record"):
        Pipeline.load(file)
