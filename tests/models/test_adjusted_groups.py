"""Groups of tables that are not small are adjusted by the MERGE that reads them, unless they have to be recomputed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import Refused
from lake_assets.lake import thresholds
from lake_assets.tables.writing.table_writer import TableWriter
from tests.support.model_world import World
from tests.support.seeds import seeds

SOURCE = "u (id BIGINT, k INT, s STRING, v INT, d DECIMAL(10,2), big BIGINT)"
COUNTED = (
    "SELECT k, s, count(*) AS n, count(v) AS nv, sum(v) AS v, avg(v) AS a, count(d) AS nd, sum(d) AS d, "
    "count_if(v > 2) AS many, sum(v) FILTER (WHERE s = 'x') AS x, count(v) FILTER (WHERE s = 'x') AS nx, "
    "concat(s, 'k', k, '-', count(*)) AS k_n FROM final.u GROUP BY k, s"
)
SUMS = "SELECT k, sum(v) AS v, sum(d) AS d, sum(v) * 2 + k AS twice FROM final.u GROUP BY k"
BY_TEXT = "SELECT concat(s, k) AS ks, count(*) AS n FROM final.u WHERE v <> 3 GROUP BY concat(s, k)"
MODELS: list[dict[str, Any]] = [
    {"name": "agg.counted", "sql": COUNTED},
    {"name": "agg.sums", "sql": SUMS},
    {"name": "agg.by_text", "sql": BY_TEXT},
]


@pytest.fixture
def adjusted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The results of MERGEs that adjusted groups, or failed; every table counts as large."""
    results: list[str] = []
    real = TableWriter.adjust

    def recorded(self: TableWriter, *args: Any) -> Refused | None:
        results.append("failed")
        refused = real(self, *args)
        results[-1] = refused.reason if refused else "done"
        return refused

    monkeypatch.setattr(TableWriter, "adjust", recorded)
    monkeypatch.setattr(thresholds, "SMALL_TARGET_ROWS", 0)
    return results


def filled(lake: Lake) -> World:
    world = World(lake, SOURCE)
    world.sql("INSERT INTO final.u SELECT id, id % 5, if(id % 2 = 0, 'x', 'y'), id % 4, id, id FROM range(60)")
    return world


@pytest.mark.long
def test_groups_are_adjusted_without_being_looked_up(lake: Lake, adjusted: list[str]) -> None:
    world = filled(lake)
    world.run(*MODELS)
    world.sql(
        "INSERT INTO final.u VALUES (100, 1, 'x', 7, 1, 1), (101, 9, 'x', 7, 1, 1), (102, NULL, NULL, 1, NULL, 1)"
    )
    done = world.run(*MODELS)
    assert adjusted == ["done"] * 3
    assert (done["agg.counted"].inserted, done["agg.counted"].updated) == (2, 1)
    assert done["agg.counted"].why.startswith("3 groups adjusted")
    # Without a count, a group that loses rows may lose its last one: sums are looked up first.
    world.sql("DELETE FROM final.u WHERE k = 9 OR id = 4")
    world.run(*MODELS)
    assert adjusted == ["done"] * 5


@pytest.mark.long
def test_a_group_in_doubt_is_recomputed(lake: Lake, adjusted: list[str]) -> None:
    world = filled(lake)
    world.sql("UPDATE final.u SET v = NULL WHERE k = 3")
    world.run(*MODELS)
    # The sum of no values was null, and whether values were among its rows is not known.
    world.sql("INSERT INTO final.u VALUES (100, 3, 'x', 7, 1, 1)")
    done = world.run(MODELS[1])["agg.sums"]
    assert adjusted == ["failed"]
    assert "1 group adjusted, 1 of them recomputed" in done.why
    assert (done.strategy, done.updated) == ("retract", 1)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.long)])
def test_several_rows_of_a_group_are_noticed(lake: Lake, adjusted: list[str], mode: str) -> None:
    world = filled(lake)
    model = MODELS[2] | {"properties": {"write.merge.mode": mode}}
    world.run(model)
    world.sql("INSERT INTO agg.by_text SELECT * FROM agg.by_text WHERE ks = 'x2'")
    world.sql("INSERT INTO final.u VALUES (100, 2, 'x', 7, 1, 1)")
    # The rows of this group change, but not their number.
    world.sql("UPDATE final.u SET big = 7, v = v + 10 WHERE k = 1")
    done = world.run(model)["agg.by_text"]
    assert done.strategy == "full"
    assert "several rows of one ks" in done.why


@pytest.mark.long
def test_columns_may_have_the_names_of_the_step(lake: Lake, adjusted: list[str]) -> None:
    world = filled(lake)
    model = {
        "name": "agg.m",
        "sql": "SELECT k, count(*) AS `__n`, sum(v) AS `__s0`, count(v) AS `__old1` FROM final.u GROUP BY k",
    }
    world.run(model)
    world.sql("INSERT INTO final.u VALUES (100, 3, 'x', 7, 1, 1)")
    assert world.run(model)["agg.m"].strategy == "retract"
    assert adjusted == ["done"]


@pytest.mark.long
@pytest.mark.parametrize("large", [True, pytest.param(False, marks=pytest.mark.long)])
def test_sums_of_decimals_keep_all_their_digits(
    lake: Lake, adjusted: list[str], monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    monkeypatch.setattr(thresholds, "SMALL_TARGET_ROWS", 0 if large else 1_000)
    world = World(lake, "m (k INT, d DECIMAL(30,10), e DECIMAL(38,18), f DECIMAL(38,0))")
    world.sql("INSERT INTO final.m SELECT id % 20, 0.1234567891, 0.123456789012345678, id FROM range(60)")
    model = {
        "name": "agg.m",
        "sql": "SELECT k, sum(d) AS d, sum(e) AS e, sum(d * e) AS de, sum(f) AS f FROM final.m GROUP BY k",
    }
    world.run(model)
    world.sql("INSERT INTO final.m VALUES (2, 0.0000000001, 0.000000000000000001, 1)")
    assert world.run(model)["agg.m"].why.startswith("1 group adjusted")
    # Sums of 38 digits are recomputed.
    world.sql(f"INSERT INTO final.m VALUES (2, 1, 1, 1{'0' * 37})")
    assert "1 of them recomputed" in world.run(model)["agg.m"].why
    assert len(adjusted) == (2 if large else 0)


@pytest.mark.long  # one change of each kind is in every run
def test_they_equal_their_query_after_a_few_changes(lake: Lake, adjusted: list[str]) -> None:
    prove(lake, random.Random(7), 4)
    assert "done" in adjusted


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_they_equal_their_query_after_every_change(lake: Lake, adjusted: list[str], seed: int) -> None:
    prove(lake, random.Random(seed), 6)
    assert "done" in adjusted


def prove(lake: Lake, choose: random.Random, runs: int) -> None:
    """Compare models with their queries over a random history, with nulls, sums of zero and vanishing groups."""
    world = filled(lake)
    mode = choose.choice(["merge-on-read", "copy-on-write"])
    models = [m | {"properties": {"write.merge.mode": mode}} for m in MODELS]
    world.run(*models)
    for n in range(runs):
        for _ in range(choose.randint(1, 3)):
            k, s, v = (
                choose.choice(["0", "1", "7", "NULL"]),
                choose.choice(["'x'", "'y'", "NULL"]),
                choose.randint(-3, 3),
            )
            world.sql(
                choose.choice(
                    [
                        f"INSERT INTO final.u VALUES ({1000 + n}, {k}, {s}, {v}, {v}, 1), (0, {k}, {s}, {-v}, NULL, 1)",
                        f"INSERT INTO final.u VALUES ({2000 + n}, {k}, {s}, NULL, {v}, 1)",
                        f"UPDATE final.u SET v = {v}, k = k + 1 WHERE k <=> {k} AND id % 3 = 0",
                        f"UPDATE final.u SET d = NULL, big = {n} WHERE k <=> {k}",
                        f"UPDATE final.u SET big = {n} WHERE k <=> {k}",
                        f"DELETE FROM final.u WHERE k <=> {k} AND s <=> {s}",
                    ]
                )
            )
        world.run(*models)
