"""Changes whose place in the order is a number or a moment: what cannot be compared with the others is rejected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import OrderUnknownError
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY, ORDER_PROPERTY
from tests.support.item_stream import ITEMS, Stream

KEYED = {"table": ITEMS, "key": "id", "types": {"id": "int", "n": "int"}}


def simplified(op: str, at: Any, n: int, key: int = 1) -> str:
    names, values = ["id", "n"], [key, n]
    record: dict[str, Any] = {"changeType": op, "columnNames": names, "columnValues": values}
    record |= {"oldKeyNames": ["id"], "oldKeyValues": [key], "timestamp": at, "schema": "public", "table": "items"}
    return json.dumps(record)


def flagged(flag: str, at: Any, n: int, key: int = 1) -> str:
    return json.dumps({"FLAG": flag, "id": key, "n": n} | ({"CDC_TIMESTAMP": at} if at != "none" else {}))


def held(stream: Stream) -> list[tuple[int, int]]:
    return sorted((r["id"], r["n"]) for r in stream.rows("final.items"))


def reasons(stream: Stream) -> list[tuple[int, str]]:
    return [(position, reason) for position, _, reason in stream.rejected()]


ORDERS: Sequence[Sequence[Any]] = [
    ("2.5", "3"), (9.5, 10.5), ("-1", "0"), (-1.5, -1), ("1e2", "101"), (99, "1e2"), ("9" * 25, "1" + "0" * 25),
]  # fmt: skip


@pytest.mark.long
def test_numbers_order_changes_by_value_whether_text_or_not(lake: Lake) -> None:
    """The later change comes first, in a batch of its own for some."""
    stream = Stream(lake, format="simplified", tables=[KEYED])
    early = [simplified("update", a, 1, key) for key, (a, _) in enumerate(ORDERS)]
    late = [simplified("insert", b, 2, key) for key, (_, b) in enumerate(ORDERS)]
    stream.run(*late, *early[:4])
    stream.run(*early[4:])
    assert held(stream) == [(key, 2) for key in range(len(ORDERS))]
    assert stream.rejected() == []


def test_a_change_without_a_place_is_rejected_and_freezes_nothing(lake: Lake) -> None:
    stream = Stream(lake, format="change-set", tables=[KEYED])
    outcomes = stream.run(
        flagged("I", "2024-01-01", 1), flagged("U", "yesterday", 2),
        flagged("U", "2024-01-01T00:00:00.0000000021Z", 4), flagged("U", "2024-01-01T01:00:00.000000002+01:00", 3),
    )  # fmt: skip
    assert outcomes["staging.items"].details["rejected"] == 1
    assert reasons(stream) == [
        (
            1,
            "CDC_TIMESTAMP is yesterday: neither a number nor a moment, so its place in the order of changes is unknown",
        )
    ]
    assert held(stream) == [(1, 4)]
    stream.run(flagged("U", "2024-01-02", 5))
    assert held(stream) == [(1, 5)]


@pytest.mark.long
def test_numbers_among_moments_are_rejected_until_another_order_is_declared(lake: Lake) -> None:
    """Within a batch and after it; what the reason advises works afterwards."""
    stream = Stream(lake, format="change-set", tables=[KEYED])
    stream.run(flagged("I", "none", 0, 7), flagged("I", "2024-01-01", 1), flagged("U", 1704153600, 2))
    assert reasons(stream) == [
        (2, "its place in the order of changes is one of the numbers, and the events before it are ordered by moments: "
            "which came first is unknown"),
    ]  # fmt: skip
    stream.run(flagged("U", "1704153600", 3), flagged("U", "none", 4), flagged("U", "2024-01-02", 5))
    assert [position for position, _ in reasons(stream)] == [2, 3, 4]
    assert reasons(stream)[2][1] == "no moment says its place in the order of changes, as events before it have one"
    # An event from before the first moment needs none: a load of what was there.
    assert held(stream) == [(1, 5), (7, 0)]
    ordered = {"format": "change-set", "tables": [KEYED | {"order_by": "n"}]}
    stream.declare(**ordered)
    assert stream.replay()["staging.items"].why == "3 records can be read now, 0 cannot"
    stream.run()
    stream.run(flagged("U", "tomorrow", 9), flagged("U", "2024-01-09", 8))
    assert stream.rejected() == []
    assert held(stream) == [(1, 9), (7, 0)]
    # And back: as if nothing else had ever been declared.
    stream.declare(format="change-set", tables=[KEYED])
    assert stream.run()["staging.items"].strategy == "rebuild"
    assert held(stream) == [(1, 8), (7, 0)]
    assert [position for position, _ in reasons(stream)] == [2, 3, 4, 6]
    assert {o.status for o in stream.run().values()} == {"nothing"}
    stream.declare(**ordered)
    stream.replay()
    stream.run()
    assert held(stream) == [(1, 9), (7, 0)]


@pytest.mark.long
def test_a_table_from_before_is_made_again_in_the_right_order(lake: Lake) -> None:
    """Staging holds texts as they came; the final table was made of them, and of no kind is anything recorded."""
    stream = Stream(lake, format="simplified", tables=[KEYED])
    stream.run(
        simplified("insert", "3", 1), simplified("update", "2.5", 2), simplified("insert", "-1", 1, 5),
        simplified("update", "10", 2, 5), simplified("update", "11", 3, 5),
    )  # fmt: skip
    spark, staging, final = lake.spark(), lake.sql_name("staging.items"), lake.sql_name("final.items")
    for position, text in enumerate(("00000000000000000003", "2.5", "-1", "00000000000000000010", "yesterday")):
        spark.sql(f"UPDATE {staging} SET _sequence = '{text}' WHERE _position = {position}")
    declared = json.loads(lake.table("final.items").properties[DECLARATION_PROPERTY])
    del declared["order"]
    spark.sql(f"ALTER TABLE {final} SET TBLPROPERTIES ('{DECLARATION_PROPERTY}' = '{json.dumps(declared)}')")
    spark.sql(f"ALTER TABLE {staging} UNSET TBLPROPERTIES ('{ORDER_PROPERTY}')")
    spark.sql(f"UPDATE {final} SET n = 99")  # whatever was made of them
    outcomes = stream.run(
        simplified("update", "2.7", 7), simplified("update", "2024-01-01", 8), simplified("update", "10.5", 4, 5)
    )
    assert outcomes["final.items"].strategy == "rebuild"
    assert held(stream) == [(1, 1), (5, 4)]
    assert [position for position, _ in reasons(stream)] == [6]
    assert stream.run()["final.items"].status == "nothing"
    stream.run(simplified("update", "3.5", 9))
    assert held(stream) == [(1, 9), (5, 4)]


@pytest.mark.long
def test_versions_of_a_feed_are_whole_numbers(lake: Lake) -> None:
    stream = Stream(lake, format="change-feed", tables=[KEYED])

    def row(kind: str, version: Any, n: int) -> str:
        return json.dumps({"id": 1, "n": n, "_change_type": kind, "_commit_version": version})

    stream.run(row("insert", 9, 1), row("update_postimage", "v10", 2), row("update_postimage", 10, 3))
    assert held(stream) == [(1, 3)]
    assert reasons(stream) == [(1, "_commit_version is not a whole number of up to 20 digits")]


@pytest.mark.long
def test_ordinals_of_another_changelog_stop_the_table(lake: Lake) -> None:
    """Ordinals begin with 0 in each query of a changelog: the next one is no older than the one before."""

    def feed(kind: str, ordinal: int, snapshot: int, v: str) -> str:
        return json.dumps(
            {"id": 1, "v": v, "_change_type": kind, "_change_ordinal": ordinal, "_commit_snapshot_id": snapshot}
        )

    first = [feed("INSERT", 0, 11, "a"), feed("UPDATE_BEFORE", 1, 12, "a"), feed("UPDATE_AFTER", 1, 12, "b")]
    second = [feed("UPDATE_BEFORE", 0, 13, "b"), feed("UPDATE_AFTER", 0, 13, "c")]
    stream = Stream(lake, format="change-feed", tables=[{"table": ITEMS, "key": "id"}])
    stream.run(*first)
    stream.run(*first)  # delivered again
    with pytest.raises(OrderUnknownError, match="record 6 .* begins another changelog"):
        stream.run(*second)
    assert [r["v"] for r in stream.rows("final.items")] == ["b"]
    stream.declare(format="change-feed", tables=[{"table": ITEMS, "key": "id", "order_by": "_position"}])
    stream.run()
    assert [r["v"] for r in stream.rows("final.items")] == ["c"]
