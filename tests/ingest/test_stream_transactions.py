"""wal2json 2: the lines around changes, and numbers of transactions, tell what was done at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.formats import event_format
from lake_assets.formats.event_model import Boundary
from lake_assets.ingest.records.stream_transactions import Open, follow
from tests.support.debezium import BIGINT, INT, TEXT, Table
from tests.support.deferred import Deferred
from tests.support.item_stream import Stream

V2 = event_format("wal2json-v2")
PLACES = Table({"k": BIGINT, "n": INT, "name": TEXT}, key=("k",))

VARIANTS: dict[str, dict[str, bool]] = {
    "lines around": {"around": True, "xids": False, "lsns": True},
    "xids": {"around": False, "xids": True, "lsns": True},
    "all": {"around": True, "xids": True, "lsns": True},
    "no lsns": {"around": True, "xids": False, "lsns": False},
    "xids without lsns": {"around": False, "xids": True, "lsns": False},
}


def lines_of(source: Deferred, around: bool, xids: bool, lsns: bool) -> list[str]:
    """What wal2json writes of a table's changes."""
    found: list[str] = []

    def write(action: str, xid: int, lsn: int, **more: Any) -> None:
        fields = ({"xid": xid} if xids else {}) | ({"lsn": f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"} if lsns else {})
        found.append(json.dumps({"action": action, **fields, **more}))

    def listed(row: dict[str, Any]) -> list[dict[str, Any]]:
        kinds = {"k": "bigint", "n": "integer", "name": "text"}
        return [{"name": c, "type": kinds[c], "value": v} for c, v in row.items()]

    table = {"schema": "public", "table": "items", "pk": [{"name": "k", "type": "bigint"}]}
    for xid, (_, group) in enumerate(groupby(source.log, lambda e: e.sequence[0]), 700):
        events = list(group)
        commit = 10 * max(e.sequence[1] for e in events) + 5
        if around:
            write("B", xid, commit)
        for _, same in groupby(events, lambda e: e.sequence[1]):
            change = list(same)
            first, last = change[0], change[-1]
            new = {c: v for c, v in last.row.items() if c not in last.absent}
            action = "U" if len(change) > 1 else {"c": "I", "u": "U", "d": "D"}[first.op]
            parts: dict[str, Any] = {} if action == "D" else {"columns": listed(new)}
            parts |= {} if action == "I" else {"identity": listed({"k": first.row["k"]})}
            write(action, xid, 10 * first.sequence[1], **table, **parts)
        if around:
            write("C", xid, commit)
    return found


def value(choose: random.Random, column: str) -> Any:
    return choose.randint(0, 9) if column == "n" else f"long {choose.randint(0, 999)}"


# --- landing ----------------------------------------------------------------------------------------------------


def followed(lines: list[str], start: int = 0, current: Open | None = None) -> tuple[list[str | None], Open | None]:
    found: list[str | None] = []
    for position, line in enumerate(lines, start):
        fields = V2.boundary(json.loads(line))
        assert fields is not None
        current, transaction = follow(current, fields, position)
        found.append(transaction)
    return found, current


@pytest.mark.parametrize("variant", VARIANTS)
def test_changes_have_one_transaction_where_the_source_had_one_whatever_the_cuts(variant: str) -> None:
    choose = random.Random(variant)
    source = Deferred(PLACES, choose, value)
    for _ in range(60):
        source.transaction()
    lines = lines_of(source, **VARIANTS[variant])
    of_source = [
        e.sequence[0] for e, later in pairwise([*source.log, None]) if e and (not later or e.sequence != later.sequence)
    ]
    cuts = [0, *sorted(choose.randrange(len(lines)) for _ in range(9)), len(lines)]
    found: list[str | None] = []
    current = None
    for a, b in pairwise(cuts):
        more, current = followed(lines[a:b], a, current)
        found += more
    changes = [(json.loads(x), t) for x, t in zip(lines, found, strict=True) if json.loads(x)["action"] not in "BC"]
    told = [t or x.get("xid") for x, t in changes]
    assert None not in told
    pairs = set(zip(of_source, told, strict=True))
    assert len(pairs) == len(set(of_source)) == len(set(told))


def test_where_lines_are_missing_a_change_is_not_taken_for_one_of_the_transaction_before() -> None:
    before = Open(3, "0/20")
    assert follow(before, Boundary("change", "0/10"), 9) == (before, "0/20")
    assert follow(before, Boundary("change", "0/21"), 9) == (None, None)
    assert follow(Open(3, None, "7"), Boundary("change", None, "8"), 9) == (Open(9, None, "8"), "9")
    assert follow(None, Boundary("change", "0/10"), 9) == (None, None)
    assert follow(before, Boundary("commit"), 9) == (None, None)
    assert follow(before, Boundary("begin", "0/30", "8"), 9) == (Open(9, "0/30", "8"), None)


# --- all the way ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "variant", [v if v == "lines around" else pytest.param(v, marks=pytest.mark.long) for v in VARIANTS]
)
def test_shifted_keys_keep_every_row_though_a_transaction_is_cut_into_batches(lake: Lake, variant: str) -> None:
    """`UPDATE t SET pos = pos + 1` over a key that is checked at the end, among other transactions."""
    source = Deferred(PLACES, random.Random(3), value)
    for _ in range(5):
        source.transaction()
    for k in {*range(39)} - {r["k"] for r in source.rows}:
        source._insert(k)  # pyright: ignore[reportPrivateUsage]
    source.commit = source.lsn
    begun = len(lines_of(source, **VARIANTS[variant]))
    source.shift_up()
    source.commit = source.lsn
    shifted = len(lines_of(source, **VARIANTS[variant]))
    for _ in range(8):
        source.transaction()
    lines = lines_of(source, **VARIANTS[variant])
    stream = Stream(lake, format="wal2json-v2")
    middle = (begun + shifted) // 2
    stream.run(*lines[:middle])
    # The transaction goes on in two files of a later batch, and what has come before comes again.
    stream.land(*lines[middle : middle + 7])
    again = lines[begun:middle] if VARIANTS[variant]["lsns"] else []
    stream.run(*lines[middle + 7 :], *again)
    assert stream.rejected() == []
    found = Counter((r["k"], r["n"], r["name"]) for r in stream.rows("final.items"))
    assert found == Counter((r["k"], r["n"], r["name"]) for r in source.rows)


def test_a_raw_table_from_before_is_given_the_column(lake: Lake) -> None:
    stream = Stream(lake, format="wal2json-v2")
    source = Deferred(PLACES, random.Random(4), value)
    source.insert()
    stream.run(*lines_of(source, around=False, xids=False, lsns=True))
    with lake.table("raw.events").update_schema() as update:
        update.delete_column("transaction")
    assert stream.run()["staging.items"].status == "nothing"
    (row,) = source.rows
    source._change(row, n=8)  # pyright: ignore[reportPrivateUsage]
    lines = lines_of(source, around=True, xids=False, lsns=True)
    stream.run(lines[0], *lines[2:])
    assert [r["n"] for r in stream.rows("final.items")] == [8]
    assert "transaction" in stream.rows("raw.events")[0]
