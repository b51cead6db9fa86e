"""`lake-assets generate-events`: whole files of any format, whose rows follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from lake_assets.commands.generate import generate_events
from lake_assets.errors import ConfigError
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats.files.csv_files import csv_records
from lake_assets.formats.files.parquet_files import parquet_records
from lake_assets.formats.files.record_files import LocalFile
from lake_assets.lake.counts import plural
from tests.support.generated_rows import replay

APP = typer.Typer()
APP.command()(generate_events)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(APP, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", ENCODERS)
def test_every_format_in_files_of_so_many_records(tmp_path: Path, name: str) -> None:
    output = run(tmp_path / "out", "--format", name, "--events", 40, "--events-a-file", 25, "--key-changes", 0.2)
    files = sorted((tmp_path / "out").iterdir())
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert f"{plural(len(lines), 'record')} in {plural(len(files), 'file')} in" in output
    assert [len(f.read_text(encoding="utf-8").splitlines()) for f in files[:-1]] == [25] * (len(files) - 1)
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_the_rows_that_the_table_holds_in_the_end(tmp_path: Path) -> None:
    run(tmp_path / "out", "--events", 50, "--seed", 4, "--rows", tmp_path / "rows.jsonl")
    written = [json.loads(line)["id"] for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(written) == sorted(replay(Source(Workload(seed=4, events=50))))


def test_rows_as_csv_and_parquet_begin_a_new_file_where_the_columns_change(tmp_path: Path) -> None:
    common = ("--events", 60, "--schema-changes", 2, "--format")
    run(tmp_path / "csv", *common, "change-set", "--files", "csv")
    run(tmp_path / "parquet", *common, "change-set", "--files", "parquet")
    csv, parquet = (sorted((tmp_path / kind).iterdir()) for kind in ("csv", "parquet"))
    assert len(csv) == len(parquet) == 3
    assert len({tuple((f.name, str(f.type)) for f in pq.read_schema(file)) for file in parquet}) == 3
    texts = [json.loads(r)["@text"] for file in csv for _, r, _ in csv_records(LocalFile(file))]
    typed = [json.loads(r)["row"] for file in parquet for _, r, _ in parquet_records(LocalFile(file))]
    assert [(t["FLAG"], t["id"]) for t in texts] == [(t["FLAG"], str(t["id"])) for t in typed]
    assert [t["name"] for t in texts] == [t["name"] for t in typed]


@pytest.mark.parametrize(
    "wrong",
    [("--format", "avro"), ("--distribution", "normal"), ("--table", "items"), ("--files", "csv"), ("--late", "2")],
)
def test_what_cannot_be_generated_is_named(tmp_path: Path, wrong: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=wrong[1]) if wrong[0] != "--late" else pytest.raises(ConfigError):
        run(tmp_path, *wrong)
