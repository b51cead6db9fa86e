"""Tables of one name in two databases are two tables, whatever stream their events come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import source_snapshots
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from lake_assets.pipeline import PipelineConfig
from tests.support.item_stream import ITEMS, Stream
from tests.support.upkeep import expire


def event(op: str, id_: int, v: str | None, lsn: int, **source: Any) -> str:
    row = None if v is None else {"id": id_, "v": v}
    at = {"db": "a", "schema": "public", "table": "items", "lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]', **source}
    value = {"op": op, "before": {"id": id_} if op == "d" else None, "after": row, "source": at, "ts_ms": 1}
    return json.dumps({"key": {"id": id_}, "value": value})


@pytest.mark.long
def test_records_of_another_database_are_rejected_until_it_is_declared(lake: Lake) -> None:
    table: dict[str, Any] = {"table": ITEMS, "key": "id"}
    stream = Stream(lake, format="debezium", tables=[table])

    def rows() -> dict[int, str]:
        return {r["id"]: r["v"] for r in stream.rows("final.items")}

    # The row of the other tenant has the same key and, in another log, a later position.
    stream.run(event("c", 1, "of a", 100), event("c", 1, "of b", 5000, db="b"), event("c", 2, "of a", 101))
    assert rows() == {1: "of a", 2: "of a"}
    stream.run(event("d", 1, None, 6000, db="b"), event("c", 1, "of b", 7000, db="b"), event("u", 1, "new", 200))
    assert rows() == {1: "new", 2: "of a"}
    (_, _, reason), *others = stream.rejected()
    assert len(others) == 2
    assert reason == (
        "the record is about public.items of the database b, and earlier ones are about public.items of a: give each "
        "database a stream of its own (with a `namespace` or `prefix`), or, if both are one table, declare "
        "`databases: [a, b]` in the stream"
    )
    assert not any(o.inserted for o in stream.replay().values())
    assert rows() == {1: "new", 2: "of a"}
    # The database was moved: both are one table.
    stream.declare(format="debezium", tables=[table], databases=["a", "b"])
    stream.replay()
    stream.run(event("u", 2, "moved", 8000, db="b"), event("u", 2, "other", 9000, db="c"))
    assert rows() == {1: "of b", 2: "moved"}
    assert [reason for _, _, reason in stream.rejected()] == [
        "the record is about public.items of the database c, which `databases` does not list"
    ]


@pytest.mark.long
def test_the_database_is_the_schema_where_tables_have_no_other(lake: Lake) -> None:
    stream = Stream(lake, format="debezium", tables=["a.items", {"table": "b.items", "name": "others"}])
    source = {"schema": None, "sequence": None, "file": "binlog.000001", "connector": "mysql"}
    stream.run(*(event("c", i, db, 100, **source, pos=i, db=db) for i, db in enumerate("ab", 1)))
    assert stream.rejected() == []
    assert [r["v"] for name in ("items", "others") for r in stream.rows(f"final.{name}")] == ["a", "b"]


def test_what_landings_have_seen_of_tables_outlives_their_snapshots(plain_lake: Lake, tmp_path: Path) -> None:
    raw = RawSpec(TableId(("raw",), "events"), tmp_path, "debezium", "p")
    lines = [
        event("r", 1, "a", 100, snapshot="true"),
        event("u", 1, "new", 101),
        event("c", 2, "b", 102, db="b"),
    ]
    for n, line in enumerate(lines):
        (tmp_path / f"{n}.jsonl").write_text(f"{line}\n")
        landed = land(plain_lake, raw)
        expire(plain_lake, raw.table)
    assert landed.rejected == 1
    assert [*source_snapshots.read_snapshots(plain_lake.table(raw.table))] == ["public.items"]


def test_the_setting_is_for_debezium_alone() -> None:
    with pytest.raises(ValueError, match="`databases` is for `format: debezium`, and the format is change-feed"):
        PipelineConfig.model_validate(
            {"name": "p", "streams": [{"name": "s", "format": "change-feed", "databases": "a"}]}
        )
