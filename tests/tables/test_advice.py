"""Following the advice of an error gives a correct table: the advice is parsed from each error's text."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml

from lake_assets import Lake
from lake_assets.errors import (
    DefinitionChangedError,
    KeyMissingError,
    LakeError,
    RecordsGoneError,
    SchemaConflictError,
    TableReplacedError,
    UnsupportedEventError,
)
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.item_events import change, debezium, v2
from tests.support.item_stream import ITEMS, Stream
from tests.support.oracle import rows_of
from tests.support.streams import Feed, pipeline

T = Table({"id": BIGINT, "n": INT})


def advised(error: LakeError, option: str) -> dict[str, Any]:
    """Return the declaration of an option that an error quotes in backticks."""
    (advice,) = re.findall(rf"`({option}: [^`]+)`", str(error))
    return yaml.safe_load(advice)


def failure(stream: Stream, kind: type[LakeError], *lines: str | bytes) -> Any:
    with pytest.raises(kind) as caught:
        stream.run(*lines)
    return caught.value


def stored_rows(stream: Stream, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(r[c] for c in columns) for r in stream.rows("final.items")), key=str)


# --- types ------------------------------------------------------------------------------------------------------

ONE, TWO = ("integer", 1), ("integer", 2)
CONFLICT = [v2(3, "U", id=ONE, n=("text", "seven")), v2(4, "I", id=TWO, n=("text", "8"))]


@pytest.mark.long
@pytest.mark.parametrize("also", [{}, pytest.param({"on_conflict": "new-column"}, marks=pytest.mark.long)])
def test_a_type_that_is_declared_after_a_conflict_is_that_of_all_values(lake: Lake, also: dict[str, Any]) -> None:
    stream = Stream(lake, format="wal2json-v2")
    stream.run(v2(1, "I", id=ONE, n=("integer", 7)), v2(2, "I", id=("integer", 9), n=("integer", 9)))
    error = failure(stream, SchemaConflictError, *CONFLICT)
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, **also, **advised(error, "types")}])
    outcomes = stream.run()
    assert outcomes["staging.items"].strategy == outcomes["final.items"].strategy == "rebuild"
    assert stored_rows(stream, "id", "n") == [(1, "seven"), (2, "8"), (9, "9")]
    assert stream.rejected() == []
    assert {o.status for o in stream.run().values()} == {"nothing"}
    stream.run(v2(5, "U", id=TWO, n=("integer", 5)))
    assert stored_rows(stream, "id", "n") == [(1, "seven"), (2, "5"), (9, "9")]


@pytest.mark.long  # as a declared type
@pytest.mark.parametrize("policy", ["new-column", pytest.param("reject", marks=pytest.mark.long)])
def test_a_policy_that_is_declared_after_a_conflict_lets_the_table_go_on(lake: Lake, policy: str) -> None:
    stream = Stream(lake, format="wal2json-v2")
    stream.run(v2(1, "I", id=ONE, n=("integer", 7)))
    error = failure(stream, SchemaConflictError, *CONFLICT)
    assert policy in str(error)
    stream.declare(format="wal2json-v2", on_conflict=policy)
    stream.run()
    expected = {"new-column": [(1, None), (2, None)], "reject": [(1, 7)]}[policy]
    assert stored_rows(stream, "id", "n") == expected
    assert len(stream.rejected()) == {"new-column": 0, "reject": 2}[policy]
    # The type is declared last: diverted or rejected values then are in the column as well.
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, **advised(error, "types")}], on_conflict=policy)
    stream.run()
    assert stored_rows(stream, "id", "n") == [(1, "seven"), (2, "8")]
    assert "n__string" not in stream.rows("final.items")[0]
    assert stream.rejected() == []


@pytest.mark.long
def test_a_type_that_stored_values_can_be_widened_to_reads_nothing_again(lake: Lake) -> None:
    stream = Stream(lake, format="wal2json-v2")
    stream.run(v2(1, "I", id=ONE, n=("integer", 7)))
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, "types": {"n": "bigint", "later": "date"}}])
    assert {o.status for o in stream.run().values()} == {"nothing"}
    outcomes = stream.run(v2(2, "I", id=TWO, n=("bigint", 2**40)))
    assert outcomes["staging.items"].strategy == "append"
    assert stored_rows(stream, "id", "n") == [(1, 7), (2, 2**40)]


def told(n: str, at: int = 1) -> str:
    return change("insert", at, id=str(at), n=n)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "value", "after", "expected"),
    [
        pytest.param({"types": {"n": "float"}}, "0.1", {"types": {"n": "double"}}, 0.1, marks=pytest.mark.long),
        ({"types": {"n": "decimal(20,2)"}}, "1234567890123.45", {"types": {"n": "decimal(12,2)"}}, None),
        pytest.param(
            {"types": {"n": "int"}, "on_misfit": "null"},
            "99999999999",
            {"types": {"n": "bigint"}},
            99999999999,
            marks=pytest.mark.long,
        ),
    ],
    ids=["float", "decimal", "misfit"],
)
def test_values_are_what_the_last_declaration_makes_of_them(
    lake: Lake, before: dict[str, Any], value: str, after: dict[str, Any], expected: Any
) -> None:
    """Also if the new type could hold the values as converted to the old type; `expected`: None for a reject."""
    stream = Stream(lake, format="simplified", tables=[{"table": ITEMS, "key": "id", **before}])
    stream.run(told(value), told("7", 2))
    stream.declare(format="simplified", tables=[{"table": ITEMS, "key": "id", **after}])
    assert stream.run()["staging.items"].strategy == "rebuild"
    assert stored_rows(stream, "id", "n") == [*([("1", expected)] if expected else []), ("2", 7)]
    assert [r[0] for r in stream.rejected()] == ([] if expected else [0])
    assert {o.status for o in stream.run().values()} == {"nothing"}


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_all_values_as_the_key_declared_later_follow_the_source_from_its_beginning(lake: Lake) -> None:
    stream = Stream(lake, format="debezium", tables=[{"table": ITEMS, "on_change": "ignore"}])
    old, new = {"n": 1, "name": "a"}, {"n": 1, "name": "b"}
    stream.run(*debezium(1, "c", None, old), *debezium(2, "u", old, new))
    stream.declare(format="debezium", tables=[{"table": ITEMS, "key": "*"}])
    outcomes = stream.run()
    assert outcomes["staging.items"].strategy == "rebuild"
    assert stored_rows(stream, "n", "name") == [(1, "b")]
    stream.run(*debezium(3, "c", None, old))
    # And back.
    stream.declare(format="debezium", tables=[{"table": ITEMS, "key": "n"}])
    stream.run()
    assert stored_rows(stream, "n", "name") == [(1, "a")]


@pytest.mark.long
def test_a_table_without_a_key_goes_on_as_its_error_says(lake: Lake) -> None:
    stream = Stream(lake, format="debezium")
    rows = [{"n": 1, "name": "a"}, {"n": 1, "name": "b"}]
    stream.run(*debezium(1, "c", None, rows[0]))
    error = failure(stream, UnsupportedEventError, *debezium(2, "u", *rows))
    assert "declare them as `key`" in str(error)
    declared = advised(error, "on_change")
    stream.declare(format="debezium", tables=[{"table": ITEMS, **declared}])
    stream.run()
    assert stored_rows(stream, "n", "name") == [(1, "a")]
    stream.declare(format="debezium", tables=[{"table": ITEMS, "key": "n"}])
    stream.run()
    assert stored_rows(stream, "n", "name") == [(1, "b")]


def old_and_new() -> tuple[list[Event], list[Event]]:
    """Return a source table, and a table of the same name that was created after it was dropped."""
    old, new = Table({"id": BIGINT, "n": INT}), Table({"uid": TEXT, "n": TEXT}, key=("uid",))
    return (
        [Event(old, "c", (i, i + 1), {"id": i, "n": i}) for i in (10, 20)],
        [Event(new, "c", (i, i + 1), {"uid": f"u{i}", "n": "x"}) for i in (30, 40)],
    )


@pytest.mark.long
@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_source_table_that_was_made_again_with_another_key_starts_where_the_error_says(
    lake: Lake, batches: int
) -> None:
    feed = Feed(lake)
    before, after = old_and_new()
    feed.land(before)
    if batches == 2:
        feed.run()
    feed.land([*after[:1], Event(Table({"id": INT}, name="public.other"), "c", (35, 36), {"id": 1}), *after[1:]])
    with pytest.raises(DefinitionChangedError) as caught:
        feed.run()
    declared = advised(caught.value, "start_position")
    assert declared == {"start_position": 2}
    feed.pipeline = pipeline({"table": "public.t", **declared})
    outcomes = feed.run()
    assert outcomes["staging.t"].strategy == ("rebuild" if batches == 2 else "append")
    both = Counter({("u30", "x"): 1, ("u40", "x"): 1})
    assert rows_of(feed.rows("final.t"), ["uid", "n"]) == both
    assert feed.rows("final.t").columns == ["uid", "n"]
    feed.deliver([Event(after[0].table, "d", (50, 51), {"uid": "u30"})])
    assert rows_of(feed.rows("final.t"), ["uid", "n"]) == Counter({("u40", "x"): 1})
    assert {o.status for o in feed.run().values()} == {"nothing"}


def test_a_named_format_says_as_well_where_another_key_begins(lake: Lake) -> None:
    def inserted(at: int, key: str, **columns: Any) -> str:
        record = json.loads(v2(at, "I", **columns))
        return json.dumps(record | {"pk": [{"name": key, "type": columns[key][0]}]})

    stream = Stream(lake, format="wal2json-v2")
    lines = [inserted(1, "id", id=ONE), inserted(2, "uid", uid=("text", "a")), inserted(3, "uid", uid=("text", "b"))]
    error = failure(stream, DefinitionChangedError, *lines)
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, **advised(error, "start_position")}])
    stream.run()
    assert stored_rows(stream, "uid") == [("a",), ("b",)]
    assert stream.rejected() == []


@pytest.mark.long
def test_a_primary_key_that_was_changed_is_declared_and_the_rows_stay(lake: Lake) -> None:
    feed = Feed(lake)
    table = Table({"id": BIGINT, "uid": TEXT})
    feed.deliver([Event(table, "c", (i, i), {"id": i, "uid": f"u{i}"}) for i in (10, 20)])
    feed.land([Event(Table(table.columns, key=("uid",)), "u", (30, 31), {"id": 5, "uid": "u10"})])
    with pytest.raises(DefinitionChangedError, match="declare `key`"):
        feed.run()
    feed.pipeline = pipeline({"table": "public.t", "key": "uid"})
    feed.run()
    assert rows_of(feed.rows("final.t"), ["id", "uid"]) == Counter({(5, "u10"): 1, (20, "u20"): 1})


@pytest.mark.long
def test_a_start_behind_all_records_leaves_an_empty_table_until_they_come(lake: Lake) -> None:
    feed = Feed(lake)
    feed.deliver([Event(T, "c", (10, 11), {"id": 1, "n": 1})])
    feed.pipeline = pipeline({"table": "public.t", "start_position": 1})
    feed.run()
    assert feed.rows("final.t").count() == 0
    assert feed.pipeline.pending(lake) == []
    feed.deliver([Event(T, "c", (20, 21), {"id": 2, "n": 2})])
    assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(2, 2): 1})


@pytest.mark.long
def test_a_declared_key_that_is_no_column_is_corrected(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "key": "nope"})
    feed.land([Event(T, "c", (10, 11), {"id": 1, "n": 1})])
    with pytest.raises(KeyMissingError, match=r"`key`"):
        feed.run()
    for key in ("n", [["nope"], ["id"]]):
        feed.pipeline = pipeline({"table": "public.t", "key": key})
        feed.run()
        assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(1, 1): 1})


@pytest.mark.long
def test_records_that_are_gone_are_not_left_out_without_a_word(lake: Lake) -> None:
    feed = Feed(lake)
    for i in (1, 2):
        feed.deliver([Event(T, "c", (i, i), {"id": i, "n": i})])
    lake.spark().sql("DELETE FROM raw.events WHERE position = 0")
    feed.run()
    feed.pipeline = pipeline({"table": "public.t", "types": {"n": "string"}})
    with pytest.raises(RecordsGoneError, match="holds 1 event whose records"):
        feed.run()
    assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(1, 1): 1, (2, 2): 1})
    # Either undo it, or use the remaining columns.
    feed.pipeline = pipeline({"table": "public.t"})
    feed.run()
    feed.pipeline = pipeline({"table": "public.t", "types": {"n": "string"}, "on_replaced": "rebuild"})
    lake.spark().sql("DROP TABLE staging.t")
    feed.run()
    assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(2, "2"): 1})


# --- replaced tables --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_raw_table_that_was_made_again_is_followed_after_a_rebuild(lake: Lake) -> None:
    feed = Feed(lake)
    feed.deliver([Event(T, "c", (1, 1), {"id": 1, "n": 1})])
    lake.spark().sql("DROP TABLE raw.events")
    lake.spark().sql("DROP TABLE raw.events_files")
    feed.land([Event(T, "c", (2, 2), {"id": 2, "n": 2})])
    with pytest.raises(TableReplacedError) as caught:
        feed.run()
    (table,) = re.findall(r"`lake-assets rebuild (\S+)`", str(caught.value))
    feed.pipeline.rebuild(lake, table)
    feed.run()
    assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(1, 1): 1, (2, 2): 1})


@pytest.mark.long
def test_an_order_that_some_events_lack_is_left_out(lake: Lake) -> None:
    declared = {"table": ITEMS, "key": "id", "types": {"v": "int"}}
    stream = Stream(lake, format="simplified", tables=[{**declared, "order_by": ["v"]}])
    error = failure(stream, UnsupportedEventError, change("insert", 1, id="1", v="1"), change("delete", 2, id="1"))
    assert "remove `order_by`" in str(error)
    stream.declare(format="simplified", tables=[declared])
    stream.run()
    assert stream.rows("final.items") == []
