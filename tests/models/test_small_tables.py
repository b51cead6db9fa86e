"""Models over few rows are computed in full; what reads them is not, and equals its query whichever way each step took."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import thresholds
from tests.support.model_world import World
from tests.support.seeds import long_seeds

MODELS: list[dict[str, Any]] = [
    {"name": "staging.shops", "sql": "SELECT id, upper(name) AS name FROM final.shops WHERE name IS NOT NULL"},
    {
        "name": "agg.by_shop",
        "sql": "SELECT p.name, count(*) AS n, sum(s.v) AS v FROM final.sales s JOIN staging.shops p ON s.shop = p.id "
        "GROUP BY p.name",
    },
    {"name": "agg.last", "sql": "SELECT s.shop, max(s.v) AS v FROM final.sales s LEFT ANTI JOIN staging.shops p ON s.shop = p.id GROUP BY s.shop"},
    {"name": "agg.total", "sql": "SELECT count(*) AS names, max(n) AS most FROM agg.by_shop"},
]  # fmt: skip


# All tables are compared with their rows, also those that nothing else is computed from.
COMPARED = -1
# The counts of rows that tables may have to be overwritten.
overwritten = pytest.mark.parametrize("overwritten", [COMPARED, pytest.param(250_000, marks=pytest.mark.long)])


def world_with_rows(lake: Lake, sales: int) -> World:
    world = World(lake, "shops (id INT, name STRING, note STRING)", "sales (shop INT, v INT)")
    world.sql("INSERT INTO final.shops SELECT id, chr(97 + id), '' FROM range(9)")
    world.sql(f"INSERT INTO final.sales SELECT id % 12, id % 7 FROM range({sales})")
    return world


@pytest.mark.long
def test_a_small_dimension_is_computed_in_full_and_its_readers_by_what_changed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 100)
    monkeypatch.setattr(thresholds, "SLOW_FULL_SECONDS", 1000.0)  # however slow the machine is
    world = world_with_rows(lake, 20_000)
    world.run(*MODELS)
    world.sql("UPDATE final.shops SET name = 'z' WHERE id = 3")
    done = world.run(*MODELS)
    assert {name: o.strategy for name, o in done.items()} == {
        "staging.shops": "full", "agg.by_shop": "retract", "agg.last": "none", "agg.total": "full",
    }  # fmt: skip
    assert done["staging.shops"].why == "few rows: 9 in its sources, 9 in the table"
    assert (done["staging.shops"].changed, done["agg.by_shop"].changed) == (2, 2)
    world.sql("UPDATE final.shops SET note = 'new' WHERE id = 4")
    done = world.run(*MODELS)
    assert [(o.strategy, o.changed) for o in done.values()] == [("full", 0), ("none", 0), ("none", 0), ("none", 0)]


@pytest.mark.long
def test_a_table_that_nothing_is_computed_from_is_overwritten(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 10_000)
    monkeypatch.setattr(thresholds, "SLOW_FULL_SECONDS", 1000.0)
    sql = "SELECT id, v FROM final.t"
    models: list[dict[str, Any]] = [
        {"name": "agg.read", "sql": sql, "key": ["id"]},
        {"name": "agg.reader", "sql": "SELECT sum(v) AS v FROM agg.read"},
        {"name": "agg.keyed", "sql": sql, "key": ["id"]},
        {"name": "agg.free", "sql": sql},
        {"name": "agg.real", "sql": "SELECT id, CAST(v AS DOUBLE) AS v FROM final.t"},
        {"name": "agg.parts", "sql": sql, "key": ["id"], "partitions": {"by": "v"}},
        {"name": "agg.audited", "sql": sql, "audits": [{"unique": ["id"]}]},
    ]
    world = World(lake, "t (id INT, v STRING)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    world.run(*models)
    world.sql("UPDATE final.t SET v = '2' WHERE id = 1")
    done = world.run(*models)
    assert {name.removeprefix("agg."): (o.strategy, o.changed) for name, o in done.items()} == {
        "read": ("full", 1), "reader": ("full", 2), "keyed": ("full", 12), "free": ("full", 12),
        "real": ("full", 12), "parts": ("full", 1), "audited": ("full", 12),
    }  # fmt: skip
    world.sql("INSERT INTO final.t VALUES (1, '0')")
    done = {o.table: str(o.error) for o in world.pipeline(*models).run(lake)}
    wrong = {name for name, error in done.items() if error != "None"}
    assert wrong == {"agg.read", "agg.keyed", "agg.parts", "agg.audited"}


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 3)])
def test_steps_of_both_ways_equal_the_query(lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    choose = random.Random(seed)
    world = world_with_rows(lake, 30)
    ways: set[str] = set()
    for limit in [*choose.sample([0, 60, 150, 10_000], 4), 0]:
        monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", limit)
        monkeypatch.setattr(thresholds, "OVERWRITE_ROWS", choose.choice([COMPARED, 250_000]))
        ways |= {o.strategy for o in world.run(*MODELS).values()}
        for _ in range(choose.randint(1, 3)):
            world.sql(
                choose.choice(
                    [
                        f"INSERT INTO final.sales SELECT {choose.randrange(12)}, id FROM range({choose.choice([1, 9])})",
                        f"DELETE FROM final.sales WHERE shop = {choose.randrange(12)}",
                        f"DELETE FROM final.shops WHERE id = {choose.randrange(12)}",
                        f"INSERT INTO final.shops VALUES ({choose.randrange(12)}, 'n', NULL)",
                        f"UPDATE final.shops SET name = 'b' WHERE id < {choose.randrange(6)}",
                        "UPDATE final.shops SET note = 'x'",
                    ]
                )
            )
        world.sql("INSERT INTO final.sales VALUES (0, 1)")
    ways |= {o.strategy for o in world.run(*MODELS).values()}
    assert "full" in ways
    assert ways & {"keys", "retract"}


ODD: list[dict[str, Any]] = [
    {"name": "agg.nothing", "sql": "SELECT id % 2 AS two, NULL AS n FROM final.t"},
    {"name": "agg.quoted", "sql": "SELECT id, named_struct('a-b', v) AS s FROM final.t"},
    {"name": "agg.quoted_by_key", "sql": "SELECT id, named_struct('a-b', v) AS s FROM final.t", "key": ["id"]},
    {"name": "agg.inner_names", "sql": "SELECT v AS __sign, id AS __copies, id AS __goes, v AS __new FROM final.t"},
    {"name": "agg.lists", "sql": "SELECT id, map(v, id) AS m, array(v, NULL) AS a FROM final.t"},
]  # fmt: skip


@pytest.mark.long
@overwritten
def test_columns_that_cannot_be_compared_or_cast_are_written_in_full(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, overwritten: int
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 10_000)
    monkeypatch.setattr(thresholds, "OVERWRITE_ROWS", overwritten)
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    maps = [m for m in ODD if m["name"] != "agg.lists"]  # rows with maps are not hashable
    world.run(*maps)
    for change in ("DELETE FROM final.t WHERE id = 2", "UPDATE final.t SET v = 7 WHERE id = 3"):
        world.sql(change)
        assert {o.strategy for o in world.run(*maps).values()} == {"full"}
    world.pipeline(ODD[-1]).run(lake)
    world.sql("DELETE FROM final.t WHERE id = 4")
    (done,) = world.pipeline(ODD[-1]).run(lake)
    assert (done.strategy, done.error) == ("full", None)
    assert lake.spark().table("agg.lists").count() == 4


@pytest.mark.long
@overwritten
def test_what_somebody_else_did_to_the_table_is_mended(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, overwritten: int
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 10_000)
    monkeypatch.setattr(thresholds, "OVERWRITE_ROWS", overwritten)
    models: list[dict[str, Any]] = [
        {"name": "agg.keyed", "sql": "SELECT id, v FROM final.t", "key": ["id"]},
        {"name": "agg.free", "sql": "SELECT id, v FROM final.t"},
        {"name": "agg.zeros", "sql": "SELECT CAST(id AS STRING) AS id, v FROM staging.zeros"},
        {"name": "staging.zeros", "sql": "SELECT CAST(x AS DOUBLE) AS id, v FROM final.t", "key": ["id"]},
    ]
    world = World(lake, "t (id INT, v INT, x DOUBLE)")
    world.sql("INSERT INTO final.t SELECT id, id, id FROM range(4)")
    world.run(*models)
    for table in ("keyed", "free"):
        world.sql(f"INSERT INTO agg.{table} VALUES (1, 77), (2, 2)")
    world.sql("UPDATE final.t SET v = 5, x = -0.0D WHERE id = 0")
    world.sql("UPDATE final.t SET v = 5 WHERE id = 1")
    world.run(*models)
    world.sql("DELETE FROM agg.keyed WHERE id = 3")
    world.sql("TRUNCATE TABLE agg.free")
    world.sql("UPDATE final.t SET v = 6 WHERE id = 1")
    world.run(*models)
    assert ("-0.0", 5) in world.rows("agg.zeros")


@pytest.mark.long  # as steps of both ways
def test_an_equal_row_that_somebody_else_inserted_takes_no_row_with_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 10_000)
    monkeypatch.setattr(thresholds, "OVERWRITE_ROWS", COMPARED)
    models: list[dict[str, Any]] = [
        {
            "name": f"agg.{merge[0]}_{delete[0]}_{version}",
            "sql": "SELECT id, v FROM final.t",
            "key": ["id"],
            "properties": {"format-version": version, "write.merge.mode": merge, "write.delete.mode": delete},
        }
        for version in ("2", "3")
        for merge, delete in (
            ("merge-on-read", "merge-on-read"), ("copy-on-write", "merge-on-read"), ("copy-on-write", "copy-on-write"),
        )
    ]  # fmt: skip
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    world.run(*models)
    for model in models:
        # Without the first one, the summaries of all snapshots tell the number of rows.
        world.sql(f"DELETE FROM {model['name']} WHERE id = 5")
        world.sql(f"INSERT INTO {model['name']} VALUES (1, 1)")
    world.sql("INSERT INTO final.t VALUES (7, 7)")
    done = world.run(*models)  # compares the tables with their queries
    assert {o.why for o in done.values()} == {
        "rows to delete are missing in the table, or rows to insert exist already: it would grow by 0 rows instead of 1"
    }


@pytest.mark.long
@pytest.mark.parametrize("limit", [0, pytest.param(10_000, marks=pytest.mark.long)])
def test_rows_of_one_key_that_a_change_updates_are_one_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", limit)
    monkeypatch.setattr(thresholds, "OVERWRITE_ROWS", COMPARED)
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    model: dict[str, Any] = {"name": "agg.t", "sql": "SELECT id, v FROM final.t", "key": ["id"]}
    world.run(model)
    world.sql("INSERT INTO agg.t VALUES (1, 7)")
    world.sql("UPDATE final.t SET v = 9 WHERE id = 1")
    done = world.run(model)  # compares the table with its query
    assert "the table holds several rows of one id" in done["agg.t"].why
    # The query has two rows of a key as well: the table grows by as many rows as it should.
    world.sql("INSERT INTO agg.t VALUES (2, 3)")
    world.sql("INSERT INTO final.t VALUES (2, 55)")
    (wrong,) = world.pipeline(model).run(lake)
    assert "id is declared as its key, and the query gives 2 rows for (2,)" in str(wrong.error)


@pytest.mark.long  # as what somebody else did to the table
def test_columns_that_somebody_else_changed_are_as_the_query_has_them_again(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    changes = {
        "dropped": "DROP COLUMN v", "added": "ADD COLUMN extra INT", "renamed": "RENAME COLUMN v TO w",
        "moved": "ALTER COLUMN v FIRST", "widened": "ALTER COLUMN v TYPE BIGINT",
    }  # fmt: skip
    models: list[dict[str, Any]] = [
        {"name": f"agg.{name}", "sql": "SELECT id, v FROM final.t WHERE id > 0", "key": ["id"]} for name in changes
    ]
    world.run(*models)
    for name, change in changes.items():
        world.sql(f"ALTER TABLE agg.{name} {change}")
    world.sql("INSERT INTO final.t VALUES (7, 7)")
    done = {o.table: o for o in world.pipeline(*models).run(lake)}
    assert [o.error for o in done.values()] == [None] * len(models)
    for name in changes:
        rows = lake.spark().table(f"lake.agg.{name}")
        assert sorted(rows.columns) == ["id", "v"], name
        assert Counter(map(tuple, rows.select("id", "v").collect())) == world.rows("final.t") - Counter({(0, 0): 1})
    rebuilt = {t for t, o in done.items() if o.why == "the query, its sources or the columns of its table changed"}
    assert rebuilt == {"agg.dropped", "agg.added", "agg.renamed", "agg.widened"}
    world.sql("INSERT INTO final.t VALUES (8, 8)")
    assert "full" not in {o.strategy for o in world.pipeline(*models).run(lake)}


def test_columns_with_names_of_iceberg_s_own_are_refused(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1)")
    (done,) = world.pipeline({"name": "agg.t", "sql": "SELECT id AS _file, v AS _POS FROM final.t"}).run(lake)
    assert "agg.t: _file, _POS: Iceberg has columns of this name itself: rename them" in str(done.error)
    assert lake.find("agg.t") is None
