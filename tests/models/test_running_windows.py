"""Running totals and totals of partitions: both results of a row are computed in one pass, and compared."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.models.operators.query_tree import Window, walk
from lake_assets.models.operators.window_frames import RunningWindows, running_windows
from lake_assets.models.sql.model_plan import plan
from tests.support.keyed_rows import KEYED, SCHEMA, prove
from tests.support.model_world import World
from tests.support.oracle import rows_of
from tests.support.seeds import seeds

RUNNING = [
    "sum(v) OVER (PARTITION BY g ORDER BY o, p)",
    "sum(v) OVER (PARTITION BY g ORDER BY o)",  # rows with the same `o` have the same sum
    "sum(d) OVER (PARTITION BY g)",
    "count(*) OVER (PARTITION BY g, p)",
    "count(v) OVER (PARTITION BY g ORDER BY o DESC NULLS LAST, p)",
    "count_if(v > 1) OVER (PARTITION BY g ORDER BY p, o ROWS UNBOUNDED PRECEDING)",
    "min(p) OVER (PARTITION BY g ORDER BY o, p ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    "max(d) OVER (PARTITION BY o % 3 ORDER BY g, p RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    "avg(v) OVER (PARTITION BY g ORDER BY o, p)",
    "row_number() OVER (PARTITION BY g ORDER BY o, p)",
    "sum(v) OVER (PARTITION BY g ORDER BY o, p) + max(v) OVER (PARTITION BY g)",
]
OTHERS = [
    "sum(v) OVER (ORDER BY g, o, p)",
    "sum(v) OVER (PARTITION BY g ORDER BY o ROWS UNBOUNDED PRECEDING)",  # ties
    "row_number() OVER (PARTITION BY g ORDER BY o)",
    "rank() OVER (PARTITION BY g ORDER BY o, p)",
    "sum(x) OVER (PARTITION BY g ORDER BY o, p)",  # rounded by the order of additions
    "max(x) OVER (PARTITION BY g ORDER BY o, p)",  # 0.0 equals -0.0
    "avg(big) OVER (PARTITION BY g)",
    "first(v) OVER (PARTITION BY g ORDER BY o, p)",
    "sum(v) FILTER (WHERE v > 1) OVER (PARTITION BY g)",
    "sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",
    "sum(v) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 3 PRECEDING AND CURRENT ROW)",
    "sum(v) OVER (PARTITION BY g) AS other, sum(v) OVER (PARTITION BY o)",
]
MODELS: list[dict[str, Any]] = [
    *({"name": f"agg.m{n}", "sql": f"SELECT g, o, p, v, {f} AS f FROM staging.t"} for n, f in enumerate(RUNNING)),
    {
        "name": "agg.several",
        "sql": f"SELECT * FROM (SELECT g AS a, o, p, {RUNNING[0]} AS f, {RUNNING[2]} AS h FROM staging.t WHERE o > 3) WHERE f > 2",
    },
]


def running(functions: str, of: str = "final.t") -> RunningWindows | None:
    """The running functions over a table with a key."""
    planned = plan("agg.m", f"SELECT g, o, p, {functions} AS f FROM {of} t", {TableId.parse("final.t"): SCHEMA}, (),
                   lambda _: [["g", "o", "p"]])  # fmt: skip
    assert planned.tree is not None
    windows = [n for n in walk(planned.tree.root) if isinstance(n, Window)]
    return running_windows(windows[0])


@pytest.mark.parametrize("function", RUNNING)
def test_running_functions_are_recognized(function: str) -> None:
    assert running(function)


@pytest.mark.parametrize("functions", OTHERS)
def test_others_are_computed_at_both_ends(functions: str) -> None:
    assert running(functions) is None


def test_rows_need_a_key() -> None:
    assert running(RUNNING[0], "(SELECT g, o, p + INTERVAL 1 DAY AS p, v FROM final.t)") is None
    assert running(RUNNING[3], "(SELECT *, explode(array(1, 2)) AS e FROM final.t)") is None


@pytest.mark.long  # as two changes
def test_a_late_row_changes_the_rows_after_it(lake: Lake) -> None:
    world = World(lake, f"t ({', '.join(f'{n} {t}' for n, t in SCHEMA.items())})")
    model = {"name": "agg.m", "sql": f"SELECT g, o, {RUNNING[0]} AS total FROM staging.t"}
    world.sql("INSERT INTO final.t SELECT 'a', 2 * id, DATE'2024-01-01', id, id, id, id FROM range(50)")
    world.run(KEYED, model)
    world.sql("INSERT INTO final.t VALUES ('a', 91, DATE'2024-01-01', 7, 7, 7, 7)")
    done = world.run(KEYED, model)["agg.m"]
    # The new row, and the four rows after it, each deleted and inserted.
    assert (done.strategy, done.changed) == ("keys", 1 + 2 * 4)
    world.sql("INSERT INTO final.t VALUES ('a', 93, DATE'2024-01-01', 0, 7, 7, 7)")
    assert world.run(KEYED, model)["agg.m"].changed == 1
    world.sql("DELETE FROM final.t WHERE o = 93")
    assert world.run(KEYED, model)["agg.m"].changed == 1
    world.sql("UPDATE final.t SET x = 0 WHERE o = 20")
    assert world.run(KEYED, model)["agg.m"].changed == 0


@pytest.mark.long
def test_a_second_row_of_a_key_from_somebody_else_is_noticed(lake: Lake) -> None:
    world = World(lake, "a (id BIGINT, k INT, v INT)")
    world.sql("INSERT INTO final.a SELECT id, id % 4, id FROM range(20)")
    keyed: dict[str, Any] = {"name": "staging.a", "sql": "SELECT id, k, v FROM final.a", "key": ["id"]}
    functions = (
        "sum(v) OVER (PARTITION BY k ORDER BY id)",
        "sum(v) OVER (PARTITION BY k ORDER BY id ROWS 1 PRECEDING)",
    )
    models = [{"name": f"agg.m{n}", "sql": f"SELECT k, v, {f} AS r FROM staging.a"} for n, f in enumerate(functions)]
    world.run(keyed, *models)
    for change in (
        "INSERT INTO staging.a VALUES (16, 0, 100)",
        "DELETE FROM staging.a WHERE id = 16 AND v = 100",
        "INSERT INTO staging.a VALUES (16, 0, 16)",
        "INSERT INTO final.a VALUES (300, 0, 1)",
    ):
        world.sql(change)
        # Its own query has no such row.
        for outcome in world.pipeline(keyed, *models).run(lake):
            assert outcome.status != "failed", outcome
        for model in models:
            assert world.rows(model["name"]) == rows_of(lake.spark().sql(model["sql"])), change


@pytest.mark.parametrize("every", [120, pytest.param(1, marks=pytest.mark.long)])
def test_they_equal_their_query_after_two_changes(lake: Lake, every: int) -> None:
    prove(lake, random.Random(5), 2, MODELS[::every])


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_they_equal_their_query_after_every_change(lake: Lake, seed: int) -> None:
    prove(lake, random.Random(seed), 6, MODELS)
