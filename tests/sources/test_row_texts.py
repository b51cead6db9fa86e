"""Texts of rows: equal exactly if the rows are, in one notation for all types that may hold a value."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lake_assets.sources.row_texts import key_texts, row_texts


def text(value: Any, kind: pa.DataType) -> Any:
    (row,) = row_texts(pa.record_batch({"c": pa.array([value], kind)})).to_pylist()
    return json.loads(row).get("c")


NS = pa.timestamp("ns", "Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, pa.int8(), "1"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (1.0, pa.float64(), "1"),
        (0.1, pa.float32(), "0.1"),
        (-0.0, pa.float64(), "-0"),
        (math.nan, pa.float64(), "NaN"),
        (-math.inf, pa.float32(), "-Infinity"),
        (1e300, pa.float64(), "1e+300"),
        (Decimal("1.50"), pa.decimal128(10, 2), "1.5"),
        (Decimal("100.00"), pa.decimal128(10, 2), "100"),
        (Decimal("-0.00"), pa.decimal128(10, 2), "0"),
        (Decimal("0E-10"), pa.decimal128(38, 10), "0"),
        (Decimal("0.0000000100"), pa.decimal128(38, 10), "1E-8"),
        (True, pa.bool_(), "true"),
        ('a"\\\n\x00ü', pa.large_string(), 'a"\\\n\x00ü'),
        ("x", pa.dictionary(pa.int32(), pa.string()), "x"),
        (b"\xff", pa.binary(), "/w=="),
        (dt.date(2026, 11, 1), pa.date32(), "2026-11-01"),
        (dt.date(2026, 11, 1), pa.date64(), "2026-11-01"),
        (dt.time(1, 2, 3), pa.time32("s"), "01:02:03.000000"),
        (1, pa.time64("ns"), "00:00:00.000000001"),
        (dt.datetime(2026, 11, 1), pa.timestamp("s"), "2026-11-01 00:00:00.000000"),  # noqa: DTZ001
        (dt.datetime(2026, 11, 1), pa.timestamp("ns"), "2026-11-01 00:00:00.000000"),  # noqa: DTZ001
        (1, NS, "1970-01-01 00:00:00.000000001Z"),
        (1_000, NS, "1970-01-01 00:00:00.000001Z"),
        (2**62, pa.timestamp("us"), f"{2**62} microseconds since 1970"),
        (1_500, pa.duration("ms"), "1500000"),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"a": Decimal("1.0")}, pa.struct([("a", pa.decimal128(3, 1))]), {"a": "1.0"}),
        (None, pa.int64(), None),
    ],
)
def test_values_have_one_notation(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert text(value, kind) == expected


def test_rows_leave_nulls_out_and_sort_names() -> None:
    rows = pa.record_batch({"b": ["x", None], "a": pa.array([None, None], pa.int64()), 'q"': [1, 2]})
    assert row_texts(rows).to_pylist() == ['{"b":"x","q\\"":"1"}', '{"q\\"":"2"}']
    assert row_texts(rows.select([])).to_pylist() == ["{}", "{}"]
    assert row_texts(rows.select(["a"])).to_pylist() == ["{}", "{}"]
    assert row_texts(rows.select(["b"])).to_pylist() == ['{"b":"x"}', "{}"]


def test_keys_are_null_if_one_of_their_values_is() -> None:
    rows = pa.record_batch({"a": [1, None, 3], "f": [-0.0, 1.0, None]})
    assert key_texts(rows, ["a"]).to_pylist() == ['["1"]', None, '["3"]']
    assert key_texts(rows, ["f", "a"]).to_pylist() == ['["0","1"]', None, None]


def test_texts_that_are_not_utf8_are_an_error() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(pa.ArrowInvalid):
        row_texts(pa.record_batch({"a": broken}))
