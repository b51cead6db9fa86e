"""Cost of turning raw records into typed staging tables: events per second, and against a Python UDF.

    make bench-events

Rates are from one run on one machine: from the raw records of one landing to the commit of the staging table, including
planning, parsing, checking and writing; the best of several repetitions after a warm-up. The alternative parses the
same records into the same columns with a Python function per row, and appends them. Landing is compared with routing
each record alone. CPU seconds (of this process and the JVM) vary less than seconds on a machine that is used for other
things as well. Many small tables of one stream are compared with one table of as many events: the difference is the
fixed cost per table.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from figures import Required, cpu_seconds, show
from pyspark.sql import Row
from pyspark.sql import functions as F

from lake_assets import Lake, LakeConfig
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw.landing import RawStep, land, land_records
from lake_assets.ingest.records.parsing import parse
from lake_assets.ingest.records.stream_routing import StreamRouter
from lake_assets.ingest.staging.staging_step import StagingStep
from lake_assets.lake import SparkConfig, TableId

ITEMS = SourceTable("public", "items")
# How events are generated, and the format that reads them.
FORMATS = {
    "debezium, with schema": ("debezium", "debezium"),
    "debezium, schema stripped": ("debezium-plain", "debezium"),
    "wal2json v2": ("wal2json-v2", "wal2json-v2"),
    "simplified, with types": ("simplified-typed", "simplified"),
    "change set (JSON lines)": ("change-set", "change-set"),
}
# Distinct events.
DISTINCT = 20_000
REQUIRED: dict[str, Required] = {
    "debezium, with schema: events a second": ("at least", 200_000),
    "debezium, schema stripped: events a second": ("at least", 200_000),
    "debezium, with schema: times faster than a Python UDF": ("at least", 2.0),
    "landing 8 times the records, peak memory": ("at most", 1.3),
    "a look at 100,000 landed files, seconds": ("at most", 1.0),
}


def lines_of(encoder: str) -> list[str]:
    """Return some events, to be repeated: they are generated in Python, and more of them would take minutes."""
    workload = Workload(seed=1, events=DISTINCT, keys=DISTINCT // 4)
    lines = [line for t in Source(workload) for line in ENCODERS[encoder](t, workload)]
    return [line for line in lines if '"action":"B"' not in line and '"action":"C"' not in line]


def raw_table(lake: Lake, name: str, encoder: str, reader: str, events: int) -> tuple[RawSpec, int, float, float]:
    """Land `events` records in a raw table; return its spec, the number of records, the seconds and CPU seconds."""
    lines = lines_of(encoder)
    spec = RawSpec(TableId(("raw",), name), None, reader, "bench", about=ITEMS)

    def read(after: Any) -> Iterator[tuple[int, str]]:
        for i in range(0 if after is None else after + 1, events):
            yield i, lines[i % len(lines)]

    began, cpu = time.perf_counter(), cpu_seconds()
    landed = land_records(lake, spec, read)
    return spec, landed.records, time.perf_counter() - began, cpu_seconds() - cpu


def landing(lake: Lake, name: str, encoder: str, reader: str, events: int, repeat: int) -> tuple[RawSpec, list[float]]:
    """Return the spec of a raw table with the records, and four rates, each the best of several landings.

    The rates are the records landed per second and per CPU second, and the same if each record is routed alone.
    """
    rates = [0.0] * 4
    for turn in range(repeat):
        with mock.patch.object(StreamRouter, "route", StreamRouter.route_alone):
            _, records, *seconds = raw_table(lake, f"{name}_alone{turn}", encoder, reader, events)
        rates[2:] = [max(rate, records / s) for rate, s in zip(rates[2:], seconds, strict=True)]
        raw, records, *seconds = raw_table(lake, f"{name}_{turn}", encoder, reader, events)
        rates[:2] = [max(rate, records / s) for rate, s in zip(rates[:2], seconds, strict=True)]
        if turn == repeat - 1:
            return raw, rates
    raise ValueError("at least one landing is needed")


def stage(lake: Lake, raw: RawSpec, repeat: int) -> tuple[float, float, TableId]:
    """Fill the staging table several times after a warm-up; return the least seconds and CPU seconds, and the table."""
    table = TableId(("staging",), raw.table.name)
    spec = StagingSpec(table, raw.table, ITEMS, raw.format, "bench", key=("id",))
    best = best_cpu = float("inf")
    for turn in range(repeat + 1):
        lake.spark().sql(f"DROP TABLE IF EXISTS {lake.sql_name(table)} PURGE")
        began, cpu = time.perf_counter(), cpu_seconds()
        outcome = StagingStep(spec).stage(lake)
        if turn:
            best = min(best, time.perf_counter() - began)
            best_cpu = min(best_cpu, cpu_seconds() - cpu)
        assert outcome.status == "absorbed", outcome
        assert "rejected" not in outcome.details, outcome
    return best, best_cpu, table


def parts(lake: Lake, raw: RawSpec, repeat: int) -> dict[str, float]:
    """Return cumulative seconds up to the end of each part of staging: reading records, finding types, typed rows.

    Nothing is written.
    """
    spec = StagingSpec(TableId(("staging",), raw.table.name), raw.table, ITEMS, raw.format, "bench", key=("id",))
    records = lake.spark().table(lake.sql_name(raw.table)).where(F.col("source_table") == str(ITEMS))
    text = F.coalesce("payload", "record")

    def read() -> None:
        records.select(text).write.format("noop").mode("overwrite").save()

    def json_alone() -> None:
        # Extract one field that every event has: measures Spark's JSON parser alone.
        field = F.coalesce(F.get_json_object(text, "$.value.payload.op"), F.get_json_object(text, "$.value.op"))
        records.select(field).write.format("noop").mode("overwrite").save()

    def find_types() -> None:
        parse(records, spec, {})

    def typed_rows() -> None:
        rows = parse(records, spec, {}).rows
        assert rows is not None
        rows.write.format("noop").mode("overwrite").save()

    seconds: dict[str, float] = {}
    for name, part in (
        ("reading the records", read), ("reading, and one walk through the JSON", json_alone),
        ("finding the types", find_types), ("all of it but sorting and writing", typed_rows),
    ):  # fmt: skip
        best = float("inf")
        for turn in range(repeat + 1):
            began = time.perf_counter()
            part()
            if turn:
                best = min(best, time.perf_counter() - began)
        seconds[name] = best
    return seconds


def with_udf(lake: Lake, raw: RawSpec, staged: TableId, repeat: int) -> float:
    """Return the seconds of the alternative, and check that it writes the same number of rows."""
    spark = lake.spark()
    name = lake.sql_name(TableId(("bench",), "by_udf"))
    lake.ensure_namespace(("bench",))
    columns = "id BIGINT, name STRING, quantity INT, amount DECIMAL(12,2), score DOUBLE, born DATE, seen TIMESTAMP, "
    columns += "active BOOLEAN, ref STRING, raw BINARY, tags ARRAY<STRING>, note STRING"
    parse = F.udf(_parse, f"op STRING, sequence STRING, time TIMESTAMP, row STRUCT<{columns}>")
    best = float("inf")
    for turn in range(repeat + 1):
        spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
        spark.sql(
            f"CREATE TABLE {name} (op STRING, sequence STRING, time TIMESTAMP, {columns}, position BIGINT, "
            "arrived_at TIMESTAMP) USING iceberg TBLPROPERTIES ('format-version'='3', "
            "'write.parquet.compression-codec'='zstd', 'write.distribution-mode'='none')"
        )
        began = time.perf_counter()
        records = spark.table(lake.sql_name(raw.table)).where(F.col("source_table") == str(ITEMS))
        parsed = records.select(parse("record").alias("e"), "position", "arrived_at")
        parsed.select("e.op", "e.sequence", "e.time", "e.row.*", "position", "arrived_at").writeTo(name).append()
        if turn:
            best = min(best, time.perf_counter() - began)
    assert spark.table(name).count() == spark.table(lake.sql_name(staged)).count()
    return best


def _parse(record: str) -> Any:
    """Parse a record in Python, without checking its values."""
    import datetime as dt
    from decimal import Decimal

    event = json.loads(record)["value"]["payload"]
    row = event["after"] or event["before"]
    source = event["source"]
    born, seen, amount, raw = row.get("born"), row.get("seen"), row.get("amount"), row.get("raw")
    return Row(
        op=event["op"],
        sequence=str(source["lsn"]),
        time=dt.datetime.fromtimestamp(source["ts_ms"] / 1000, dt.UTC),
        row=Row(
            id=row["id"],
            name=row.get("name"),
            quantity=row.get("quantity"),
            amount=Decimal(int.from_bytes(base64.b64decode(amount), "big", signed=True)).scaleb(-2) if amount else None,
            score=row.get("score"),
            born=dt.date(1970, 1, 1) + dt.timedelta(days=born) if born is not None else None,
            seen=dt.datetime.fromisoformat(seen) if seen else None,
            active=row.get("active"),
            ref=row.get("ref"),
            raw=base64.b64decode(raw) if raw else None,
            tags=row.get("tags"),
            note=row.get("note"),
        ),
    )


def memory(home: Path, records: int) -> dict[str, float]:
    """Return the peak memory of landing a file, and a file 8 times as large, each in a separate process."""
    script = (
        "import sys, pathlib\n"
        "from lake_assets import Lake, LakeConfig\n"
        "from lake_assets.lake import TableId\n"
        "from lake_assets.ingest.raw.landing import land\n"
        "from lake_assets.ingest.ingest_specs import RawSpec\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "lake = Lake(LakeConfig(home=folder / 'lake'))\n"
        "land(lake, RawSpec(TableId(('raw',), 'r'), folder / 'in', 'debezium', 'bench'))\n"
        "lines = pathlib.Path('/proc/self/status').read_text().splitlines()\n"
        "print([int(line.split()[1]) for line in lines if line.startswith('VmHWM')][0])\n"
    )
    lines = lines_of("debezium-plain")
    peaks: list[int] = []
    for factor in (1, 8):
        folder = home / f"memory{factor}"
        (folder / "in").mkdir(parents=True)
        (folder / "lake").mkdir()
        with (folder / "in" / "a.jsonl").open("w", encoding="utf-8") as file:
            for i in range(records * factor):
                file.write(lines[i % len(lines)] + "\n")
        process = subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
        )
        peaks.append(int(process.stdout))
    return {
        f"landing {records:,} records, peak MB": peaks[0] / 1024,
        f"landing {8 * records:,} records, peak MB": peaks[1] / 1024,
        "landing 8 times the records, peak memory": peaks[1] / peaks[0],
    }


def looks(home: Path, files: int) -> dict[str, float]:
    """Return the seconds of listing a landing folder if all of its files are landed, and if one is new."""
    folder = home / "many"
    folder.mkdir()
    lake = Lake(LakeConfig(home=home / "looks"))
    (home / "looks").mkdir()
    tombstone = '{"destination":"x","key":null,"value":null}\n'
    for i in range(files):
        (folder / f"{i:08}.jsonl").write_text(tombstone)
    spec = RawSpec(TableId(("raw",), "many"), Landing.parse(folder), "debezium", "bench")
    began = time.perf_counter()
    land(lake, spec)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    assert RawStep(spec).new_files(lake) == []
    first = time.perf_counter() - began
    began = time.perf_counter()
    assert RawStep(spec).new_files(lake) == []
    second_look = time.perf_counter() - began
    (folder / "new.jsonl").write_text(tombstone)
    began = time.perf_counter()
    assert len(RawStep(spec).new_files(lake)) == 1
    look_with_new = time.perf_counter() - began
    return {
        f"landing {files:,} files, seconds": seconds,
        f"the first look at {files:,} landed files, seconds": first,
        f"a look at {files:,} landed files, seconds": max(second_look, look_with_new),
    }


def tables_of_one_stream(home: Path, tables: int, events: int, batch: int) -> dict[str, float]:
    """Return the seconds per table of staging many small tables of one stream: first load, and a micro-batch.

    Also as multiples of the seconds for one table with as many events.

    Args:
        home: a folder for the lake.
        tables: number of tables.
        events: changes per table of the first load.
        batch: changes per table of the micro-batch.
    """
    (home / "tables").mkdir()
    lake = Lake(LakeConfig(home=home / "tables", spark=SparkConfig(driver_memory="3g")))

    def staged(stream: str, names: list[str], changes: int) -> list[float]:
        """Land two batches of the stream's tables; return the seconds of staging each, table by table."""
        raw = RawSpec(TableId(("raw",), stream), None, "debezium", "bench")
        specs = [
            StagingSpec(TableId(("staging", stream), n), raw.table, SourceTable("public", n), raw.format, "bench")
            for n in names
        ]
        seconds: list[float] = []
        for turn, share in enumerate((changes, max(1, changes * batch // events))):
            lines = [
                line
                for i, name in enumerate(names)
                for t in Source(Workload(seed=turn * tables + i, events=share, table=("public", name)))
                for line in ENCODERS["debezium"](t, Workload(table=("public", name)))
            ]
            land_records(lake, raw, lambda after, turn=turn, lines=lines: _after(after, turn, lines))
            began = time.perf_counter()
            for spec in specs:
                outcome = StagingStep(spec).stage(lake)
                assert outcome.status == "absorbed", outcome
                assert "rejected" not in outcome.details, outcome
            seconds.append(time.perf_counter() - began)
        return seconds

    # Warm up: Spark has not compiled anything yet.
    staged("warm", ["a", "b", "c"], events)
    many = staged("many", [f"t{i}" for i in range(tables)], events)
    one = staged("one", ["t"], tables * events)
    lake.spark().stop()
    figures: dict[str, float] = {}
    for what, of_many, of_one in zip(("first load", "a micro-batch"), many, one, strict=True):
        figures[f"{tables} tables of one stream, {what}: seconds per table"] = of_many / tables
        figures[f"{tables} tables of one stream, {what}: times one table with as many events"] = of_many / of_one
    return figures


def _after(after: Any, turn: int, lines: list[str]) -> Iterator[tuple[list[int], str]]:
    """Yield the lines after an offset, with their offsets."""
    for i, line in enumerate(lines):
        if after is None or [turn, i] > after:
            yield [turn, i], line


def main() -> int:
    """Run the benchmarks; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--only", choices=["rates", "memory", "looks", "tables"])
    parser.add_argument("--tables", type=int, default=20, help="tables of the one stream")
    parser.add_argument("--table-events", type=int, default=300, help="changes per table of that stream")
    parser.add_argument("--format", action="append", help="only this format; may be repeated")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-events-") as temp:
        home = Path(temp)
        if args.only in (None, "looks"):
            figures |= looks(home, args.files)
        if args.only in (None, "memory"):
            figures |= memory(home, 500_000)
        if args.only in (None, "tables"):
            figures |= tables_of_one_stream(home, args.tables, args.table_events, 5)
        if args.only in (None, "rates"):
            figures |= rates(home, args.events, args.repeat, args.format)
    return show(figures, REQUIRED)


def rates(home: Path, events: int, repeat: int, only: list[str] | None) -> dict[str, float]:
    """Return the events per second of each format, and for Debezium the factor against a Python UDF."""
    figures: dict[str, float] = {}
    (home / "rates").mkdir()
    lake = Lake(LakeConfig(home=home / "rates", spark=SparkConfig(driver_memory="6g")))
    for i, (name, (encoder, reader)) in enumerate(FORMATS.items()):
        if only and name not in only:
            continue
        raw, (landed, landed_cpu, alone, alone_cpu) = landing(lake, f"events{i}", encoder, reader, events, repeat)
        figures[f"{name}: records landed a second"] = landed
        figures[f"{name}: records landed a CPU second"] = landed_cpu
        figures[f"{name}: landing, times faster than each record alone"] = landed / alone
        figures[f"{name}: landing, times less CPU than each record alone"] = landed_cpu / alone_cpu
        seconds, cpu, staged = stage(lake, raw, repeat)
        rows = lake.spark().table(lake.sql_name(staged)).count()
        figures[f"{name}: events a second"] = rows / seconds
        figures[f"{name}: events a CPU second"] = rows / cpu
        if reader == "debezium":
            for part, part_seconds in parts(lake, raw, repeat).items():
                figures[f"{name}: {part}, seconds of {seconds:.1f}"] = part_seconds
        if reader == encoder == "debezium":
            figures[f"{name}: times faster than a Python UDF"] = with_udf(lake, raw, staged, 1) / seconds
        print(f"{name}: {rows:,} events staged in {seconds:.2f} s", file=sys.stderr)
    lake.spark().stop()
    return figures


if __name__ == "__main__":
    sys.exit(main())
