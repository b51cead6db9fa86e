"""Changes as events: one per changed row, whatever the type of the key."""

from __future__ import annotations

import json

import pytest

from lake_assets import Lake
from lake_assets.commands.capture import _lines
from tests.support.changed_table import History

KEYS = {
    "TIMESTAMP": ("TIMESTAMP '2024-01-01 00:00:00.000001'", "TIMESTAMP '2024-01-01 00:00:00.000002'"),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ '2024-01-01 00:00:00.5'", "TIMESTAMP_NTZ '2024-01-01 00:00:00.500001'"),
    "STRUCT<at: TIMESTAMP>": ("struct(TIMESTAMP '2024-01-01 00:00:00.1')", "struct(TIMESTAMP '2024-01-01 00:00:00.10001')"),
    "MAP<STRING, DOUBLE>": ("map('a', 1.0D)", "map('a', NULL)"),
    "BINARY": ("X'00FF'", "X'00FE'"),
    "DOUBLE": ("0.0D", "-0.0D"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [k if k.startswith("T") else pytest.param(k, marks=pytest.mark.long) for k in KEYS])
def test_updates_with_similar_keys_are_separate_events(lake: Lake, namespace: str, kind: str) -> None:
    t = History(lake, f"{namespace}.t", 3, columns=f"id INT, k {kind}, v STRING")
    one, other = KEYS[kind]
    start = t.sql(f"INSERT INTO {{t}} VALUES (1, {one}, 'a'), (2, {other}, 'b'), (3, {other}, 'c')")
    t.sql("UPDATE {t} SET v = concat(v, 'x')")
    with lake.capture(t.table, start) as capture:
        events = [(e.op, e.before.id, e.after.id) for e in capture.events(lake.spark(), keys=["k"]).collect()]
    assert [op for op, *_ in events] == ["u", "u", "u"]
    assert ("u", 1, 1) in events
    assert sorted(before for _, before, _ in events) == sorted(after for *_, after in events) == [1, 2, 3]


def test_lines_of_json_keep_microseconds(lake: Lake) -> None:
    at = "TIMESTAMP '2024-01-01 00:00:00.123456'"
    (line,) = _lines(lake.spark().sql(f"SELECT {at} AS z, CAST({at} AS TIMESTAMP_NTZ) AS n, CAST(NULL AS INT) AS i"))
    assert json.loads(line) == {"z": "2024-01-01T00:00:00.123456Z", "n": "2024-01-01T00:00:00.123456", "i": None}
