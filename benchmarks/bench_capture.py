"""Cost of captures: against create_changelog_view, by the table's size, and against reading plain files.

    make bench-capture

Ratios are from one run on one machine. Each figure is the best of several repetitions, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from figures import Required, holds, show

from lake_assets import Lake, LakeConfig
from lake_assets.capture.captured import Capture
from lake_assets.capture.files import manifests
from lake_assets.lake import SparkConfig, thresholds
from lake_assets.lake.limited_cache import LimitedCache
from tests.support.metadata_deletes import commit_deletes, data_files, position_delete

REQUIRED: dict[str, Required] = {
    "upserts / create_changelog_view": ("at least", 15.0),
    "feed / create_changelog_view": ("at least", 5.0),
    "feed, merge-on-read / copy-on-write": ("at most", 1.0),
    "planning, 10,000 files / 100 files": ("at most", 1.5),
    "planning a delete / an append, one manifest": ("at most", 3.0),
    "planning a delete / an append, a hundred manifests": ("at most", 3.0),
    "planning the first delete / an append, one manifest": ("at most", 40.0),
    "planning the first delete / an append, a hundred manifests": ("at most", 40.0),
    "planning the first merge of a hundred manifests / an append": ("at most", 80.0),
    "planning a known merge of a hundred manifests / an append": ("at most", 15.0),
    "append-only window / reading the files": ("at most", 1.1),
    "planning 1 of 1,000,001 files, MB": ("at most", 300.0),
    "catalog requests for an unchanged table": ("at most", 1.0),
}


def best(actions: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Return the seconds of the fastest of `repeat` runs of each action, after two warm-up runs.

    The actions take turns, so other load on the machine affects all of them.
    """
    seconds = dict.fromkeys(actions, float("inf"))
    for turn in range(repeat + 2):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            if turn >= 2:
                seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def noop(frame: Any) -> None:
    """Compute all rows of a DataFrame and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def _changed_table(lake: Lake, name: str, mode: str, rows: int) -> tuple[int, int]:
    """Create a table of 8 files and change 1,101 rows in 4 of them; return the snapshots before and after."""
    spark = lake.spark()
    spark.sql(f"DROP TABLE IF EXISTS lake.{name}")
    modes = ",".join(f"'write.{w}.mode'='{mode}'" for w in ("merge", "update", "delete"))
    spark.sql(
        f"CREATE TABLE lake.{name} (id BIGINT, customer BIGINT, amount DOUBLE, at TIMESTAMP) "
        f"USING iceberg TBLPROPERTIES ('format-version'='3', 'write.distribution-mode'='none', {modes})"
    )
    spark.range(0, rows, 1, 8).selectExpr(
        "id",
        "id * 31 % 1000003 AS customer",
        "id * 1.5D AS amount",
        "timestamp_seconds(1700000000 + id) AS at",
    ).writeTo(f"lake.{name}").append()
    start = lake.table(name).current_snapshot()
    assert start is not None
    half = rows // 2
    spark.sql(
        f"MERGE INTO lake.{name} t USING (SELECT id * {half // 1101} AS id, id < 1000 AS keep FROM range(1101)) s "
        f"ON t.id = s.id AND t.id < {half} "
        "WHEN MATCHED AND s.keep THEN UPDATE SET amount = -1 WHEN MATCHED THEN DELETE"
    )
    end = lake.table(name).current_snapshot()
    assert end is not None
    return start.snapshot_id, end.snapshot_id


def changes(lake: Lake, rows: int, repeat: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure 1,000 updates and 101 deletes in 4 of a table's 8 files."""
    spark = lake.spark()
    lake.ensure_namespace(("bench",))
    actions: dict[str, Callable[[], Any]] = {}
    for mode in ("copy-on-write", "merge-on-read"):
        name = f"bench.{mode.replace('-', '_')}"
        window = _changed_table(lake, name, mode, rows)

        def upserts(name: str = name, window: tuple[int, int] = window) -> None:
            with lake.capture(name, *window) as capture:
                noop(capture.upserts(spark))

        def feed(name: str = name, window: tuple[int, int] = window) -> None:
            with lake.capture(name, *window) as capture:
                noop(capture.feed(spark))

        with lake.capture(name, *window) as capture:
            counted = capture.feed(spark).groupBy("_change_type").count().collect()
            counts = {r["_change_type"]: r["count"] for r in counted}
            assert counts == {"update_before": 1000, "update_after": 1000, "delete": 101}, counts
        actions |= {f"upserts, {mode}": upserts, f"feed, {mode}": feed}
        if mode == "copy-on-write":

            def changelog(name: str = name, window: tuple[int, int] = window) -> None:
                options = f"map('start-snapshot-id', '{window[0]}', 'end-snapshot-id', '{window[1]}')"
                spark.sql(
                    f"CALL lake.system.create_changelog_view(table => '{name}', options => {options}, "
                    "changelog_view => 'bench_changelog')"
                )
                noop(spark.table("bench_changelog"))

            actions["create_changelog_view"] = changelog
    seconds = best(actions, repeat)
    view = seconds["create_changelog_view"]
    return seconds, {
        "upserts / create_changelog_view": view / seconds["upserts, copy-on-write"],
        "feed / create_changelog_view": view / seconds["feed, copy-on-write"],
        "feed, merge-on-read / copy-on-write": seconds["feed, merge-on-read"] / seconds["feed, copy-on-write"],
    }


def append_only(lake: Lake, rows: int, repeat: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure an append of half a table, read through the capture and as plain Parquet files."""
    spark = lake.spark()
    name = "bench.copy_on_write"
    start = lake.table(name).current_snapshot()
    assert start is not None
    spark.table(f"lake.{name}").where(f"id >= {rows // 2}").writeTo(f"lake.{name}").append()
    with lake.capture(name, start.snapshot_id) as capture:
        paths = [f.path for f in capture.files]

        def through_capture() -> None:
            with lake.capture(name, start.snapshot_id) as again:
                noop(again.upserts(spark))

        def directly() -> None:
            noop(spark.read.parquet(*paths))

        def scan() -> None:
            reader = spark.read.option("start-snapshot-id", start.snapshot_id)
            noop(reader.table(f"lake.{name}"))

        actions: dict[str, Callable[[], Any]] = {
            "append-only window": through_capture,
            "its files as Parquet": directly,
            "Iceberg's incremental append scan": scan,
        }
        seconds = best(actions, repeat)
    ratio = seconds["append-only window"] / seconds["its files as Parquet"]
    return seconds, {"append-only window / reading the files": ratio}


def fill(lake: Lake, name: str, files: int, per_manifest: int = 100_000) -> None:
    """Create a table of `files` files as metadata only, without the data files."""
    import pyarrow as pa
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    lake.ensure_namespace(("bench",))
    if lake.exists(name):
        lake.catalog.drop_table(name)
    table = lake.catalog.create_table(name, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for first in range(0, files, per_manifest):
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            for i in range(first, min(files, first + per_manifest)):
                bounds = {1: i.to_bytes(8, "little"), 2: b"name"}
                append.append_data_file(
                    DataFile.from_args(
                        content=DataFileContent.DATA,
                        file_path=f"{table.location()}/data/{i:032d}.parquet",
                        file_format=FileFormat.PARQUET,
                        partition=Record(),
                        record_count=1000,
                        file_size_in_bytes=100_000,
                        column_sizes={1: 8000, 2: 8000},
                        value_counts={1: 1000, 2: 1000},
                        null_value_counts={1: 0, 2: 0},
                        nan_value_counts={},
                        lower_bounds=bounds,
                        upper_bounds=bounds,
                        key_metadata=None,
                        split_offsets=[4],
                        equality_ids=None,
                        sort_order_id=None,
                        spec_id=0,
                    )
                )


def append_one(lake: Lake, name: str) -> int:
    """Append one row; return the snapshot before."""
    import pyarrow as pa

    table = lake.table(name)
    before = table.current_snapshot()
    assert before is not None
    table.append(pa.table({"id": [1], "name": ["new"]}))
    return before.snapshot_id


def planning(lake: Lake, repeat: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure planning one new file in tables of 100 and 10,000 files."""
    actions: dict[str, Callable[[], Any]] = {}
    for files in (100, 10_000):
        name = f"bench.files_{files}"
        fill(lake, name, files)
        start = append_one(lake, name)
        actions[f"planning, {files:,} files"] = lambda n=name, s=start: lake.capture(n, s)
    seconds = best(actions, repeat * 10)
    ratio = seconds["planning, 10,000 files"] / seconds["planning, 100 files"]
    return seconds, {"planning, 10,000 files / 100 files": ratio, **requests(lake)}


def deletes(lake: Lake, repeat: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure planning one position delete in tables of 10,000 files, against planning an append.

    A manifest is indexed when it is first searched for a file; later deletes use the index.
    """
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for layout, per_manifest in (("one manifest", 10_000), ("a hundred manifests", 100)):
        name = f"bench.deletes_{per_manifest}"
        fill(lake, name, 10_000, per_manifest)
        before = append_one(lake, name)
        start = lake.table(name).current_snapshot()
        assert start is not None
        deleted = max(data_files(lake, name), key=lambda e: (e.records, e.path))
        end = commit_deletes(lake, name, deleted, [position_delete(deleted)])
        first = f"planning the first delete, {layout}"
        seconds[first], capture = first_time(lambda n=name, s=start.snapshot_id, e=end: lake.capture(n, s, e))
        assert {f.path for f in capture.files} == {deleted.path}
        actions: dict[str, Callable[[], Any]] = {
            f"planning a delete, {layout}": lambda n=name, s=start.snapshot_id, e=end: lake.capture(n, s, e),
            f"planning an append, {layout}": lambda n=name, s=before, e=start.snapshot_id: lake.capture(n, s, e),
        }
        planned = best(actions, repeat * 10)
        delete, append = planned.values()
        seconds |= planned
        ratios[f"planning a delete / an append, {layout}"] = delete / append
        ratios[f"planning the first delete / an append, {layout}"] = seconds[first] / append
    return seconds, ratios


def first_time(plan: Callable[[], Capture], repeat: int = 7) -> tuple[float, Capture]:
    """Return the least CPU seconds of a first capture in a process, and the capture.

    A busy machine interrupts it, unlike captures of a few milliseconds.
    """
    seconds = float("inf")
    for _ in range(repeat):
        with unittest.mock.patch.object(
            manifests, "INDEXES", LimitedCache(thresholds.INDEX_BYTES, attrgetter("nbytes"))
        ):
            began = time.process_time()
            plan()
            seconds = min(seconds, time.process_time() - began)
    return seconds, plan()


def merges(lake: Lake, repeat: int) -> tuple[dict[str, float], dict[str, float]]:
    """Measure planning an append that also merges a hundred manifests of 10,000 files, against planning an append."""
    name = "bench.merges"
    fill(lake, name, 10_000, 100)
    before = append_one(lake, name)
    with lake.table(name).transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    start = append_one(lake, name)
    first, capture = first_time(lambda: lake.capture(name, start))
    assert len(capture.files) == 1, capture.files
    planned = best(
        {
            "planning a known merge of manifests": lambda: lake.capture(name, start),
            "planning an append before it": lambda: lake.capture(name, before, start),
        },
        repeat * 10,
    )
    known, append = planned.values()
    return {"planning the first merge of manifests": first, **planned}, {
        "planning the first merge of a hundred manifests / an append": first / append,
        "planning a known merge of a hundred manifests / an append": known / append,
    }


def requests(lake: Lake) -> dict[str, float]:
    """Count the catalog requests of a sensor's check of an unchanged table."""
    from sqlalchemy import event

    name = "bench.files_100"
    head = lake.table(name).current_snapshot()
    assert head is not None
    statements: list[str] = []
    catalog: Any = lake.catalog
    event.listen(catalog.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    assert lake.capture(name, head.snapshot_id).is_empty
    return {"catalog requests for an unchanged table": float(len(statements))}


def million(home: Path, files: int) -> dict[str, float]:
    """Measure the memory of a separate process that plans one new file in a table of a million."""
    script = (
        "import sys, pathlib, resource\n"
        "from lake_assets import Lake, LakeConfig\n"
        "lake = Lake(LakeConfig(home=pathlib.Path(sys.argv[1])))\n"
        "capture = lake.capture(sys.argv[2], int(sys.argv[3]))\n"
        "assert len(capture.files) == 1, len(capture.files)\n"
        "status = pathlib.Path('/proc/self/status')\n"
        # On Linux ru_maxrss starts with the value of the parent process.
        "lines = status.read_text().splitlines() if status.exists() else []\n"
        "peak = [int(line.split()[1]) for line in lines if line.startswith('VmHWM')]\n"
        "print(peak[0] if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    lake = Lake(LakeConfig(home=home))
    name = "bench.million"
    fill(lake, name, files)
    start = append_one(lake, name)
    command = [sys.executable, "-c", script, str(home), name, str(start)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    # Linux counts kilobytes, macOS bytes.
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return {f"planning 1 of {files + 1:,} files, MB": int(process.stdout) / unit}


def main() -> int:
    """Run the benchmarks; exit code 1 if a required ratio is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", choices=["changes", "planning", "deletes", "memory"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-capture-") as temp:
        lake = Lake(LakeConfig(home=Path(temp) / "lake", spark=SparkConfig(driver_memory="4g")))
        (Path(temp) / "lake").mkdir()
        if args.only in (None, "planning"):
            s, r = planning(lake, args.repeat)
            seconds, ratios = seconds | s, ratios | r
        if args.only in (None, "planning", "deletes"):
            for part in (deletes, merges):
                s, r = part(lake, args.repeat)
                seconds, ratios = seconds | s, ratios | r
        if args.only in (None, "memory"):
            ratios |= million(Path(temp) / "lake", args.files)
        if args.only in (None, "changes"):
            for part in (changes, append_only):
                s, r = part(lake, args.rows, args.repeat)
                seconds, ratios = seconds | s, ratios | r
            lake.spark().stop()
    return report(seconds, ratios, as_json=args.json)


def report(seconds: dict[str, float], ratios: dict[str, float], *, as_json: bool) -> int:
    """Print the figures; return 1 if one misses its requirement."""
    missed = [name for name, value in ratios.items() if not holds(value, REQUIRED.get(name))]
    if as_json:
        print(json.dumps({"seconds": seconds, "ratios": ratios, "missed": missed}, indent=2))
        return bool(missed)
    print("| what | seconds |\n|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.3f} |")
    print()
    return show(ratios, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
