"""What an error or a notice proposes loses nothing, and a declaration that was a mistake can be taken back."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import SchemaConflictError, UnsupportedEventError
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.reject_reasons import advice, kind_of, misfits_in
from lake_assets.ingest.staging import exactness
from lake_assets.tables.schema_changes import common_type, conflict, whole_chains
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table, to_lines
from tests.support.item_stream import ITEMS, Stream
from tests.support.value_records import read

BYTES = {"type": "bytes"}


# --- in plain Python --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "declared"),
    [
        ("int", "string", "string"),
        ("string", "int", "int"),
        ("string", "decimal(14,3)", "decimal(14,3)"),
        ("int", "decimal(14,3)", "decimal(14,3)"),
        ("bigint", "decimal(14,3)", "decimal(22,3)"),
        ("decimal(14,3)", "int", "decimal(14,3)"),
        ("bigint", "decimal(38,20)", "string"),
        ("double", "decimal(14,3)", "string"),
        ("bigint", "double", "string"),
        ("int", "double", "double"),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("timestamp_ntz", "timestamp", "string"),
        ("string", "binary", None),
        ("binary", "string", None),
        ("array<int>", "string", None),
    ],
)
def test_the_proposed_type_keeps_the_values_of_both(old: str, new: str, declared: str | None) -> None:
    assert common_type(old, new) == declared
    text = str(conflict("staging.t", "c", old, new))
    proposed = re.search(r"`types: \{c: (.*?)\}`", text)
    assert (proposed and proposed[1].strip('"')) == declared
    assert "`on_conflict: new-column`" in text


def test_a_chain_of_renames_leads_to_its_last_name() -> None:
    assert whole_chains({"a": "b", "b": "c", "x": "y"}) == {"a": "c", "b": "c", "x": "y"}
    assert whole_chains({"a": "b", "b": "b"}) == {"a": "b", "b": "b"}
    with pytest.raises(ValueError, match="circle: a -> b -> a"):
        whole_chains({"a": "b", "b": "a"})


def test_all_values_that_do_not_fit_are_named_in_summary_and_advice() -> None:
    reason = "n does not fit int: x; a b does not fit decimal(12,2): 1: 2; at does not fit date: z"
    assert misfits_in(reason) == [("n", "int"), ("a b", "decimal(12,2)"), ("at", "date")]
    assert kind_of(reason) == "n does not fit int, a b does not fit decimal(12,2), at does not fit date"
    assert '`types: {n: string, "a b": string, at: string}` beside other settings of public.t' in advice(
        reason, "public.t"
    )
    assert "string keeps" not in advice("b does not fit binary: x", "public.t")


# --- through Spark ----------------------------------------------------------------------------------------------


def test_a_reject_names_every_value_that_does_not_fit(spark_lake: Lake) -> None:
    line = json.dumps({"FLAG": "I", "CDC_TIMESTAMP": 1, "id": 1, "n": "x", "m": 2, "at": "z"})
    types = {"id": "int", "n": "int", "m": "int", "at": "date"}
    (row,) = read(spark_lake, "change-set", [line], types=types)
    assert row[BAD] == "at does not fit date: z; n does not fit int: x"


@pytest.mark.long
def test_bytes_among_texts_are_kept_as_the_error_proposes_and_a_declared_type_is_taken_back(lake: Lake) -> None:
    text, binary = (Table({"id": BIGINT, "c": kind}, name=ITEMS) for kind in (TEXT, BYTES))
    stream = Stream(lake)
    stream.run(*to_lines_of(Event(text, "c", (1, 2), {"id": 1, "c": "plain"})))
    stream.land(*to_lines_of(Event(binary, "c", (3, 4), {"id": 2, "c": b"\x00\xff"})))
    with pytest.raises(SchemaConflictError) as error:
        stream.run()
    assert "types:" not in str(error.value)
    assert "`on_conflict: new-column`" in str(error.value)
    # What somebody declares nevertheless can be taken back.
    stream.declare(tables=[{"table": ITEMS, "types": {"c": "string"}}])
    stream.run()
    assert values(stream) == {1: "plain", 2: base64.b64encode(b"\x00\xff").decode()}
    stream.declare(tables=[{"table": ITEMS, "on_conflict": "new-column"}])
    stream.run()
    rows = {r["id"]: (r["c"], r["c__binary"]) for r in stream.rows("final.items")}
    assert rows == {1: ("plain", None), 2: (None, bytearray(b"\x00\xff"))}


def to_lines_of(*events: Event) -> list[bytes]:
    return [line.rstrip(b"\n") for line in to_lines(events)]


def values(stream: Stream) -> dict[int, Any]:
    return {r["id"]: r["c"] for r in stream.rows("final.items")}


def v1(at: int, *changes: dict[str, Any]) -> str:
    return json.dumps(
        {"nextlsn": f"0/{at:X}", "change": [{"schema": "public", "table": "items", **c} for c in changes]}
    )


def row(kind: str, price: str, **more: Any) -> dict[str, Any]:
    names, types = ["id", "price"], ["integer", price]
    return {"kind": kind, "columnnames": names, "columntypes": types, **more}


@pytest.mark.long
@pytest.mark.parametrize("whole_rows", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_key_and_the_decimal_that_errors_of_wal2json_1_propose_are_exact(lake: Lake, whole_rows: bool) -> None:
    stream = Stream(lake, format="wal2json-v1")
    stream.run(*(v1(n, row("insert", "numeric", columnvalues=[n, 1.5])) for n in (1, 2, 3)))
    names, kinds = (["id", "price"], ["integer", "numeric"]) if whole_rows else (["id"], ["integer"])
    stream.land(
        v1(10, row("update", "numeric", columnvalues=[1, 2.25])),
        v1(
            11,
            {"kind": "delete", "oldkeys": {"keynames": names, "keytypes": kinds, "keyvalues": [2, 1.5][: len(names)]}},
        ),
    )
    with pytest.raises(UnsupportedEventError, match="perhaps `id`" if whole_rows else "key: id"):
        stream.run()
    stream.declare(format="wal2json-v1", tables=[{"table": ITEMS, "key": "id"}])
    stream.run()
    stream.land(v1(20, row("update", "numeric(14,3)", columnvalues=[3, 7.125])))
    with pytest.raises(SchemaConflictError, match=r'`types: \{price: "decimal\(14,3\)"\}`'):
        stream.run()
    stream.declare(format="wal2json-v1", tables=[{"table": ITEMS, "key": "id", "types": {"price": "decimal(14,3)"}}])
    stream.run()
    assert {r["id"]: str(r["price"]) for r in stream.rows("final.items")} == {1: "2.250", 3: "7.125"}


@pytest.mark.long
def test_a_default_is_filled_as_the_notice_says(lake: Lake) -> None:
    first = Table({"id": BIGINT}, name=ITEMS)
    second = first.with_columns(flag={**INT, "default": 7})
    stream = Stream(lake)
    stream.run(*to_lines_of(*(Event(first, "c", (n, n), {"id": n}) for n in (1, 2))))
    lines = [json.loads(x) for x in to_lines_of(Event(second, "u", (3, 4), {"id": 1, "flag": 8}))]
    for image in lines[0]["value"]["schema"]["fields"][:2]:
        image["fields"][1]["optional"] = False
    (notice,) = stream.run(*map(json.dumps, lines))["final.items"].details["not_exact"]
    assert "(not null, default 7)" in notice
    columns = re.search(r'`columns: "(.*?)"`', notice)
    assert columns
    stream.declare(tables=[{"table": ITEMS, "columns": columns[1]}])
    outcome = stream.run()["final.items"]
    assert "not_exact" not in outcome.details
    assert {r["id"]: r["flag"] for r in stream.rows("final.items")} == {1: 8, 2: 7}
    assert (
        exactness.reasons_of(lake, next(s.table for s in stream.pipeline.specs(lake) if "final" in str(s.table))) == []
    )


@pytest.mark.long
def test_values_taken_as_null_are_said_until_their_rows_are_healed(lake: Lake) -> None:
    table = {"table": ITEMS, "key": "id", "types": {"id": "int", "n": "int"}, "on_misfit": "null"}
    stream = Stream(lake, format="change-set", tables=[table])

    def not_exact(at: int, **values: Any) -> list[str]:
        outcomes = stream.run(json.dumps({"FLAG": "U", "CDC_TIMESTAMP": at, **values}))
        return outcomes["final.items"].details.get("not_exact", [])

    assert not_exact(1, id=1, n=None) == []
    (reason,) = not_exact(2, id=2, n="many")
    assert reason.startswith("column n holds null for values that do not fit its type")
    assert not_exact(3, id=3, n=None) == [reason]
    assert not_exact(4, id=2, n=5) == []
