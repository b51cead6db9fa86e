"""Deletes by another declared key remove the row that had this key at the time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import seeds

KEYS: dict[str, Any] = {"table": ITEMS, "key": [["id"], ["email"]], "types": {"id": "int"}}


def event(op: str, at: int, old: dict[str, Any] | None = None, **row: Any) -> str:
    record: dict[str, Any] = {"changeType": op, "timestamp": str(at), "schema": "public", "table": "items"}
    if row:
        record |= {"columnNames": [*row], "columnValues": [*row.values()]}
    if old:
        record |= {"oldKeyNames": [*old], "oldKeyValues": [*old.values()]}
    return json.dumps(record)


def rows_of_items(stream: Stream) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["email"]) for r in stream.rows("final.items"))


@pytest.mark.long
def test_a_delete_by_another_declared_key_takes_the_row_that_had_it(lake: Lake) -> None:
    stream = Stream(lake, format="simplified", tables=[KEYS])
    stream.run(
        event("insert", 1, id=1, email="a"), event("insert", 2, id=2, email="b"), event("delete", 3, {"email": "a"})
    )
    assert (rows_of_items(stream), stream.rejected()) == ([(2, "b")], [])
    outcomes = stream.run(
        event("update", 4, {"id": 2}, id=2, email="c"), event("insert", 5, id=3, email="d"),
        event("delete", 6, {"email": "b"}), event("delete", 7, {"id": 3}),
    )  # fmt: skip
    # No row had this email any longer.
    assert rows_of_items(stream) == [(2, "c")]
    assert outcomes["final.items"].details["deletes_without_row"] == 1
    assert reasons_of(lake, TableId.parse("final.items")) == outcomes["final.items"].details["not_exact"]
    # Late events also decide which row had it.
    outcomes = stream.run(event("insert", 5, id=4, email="b"), event("insert", 8, id=5, email="e"))
    assert outcomes["final.items"].strategy == "rebuild"
    assert rows_of_items(stream) == [(2, "c"), (5, "e")]
    assert reasons_of(lake, TableId.parse("final.items")) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_many_histories_with_two_keys(new_lake: Callable[[str], Lake], seed: int) -> None:
    choose, rows = random.Random(seed), dict[int, str]()
    lines: list[str] = []
    for at in range(1, 60):
        op = choose.choice(["insert", "update", "delete", "delete"]) if rows else "insert"
        free = [e for e in "abcdef" if e not in rows.values()]
        if op != "delete" and not free:
            op = "delete"
        if op == "delete":
            id_ = choose.choice(list(rows))
            lines.append(event("delete", at, choose.choice([{"id": id_}, {"email": rows.pop(id_)}])))
            rows.pop(id_, None)
            continue
        id_ = choose.choice(list(rows)) if op == "update" else next(i for i in range(20) if i not in rows)
        rows[id_] = choose.choice(free)
        lines.append(event(op, at, {"id": id_} if op == "update" else None, id=id_, email=rows[id_]))
    if choose.random() < 0.5:
        # Some consecutive events arrive late.
        cut = choose.randrange(len(lines) - 10)
        lines = lines[:cut] + lines[cut + 10 :] + lines[cut : cut + 10]
    stream = Stream(new_lake("steps"), format="simplified", tables=[KEYS])
    for begin in range(0, len(lines), 20):
        stream.run(*lines[begin : begin + 20])
    assert Counter(rows_of_items(stream)) == Counter(rows.items())
