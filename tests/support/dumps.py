"""Dumps of a whole table in a landing folder, the pipeline that reads them, and the model of their difference."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake_assets import Lake, Pipeline
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.pending import pending_of
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.outcome import Outcome
from tests.support.pipeline_runs import run

Row = Mapping[str, Any]


def stream(*, stream_settings: Mapping[str, Any] | None = None, **table: Any) -> dict[str, Any]:
    """A stream of dumps as in a pipeline's YAML."""
    tables = [{"table": "public.t", "key": "id", **table}]
    return {"name": "dumps", "format": "snapshot", "tables": tables, **(stream_settings or {})}


class DumpFeed:
    """A landing folder of dumps, and the pipeline that reads it; settings of the stream are keyword arguments."""

    def __init__(self, lake: Lake, table: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.lake = lake
        self.declare(table, **settings)
        self.landing: Path = lake.config.home / "landing" / "dumps"

    def declare(self, table: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Declare the stream otherwise."""
        streams = [stream(stream_settings=settings, **(table or {}))]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "made_up", "streams": streams}))

    def dump(
        self, name: str, rows: pa.Table | Sequence[Row], *, kind: str = "parquet", marker: str = "_SUCCESS"
    ) -> Path:
        """Write a dump; without a marker, it is not complete yet."""
        folder = self.landing / name
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / f"part-0.{kind}", rows)
        if marker:
            (folder / marker).touch()
        return folder

    @property
    def spec(self) -> RawSpec:
        """The raw table."""
        spec = self.pipeline.specs(self.lake)[0]
        assert isinstance(spec, RawSpec)
        return spec

    @property
    def is_due(self) -> bool:
        """Whether the sensor would ask for a run of the raw table."""
        return bool(pending_of(self.lake, self.spec))

    def land(self) -> Outcome:
        """Run the step of the raw table alone."""
        return absorb(self.lake, self.spec)

    def run(self) -> dict[str, Outcome]:
        """Run the pipeline; the first table that failed raises its error."""
        return run(self.lake, self.pipeline)

    def outcomes(self) -> dict[str, Outcome]:
        """Run the pipeline; failures are outcomes."""
        return {o.table: o for o in self.pipeline.run(self.lake)}

    def deliver(self, name: str, rows: pa.Table | Sequence[Row], **options: Any) -> dict[str, Outcome]:
        """Write a dump and run."""
        self.dump(name, rows, **options)
        return self.run()

    def rows(self, table: str = "final.t", columns: Sequence[str] | None = None) -> Counter[tuple[Any, ...]]:
        """The rows of a table, without those columns that the product adds."""
        frame = self.lake.spark().table(self.lake.sql_name(table))
        names = columns or [c for c in frame.columns if not c.startswith("_")]
        return Counter(tuple(map(comparable, r)) for r in frame.select(*(f"`{n}`" for n in names)).collect())

    def events(self) -> list[tuple[str, str]]:
        """Type and row of each record in raw, in order."""
        if not self.lake.exists("raw.dumps"):
            return []
        found = self.lake.table("raw.dumps").scan(selected_fields=("position", "record")).to_arrow().sort_by("position")
        return [change_of(r) for r in found["record"].to_pylist()]


def change_of(record: str) -> tuple[str, str]:
    """Type of change and row of a record in raw."""
    row = json.loads(record)
    row = row.get("row", row.get("@text", row))
    kind = row.pop("_change_type")
    for name in ("_commit_version", "_commit_timestamp"):
        row.pop(name)
    return kind, json.dumps(row, sort_keys=True)


def write_rows(file: Path, rows: Any) -> None:
    """Write a file of Parquet, CSV or JSON lines, by its name."""
    table: Any = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(map(dict, rows)))
    if file.suffix == ".parquet":
        pq.write_table(table, file)
        return
    listed: list[dict[str, Any]] = table.to_pylist()
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in listed))
        return
    names = table.column_names
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(names)
        writer.writerows([row.get(n) for n in names] for row in listed)


def touch(file: Path, seconds: float) -> None:
    """Date a file so many seconds from its time."""
    at = file.stat().st_mtime + seconds
    os.utime(file, (at, at))


def comparable(value: Any) -> Any:
    """A value that equals itself only: NaN equals NaN, and 0.0 and -0.0 differ."""
    if isinstance(value, float):
        return repr(value)
    return tuple(map(comparable, value)) if isinstance(value, list | tuple) else value
