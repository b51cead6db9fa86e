"""wal2json, both format versions: routing of records, and their events."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import KeyChangedError, MalformedRecordError, UnsupportedEventError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, TRUNCATE, UPDATE, Hints, Seen
from lake_assets.formats.types.postgres_types import read_postgres
from tests.support.parsing import Parsed, parse

V1, V2 = event_format("wal2json-v1"), event_format("wal2json-v2")
T, OTHER = SourceTable("public", "t"), SourceTable("public", "Other Table")
ID = ("id", "bigint")


def v2(action: str, columns: list[Any] = [], old: list[Any] = [], pk: list[Any] = [ID], **more: Any) -> str:  # noqa: B006
    """Return a line of version 2 with the given values; numbers as JSON text."""

    def listed(parts: list[Any]) -> str:
        return (
            "[" + ",".join(f'{{"name":{json.dumps(n)},"type":{json.dumps(t)},"value":{v}}}' for n, t, v in parts) + "]"
        )

    record = {"action": action, "lsn": "0/10", "schema": "public", "table": "t", **more}
    parts = [json.dumps({k: v for k, v in record.items() if v is not None})[1:-1]]
    parts += [f'"columns":{listed(columns)}'] if action in "IU" else []
    parts += [f'"identity":{listed(old)}'] if action in "UD" else []
    parts += [f'"pk":{json.dumps([{"name": n, "type": t} for n, t in pk])}'] if pk else []
    return "{" + ",".join(parts) + "}"


def v1(*changes: dict[str, Any], **more: Any) -> str:
    return json.dumps({"xid": 7, "nextlsn": "0/20", "timestamp": "2024-01-02 03:04:05.6+00", "change": changes, **more})


def change(
    kind: str, new: dict[str, Any] | None = None, old: dict[str, Any] | None = None, table: str = "t", **more: Any
) -> dict[str, Any]:
    def typed(row: dict[str, Any]) -> list[str]:
        return ["bigint" if isinstance(v, int) else "text" for v in row.values()]

    result: dict[str, Any] = {
        "kind": kind,
        "schema": "public",
        "table": table,
        "pk": {"pknames": ["id"], "pktypes": ["bigint"]},
    }
    if new is not None:
        result |= {"columnnames": list(new), "columntypes": typed(new), "columnvalues": list(new.values())}
    if old is not None:
        result["oldkeys"] = {"keynames": list(old), "keytypes": typed(old), "keyvalues": list(old.values())}
    return {**result, **more}


def images(events: list[Parsed]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(e.op, {n: v for n, v in e.row.items() if v is not None}) for e in events]


# --- routing ----------------------------------------------------------------------------------------------------------


def test_a_transaction_is_about_all_tables_that_it_changes_each_once() -> None:
    record = json.loads(
        v1(
            change("insert", {"id": 1}),
            change("insert", {"id": 1}, table="Other Table"),
            change("delete", None, {"id": 1}),
        )
    )
    assert V1.routes(record) == (T, OTHER)
    assert V1.routes(json.loads(v1())) == ()
    assert V1.routes(json.loads(v1({"kind": "message", "transactional": True, "prefix": "p", "content": "c"}))) == ()


@pytest.mark.parametrize("action", "BCM")
def test_lines_around_transactions_and_messages_are_about_no_row(action: str) -> None:
    assert V2.routes({"action": action, "xid": 1}) == ()


def test_a_stream_without_schemas_is_about_the_declared_one() -> None:
    record = json.loads(v2("I", [(*ID, 1)], schema=None))
    assert V2.routes(record, SourceTable("shop", "*")) == (SourceTable("shop", "t"),)
    with pytest.raises(MalformedRecordError, match="schema"):
        V2.routes(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "expected an object"),
        ({"kind": "insert"}, "expected an object"),
        ({"action": "X"}, "no such action"),
        ({"action": "I", "schema": "public", "table": "t"}, "columns"),
        ({"action": "I", "schema": "public", "table": "t", "columns": {}}, "not a list"),
        ({"action": "I", "schema": "public", "table": "t", "columns": [{"name": 1}]}, "not a list of columns"),
        ({"action": "T", "schema": "public", "table": ""}, "expected a name"),
        ({"action": "T", "schema": "public", "table": "a\x00"}, "expected a name"),
    ],
)
def test_invalid_lines_of_version_2_are_malformed(record: Any, message: str) -> None:
    with pytest.raises(MalformedRecordError, match=message):
        V2.routes(record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "no such kind"),
        ({"kind": "upsert"}, "no such kind"),
        ({"kind": ["insert"]}, "no such kind"),
        (change("insert"), "columnnames"),
        (change("insert", {"id": 1}, columnvalues=[]), "differ in length"),
        (change("insert", {"id": 1}, columntypes=["a", "b"]), "differ in length"),
        (change("insert", {"id": 1}, columnnames=[1]), "not a list of names"),
        (change("delete", None, None, oldkeys=[]), "objects"),
        (change("insert", {"id": 1}, table=""), "expected a name"),
    ],
)
def test_invalid_changes_of_version_1_are_malformed(change: Any, message: str) -> None:
    with pytest.raises(MalformedRecordError, match=message):
        V1.routes({"change": [change]})


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_transaction_becomes_the_events_of_each_of_its_tables(spark_lake: Lake) -> None:
    lines = [
        v1(
            change("insert", {"id": 1, "name": "Ann"}),
            change("insert", {"id": 5, "name": "Eve"}, table="Other Table"),
            change("update", {"id": 1, "name": "Bob"}, {"id": 1}),
            change("delete", None, {"id": 1}),
        ),
        v1(),
        v1(change("insert", {"id": 2, "name": None}), nextlsn="1/0"),
    ]
    events = parse(spark_lake.spark(), V1, lines, Hints(table=T))
    assert images(events) == [
        (INSERT, {"id": 1, "name": "Ann"}),
        (UPDATE, {"id": 1, "name": "Bob"}),
        (DELETE, {"id": 1}),
        (INSERT, {"id": 2}),
    ]
    assert [(e.position, e.index) for e in events] == [(0, 0), (0, 4), (0, 6), (2, 0)]
    assert [e.sequence for e in events] == sorted(e.sequence for e in events)
    assert events[0].event_time == dt.datetime(2024, 1, 2, 3, 4, 5, 600_000, tzinfo=dt.UTC)
    (other,) = parse(spark_lake.spark(), V1, lines, Hints(table=OTHER))
    assert other.row == {"id": 5, "name": "Eve"}


@pytest.mark.spark
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(spark_lake: Lake) -> None:
    name = ("name", "text", '"Ann"')
    lines = [v2("U", [(*ID, 2), name], [(*ID, 1)]), v2("U", [(*ID, 2), name], [(*ID, 2)])]
    expected = [(DELETE, {"id": 1}), (INSERT, {"id": 2, "name": "Ann"}), (UPDATE, {"id": 2, "name": "Ann"})]
    assert images(parse(spark_lake.spark(), V2, lines, Hints(table=T))) == expected
    record = v1(
        change("update", {"id": 2, "name": "Ann"}, {"id": 1}), change("update", {"id": 2, "name": "Ann"}, {"id": 2})
    )
    assert images(parse(spark_lake.spark(), V1, [record], Hints(table=T))) == expected


@pytest.mark.spark
def test_a_key_that_events_do_not_name_can_be_declared(spark_lake: Lake) -> None:
    lines = [v2("U", [(*ID, 2), ("g", "int", 1)], [(*ID, 1), ("g", "int", 1)], pk=[])]
    declared = parse(spark_lake.spark(), V2, lines, Hints(table=T, key=("id",)))
    assert images(declared) == [(DELETE, {"id": 1, "g": 1}), (INSERT, {"id": 2, "g": 1})]
    assert images(parse(spark_lake.spark(), V2, lines, Hints(table=T))) == [(UPDATE, {"id": 2, "g": 1})]


@pytest.mark.spark
def test_values_omitted_by_an_update_are_unavailable_and_by_an_insert_null(spark_lake: Lake) -> None:
    note, small = ("note", "text", '"long"'), ("small", "integer", 1)
    lines = [
        v2("I", [(*ID, 1), note, small]),
        v2("U", [(*ID, 1), small], [(*ID, 1)]),  # TOAST
        v2("U", [(*ID, 1), note], [(*ID, 1)]),  # an integer is never TOASTed: the column was dropped
        v2("I", [(*ID, 2), small]),
        v2("U", [(*ID, 3), small], [(*ID, 2)]),  # TOAST and another key
        v2("U", [(*ID, 3), small], [(*ID, 3), note, small]),  # replica identity full has it in the old row
        v2("U", [(*ID, 3), small], [(*ID, 3), small]),  # in neither row: the column was dropped
    ]
    events = parse(spark_lake.spark(), V2, lines, Hints(table=T))
    assert [e.unavailable for e in events] == [set(), {"note"}, {"small"}, set(), set(), {"note"}, set(), {"note"}]
    assert [e.row.get("note") for e in events[-2:]] == ["long", None]


@pytest.mark.spark
def test_an_existing_column_that_no_event_of_the_batch_has_is_unavailable(spark_lake: Lake) -> None:
    lines = [v2("U", [(*ID, 1)], [(*ID, 1)]), v2("I", [(*ID, 2)])]
    hints = Hints(table=T, existing_columns={"id": "bigint", "note": "string", "tags": "array<string>", "n": "int"})
    update, insert = parse(spark_lake.spark(), V2, lines, hints)
    assert update.unavailable == {"note", "tags", "n"}
    assert insert.unavailable == set()
    assert insert.row == {"id": 2, "note": None, "tags": None, "n": None}


@pytest.mark.spark
def test_a_truncate_empties_the_table(spark_lake: Lake) -> None:
    lines = [v2("I", [(*ID, 1)]), v2("T", pk=[])]
    assert [e.op for e in parse(spark_lake.spark(), V2, lines, Hints(table=T))] == [INSERT, TRUNCATE]


DIGITS = "1234567890123456789012345678.0123456789"
LATEST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
LEAP = dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC)
NTZ, TZ = "timestamp without time zone", "timestamp with time zone"
QUOTED = r'"{a,\"b,c\",\"\",NULL,\"NULL\",\"q\\\"\\\\\",\"{x}\"}"'

TYPES: list[tuple[str, str, str, Any]] = [
    # Postgres type, JSON value, type in Spark, value
    ("smallint", "-32768", "int", -32768),
    ("integer", "2147483647", "int", 2147483647),
    ("bigint", "9007199254740993", "bigint", 2**53 + 1),
    ("oid", "4294967295", "bigint", 2**32 - 1),
    ("numeric(12,2)", "-0.10", "decimal(12,2)", Decimal("-0.10")),
    ("numeric(38,10)", DIGITS, "decimal(38,10)", Decimal(DIGITS)),
    ("numeric(5,-2)", "1200", "decimal(7,0)", Decimal(1200)),
    ("numeric(3,5)", "0.00999", "decimal(5,5)", Decimal("0.00999")),
    ("numeric(50,2)", "1" * 45 + ".50", "string", "1" * 45 + ".50"),
    ("numeric", "1.50", "string", "1.50"),
    ("real", "3.4028235e+38", "float", pytest.approx(3.4028235e38)),
    ("double precision", "0.1", "double", 0.1),
    ("double precision", "1e+300", "double", 1e300),
    ("boolean", "true", "boolean", True),
    ("character(3)", '"a  "', "string", "a  "),
    ("character varying(10)", '"1.50"', "string", "1.50"),
    ("text", '"q\\"\\\\ 5,[6] {7} \\u00e9"', "string", 'q"\\ 5,[6] {7} é'),
    ("jsonb", '"{\\"a\\": 1.50}"', "string", '{"a": 1.50}'),
    ("uuid", '"a-b"', "string", "a-b"),
    ("mood", '"sad"', "string", "sad"),
    ("interval", '"1 mon 2 days 03:04:05.6"', "string", "1 mon 2 days 03:04:05.6"),
    ("date", '"2024-02-29"', "date", dt.date(2024, 2, 29)),
    ("date", '"infinity"', "date", dt.date(9999, 12, 31)),
    (NTZ, '"2024-02-29 23:59:59.999999"', "timestamp_ntz", LEAP.replace(tzinfo=None)),
    ("timestamp(3) without time zone", '"-infinity"', "timestamp_ntz", dt.datetime.fromisoformat("0001-01-01")),
    (TZ, '"2024-03-01 05:29:59.999999+05:30"', "timestamp", LEAP),
    (TZ, '"infinity"', "timestamp", LATEST),
    ("time without time zone", '"12:34:56.7"', "string", "12:34:56.700000"),
    ("time(0) without time zone", '"24:00:00"', "string", "24:00:00.000000"),
    ("bytea", '"00ff"', "binary", b"\x00\xff"),
    ("bytea", '""', "binary", b""),
    ("integer[]", '"{1,NULL,-3}"', "array<int>", [1, None, -3]),
    ("integer[]", '"[0:1]={4,5}"', "array<int>", [4, 5]),
    ("integer[]", '"{}"', "array<int>", []),
    ("text[]", QUOTED, "array<string>", ["a", "b,c", "", None, "NULL", 'q"\\', "{x}"]),
    ("numeric(6,2)[]", '"{1.50,-2}"', "array<decimal(6,2)>", [Decimal("1.50"), Decimal("-2.00")]),
    ("boolean[]", '"{t,f}"', "array<boolean>", [True, False]),
    ("bytea[]", '"{\\"\\\\\\\\x00ff\\"}"', "array<binary>", [b"\x00\xff"]),
    ("date[]", '"{2024-02-29}"', "array<date>", [dt.date(2024, 2, 29)]),
]  # fmt: skip


@pytest.mark.spark
def test_every_postgres_type_is_read(spark_lake: Lake) -> None:
    columns = [(f"c{i}", kind, value) for i, (kind, value, _, _) in enumerate(TYPES)]
    (event,) = parse(spark_lake.spark(), V2, [v2("I", [(*ID, 1), *columns])], Hints(table=T))
    assert event.bad is None
    for i, (kind, value, _, expected) in enumerate(TYPES):
        assert event.row[f"c{i}"] == expected, (kind, value)
    assert [read_postgres(kind).type for kind, *_ in TYPES] == [kind for _, _, kind, _ in TYPES]


@pytest.mark.long
@pytest.mark.spark
def test_declaring_the_type_that_events_name_changes_nothing(spark_lake: Lake) -> None:
    typed = [t for t in TYPES if t[2] != "string"]
    columns = [(f"c{i}", kind, value) for i, (kind, value, _, _) in enumerate(typed)]
    declared = {f"c{i}": spark.upper() for i, (_, _, spark, _) in enumerate(typed)}
    (event,) = parse(spark_lake.spark(), V2, [v2("I", [(*ID, 1), *columns])], Hints(table=T, types=declared))
    assert event.bad is None
    for i, (kind, value, _, expected) in enumerate(typed):
        assert event.row[f"c{i}"] == expected, (kind, value)


@pytest.mark.spark
def test_a_value_that_does_not_fit_its_type_is_detected(spark_lake: Lake) -> None:
    misfits = [
        ("integer", "2147483648"), ("integer", '"x"'), ("date", '"2024-02-30"'), ("date", '"0044-03-15 BC"'),
        ("timestamp with time zone", '"0044-03-15 10:00:00+00 BC"'), ("integer", "1.5"),
        ("boolean", '"maybe"'), ("bytea", '"0g"'), ("integer[]", '"{1,x}"'), ("integer[]", '"{{1},{2}}"'),
        ("time without time zone", '"noon"'), ("numeric(4,2)", "100.00"),
    ]  # fmt: skip
    # Each in a record of its own and in a column of its own, so that its type is the one that it does not fit.
    lines = [v2("I", [(*ID, n), (f"v{n}", kind, value)]) for n, (kind, value) in enumerate(misfits)]
    events = parse(spark_lake.spark(), V2, lines, Hints(table=T))
    for n, (event, misfit) in enumerate(zip(events, misfits, strict=True)):
        assert (event.bad or "").startswith(f"v{n} does not fit"), misfit


@pytest.mark.spark
def test_a_type_that_widens_within_a_batch_is_read_as_the_wider_one(spark_lake: Lake) -> None:
    lines = [
        v2("I", [(*ID, 1), ("n", "integer", 5), ("m", "numeric(6,2)", "1.50")]),
        v2("I", [(*ID, 2), ("n", "bigint", 2**40), ("m", "numeric(10,4)", "1.2345")]),
    ]
    one, two = parse(spark_lake.spark(), V2, lines, Hints(table=T))
    assert (one.row["n"], two.row["n"]) == (5, 2**40)
    assert (one.row["m"], two.row["m"]) == (Decimal("1.5000"), Decimal("1.2345"))


@pytest.mark.spark
def test_arrays_of_boxes_and_spaces_in_names_of_types_are_read(spark_lake: Lake) -> None:
    """Boxes contain commas, so arrays of them are delimited by semicolons."""
    boxes = '"{(3,4),(1,2);(7,8),(5,6);NULL}"'
    line = v2("I", [(*ID, 1), ("b", "box[]", boxes), ("n", "numeric (10, 2)", "1.50"), ("p", "point[]", '"{}"')])
    (event,) = parse(spark_lake.spark(), V2, [line], Hints(table=T))
    assert event.row == {"id": 1, "b": ["(3,4),(1,2)", "(7,8),(5,6)", None], "n": Decimal("1.50"), "p": []}


@pytest.mark.spark
def test_types_without_a_common_type_get_separate_plans_and_every_event_is_read_once(spark_lake: Lake) -> None:
    lines = [
        v2("I", [(*ID, 1), ("v", "integer", 5)]),
        v2("D", [], [(*ID, 1)]),
        v2("I", [(*ID, 2), ("v", "text", '"five"')]),
        v2("U", [(*ID, 2), ("v", "text", '"six"')], [(*ID, 2)]),
    ]
    events = parse(spark_lake.spark(), V2, lines, Hints(table=T))
    assert images(events) == [
        (INSERT, {"id": 1, "v": 5}),
        (DELETE, {"id": 1}),
        (INSERT, {"id": 2, "v": "five"}),
        (UPDATE, {"id": 2, "v": "six"}),
    ]


@pytest.mark.spark
def test_hostile_names_and_values_do_not_reach_sql(spark_lake: Lake) -> None:
    names = ["a'b", 'q"q', "b`t", "back\\", "Order By", "ü.ö", "x') --", "{t}", "$1", "SELECT"]
    value = "'); DROP TABLE t; -- {t} $1 \\ \" `"
    table = SourceTable("public", "t'; --")
    line = v2("I", [(*ID, 1), *((n, "text", json.dumps(value)) for n in names)], table=table.name)
    (event,) = parse(spark_lake.spark(), V2, [line], Hints(table=table))
    assert event.row == {"id": 1, **dict.fromkeys(names, value)}


def test_columns_that_differ_only_in_case_are_rejected() -> None:
    shape = json.dumps([{"kind": "insert", "names": ["id", "ID"], "types": ["int", "int"]}])
    with pytest.raises(UnsupportedEventError, match="share one name in the lake.*rename"):
        V2.plans([Seen("", shape)], Hints(table=T))


def test_two_keys_in_one_batch_are_rejected_unless_one_is_declared() -> None:
    form = {"kind": "insert", "names": ["id", "g"], "types": ["int", "int"]}
    seen = [Seen("", json.dumps([{**form, "pk": ["id"]}, {**form, "pk": ["id", "g"]}]))]
    with pytest.raises(KeyChangedError, match="name different keys"):
        V2.plans(seen, Hints(table=T))
    assert V2.plans(seen, Hints(table=T, key=("id",)))[0].plan.key == ("id",)
