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
from tests.support.connect_values import TYPES, ConnectType, more_values

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


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in range(2, 8))])
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
