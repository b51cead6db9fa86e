"""Looking up many keys in Arrow tables finds what comparing each row with each key finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lake_assets.tables.writing.key_lookup import KeyLookup

KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int64(), lambda n: n - 2),
    "text": (pa.large_string(), lambda n: ["", "a", "ä", "A", "a\0"][n]),
    "date": (pa.date32(), lambda n: date(1969, 12, 30) + timedelta(days=n)),
    "moment": (pa.timestamp("us", "UTC"), lambda n: datetime(1969, 12, 31, tzinfo=UTC) + timedelta(hours=9 * n)),
    "decimal": (pa.decimal128(20, 3), lambda n: Decimal(n) / 8),
    "bytes": (pa.large_binary(), lambda n: bytes([n, 0])),
    "flag": (pa.bool_(), lambda n: n % 2 == 0),
}


@pytest.mark.parametrize("nulls_match", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_keys_are_found_as_by_comparing_all_rows(seed: int, nulls_match: bool) -> None:
    chance = random.Random(seed)
    columns = chance.sample(sorted(KINDS), chance.randrange(1, 4))

    def rows(number: int) -> list[tuple[Any, ...]]:
        return [
            tuple(None if chance.random() < 0.15 else KINDS[c][1](chance.randrange(5)) for c in columns)
            for _ in range(number)
        ]

    keys = list(dict.fromkeys(rows(chance.choice((0, 1, 6, 40)))))
    stored = rows(chance.choice((0, 1, 300)))
    lookup = KeyLookup(_table(columns, keys), nulls_match=nulls_match)
    assert lookup.is_unique
    at, found = lookup.find(_table(columns, stored, chunks=chance.choice((1, 3))))
    expected = [
        (n, keys.index(row))
        for n, row in enumerate(stored)
        if row in keys and (nulls_match or all(v is not None for v in row))
    ]
    assert list(zip(at.tolist(), found.tolist(), strict=True)) == expected


def test_two_rows_with_one_key_are_no_keys() -> None:
    keys = [(1, "a"), (2, "b"), (1, "a")]
    assert not KeyLookup(_table(["int", "text"], keys), nulls_match=True).is_unique
    # Rows with a null match nothing, so they cannot match twice.
    nulls = [(None, "a"), (None, "a"), (1, "a")]
    assert KeyLookup(_table(["int", "text"], nulls), nulls_match=False).is_unique
    assert not KeyLookup(_table(["int", "text"], nulls), nulls_match=True).is_unique


def _table(columns: list[str], rows: list[tuple[Any, ...]], *, chunks: int = 1) -> pa.Table:
    def chunk(part: list[tuple[Any, ...]]) -> pa.Table:
        values = [[r[n] for r in part] for n in range(len(columns))]
        return pa.table([pa.array(v, KINDS[c][0]) for c, v in zip(columns, values, strict=True)], names=columns)

    size = max(1, -(-len(rows) // chunks))
    parts = [chunk(rows[n : n + size]) for n in range(0, len(rows), size)] or [chunk([])]
    return pa.concat_tables(parts)
