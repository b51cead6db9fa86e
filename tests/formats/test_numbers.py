"""Numbers in JSON, whatever they look like: exactly what the record says, or a misfit that repeats it."""

from __future__ import annotations

import json
import math
import random
import struct
from fractions import Fraction
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.records.event_rows import BAD
from tests.support.json_numbers import KINDS, NUMBERS, random_numbers
from tests.support.seeds import long_seeds
from tests.support.value_records import RECORDS, json_object, read


def stored(kind: str, text: str) -> Any:
    """Return what a column holds of a number; None: it does not fit."""
    mantissa, _, exponent = text.lower().partition("e")
    if abs(int(exponent or 0)) > 5000:
        number = Fraction(0) if not Fraction(mantissa) else None
    else:
        number = Fraction(text)
    if kind in ("int", "bigint"):
        bits = 31 if kind == "int" else 63
        return (
            int(number) if number is not None and number.denominator == 1 and -(2**bits) <= number < 2**bits else None
        )
    if kind.startswith("decimal"):
        digits, scale = map(int, kind[8:-1].split(","))
        if number is None or (number * 10**scale).denominator != 1 or abs(number * 10**scale) >= 10**digits:
            return None
        return number
    return _floating(kind, text, number)


def _floating(kind: str, text: str, number: Fraction | None) -> float | None:
    """Return the nearest float or double; None if it is infinite, or not what a whole number says at its precision."""
    try:
        nearest = float(text) if kind == "double" else struct.unpack("f", struct.pack("f", float(text)))[0]
    except OverflowError:
        return None
    if number is None or math.isinf(nearest) or (nearest == 0 and number):
        return None
    if number.denominator == 1:
        mantissa, _, exponent = text.lower().partition("e")
        unit = int(exponent or 0) - len(mantissa.partition(".")[2])
        if abs(number) >= 10**38:
            return nearest if exponent else None
        return nearest if abs(number - Fraction(nearest)) < 10 ** max(unit, 0) else None
    return nearest


def same(kind: str, found: str | None, expected: Any) -> bool:
    if found is None or expected is None:
        return found is expected
    if kind in ("float", "double"):
        form = kind[0]
        return struct.pack(form, float(found)) == struct.pack(form, expected)
    return Fraction(found) == expected


@pytest.mark.parametrize("seed", [1, *long_seeds(2, 2)])
@pytest.mark.parametrize(
    "form", [f if f in ("change-set in CSV", "debezium") else pytest.param(f, marks=pytest.mark.long) for f in RECORDS]
)
def test_a_number_is_never_rounded(spark_lake: Lake, form: str, seed: int) -> None:
    """In columns whose type is declared; every number meets every type. Records are JSON without schemas."""
    name, record = RECORDS[form]
    numbers = NUMBERS + random_numbers(random.Random(seed), 60)
    types = {"id": "int"} | {f"v{i}": kind for i, kind in enumerate(KINDS)}
    found = read(spark_lake, name, [record("I", [n] * len(KINDS)) for n in numbers], types=types, on_misfit="null")
    wrong: dict[tuple[str, str], Any] = {}
    for number, row in zip(numbers, found, strict=True):
        expected = {f"v{i}": stored(kind, number) for i, kind in enumerate(KINDS)}
        wrong |= {(number, kind): (row[c], str(expected[c])) for c, kind in zip(expected, KINDS, strict=True)
                  if not same(kind, row[c], expected[c])}  # fmt: skip
        reasons = [f"{c} does not fit {types[c]}: {number}" for c, e in expected.items() if e is None]
        if (row["_misfits"] or []) != reasons:
            wrong[number, "reasons"] = (row["_misfits"], reasons)
    assert wrong == {}


@pytest.mark.parametrize("form", ["debezium", "change-set"])
def test_a_column_keeps_the_type_that_its_first_numbers_had(spark_lake: Lake, form: str) -> None:
    """Types that are inferred: a bigint takes 2e0, and a double does not take a whole number that it would round."""
    name, record = RECORDS[form]
    existing = {"v0": "bigint", "v1": "double", "v2": "int"}
    rows = [
        ["1.0", "0.5", "3"], ["2e0", "9007199254740993", "1.0"], ["2.342361e+06", "9007199254740992", "2e0"],
        ["1.50", "7", "2.342361e+06"], ["9.007199254740993e15", "1e400", "1e1"], ["1", "9.007199254740993e15", "1.10"],
    ]  # fmt: skip
    found = read(spark_lake, name, [record("I", r) for r in rows], existing, on_misfit="null")
    assert [(r["v0"], r["v1"], r["v2"]) for r in found] == [
        ("1", "0.5", "3"), ("2", None, "1"), ("2342361", "9.007199254740992E15", "2"), (None, "7.0", "2342361"),
        ("9007199254740993", None, "10"), ("1", None, None),
    ]  # fmt: skip
    assert [r["_misfits"] for r in found] == [
        None, ["v1 does not fit double: 9007199254740993"], None, ["v0 does not fit bigint: 1.50"],
        ["v1 does not fit double: 1e400"], ["v1 does not fit double: 9.007199254740993e15", "v2 does not fit int: 1.10"],
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["debezium", "change-set", "simplified"])
def test_two_keys_do_not_become_one_double_or_one_moment(spark_lake: Lake, form: str) -> None:
    name, record = RECORDS[form]
    numbers = ["9007199254740993", "9007199254740992", "0.1", "0.1000000000000000055", "1e23", "-9007199254740993.5",
               "9007199254740993.0", "0.30000000000000004"]  # fmt: skip
    moments = [f'"2024-01-01 00:00:00.{digits}"' for digits in ("123456", "123456789", "1234567", "123456000", "5", "12345678",
               "000000001", "0000000")]  # fmt: skip
    lines = [record("I", [n, m]) for n in numbers for m in moments[:4]] + [
        record("I", [numbers[1], m]) for m in moments
    ]
    types = {"id": "int", "v0": "double", "v1": "timestamp_ntz"}
    found = read(spark_lake, name, lines, types=types, key=("v0", "v1"), on_misfit="null")
    told = {m[1:-1]: "v1 does not fit timestamp_ntz: " + m[1:-1] for m in moments if len(m.rstrip('0"')) > 27}
    bad = {n: f"v0 does not fit double: {n}" for n in (numbers[0], numbers[3], *numbers[5:7])}
    expected = ["; ".join(filter(None, (bad.get(n), told.get(m[1:-1])))) or None for n in numbers for m in moments[:4]]
    expected += [told.get(m[1:-1]) for m in moments]
    assert [r[BAD] for r in found] == expected


def test_arrays_and_long_numbers_are_exact(spark_lake: Lake) -> None:
    name, _ = RECORDS["debezium"]
    types = {"id": "int", "a": "array<bigint>", "d": "array<decimal(38,20)>", "n": "bigint", "s": "array<string>"}
    values = {
        "a": "[9.007199254740993e15,1.0,null]", "d": "[1.23456789012345678901, 1e-20]", "n": "1" * 120, "s": "[1.10,2e0]",
    }  # fmt: skip
    source = '{"schema":"public","table":"items","lsn":5}'
    line = json_object({}, op='"c"', before="null", after=json_object({"id": "1", **values}), source=source)
    (row,) = read(spark_lake, name, [line], types=types, on_misfit="null")
    assert (row["a"], row["d"]) == (
        "[9007199254740993, 1, null]",
        "[1.23456789012345678901, 0.00000000000000000001]",
    )
    assert row["s"] == "[1.10, 2e0]"
    assert row["_misfits"] == ["n does not fit bigint: " + "1" * 100 + "…"]
    assert json.loads(line)
