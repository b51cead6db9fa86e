"""Texts that look like numbers: a column that became one of numbers or booleans never changes what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake_assets import Lake
from tests.support.item_stream import ITEMS, Stream

ROWS: list[dict[str, Any]] = [
    {"id": 2, "zip": "01220"}, {"id": 3, "zip": "+5"}, {"id": 4, "zip": " 12"}, {"id": 5, "zip": "12"},
    {"id": 6, "zip": "1e3"}, {"id": 7, "zip": "-0"}, {"id": 8, "d": "01.5"}, {"id": 9, "d": ".5"}, {"id": 10, "d": "2.5"},
    {"id": 11, "b": "yes"}, {"id": 12, "b": "T"}, {"id": 13, "b": "1"}, {"id": 14, "b": "false"},
    {"id": 15, "d": "-Infinity"},
]  # fmt: skip
FIRST = {"id": 1, "zip": 94107, "d": 0.5, "b": True}


@pytest.mark.long
@pytest.mark.parametrize("is_csv", [True, pytest.param(False, marks=pytest.mark.long)])
def test_texts_are_rejected_by_columns_of_numbers_until_they_are_declared_as_text(lake: Lake, is_csv: bool) -> None:
    table: dict[str, Any] = {"table": ITEMS, "key": "id"}
    stream = Stream(lake, format="change-set", tables=[table])

    def land(n: int, rows: list[dict[str, Any]]) -> None:
        rows = [{"FLAG": "I", "CDC_TIMESTAMP": n, **dict.fromkeys(FIRST), **row} for row in rows]
        if not is_csv:
            stream.land(*map(json.dumps, rows))
            return
        texts = [
            ",".join("" if v is None else str(v).lower() if v is True else str(v) for v in r.values()) for r in rows
        ]
        (stream.folder / f"{n}.csv").write_text("\n".join([",".join(rows[0]), *texts, ""]))

    land(1, [FIRST])
    stream.run()
    kinds = {f.name: f.dataType.simpleString() for f in lake.spark().table("staging.items").schema.fields}
    land(2, ROWS)
    stream.run()
    found = {r["id"]: r for r in stream.rows("final.items")}
    for row in ROWS:
        (name, text), *_ = [(n, v) for n, v in row.items() if n != "id"]
        if row["id"] in found:
            shown = found[row["id"]][name]
            said = {"true": True, "false": False}.get(text) if kinds[name] == "boolean" else text
            assert shown == said if kinds[name] in ("string", "boolean") else float(shown) == float(text), (kinds, row)
            assert kinds[name] == "string" or text in ("12", "1e3", "-0", "2.5", "false", "-Infinity"), (kinds, row)
    lost = {row["id"] for row in ROWS} - found.keys()
    assert len(lost) == len(stream.rejected())
    stream.declare(format="change-set", tables=[table | {"types": dict.fromkeys(("zip", "d", "b"), "string")}])
    stream.run()
    found = {r["id"]: r for r in stream.rows("final.items")}
    assert {k: v for k, r in found.items() for v in (r["zip"], r["d"], r["b"]) if v is not None and k > 1} == {
        row["id"]: next(v for n, v in row.items() if n != "id") for row in ROWS
    }
