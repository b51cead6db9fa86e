"""Changes ordered by declared columns."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import PipelineError, UnsupportedEventError
from lake_assets.final.declared_order import sequence_of
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import long_seeds, seeds

DAY = dt.datetime(1969, 12, 31, 23)  # noqa: DTZ001
_VALUES: dict[str, list[Any]] = {
    "bigint": [-(2**63), -11, -10, -9, -1, 0, 1, 9, 10, 2**63 - 1],
    "int": [-(2**31), -5, 0, 7, 10, 2**31 - 1],
    "decimal(38,10)": [Decimal(t) for t in ("-1234567890123456789012345678.9", "-1.5", "-1.05", "-1", "-0.0000000001",
                                           "0", "0.0000000001", "0.5", "1", "1.05", "1.5", "10", "9.99")],
    "decimal(5,5)": [Decimal(t) for t in ("-0.99999", "-0.00001", "0.00000", "0.00001", "0.5")],
    "string": ["", " ", "A", "a", "ab", "a b", "~", "ü", "😀"],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp_ntz": [DAY + dt.timedelta(microseconds=n) for n in (-(10**15), -1, 0, 3_600_000_000, 3_600_000_001)],
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 2)])
def test_texts_sort_as_the_values_do(spark_lake: Lake, seed: int) -> None:
    choose = random.Random(seed)
    types = choose.sample(list(_VALUES), len(_VALUES))
    rows = [tuple(choose.choice(_VALUES[t]) for t in types) for _ in range(200)]
    rows += [tuple(v if i == at else _VALUES[t][0] for i, t in enumerate(types)) for at, one in enumerate(types)
             for v in _VALUES[one]]  # fmt: skip
    frame = spark_lake.spark().createDataFrame(rows, ", ".join(f"c{i} {t}" for i, t in enumerate(types)))
    texts = frame.selectExpr(sequence_of([(f"c{i}", t) for i, t in enumerate(types)])).collect()
    # Python sorts by code points, which is the order of UTF-8 bytes in Spark.
    by_value = sorted((row, text[0].encode()) for row, text in zip(rows, texts, strict=True))
    assert [t for _, t in by_value] == sorted(t for _, t in by_value)
    assert len({t for _, t in by_value}) == len(set(rows))


def test_a_wider_type_keeps_the_texts(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    same = ["CAST(-12 AS INT)", "CAST(-12 AS BIGINT)", "CAST(-12 AS DECIMAL(10, 0))", "CAST(-12 AS DECIMAL(38, 6))"]
    types = ["int", "bigint", "decimal(10,0)", "decimal(38,6)"]
    assert len({spark.sql(f"SELECT {sequence_of([x])}").collect()[0][0] for x in zip(same, types, strict=True)}) == 1
    for conf in ("UTC", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", conf)
        try:
            moments = [("DATE'2024-03-10'", "date"), ("TIMESTAMP_NTZ'2024-03-10 00:00:00'", "timestamp_ntz"),
                       ("TIMESTAMP'2024-03-10 00:00:00Z'", "timestamp")]  # fmt: skip
            assert len({spark.sql(f"SELECT {sequence_of([m])}").collect()[0][0] for m in moments}) == 1
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")


TABLE = {
    "table": ITEMS, "key": "id", "order_by": ["updated_at", "version"],
    "types": {"updated_at": "timestamp", "version": "int", "id": "int", "n": "int"},
}  # fmt: skip


def history(choose: random.Random, keys: int) -> list[dict[str, Any]]:
    """Return changes of a table; no two changes of one key have the same position in the order."""
    changes: list[dict[str, Any]] = []
    version = dict.fromkeys(range(keys), 8)
    existing: set[int] = set()
    for _ in range(keys * 6):
        k = choose.randrange(keys)
        # The texts of these do not sort like their values, because of zones and digits.
        version[k] += choose.choice([1, 1, 90])
        hour, flag = version[k] // 100, "I" if k not in existing else choose.choice("UUD")
        at = ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+00:00", "2024-01-01T03:00:00.5+01:00"][min(hour, 2)]
        existing ^= {k} if flag in "ID" else set()
        changes.append({"FLAG": flag, "id": k, "n": choose.randint(0, 9), "updated_at": at, "version": version[k]})
    return changes


def converges(stream: Stream, choose: random.Random, log: list[dict[str, Any]], deletes: str) -> None:
    sent = [*log, *choose.choices(log, k=len(log) // 3)]
    choose.shuffle(sent)
    cuts = sorted(choose.randrange(len(sent)) for _ in range(2))
    delivered: list[dict[str, Any]] = []
    for batch in (sent[: cuts[0]], sent[cuts[0] : cuts[1]], sent[cuts[1] :]):
        stream.run(*map(json.dumps, batch))
        delivered += batch
        assert stream.rejected() == []
        last: dict[int, dict[str, Any]] = {}
        for event in sorted(delivered, key=lambda e: e["version"]):
            last[event["id"]] = event
        rows = [r for r in stream.rows("final.items") if not r.get("__deleted")]
        assert Counter((r["id"], r["n"], r["version"]) for r in rows) == Counter(
            (e["id"], e["n"], e["version"]) for e in last.values() if e["FLAG"] != "D"
        )
        if deletes == "soft":
            deleted = {r["id"] for r in stream.rows("final.items") if r["__deleted"]}
            upserted = {e["id"] for e in delivered if e["FLAG"] != "D"}
            assert deleted == {k for k, e in last.items() if e["FLAG"] == "D" and k in upserted}


def test_any_order_of_arrival_gives_the_same_table(lake: Lake) -> None:
    choose = random.Random(5)
    stream = Stream(lake, format="change-set", tables=[TABLE])
    converges(stream, choose, history(choose, 12), "hard")
    # Another declared order rebuilds the table, and so does another sort kind of the values.
    stream.declare(format="change-set", tables=[TABLE | {"order_by": ["version"], "deletes": "soft"}])
    assert stream.run()["final.items"].strategy == "rebuild"
    assert stream.run()["final.items"].status == "nothing"
    assert stream.rejected() == []


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 3))
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_any_order_of_arrival_of_many_histories(new_lake: Callable[[str], Lake], deletes: str, seed: int) -> None:
    choose = random.Random(f"{deletes} {seed}")
    stream = Stream(new_lake("one"), format="change-set", tables=[TABLE | {"deletes": deletes}])
    converges(stream, choose, history(choose, 12), deletes)


@pytest.mark.long
def test_ties_stay_in_the_order_of_the_stream(lake: Lake) -> None:
    stream = Stream(lake, format="simplified", tables=[TABLE | {"order_by": ["version"]}])

    def change(kind: str, n: int, version: int) -> str:
        names, values = ["id", "n", "version"], [1, n, version]
        return json.dumps({"changeType": kind, "timestamp": "1", "columnNames": names, "columnValues": values,
                           "oldKeyNames": names, "oldKeyValues": values})  # fmt: skip

    stream.run(change("insert", 1, 9), change("update", 2, 10))
    assert [(r["n"], r["version"]) for r in stream.rows("final.items")] == [(2, 10)]
    stream.run(change("delete", 2, 10), change("insert", 3, 10), change("update", 0, 9))
    assert [(r["n"], r["version"]) for r in stream.rows("final.items")] == [(3, 10)]


def test_what_cannot_be_an_order_is_said(lake: Lake) -> None:
    stream = Stream(lake, format="change-set", tables=[TABLE | {"order_by": "nope"}])
    first = {"FLAG": "I", "id": 1, "n": 1, "updated_at": "2024-01-01T00:00:00Z", "version": 1, "x": 0.5}
    stream.land(json.dumps(first))
    with pytest.raises(PipelineError, match="`order_by` names nope, and staging.items has id"):
        stream.run()
    stream.declare(format="change-set", tables=[TABLE | {"order_by": "x"}])
    with pytest.raises(PipelineError, match=r"`order_by` names x \(double\)"):
        stream.run()
    stream.declare(format="change-set", tables=[TABLE])
    stream.run()
    stream.land(json.dumps({"FLAG": "D", "id": 1, "version": 2}))
    with pytest.raises(UnsupportedEventError, match="1 of 1 events of staging.items have no value in a column of the"):
        stream.run()
    assert len(stream.rows("final.items")) == 1
