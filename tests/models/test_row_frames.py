"""Windows over a fixed number of rows: only rows whose frames a change reaches are computed and written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.models.operators.query_tree import Window, walk
from lake_assets.models.operators.window_frames import RowFrames, row_frames
from lake_assets.models.sql.model_plan import plan
from tests.support.keyed_rows import KEYED, SCHEMA, prove
from tests.support.model_world import World
from tests.support.seeds import seeds

FRAMES = [
    ("sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)", (3, 0)),
    ("sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS 2 PRECEDING)", (2, 0)),
    ("max(d) OVER (PARTITION BY g ORDER BY o DESC, p DESC NULLS FIRST ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING)", (1, 2)),
    ("count(*) OVER (PARTITION BY g ORDER BY o NULLS LAST, p ROWS BETWEEN 4 PRECEDING AND 2 PRECEDING)", (4, 0)),
    ("min(p) OVER (PARTITION BY g ORDER BY o, p ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING)", (0, 3)),
    ("avg(v) OVER (PARTITION BY o, g ORDER BY p ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", (1, 0)),
    ("avg(d) OVER (PARTITION BY g ORDER BY p, o ROWS BETWEEN CURRENT ROW AND CURRENT ROW)", (0, 0)),
    ("max(d) OVER (PARTITION BY g ORDER BY o, p ROWS BETWEEN 12 PRECEDING AND CURRENT ROW)", (12, 0)),
    ("lag(v) OVER (PARTITION BY g ORDER BY o, p)", (1, 0)),
    ("lag(v, 30) OVER (PARTITION BY g ORDER BY o, p)", (30, 0)),
    ("lead(x, 2) OVER (PARTITION BY g ORDER BY o DESC, p)", (0, 2)),
    ("bool_or(v > 1) OVER (PARTITION BY g, v ORDER BY o, p ROWS 1 PRECEDING)", (1, 0)),
    ("sum(v + o) OVER (PARTITION BY g ORDER BY o % 2, o, p ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)", (1, 1)),
]  # fmt: skip
OTHERS = [
    "sum(v) OVER (PARTITION BY g ORDER BY o ROWS 3 PRECEDING)",  # ties
    "sum(v) OVER (ORDER BY g, o, p ROWS 3 PRECEDING)",
    "sum(v) OVER (PARTITION BY g ORDER BY o, p)",
    "sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS UNBOUNDED PRECEDING)",
    "sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    "sum(v) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 3 PRECEDING AND CURRENT ROW)",
    "row_number() OVER (PARTITION BY g ORDER BY o, p)",
    "first(v) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",
    "lag(v, 1, 0) OVER (PARTITION BY g ORDER BY o, p)",
    "lag(v) IGNORE NULLS OVER (PARTITION BY g ORDER BY o, p)",
    "count(*) FILTER (WHERE v > 1) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",
    "sum(x) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",  # rounded by the order of additions
    "avg(big) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",
    "collect_list(v) OVER (PARTITION BY g ORDER BY o, p ROWS 3 PRECEDING)",
    "lag(v) OVER (PARTITION BY g ORDER BY o, p) AS other, lead(v) OVER (PARTITION BY g ORDER BY p, o)",
    "lag(v) OVER (PARTITION BY g ORDER BY o, p) AS other, row_number() OVER (PARTITION BY g ORDER BY o, p)",
]


def frames_of(functions: str) -> RowFrames | None:
    """The frames of window functions over a table with a key."""
    planned = plan("agg.m", f"SELECT g, o, p, {functions} AS f FROM final.t", {TableId.parse("final.t"): SCHEMA}, (),
                   lambda _: [["g", "o", "p"]])  # fmt: skip
    assert planned.tree is not None
    (window,) = [n for n in walk(planned.tree.root) if isinstance(n, Window)]
    return row_frames(window)


@pytest.mark.parametrize(("function", "expected"), FRAMES)
def test_frames_of_a_fixed_number_of_rows_are_recognized(function: str, expected: tuple[int, int]) -> None:
    frames = frames_of(function)
    assert frames
    assert (frames.back, frames.forward) == expected


@pytest.mark.parametrize("functions", OTHERS)
def test_others_have_no_such_frames(functions: str) -> None:
    assert frames_of(functions) is None


@pytest.mark.parametrize(
    ("function", "rows", "affected", "is_joined"),
    [
        ("sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS 364 PRECEDING)", 366, 2, True),
        ("sum(v) OVER (PARTITION BY g ORDER BY o, p ROWS 364 PRECEDING)", 1_000, 800, False),
        # Spark computes it from one row, however far away.
        ("lag(v, 364) OVER (PARTITION BY g ORDER BY o, p)", 366, 2, False),
        ("lag(v) OVER (PARTITION BY g ORDER BY o, p)", 3, 1, False),
    ],
)
def test_few_affected_rows_are_joined_with_their_frames(
    function: str, rows: int, affected: int, *, is_joined: bool
) -> None:
    frames = frames_of(function)
    assert frames
    assert (" JOIN " in frames.evaluated("numbered", rows, affected)) == is_joined


@pytest.mark.long  # as two changes
def test_one_new_row_changes_the_rows_that_its_frames_reach(lake: Lake) -> None:
    world = World(lake, f"t ({', '.join(f'{n} {t}' for n, t in SCHEMA.items())})")
    model = {"name": "agg.m", "sql": f"SELECT g, o, {FRAMES[0][0]} AS total FROM staging.t"}
    world.sql("INSERT INTO final.t SELECT 'a', 2 * id, DATE'2024-01-01', id, id, id, id FROM range(50)")
    world.run(KEYED, model)
    world.sql("INSERT INTO final.t VALUES ('a', 31, DATE'2024-01-01', 7, 7, 7, 7)")
    done = world.run(KEYED, model)["agg.m"]
    # The new row, and the three rows after it, each deleted and inserted.
    assert (done.strategy, done.changed) == ("keys", 1 + 2 * 3)
    world.sql("DELETE FROM final.t WHERE o = 2")
    assert world.run(KEYED, model)["agg.m"].changed == 1 + 2 * 3
    world.sql("UPDATE final.t SET x = 0 WHERE o = 20")
    assert world.run(KEYED, model)["agg.m"].changed == 0


@pytest.mark.long
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_they_equal_their_query_after_two_changes(lake: Lake, every: int) -> None:
    prove(lake, random.Random(3), 2, models()[::every])


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_they_equal_their_query_after_every_change(lake: Lake, seed: int) -> None:
    prove(lake, random.Random(seed), 6, models())


def models() -> list[dict[str, Any]]:
    """Each function alone, several in one query, and one over groups, which have to be computed."""
    alone = [f"SELECT g, o, p, v, {f} AS f FROM staging.t" for f, _ in FRAMES]
    several = ", ".join(f"{FRAMES[n][0]} AS f{n}" for n in (0, 1, 8))
    groups = "SELECT g, o, sum(v) AS v FROM final.t GROUP BY g, o"
    total = "sum(v) OVER (PARTITION BY g ORDER BY o ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)"
    queries = [
        *alone,
        f"SELECT * FROM (SELECT *, {several} FROM staging.t) WHERE f8 > 0",
        f"SELECT t.*, {total} AS f FROM ({groups}) t",
    ]
    return [{"name": f"agg.m{n}", "sql": sql} for n, sql in enumerate(queries)]
