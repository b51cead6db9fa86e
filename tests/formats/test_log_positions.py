"""Positions in the logs of all connectors: whatever order records arrive in, the newest change of a row is known."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import OrderUnknownError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, Hints, Seen
from lake_assets.formats.log_positions import upgraded
from tests.support.logs import POSITIONS, flattened, history
from tests.support.parsing import Parsed, parse

DEBEZIUM = event_format("debezium")
TABLE = SourceTable("app", "t")
KEYED = Hints(table=TABLE, key=("id",))


def parsed(lake: Lake, records: list[Any], hints: Hints = KEYED) -> list[Parsed]:
    return parse(lake.spark(), DEBEZIUM, map(json.dumps, records), hints)


def rows_after(events: list[Parsed]) -> dict[int, str]:
    """Return the rows after the events, each key's last one by its position in the log."""
    assert not [e for e in events if e.bad or e.sequence is None]
    last: dict[int, Parsed] = {}
    for e in sorted(events, key=lambda e: (e.sequence, e.position)):
        last[e.row["id"]] = e
    return {key: e.row["v"] for key, e in last.items() if e.op != DELETE}


def with_schemas(records: list[Any]) -> list[Any]:
    """Return the records with the schemas of key and value."""
    row = {
        "type": "struct",
        "optional": True,
        "fields": [{"type": "int32", "field": "id"}, {"type": "string", "field": "v"}],
    }
    key_schema = {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}
    names = list(dict.fromkeys(n for r in records for n in r["value"]["source"]))
    source = {
        "type": "struct",
        "field": "source",
        "fields": [{"type": "string", "optional": True, "field": n} for n in names],
    }
    images = [{**row, "field": "before"}, {**row, "field": "after"}]
    value_schema = {"type": "struct", "fields": [*images, source, {"type": "string", "field": "op"}]}
    return [
        {
            **r,
            "key": {"schema": key_schema, "payload": r["key"]},
            "value": {"schema": value_schema, "payload": r["value"]},
        }
        for r in records
    ]


FORMS = {"plain": list, "with schemas": with_schemas, "flattened": lambda records: list(flattened(records))}


@pytest.mark.spark
@pytest.mark.parametrize("forms", [1, pytest.param(len(FORMS), marks=pytest.mark.long)])
@pytest.mark.parametrize("connector", POSITIONS)
def test_events_in_any_order_and_repeated_leave_the_rows_of_the_source(
    spark_lake: Lake, connector: str, forms: int
) -> None:
    """In one of the forms, each of which is that of several connectors; or in all of them."""
    choose, at = random.Random(connector), [*POSITIONS].index(connector)
    for form, as_sent in [[*FORMS.items()][(at + n) % len(FORMS)] for n in range(forms)]:
        records, rows = history(connector, choose.randrange(10**6))
        delivered = [*records, *choose.choices(records, k=len(records) // 4)]
        choose.shuffle(delivered)
        assert rows_after(parsed(spark_lake, as_sent(delivered))) == rows, form


@pytest.mark.spark
@pytest.mark.parametrize("connector", ["postgresql", "sqlserver", "oracle"])
def test_changes_of_one_transaction_are_known_as_such(spark_lake: Lake, connector: str) -> None:
    records, _ = history(connector, 7)
    by = {"postgresql": "sequence", "sqlserver": "commit_lsn", "oracle": "commit_scn"}[connector]
    said = {}
    for i, r in enumerate(records):
        source = r["value"]["source"]
        if r["value"]["op"] != "r":
            said[i] = json.loads(source[by])[0] if by == "sequence" else source[by]
    events = parsed(spark_lake, records)
    sequences = spark_lake.spark().createDataFrame(
        [(e.position, e.sequence) for e in events], "i INT, _sequence STRING"
    )
    rows = sequences.selectExpr("i", f"{DEBEZIUM.transaction} AS t", f"{DEBEZIUM.numbered} AS n").collect()
    found = {r["i"]: r["t"] for r in rows}
    assert all(r["n"] for r in rows)
    assert {i for i, t in found.items() if t} >= {i for i, t in said.items() if t}
    pairs = [(said[i], found[i]) for i in said if said[i]]
    assert len(set(pairs)) == len({s for s, _ in pairs}) == len({t for _, t in pairs})


# --- single values ------------------------------------------------------------------------------------------------


def envelope(**source: Any) -> dict[str, Any]:
    source = {"db": "app", "schema": "app", "table": "t", "ts_ms": 1, **source}
    return {"key": {"id": 1}, "value": {"op": "c", "before": None, "after": {"id": 1, "v": "x"}, "source": source}}


def sequences(lake: Lake, *sources: dict[str, Any]) -> list[str | None]:
    return [e.sequence for e in parsed(lake, [envelope(**s) for s in sources])]


@pytest.mark.spark
def test_numbers_count_as_numbers(spark_lake: Lake) -> None:
    in_order = [
        {"file": "binlog.000999", "pos": 900, "row": 3},
        {"file": "binlog.001000", "pos": 4, "row": 0},
        {"file": "binlog.001000", "pos": 40, "row": 0},
        {"file": "binlog.999999", "pos": 9, "row": 0},
        {"file": "binlog.1000000", "pos": "8", "row": 0},
    ]
    texts = sequences(spark_lake, *in_order)
    assert None not in texts
    assert texts == sorted(texts, key=str)


@pytest.mark.spark
def test_every_spelling_of_an_lsn_is_read(spark_lake: Lake) -> None:
    at = 0x16B3748
    spellings = [
        {"lsn": at}, {"lsn": str(at)}, {"lsn": "0/16B3748"}, {"lsn": "0/016b3748"}, {"sequence": f'[null,"{at}"]'},
        {"sequence": f'[null, "{at}"]', "lsn": at}, {"sequence": "[null,null]", "lsn": at}, {"sequence": '[null,"0/16B3748"]'},
        {"sequence": [None, str(at)]},
    ]  # fmt: skip
    place = f"{at:020}/{at:020}/{0:020}"
    assert sequences(spark_lake, *spellings) == [place] * len(spellings)


@pytest.mark.spark
def test_what_is_no_position_is_rejected(spark_lake: Lake) -> None:
    good = {"lsn": 5, "file": None, "pos": None, "commit_lsn": None, "change_lsn": None, "scn": None, "sequence": None}
    unreadable: list[dict[str, Any]] = [
        {"lsn": None}, {"lsn": 1.5}, {"lsn": "1.5"}, {"lsn": ""}, {"lsn": "garbage"}, {"lsn": -1}, {"lsn": "0/XYZ"},
        {"lsn": {"a": 1}}, {"lsn": True}, {"lsn": "1" * 21}, {"sequence": "garbage"}, {"sequence": ""}, {"sequence": "[]"},
        {"sequence": '{"a": 1}'}, {"sequence": '["x","5"]'}, {"sequence": '["5","x"]'}, {"sequence": '["1","2","3"]'},
        {"sequence": '["1.5","2"]'}, {"lsn": None, "file": "binlog", "pos": 4}, {"lsn": None, "file": "binlog.1", "pos": "x"},
        {"lsn": None, "file": "binlog.1", "pos": 4.5},
        {"lsn": None, "commit_lsn": "NULL"}, {"lsn": None, "commit_lsn": "0001:02", "change_lsn": None},
        {"lsn": None, "commit_lsn": "0001:02", "change_lsn": "garbage"}, {"lsn": None, "scn": "x"},
        {"lsn": None, "scn": "5", "commit_scn": "x"}, {"lsn": None, "connector": "cassandra", "file": "log.1", "pos": 5},
    ]  # fmt: skip
    assert sequences(spark_lake, *({**good, **u} for u in unreadable)) == [None] * len(unreadable)


@pytest.mark.parametrize(
    "shape",
    [
        "source: OBJECT<connector: STRING, vgtid: STRING, `table`: STRING, db: STRING>, op: STRING, after: OBJECT<id: BIGINT>",
        "source: OBJECT<`table`: STRING>, op: STRING, after: OBJECT<id: BIGINT>",
        "__op: STRING, id: BIGINT",
    ],
)
def test_events_without_a_position_need_a_declared_order(shape: str) -> None:
    with pytest.raises(OrderUnknownError, match=r"`order_by` with columns that do \(of id\)"):
        DEBEZIUM.plans([Seen("", f"OBJECT<value: OBJECT<{shape}>>")], Hints())
    plan = DEBEZIUM.plans([Seen("", f"OBJECT<value: OBJECT<{shape}>>")], Hints(is_ordered=True))[0].plan
    assert plan.sequence == "CAST(NULL AS STRING)"


@pytest.mark.spark
def test_positions_of_earlier_versions_are_read_as_todays(spark_lake: Lake) -> None:
    before = [f"{commit:020}/{own:020}" for commit, own in ((0, 0), (0, 5), (7, 5), (7, 9))]
    rows = spark_lake.spark().createDataFrame([(t,) for t in before], "_sequence STRING")
    assert [r[0] for r in rows.selectExpr(DEBEZIUM.stored).collect()] == [upgraded(t) for t in before]
    assert upgraded(before[2]) == f"{7:020}/{5:020}/{7:020}"
    assert upgraded(upgraded(before[2])) == upgraded(before[2])


@pytest.mark.spark
def test_times_in_other_units_are_other_logs(spark_lake: Lake) -> None:
    moment = {
        "milliseconds": 1_700_000_000_000,
        "microseconds": 1_700_000_000_000_000,
        "nanoseconds": 1_700_000_000_123_456_789,
    }
    rows = spark_lake.spark().createDataFrame([(f"{t:020}",) for t in moment.values()], "_sequence STRING")
    assert [r[0] for r in rows.selectExpr(str(DEBEZIUM.log)).collect()] == [f"times in {unit}" for unit in moment]
