"""Temporary views of changes: SQL over them gives what a plain model of the table says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import (
    ColumnNotFoundError,
    ConfigError,
    InvalidNameError,
    SnapshotNotFoundError,
    TableNotFoundError,
)
from lake_assets.lake import quote
from lake_assets.lake.rows_in_memory import rows_in_memory

Rows = dict[int, str | None]
HOSTILE = "it's `odd`; DROP--"


def feed_of(before: Rows, after: Rows) -> Counter[tuple[Any, ...]]:
    """What changed between two states of a table with the key `id`."""
    found: Counter[tuple[Any, ...]] = Counter()
    for key in before.keys() | after.keys():
        if key not in before:
            found[key, after[key], "insert"] += 1
        elif key not in after:
            found[key, before[key], "delete"] += 1
        elif before[key] != after[key]:
            found[key, before[key], "update_before"] += 1
            found[key, after[key], "update_after"] += 1
    return found


def make(lake: Lake, name: str, seed: int, version: int) -> list[tuple[int, Rows]]:
    """A table and what it held at each of its snapshots: rows come, change, go, and come back under the same key."""
    spark, rand = lake.spark(), random.Random(seed)
    mode = rand.choice(("merge-on-read", "copy-on-write"))
    modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {lake.sql_name(name)} (id INT NOT NULL, v STRING) USING iceberg "
        f"TBLPROPERTIES ('format-version'='{version}', {modes})"
    )
    state: Rows = {}
    history: list[tuple[int, Rows]] = []
    for step in range(6):
        free = [k for k in range(8) if k not in state]
        wanted: dict[str, Rows] = {
            "insert": {k: rand.choice(("a", "b", None)) for k in rand.sample(free, min(len(free), 3))},
            "update": {k: rand.choice(("a", "b", f"{step}")) for k in rand.sample(sorted(state), len(state) // 2)},
            "delete": dict.fromkeys(rand.sample(sorted(state), len(state) // 2)),
        }
        op = rand.choice(("update", "delete", "insert")) if state else "insert"
        rows = wanted[op] or wanted["update"] or wanted["insert"]
        op = next(o for o, r in wanted.items() if r is rows)
        frame = rows_in_memory(spark, list(rows.items()), "id INT, v STRING")
        action = {
            "insert": "WHEN NOT MATCHED THEN INSERT *",
            "update": "WHEN MATCHED THEN UPDATE SET *",
            "delete": "WHEN MATCHED THEN DELETE",
        }[op]
        spark.sql(f"MERGE INTO {lake.sql_name(name)} t USING {{s}} s ON t.id = s.id {action}", s=frame)
        state = {k: v for k, v in state.items() if k not in rows} if op == "delete" else state | rows
        snapshot = lake.table(name).current_snapshot()
        assert snapshot is not None
        history.append((snapshot.snapshot_id, dict(state)))
    return history


@pytest.mark.long
@pytest.mark.parametrize(("seed", "version"), [pytest.param(1, 2, marks=pytest.mark.long), (2, 3)])
def test_sql_over_a_view_gives_the_changes_of_every_window(lake: Lake, namespace: str, seed: int, version: int) -> None:
    spark, name = lake.spark(), f"{namespace}.t"
    history = make(lake, name, seed, version)
    points: list[tuple[int | None, Rows]] = [(None, {}), *history]
    for i, j in [(0, 6), (1, 6), (2, 5), (5, 6)]:
        (start, before), (end, after) = points[i], points[j]
        with lake.changes_view("changed", name, start, end, keys=["id"]) as view:
            feed = Counter(map(tuple, spark.sql("SELECT id, v, _change_type FROM changed").collect()))
            joined = spark.sql(f"SELECT count(*) FROM {view.name} c JOIN {lake.sql_name(name)} USING (id)").first()
        expected = feed_of(before, after)
        assert feed == expected, (i, j)
        assert joined is not None
        assert joined[0] == sum(n for (key, _, _), n in expected.items() if key in history[-1][1])
        with lake.changes_view("changed", name, start, end, kind="keys", keys=["id"]):
            keys = {row.id for row in spark.sql("SELECT id FROM changed").collect()}
        # A row that was updated to its old values may be among these.
        assert {key for key, _, _ in expected} <= keys <= before.keys() | after.keys()
        with lake.changes_view("changed", name, start, end, kind="rows"):
            rows = Counter(map(tuple, spark.sql("SELECT id, v FROM changed").collect()))
        added = Counter({(k, v): n for (k, v, change), n in expected.items() if change in ("insert", "update_after")})
        assert added <= rows <= Counter(after.items())


def test_a_view_stays_as_it_is_and_is_empty_for_an_empty_window(lake: Lake, namespace: str) -> None:
    spark, name = lake.spark(), f"{namespace}.t"
    history = make(lake, name, 5, 3)
    with lake.changes_view("nothing", name, history[-1][0], history[-1][0]):
        found = spark.table("nothing")
        assert (found.columns, found.collect()) == (["id", "v", "_change_type"], [])
    with lake.changes_view("all_of_it", name):
        spark.sql(f"DELETE FROM {lake.sql_name(name)}")
        assert {tuple(r)[:2] for r in spark.table("all_of_it").collect()} == set(history[-1][1].items())


def test_closing_drops_the_view_and_the_tables_behind_it(lake: Lake, namespace: str) -> None:
    spark, name = lake.spark(), f"{namespace}.t"
    history = make(lake, name, 6, 3)
    before = set(lake.tables("icdc"))
    view = lake.changes_view("short", name)
    again = lake.changes_view("SHORT", name, history[-2][0])
    assert view.capture.window.start is None
    # The second replaced the first: closing that does nothing to it.
    view.close()
    assert Counter((r[0], r[1], r[2]) for r in spark.table("short").collect()) == (
        Counter((r.id, r.v, r._change_type) for r in again.capture.feed(spark).collect())
    )
    again.close()
    again.close()
    assert not spark.catalog.tableExists("short")
    assert set(lake.tables("icdc")) == before
    with pytest.raises(TableNotFoundError), lake.changes_view("short", f"{namespace}.missing"):
        pass
    assert set(lake.tables("icdc")) == before


@pytest.mark.parametrize("shared", [False, True])
def test_names_with_quotes(lake: Lake, namespace: str, shared: bool) -> None:
    spark = lake.spark()
    name = f"{namespace}.{quote(HOSTILE)}"
    lake.spark().sql(f"CREATE TABLE {lake.sql_name(name)} ({quote(HOSTILE)} INT, b INT) USING iceberg")
    spark.sql(f"INSERT INTO {lake.sql_name(name)} VALUES (1, 2)")
    with lake.changes_view(HOSTILE, name, keys=[HOSTILE], shared=shared) as view:
        assert [tuple(r) for r in spark.sql(f"SELECT * FROM {view.name}").collect()] == [(1, 2, "insert")]
        assert spark.catalog.tableExists(view.name)
    assert not spark.catalog.tableExists(view.name)


def test_another_session_reads_a_shared_view_without_knowing_the_lake(lake: Lake, namespace: str) -> None:
    name = f"{namespace}.t"
    history = make(lake, name, 7, 3)
    stranger = lake.spark().newSession()
    stranger.conf.unset("spark.sql.catalog.lake")
    with lake.changes_view("for_all", name, shared=True):
        rows = stranger.sql("SELECT id, v FROM global_temp.for_all").collect()
        assert {tuple(r) for r in rows} == set(history[-1][1].items())
    assert not lake.spark().catalog.tableExists("global_temp.for_all")


def test_wrong_arguments_are_named_and_leave_nothing_behind(lake: Lake, namespace: str) -> None:
    name = f"{namespace}.t"
    make(lake, name, 8, 2)
    before = set(lake.tables("icdc"))
    with pytest.raises(TableNotFoundError, match="did you mean"):
        lake.changes_view("x", f"{namespace}.tt")
    with pytest.raises(SnapshotNotFoundError, match="no tag or branch 'nightly'"):
        lake.changes_view("x", name, "nightly")
    with pytest.raises(ColumnNotFoundError, match="'key'"):
        lake.changes_view("x", name, keys=["key"])
    with pytest.raises(ConfigError, match="choose feed, rows, keys"):
        lake.changes_view("x", name, kind="all")
    with pytest.raises(ConfigError, match="no identifier fields"):
        lake.changes_view("x", name, kind="keys")
    with pytest.raises(ConfigError, match="takes no keys"):
        lake.changes_view("x", name, kind="rows", keys=["id"])
    with pytest.raises(InvalidNameError):
        lake.changes_view("", name)
    assert not lake.spark().catalog.tableExists("x")
    assert set(lake.tables("icdc")) == before
