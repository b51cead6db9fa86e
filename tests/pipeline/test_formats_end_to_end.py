"""Every format from end to end: landed records become typed events in staging, and the source's rows in final."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.commands.generate import generate_events
from lake_assets.examples import shop
from lake_assets.examples.event_generator import COLUMNS, KEY, Source, Workload, delivered
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats.event_model import DELETE, TECHNICAL
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.outcome import Outcome
from tests.support.expected import FORMATS, FormatCase, shown
from tests.support.pipeline_runs import run
from tests.support.plain_rows import rows

ITEMS = "public.items"


def pipeline(stream: dict[str, Any]) -> Pipeline:
    declared = {"name": "p", "streams": [{"name": "events", "tables": [ITEMS], **stream}]}
    return Pipeline(PipelineConfig.model_validate(declared))


def landing(lake: Lake, stream: str = "events") -> Path:
    folder = lake.config.home / "landing" / stream
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def declared(case: FormatCase) -> dict[str, Any]:
    key = {"key": list(case.hints.key)} if case.hints.key else {}
    return {"format": case.reads, "tables": [{"table": ITEMS, **key}]}


OFTEN = ("debezium",)


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long) for n in FORMATS])
def test_late_repeated_and_moved_rows_of_every_format_become_the_rows_of_the_source(lake: Lake, name: str) -> None:
    """Without omitted values: the final table fills these in for a row whose key changes."""
    workload = Workload(
        seed=11, events=100, keys=20, distribution="zipf", key_changes=0.3, nulls=0.2,
        late=0.1, lateness=20, duplicates=0.1,
    )  # fmt: skip
    source, case = Source(workload), FORMATS[name]
    lines = [line for t in delivered(workload, source) for line in ENCODERS[name](t, workload)]
    p, half = pipeline(declared(case)), len(lines) // 2
    for i, part in enumerate((lines[:half], lines[half:])):
        (landing(lake) / f"{i}.jsonl").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
        outcomes = run(lake, p)
        assert "rejected" not in outcomes["staging.items"].details
    actual = rows(lake, "final.items")
    for row in actual:
        row.pop("CDC_TIMESTAMP", None)
    expected = [shown(case, COLUMNS, row) for row in source.rows.values()]
    assert sorted(actual, key=lambda r: r[KEY]) == sorted(expected, key=lambda r: r[KEY])


@pytest.mark.long  # as records of the other formats
@pytest.mark.parametrize("files", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["change-set", "change-feed"])
def test_rows_of_files_become_the_rows_of_the_source(lake: Lake, name: str, files: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    generate_events(
        landing(lake), format=name, files=files, events=120, keys=15, key_changes=0.2, events_a_file=40, rows=out
    )
    key = {"table": ITEMS, "key": KEY}
    kinds = {"amount": "decimal(12,2)", "born": "date", "seen": "timestamp", "raw": "binary", "tags": "array<string>"}
    run(lake, pipeline({"format": name, "tables": [{**key, "types": kinds if files == "csv" else {}}]}))
    expected = {r[KEY]: r for r in map(json.loads, out.read_text().splitlines())}
    actual = {r[KEY]: r for r in rows(lake, "final.items")}
    assert actual.keys() == expected.keys()
    for at, row in expected.items():
        assert actual[at].get("name") == row.get("name")
        assert actual[at].get("quantity") == row.get("quantity")
        assert float(actual[at].get("amount") or 0) == float(row.get("amount") or 0)


@pytest.mark.long  # test_schema_history does so in every run
@pytest.mark.parametrize(
    "names",
    [
        ("debezium", "wal2json-v1"),
        ("debezium-plain", "wal2json-v2", "simplified-typed"),
    ],
)
def test_columns_that_come_change_and_go(lake: Lake, names: tuple[str, ...]) -> None:
    """The generator alters the table four times: columns appear, widen and disappear within one stream."""
    workload = Workload(seed=3, events=150, keys=12, schema_changes=4)
    for name in names:
        source, case = Source(workload), FORMATS[name]
        transactions = list(delivered(workload, source))
        lines = [line for t in transactions for line in ENCODERS[name](t, workload)]
        kinds = {column: kind for t in transactions for change in t.changes for column, kind in change.columns.items()}
        stream = name.replace("-", "_")
        config = {**declared(case), "name": stream, "namespace": stream}
        p = Pipeline(PipelineConfig.model_validate({"name": stream, "streams": [config]}))
        for i in range(3):
            part = lines[i * len(lines) // 3 : (i + 1) * len(lines) // 3]
            (landing(lake, stream) / f"{i}.jsonl").write_text("".join(f"{x}\n" for x in part), encoding="utf-8")
            run(lake, p)
        actual = {r[KEY]: r for r in rows(lake, f"final.{stream}.items")}
        assert actual.keys() == {r[KEY] for r in source.rows.values()}
        for row in source.rows.values():
            now = shown(case, kinds, row)
            assert {c: v for c, v in actual[row[KEY]].items() if c in now} == now, name


# --- one workload, three recordings -----------------------------------------------------------------------------

RECORDINGS = {"debezium": ("debezium", 727), "wal2json-v1": ("wal2json_v1", 866), "wal2json-v2": ("wal2json_v2", 2775)}
TABLES = {"users": "id", "accounts": "account_id", "order_item": ["order_id", "line"], "user_city": "user_id"}
TABLES_AND_CLICKS = [*TABLES, "clicks"]
_TIES = {"_sequence", "_position", "_index", "_event_time", "_arrived_at", "_unavailable"}


def staged(lake: Lake, table: str) -> list[tuple[str, dict[str, Any]]]:
    """Return op and row of every event in the order of the stream; for a delete, its key."""
    actual = sorted(rows(lake, table), key=lambda r: (r["_position"], r["_index"]))
    key = TABLES.get(table.rsplit(".", 1)[-1], [])
    keys = [key] if isinstance(key, str) else key
    return [
        (
            r["_op"],
            {c: v for c, v in r.items() if c not in TECHNICAL and (r["_op"] != DELETE or not keys or c in keys)},
        )
        for r in actual
    ]


@pytest.mark.long
def test_three_recordings_of_one_workload_give_the_same_staging_rows(lake: Lake) -> None:
    events: dict[str, dict[str, list[Any]]] = {}
    for name, (file, seed) in RECORDINGS.items():
        stream = file
        with gzip.open(shop.DATA / f"{file}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as there:
            lines = list(there)[seed:]  # Debezium's seed rows are a snapshot, which the others do not have
        (landing(lake, stream) / "0.jsonl").write_text("".join(lines), encoding="utf-8")
        config = {
            "name": stream,
            "format": name,
            "namespace": stream,
            "tables": [f"public.{t}" for t in TABLES_AND_CLICKS],
        }
        p = Pipeline(PipelineConfig.model_validate({"name": stream, "streams": [config]}))
        outcomes = run_staging(lake, p)
        assert not any("rejected" in o.details for o in outcomes)
        events[name] = {t: staged(lake, f"staging.{stream}.{t}") for t in TABLES_AND_CLICKS}
    for table in TABLES_AND_CLICKS:
        assert len(events["debezium"][table]) > 50
        assert events["debezium"][table] == events["wal2json-v1"][table] == events["wal2json-v2"][table], table


def run_staging(lake: Lake, p: Pipeline) -> list[Outcome]:
    selected = [str(s.table) for s in p.specs(lake) if s.table.namespace[0] != "final"]
    return list(run(lake, p, selected).values())


# --- streams ----------------------------------------------------------------------------------------------------


def lines_of(name: str, workload: Workload) -> tuple[list[str], Source]:
    source = Source(workload)
    return [line for t in delivered(workload, source) for line in ENCODERS[name](t, workload)], source


def ids(lake: Lake, table: str) -> Counter[Any]:
    return Counter(r[KEY] for r in rows(lake, table))


@pytest.mark.long
def test_records_of_another_systems_table_are_taken_in_snapshot_by_snapshot(lake: Lake) -> None:
    lines, source = lines_of("debezium-plain", Workload(seed=5, events=90, keys=10, key_changes=0.3))
    spark = lake.spark()
    lake.ensure_namespace(("kafka",))
    spark.sql(f"CREATE TABLE {lake.sql_name('kafka.events')} (p INT, o BIGINT, k STRING, v BINARY) USING iceberg")
    messages = [json.loads(line) for line in lines]
    table = {"table": "kafka.events", "value": "v", "key": "k", "order": ["p", "o"]}
    p = pipeline({"format": "debezium", "source": table, "tables": [ITEMS]})
    for i in range(0, len(messages), 40):
        part = [
            (
                0,
                i + n,
                json.dumps(m["key"]) if m["key"] else None,
                json.dumps(m["value"]).encode() if m["value"] else None,
            )
            for n, m in enumerate(messages[i : i + 40])
        ]
        part.reverse()  # `order` decides, not the stored order
        frame = rows_in_memory(spark, part, "p INT, o BIGINT, k STRING, v BINARY")
        frame.coalesce(1).writeTo(lake.sql_name("kafka.events")).append()
        if i:
            run(lake, p)
    spark.sql("CALL lake.system.rewrite_data_files(table => 'kafka.events', options => map('rewrite-all', 'true'))")
    assert p.pending(lake) == []  # a compaction has no records, and is not read again
    assert {o.status for o in run(lake, p).values()} == {"nothing"}
    assert ids(lake, "final.items") == Counter(r[KEY] for r in source.rows.values())
    assert len(rows(lake, "raw.events")) == len(messages)
    spark.sql(f"UPDATE {lake.sql_name('kafka.events')} SET o = o + 1 WHERE o < 3")
    failed = next(o for o in p.run(lake) if o.table == "raw.events")
    assert "UnsupportedEventError" in (failed.error or "")
    assert "rewrote files (overwrite)" in (failed.error or "")


@pytest.mark.long
@pytest.mark.parametrize("events", [5, pytest.param(12, marks=pytest.mark.long)])
def test_records_that_their_table_deletes_later_stay_taken_in(lake: Lake, events: int) -> None:
    """Retention by merge-on-read hides rows of files, and adds no record."""
    lines, _ = lines_of("wal2json-v2", Workload(seed=7, events=events, keys=4))
    spark, name = lake.spark(), lake.sql_name("kafka.events")
    lake.ensure_namespace(("kafka",))
    spark.sql(
        f"CREATE TABLE {name} (o BIGINT, v STRING) USING iceberg TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    source = {"table": "kafka.events", "value": "v", "order": ["o"]}
    p = pipeline({"format": "wal2json-v2", "source": source, "tables": [ITEMS]})
    for i in range(0, len(lines), 4):
        part = [(n, line) for n, line in enumerate(lines[i : i + 4], i)]
        rows_in_memory(spark, part, "o BIGINT, v STRING").coalesce(1).writeTo(name).append()
        spark.sql(f"DELETE FROM {name} WHERE o = {i}")
        run(lake, p)
    spark.sql(f"DELETE FROM {name} WHERE o < 6")
    run(lake, p)
    # The first record of each batch was deleted in the same window, but its snapshot had it.
    assert len(rows(lake, "raw.events")) == len(lines)
    assert p.pending(lake) == []


@pytest.mark.long  # as snapshot by snapshot
def test_the_oldest_snapshot_of_another_systems_table_stands_for_all_before_it(lake: Lake) -> None:
    """If a compaction is the oldest remaining snapshot, records appended before it still land, once."""
    lines, source = lines_of("wal2json-v2", Workload(seed=5, events=60, keys=10))
    spark, name = lake.spark(), lake.sql_name("kafka.events")
    lake.ensure_namespace(("kafka",))
    spark.sql(f"CREATE TABLE {name} (o BIGINT, v STRING) USING iceberg")

    def append(numbers: range) -> None:
        part = pa.table({"o": pa.array(numbers, pa.int64()), "v": [lines[i] for i in numbers]})
        spark.createDataFrame(part).coalesce(1).writeTo(name).append()

    third = len(lines) // 3
    append(range(third))
    append(range(third, 2 * third))
    spark.sql("CALL lake.system.rewrite_data_files(table => 'kafka.events', options => map('rewrite-all', 'true'))")
    spark.sql("CALL lake.system.expire_snapshots(table => 'kafka.events', older_than => now(), retain_last => 1)")
    assert [s.summary.operation.value for s in lake.table("kafka.events").metadata.snapshots if s.summary] == [
        "replace"
    ]
    p = pipeline(
        {"format": "wal2json-v2", "source": {"table": "kafka.events", "value": "v", "order": ["o"]}, "tables": [ITEMS]}
    )
    run(lake, p)
    append(range(2 * third, len(lines)))
    run(lake, p)
    assert len(rows(lake, "raw.events")) == len(lines)
    assert ids(lake, "final.items") == Counter(r[KEY] for r in source.rows.values())
    append(range(1))
    append(range(1))
    spark.sql("CALL lake.system.expire_snapshots(table => 'kafka.events', older_than => now(), retain_last => 1)")
    failed = next(o for o in p.run(lake) if o.table == "raw.events")
    assert "has lost snapshots that were not landed" in (failed.error or "")


@pytest.mark.long
def test_records_of_a_python_iterator_are_taken_in_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, source = lines_of("wal2json-v2", Workload(seed=6, events=90, keys=10, key_changes=0.3))
    monkeypatch.setattr("lake_assets.lake.thresholds.ROWS_A_COMMIT", 30)
    p = pipeline({"format": "wal2json-v2"})

    def read(after: int | None) -> Iterable[tuple[int, Any]]:
        for offset in range(0 if after is None else after + 1, available):
            line = lines[offset]
            yield offset, line if offset % 3 == 0 else line.encode() if offset % 3 == 1 else json.loads(line)

    available = 0
    assert p.land(lake, "events", read).records == 0
    available = 70
    assert p.land(lake, "events", read).records == 70
    assert p.offset(lake, "events") == 69
    assert len(lake.table("raw.events").metadata.snapshots) == 3
    available = len(lines)

    def broken(after: int | None) -> Iterable[tuple[int, Any]]:
        yield from list(read(after))[:5]
        raise OSError("the broker is away")

    with pytest.raises(OSError, match="broker"):
        p.land(lake, "events", broken)
    p.land(lake, "events", read)
    assert [r["record"] for r in sorted(rows(lake, "raw.events"), key=lambda r: r["position"])][::3] == lines[::3]
    run(lake, p)
    assert ids(lake, "final.items") == Counter(r[KEY] for r in source.rows.values())


def test_new_files_wait_for_others(lake: Lake) -> None:
    import os
    import time

    lines, _ = lines_of("debezium", Workload(seed=1, events=30))
    p = pipeline({"format": "debezium", "max_wait": "10m", "max_rows": 20})
    file = landing(lake) / "0.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines[:10]))
    assert p.pending(lake) == []
    (landing(lake) / "1.jsonl").write_text("".join(f"{line}\n" for line in lines[10:21]))
    assert [w.files for w in p.pending(lake)] == [2]
    run(lake, p)  # a manual run does not wait
    (landing(lake) / "2.jsonl").write_text("".join(f"{line}\n" for line in lines[21:]))
    assert p.pending(lake) == []
    past = time.time() - 601
    os.utime(landing(lake) / "2.jsonl", (past, past))
    assert [w.files for w in p.pending(lake)] == [1]


def test_tables_get_a_namespace_and_a_prefix(lake: Lake) -> None:
    lines, source = lines_of("debezium", Workload(seed=1, events=30))
    (landing(lake) / "0.jsonl").write_text("".join(f"{line}\n" for line in lines))
    p = pipeline({"format": "debezium", "namespace": "shop", "prefix": "src_", "tables": ["public.*"]})
    run(lake, p)
    assert ids(lake, "final.shop.src_items") == Counter(r[KEY] for r in source.rows.values())
    assert {o.status for o in run(lake, p).values()} == {"nothing"}


@pytest.mark.long
def test_a_workload_in_one_file_is_like_in_many(lake: Lake) -> None:
    workload = replace(Workload(seed=9, events=60, keys=8), key_changes=0.3)
    lines, source = lines_of("wal2json-v1", workload)
    for i, line in enumerate(lines):
        (landing(lake) / f"{i:04}.jsonl").write_text(f"{line}\n")
    run(lake, pipeline({"format": "wal2json-v1"}))
    assert ids(lake, "final.items") == Counter(r[KEY] for r in source.rows.values())
