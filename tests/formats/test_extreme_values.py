"""Every type of Connect and Debezium, with extreme values: stored as it is, or rejected with the column's name."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.format_base import schema_key
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import parse
from lake_assets.lake import TableId
from tests.support.connect_values import TYPES, ConnectType, more_values, unscaled
from tests.support.seeds import long_seeds

NAMES = list(TYPES)
FLOATS = {f"v{i}" for i, name in enumerate(NAMES) if name in ("float32", "float64", "double")}


def read(lake: Lake, lines: list[str], key: tuple[str, ...] = ("id",), **declared: Any) -> list[dict[str, Any]]:
    """The events of some of Debezium's records, all values as text, by staging's own reading."""
    reader = event_format("debezium")
    spec = StagingSpec(TableId(("staging",), "t"), TableId(("raw",), "r"), SourceTable("public", "t"), "debezium", "p",
                       key=key, **declared)  # fmt: skip
    keys = [schema_key(reader.schema_of(json.loads(x))) for x in lines]
    frame = lake.spark().createDataFrame(pa.table({
        "position": range(len(lines)), "source_table": ["public.t"] * len(lines), "record": lines, "schema_key": keys,
    }))  # fmt: skip
    records = frame.selectExpr("*", "TIMESTAMP'2024-01-01' AS arrived_at", "CAST(NULL AS STRING) AS payload")
    rows = parse(records, spec, {}).rows
    assert rows is not None
    kinds = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
    texts = (f"hex(`{c}`) AS `{c}`" if kinds[c] == "binary" else c if c in ("_misfits", "_position")
             else f"CAST(`{c}` AS STRING) AS `{c}`" for c in rows.columns)  # fmt: skip
    return [r.asDict() for r in rows.selectExpr(*texts).orderBy("_position").collect()]


def record(columns: dict[str, dict[str, Any]], row: dict[str, Any]) -> str:
    """An enveloped record with schema."""
    fields = [{**schema, "field": name, "optional": True} for name, schema in columns.items()]
    image = {"type": "struct", "fields": fields, "optional": True}
    schema = {"type": "struct", "fields": [
        {**image, "field": "before"}, {**image, "field": "after"}, {"type": "string", "field": "op"},
    ]}  # fmt: skip
    source = {"schema": "public", "table": "t", "sequence": '["1","2"]', "lsn": 2}
    payload = {"before": None, "after": row, "source": source, "op": "c"}
    return json.dumps({"schema": schema, "payload": payload}, ensure_ascii=False, separators=(",", ":"))


def same(column: str, stored: str | None, expected: str | None) -> bool:
    if column not in FLOATS or None in (stored, expected):
        return stored == expected
    form = "f" if TYPES[NAMES[int(column[1:])]].schema["type"] == "float32" else "d"
    return struct.pack(form, float(str(stored))) == struct.pack(form, float(str(expected)))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *long_seeds(2, 3)])
def test_a_value_is_stored_as_it_is_or_is_a_misfit_of_its_column(spark_lake: Lake, seed: int) -> None:
    choose = random.Random(seed)
    values = {name: [*kind.values, *more_values(kind, choose, 40)] for name, kind in TYPES.items()}
    rows = [{n: v[i % len(v)] for n, v in values.items()} for i in range(max(map(len, values.values())))]
    columns = {"id": {"type": "int64"}} | {f"v{i}": TYPES[n].schema for i, n in enumerate(NAMES)}
    lines = [
        record(columns, {"id": i} | {f"v{NAMES.index(n)}": v for n, v in row.items()}) for i, row in enumerate(rows)
    ]
    wrong: dict[tuple[str, str], Any] = {}
    for row, found in zip(rows, read(spark_lake, lines, on_misfit="null"), strict=True):
        assert found[BAD] is None
        expected = {f"v{NAMES.index(n)}": TYPES[n].stored(v) for n, v in row.items()}
        misfits = [reason.split(" does not fit ")[0] for reason in found["_misfits"] or []]
        assert misfits == [c for c, e in expected.items() if e is None], found["_misfits"]
        wrong |= {(n, str(row[n])[:60]): (found[c], expected[c])
                  for c, n in zip(expected, NAMES, strict=True) if not same(c, found[c], expected[c])}  # fmt: skip
    assert wrong == {}


KEYS = ("Connect Time", "Time", "MicroTime", "NanoTime", "Timestamp", "MicroTimestamp", "NanoTimestamp", "ZonedTimestamp",
        "Decimal 38, 10", "VariableScaleDecimal", "int64", "Date")  # fmt: skip


def test_two_keys_of_the_source_are_two_keys_here_or_are_rejected(spark_lake: Lake) -> None:
    """One record a value, in which the other columns of the key are constant."""
    plain = {n: next(v for v in TYPES[n].values if stored_in_key(TYPES[n], v) is not None) for n in KEYS}
    columns = {n: TYPES[n].schema for n in KEYS}
    cases = [(n, v) for n in KEYS for v in TYPES[n].values]
    found = read(spark_lake, [record(columns, {**plain, n: v}) for n, v in cases], key=KEYS)
    for (name, value), row in zip(cases, found, strict=True):
        expected = stored_in_key(TYPES[name], value)
        if expected is None:
            assert (row[BAD] or "").startswith(f"{name} does not fit "), (name, value, row)
        else:
            assert (row[BAD], row[name]) == (None, expected), (name, value)
    for name in KEYS:
        stored = [(v, r[name]) for (n, v), r in zip(cases, found, strict=True) if n == name and not r[BAD]]
        # Infinite dates are the last ones here, and zero has any scale.
        keys = {
            str(v) if isinstance(v, dict) else v: s
            for v, s in stored
            if "infinity" not in str(v) and "AA==" not in str(v)
        }
        assert len(set(keys.values())) == len(keys), (name, keys)


def stored_in_key(kind: ConnectType, value: Any) -> str | None:
    return (kind.in_key or kind.stored)(value)


def test_a_reject_repeats_the_records_own_number(spark_lake: Lake) -> None:
    columns = {"id": {"type": "int64"}, "n": {"type": "int64"}, "f": {"type": "float64"}, "d": TYPES["Decimal 38, 0"].schema,
               "u": TYPES["unsigned bigint"].schema}  # fmt: skip
    row = {"id": 1, "n": 1, "f": 0.5, "d": "BA==", "u": "BA=="}

    def line(name: str, number: str) -> str:
        return record(columns, row | {name: "@"}).replace('"@"', number)

    cases = [("n", "1.50"), ("n", "9007199254740993.5"), ("n", "9.007199254740993e15"), ("f", "1e400"), ("f", "9007199254740993"),
             ("id", "2.50"), ("id", "2.342361e+06"), ("n", "2e0")]  # fmt: skip
    found = read(spark_lake, [line(*c) for c in cases])
    kinds = {"n": "bigint", "id": "bigint", "f": "double"}
    assert [r[BAD] for r in found] == [
        *(f"{name} does not fit {kinds[name]}: {number}" for name, number in cases[:6]), None, None,
    ]  # fmt: skip
    assert (found[6]["id"], found[7]["n"]) == ("2342361", "2")


def test_a_decimal_that_is_a_number_in_json_is_not_taken_for_base64(spark_lake: Lake) -> None:
    """`decimal.format=NUMERIC`: 1234 is also the base64 of three bytes."""
    columns = {"id": {"type": "int64"}, "d": TYPES["Decimal 38, 0"].schema, "t": TYPES["Decimal 38, 0"].schema}
    values = [("1234", "BA=="), (1234, "BA=="), ("BA==", 12345678), ("BA==", "12345678"), (-123, "BA==")]
    lines = [record(columns, {"id": i, "d": d, "t": t}) for i, (d, t) in enumerate(values)]
    found = read(spark_lake, lines, types={"t": "string"})
    own = "(a number: its bytes in base64 are expected, as with decimal.format=BASE64)"
    assert [r[BAD] for r in found] == [
        None, f"d does not fit decimal(38,0): 1234 {own}", f"t does not fit string: 12345678 {own}", None,
        "d does not fit decimal(38,0): -123",
    ]  # fmt: skip
    bytes_of_it = bytes.fromhex("D76DF8E7AEFC")
    assert (found[0]["d"], found[3]["t"]) == ("-2658824", str(int.from_bytes(bytes_of_it, "big", signed=True)))


def test_a_declared_number_type_reads_the_records_number(spark_lake: Lake) -> None:
    names = ("MicroTime", "NanoTimestamp", "Date", "Decimal 38, 0", "Decimal 12, 2", "MicroDuration")
    kinds = ("bigint", "decimal(38,0)", "int", "double", "double", "double")
    columns = {"id": {"type": "int64"}} | {f"v{i}": TYPES[n].schema for i, n in enumerate(names)}
    rows = [(-90_000_000_001, 1_704_067_200_123_456_789, -5, unscaled(2**53), unscaled(1234), 7),
            (0, 0, 0, unscaled(2**53 + 1), unscaled(1), 2**53 + 1)]  # fmt: skip
    lines = [record(columns, {"id": 1} | {f"v{i}": v for i, v in enumerate(row)}) for row in rows]
    found = read(spark_lake, lines, types={f"v{i}": k for i, k in enumerate(kinds)}, on_misfit="null")
    assert [found[0][f"v{i}"] for i in range(len(kinds))] == [
        "-90000000001", "1704067200123456789", "-5", "9.007199254740992E15", "12.34", "7.0",
    ]  # fmt: skip
    assert [m.split(":")[0] for m in found[1]["_misfits"]] == ["v3 does not fit double", "v5 does not fit double"]
