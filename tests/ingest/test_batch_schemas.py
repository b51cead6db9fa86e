"""What the records of a landing look like is found once for all tables of a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import ConcurrentWriteError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import Seen
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import batch_schemas
from lake_assets.ingest.records.batch_schemas import BatchSchema, BatchWindow, BySource, find_schemas, shared_schemas
from lake_assets.ingest.records.parsing import parse
from lake_assets.ingest.staging import staging_step, staging_writes
from lake_assets.ingest.staging.due_records import about
from lake_assets.ingest.staging.staging_step import StagingStep
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import read_marks
from tests.support.debezium import BIGINT, Event
from tests.support.debezium import Table as SourceRows
from tests.support.raw_rows import raw_rows
from tests.support.streams import Feed

A, B, C = (SourceRows({"id": BIGINT}, name=f"public.{n}") for n in "abc")
FOUND: BySource = {"public.a": [BatchSchema(Seen(""), 1, False, False)]}


def window(start: int) -> BatchWindow:
    return BatchWindow("a raw table of this test", start, start + 1, "debezium")


def test_threads_that_ask_for_the_same_window_wait_for_the_one_that_looks() -> None:
    threads, asked = 4, list[int]()
    together = threading.Barrier(threads)

    def find() -> BySource:
        asked.append(1)
        return FOUND

    def ask(_: int) -> BySource | None:
        together.wait()
        return shared_schemas(window(-1), find)

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(ask, range(threads))) == [FOUND] * threads
    assert len(asked) == 1


def test_a_look_that_fails_is_not_tried_again_for_each_table() -> None:
    asked: list[int] = []

    def find() -> BySource:
        asked.append(1)
        raise ValueError("a record that Spark cannot look at")

    assert [shared_schemas(window(-2), find) for _ in range(3)] == [None] * 3
    assert len(asked) == 1


def test_an_interrupted_look_is_made_by_the_next_who_asks() -> None:
    def interrupted() -> BySource:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared_schemas(window(-3), interrupted)
    assert shared_schemas(window(-3), lambda: FOUND) == FOUND


def test_few_windows_are_remembered() -> None:
    for n in range(100):
        shared_schemas(window(n), lambda: FOUND)
    assert len(batch_schemas._cache) <= 8  # pyright: ignore[reportPrivateUsage]


def change(table: str, id_: int, kind: str, value: Any) -> dict[str, Any]:
    return {
        "kind": "insert", "schema": "public", "table": table, "pk": {"pknames": ["id"], "pktypes": ["bigint"]},
        "columnnames": ["id", "v"], "columntypes": ["bigint", kind], "columnvalues": [id_, value],
    }  # fmt: skip


@pytest.mark.long
def test_a_table_reads_its_records_as_if_it_had_looked_at_them_alone(spark_lake: Lake) -> None:
    reader = event_format("wal2json-v1")
    transactions = [
        [change("a", 1, "integer", 5)],
        [change("b", 1, "date", "2024-02-29")],
        [change("a", 2, "text", "x"), change("b", 2, "date", "2024-03-01"), change("c", 1, "boolean", True)],
        [change("a", 3, "bigint", 6), change("b", 3, "text", "y")],
    ]
    lines = [json.dumps({"nextlsn": f"0/{20 + i}", "change": t}) for i, t in enumerate(transactions)]
    routes = ["public.a", "public.b", "*", "*"]
    parts = [raw_rows(spark_lake, "wal2json-v1", lines, source_table=r) for r in dict.fromkeys(routes)]
    records = parts[0].limit(0)
    for part, source in zip(parts, dict.fromkeys(routes), strict=True):
        records = records.union(part.where(part.position.isin(*(i for i, r in enumerate(routes) if r == source))))
    found = find_schemas(records, reader)
    for name, rows in (("a", 3), ("b", 3), ("c", 1), ("d", 0)):
        source = SourceTable("public", name)
        spec = StagingSpec(TableId(("staging",), name), TableId(("raw",), "r"), source, "wal2json-v1", "p", key=("id",),
                           on_conflict="new-column")  # fmt: skip
        own = about(records, spec)
        alone, shared = parse(own, spec, {"id": "bigint"}), parse(own, spec, {"id": "bigint"}, schemas_by_source=found)
        assert alone.rows is not None
        assert shared.rows is not None
        listed = [sorted(map(str, p.collect())) for p in (alone.rows, shared.rows)]
        assert listed[0] == listed[1]
        assert len(listed[0]) == rows
        assert alone.key == shared.key


@pytest.mark.long
def test_the_tables_of_a_stream_look_at_a_small_landing_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counted(find: Callable[..., BySource]) -> Callable[..., BySource]:
        return lambda *args: (looks.append(1), find(*args))[1]

    monkeypatch.setattr(staging_step, "find_schemas", counted(find_schemas))
    feed = Feed(lake)
    feed.deliver([Event(t, "c", (1, 1), {"id": 1}) for t in (A, B, C)])
    assert len(looks) == 1
    # The first events of a table and the table itself are one commit.
    made = lake.table("staging.a")
    assert [s.sequence_number for s in made.metadata.snapshots] == [1]
    assert not made.sort_order().is_unsorted
    assert "raw.events" in read_marks(made)
    assert [name for name, ref in made.metadata.refs.items() if ref.snapshot_ref_type == "branch"] == ["main"]
    wide = SourceRows({"id": BIGINT, "more": BIGINT}, name="public.b")
    feed.deliver([Event(t, "c", (2, 1), {"id": 2}) for t in (A, C)] + [Event(wide, "c", (2, 2), {"id": 2, "more": 3})])
    assert len(looks) == 2
    assert [(r["id"], r["more"]) for r in feed.rows("final.b").orderBy("id").collect()] == [(1, None), (2, 3)]
    assert sorted(r["id"] for r in feed.rows("final.c").collect()) == [1, 2]


def test_of_two_runs_that_make_a_table_at_once_one_begins_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(lake, "public.a")
    feed.land([Event(A, "c", (1, n), {"id": n}) for n in (1, 2)])
    feed.pipeline.run(lake, {"raw.events"})
    (spec,) = [s for s in feed.pipeline.specs(lake) if isinstance(s, StagingSpec)]
    make = staging_writes.make

    def beaten(*args: Any) -> None:
        monkeypatch.setattr(staging_writes, "make", make)
        assert StagingStep(spec).stage(lake).inserted == 2
        make(*args)

    monkeypatch.setattr(staging_writes, "make", beaten)
    with pytest.raises(ConcurrentWriteError):
        StagingStep(spec).stage(lake)
    assert StagingStep(spec).stage(lake).status == "nothing"
    assert feed.rows("staging.a").count() == 2
