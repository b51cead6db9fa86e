"""Values that may differ when recomputed, and how stored rows are found despite them."""

from __future__ import annotations

from typing import Any

import pytest

from lake_assets.lake import TableId
from lake_assets.models.operators.row_identity import Identity, identity
from lake_assets.models.operators.stability import state
from lake_assets.models.sql.model_plan import ModelPlan, plan
from tests.support.queries import queries
from tests.support.table_changes import COLUMNS

SCHEMAS = {
    TableId.parse("final.t"): {"id": "bigint", "g": "int", "h": "string", "v": "int", "x": "double", "p": "decimal(9,2)"},
    TableId.parse("final.c"): {"g": "int", "name": "string", "y": "double"},
}  # fmt: skip
IDS = {TableId.parse("final.t"): [["id"]]}


def planned(sql: str, *key: str, **more: Any) -> ModelPlan:
    return plan("agg.m", sql, SCHEMAS, key, **more)


def identity_of(sql: str, *key: str, **more: Any) -> Identity | str:
    model = planned(sql, *key, **more)
    assert model.tree is not None
    by = identity(model.tree, model.key)
    return by if isinstance(by, Identity) else "exact" if by is None else "none"


TIED = "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM final.t"
SUMS = "SELECT g, sum(x) AS s FROM final.t GROUP BY g"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, sum(v) OVER (PARTITION BY g) AS s FROM final.t",
        "SELECT id, sum(p + v * 2) OVER (PARTITION BY g) AS s, avg(p) OVER (PARTITION BY g) AS a FROM final.t",
        "SELECT id, sum(s) OVER (PARTITION BY g) AS s FROM (SELECT id, g, sum(v) AS s FROM final.t GROUP BY id, g)",
        "SELECT t.id, a.m FROM final.t t JOIN (SELECT g, max(x) AS m, count(x) AS n FROM final.t GROUP BY g) a ON t.g = a.g",
        "SELECT id, rank() OVER (PARTITION BY g ORDER BY v) AS r, max(x) OVER (PARTITION BY g ORDER BY v) AS m FROM final.t",
        # Rows that tie in all columns are equal.
        "SELECT id, row_number() OVER (PARTITION BY g ORDER BY v, id) AS n FROM final.t",
        "SELECT id, sum(x) OVER (PARTITION BY g ORDER BY v, id, x) AS s FROM final.t",
        "SELECT t.id, s FROM final.t t JOIN (SELECT g, sort_array(collect_list(id)) AS s FROM final.t GROUP BY g) a ON t.g = a.g",
        "SELECT t.id, s FROM final.t t JOIN (SELECT g, size(collect_set(id)) AS s FROM final.t GROUP BY g) a ON t.g = a.g",
        "SELECT t.id, s FROM final.t t JOIN (SELECT g, max_by(v, struct(h, v)) AS s FROM final.t GROUP BY g) a ON t.g = a.g",
        "SELECT g, e FROM (SELECT g, collect_set(v) AS l FROM final.t GROUP BY g) LATERAL VIEW explode(l) q AS e",
        "SELECT h, count(*) AS n FROM (SELECT g, h, sum(x) AS s FROM final.t GROUP BY g, h) GROUP BY h",
    ],
)  # fmt: skip
def test_calls_that_do_not_depend_on_the_order_of_rows_are_exact(sql: str) -> None:
    assert identity_of(sql) == "exact"


def test_a_key_that_a_window_orders_by_breaks_ties() -> None:
    sql = "SELECT h, row_number() OVER (PARTITION BY g ORDER BY v DESC, id) AS n FROM final.t"
    assert identity_of(sql) == "none"
    assert identity_of(sql, keys=lambda t: IDS.get(t, [])) == "exact"


@pytest.mark.parametrize(
    ("sql", "kind", "columns"),
    [
        (SUMS, "group", ["g"]),
        ("SELECT g, first(h) AS f FROM final.t GROUP BY g", "group", ["g"]),
        (f"SELECT g FROM ({SUMS}) WHERE s > 1", "group", ["g"]),
        (f"SELECT DISTINCT g, s FROM ({SUMS})", "group", ["g"]),
        (TIED, "group", ["g"]),
        (f"SELECT id, g FROM ({TIED}) WHERE n = 1", "group", ["g"]),
        ("SELECT id, h, g, first(v) OVER (PARTITION BY g, h) AS f FROM final.t", "group", ["h", "g"]),
        ("SELECT g, rank() OVER (PARTITION BY g ORDER BY s) AS r FROM (SELECT g, h, sum(x) AS s FROM final.t GROUP BY g, h)",
         "group", ["g"]),
        ("SELECT id, sum(x) OVER (PARTITION BY g) AS s FROM final.t", "row", ["id"]),
        (f"SELECT t.id, t.g, a.s FROM final.t t JOIN ({SUMS}) a ON t.g = a.g", "row", ["id", "g"]),
        (f"SELECT s, 1 AS one FROM ({SUMS}) JOIN final.c USING (g)", "row", ["one"]),
    ],
)  # fmt: skip
def test_stored_rows_are_found_by_exact_columns(sql: str, kind: str, columns: list[str]) -> None:
    by = identity_of(sql)
    assert isinstance(by, Identity)
    assert (by.kind, list(by.columns)) == (kind, columns)
    model = planned(sql)
    assert model.strategy == "keys"


def test_rows_with_an_exact_key_are_replaced_by_it() -> None:
    sql = f"SELECT t.id, a.s FROM final.t t JOIN ({SUMS}) a ON t.g = a.g"
    by = identity_of(sql, keys=lambda t: IDS.get(t, []))
    assert isinstance(by, Identity)
    assert (by.kind, list(by.columns)) == ("key", ["id"])


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (f"SELECT DISTINCT s FROM ({SUMS})", "adds floating-point numbers"),
        (f"SELECT s FROM ({SUMS}) UNION SELECT y FROM final.c", "adds floating-point numbers"),
        (f"SELECT s FROM ({SUMS}) EXCEPT SELECT y FROM final.c", "adds floating-point numbers"),
        (f"SELECT c.name FROM final.c c JOIN ({SUMS}) a ON c.g = a.g AND a.s > 1", "adds floating-point numbers"),
        (f"SELECT name FROM final.c WHERE g IN (SELECT g FROM ({SUMS}) WHERE s > 1)", "adds floating-point numbers"),
        (f"SELECT s, count(*) AS n FROM ({SUMS}) GROUP BY s", "adds floating-point numbers"),
        (f"SELECT s FROM ({SUMS})", "adds floating-point numbers"),
        ("SELECT id, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM final.t", "ties are broken"),
        ("SELECT id FROM final.t QUALIFY lag(h) OVER (PARTITION BY g ORDER BY v) = 'a'", "ties are broken"),
        ("SELECT id, sum(v) OVER (PARTITION BY g ORDER BY v ROWS 2 PRECEDING) AS n FROM final.t", "ties are broken"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, first(h) AS f FROM final.t GROUP BY g) a ON t.g = a.g", "order in which rows"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, collect_list(h) AS f FROM final.t GROUP BY g) a ON t.g = a.g", "order in which"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, max_by(h, v) AS f FROM final.t GROUP BY g) a ON t.g = a.g", "any of the rows"),
        (f"SELECT n, count(*) AS c FROM ({TIED}) GROUP BY n", "ties are broken"),
        (f"SELECT a.id, c.name FROM ({TIED}) a JOIN final.c c ON a.g = c.g WHERE n = 1", "ties are broken"),
        ("SELECT sum(v) AS n FROM (SELECT first(v) AS v FROM final.t GROUP BY g)", "order in which rows"),
    ],
)  # fmt: skip
def test_rows_that_no_exact_column_identifies_are_computed_in_full(sql: str, why: str) -> None:
    model = planned(sql)
    assert model.strategy == "full"
    assert why in model.why


@pytest.mark.parametrize(
    ("sql", "better"),
    [
        ("SELECT id, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM (SELECT id, g, v FROM final.t)",
         "SELECT id, row_number() OVER (PARTITION BY g ORDER BY v, id) AS n FROM (SELECT id, g, v FROM final.t)"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, collect_list(h) AS f FROM final.t GROUP BY g) a ON t.g = a.g",
         "SELECT t.id, f FROM final.t t JOIN (SELECT g, sort_array(collect_list(h)) AS f FROM final.t GROUP BY g) a ON t.g = a.g"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, max_by(h, v) AS f FROM final.t GROUP BY g) a ON t.g = a.g",
         "SELECT t.id, f FROM final.t t JOIN (SELECT g, max_by(h, struct(v, h)) AS f FROM final.t GROUP BY g) a ON t.g = a.g"),
        ("SELECT t.id, f FROM final.t t JOIN (SELECT g, first(h) AS f FROM final.t GROUP BY g) a ON t.g = a.g",
         "SELECT t.id, f FROM final.t t JOIN (SELECT g, min(h) AS f FROM final.t GROUP BY g) a ON t.g = a.g"),
        (f"SELECT DISTINCT s FROM ({SUMS})",
         "SELECT DISTINCT s FROM (SELECT g, sum(CAST(x AS DECIMAL(18,4))) AS s FROM final.t GROUP BY g)"),
    ],
    ids=["ties", "list", "max_by", "first", "sum"],
)  # fmt: skip
def test_following_the_advice_makes_a_model_incremental(sql: str, better: str) -> None:
    model = planned(sql)
    assert (model.strategy, "To absorb changes instead" in model.why) == ("full", True)
    assert planned(better).strategy == "keys"


def test_sums_over_rows_in_doubt_are_not_adjusted() -> None:
    sql = f"SELECT g, count(*) AS n, sum(CAST(s AS INT)) AS t FROM ({SUMS}) GROUP BY g"
    model = planned(sql)
    assert (model.strategy, model.retraction) == ("keys", None)


def test_ranges_of_rows_that_depend_on_other_ranges_are_computed_in_full() -> None:
    assert planned(SUMS, time="g").strategy == "ranges"
    assert planned(f"SELECT id, g FROM ({TIED}) WHERE n = 1", time="g").strategy == "ranges"
    assert planned(f"SELECT id, g FROM ({TIED}) WHERE n = 1", time="id").strategy == "full"


@pytest.mark.long
def test_most_generated_queries_are_exact() -> None:
    """Generated queries have no ties; only sums and averages of floating-point numbers are in doubt."""
    schemas = {TableId.parse(t): {n: k.lower() for n, k in c.items()} for t, c in COLUMNS.items()}
    plans = [plan("agg.m", q.sql, schemas) for q in queries(0, 120)]
    trees = [p.tree for p in plans if p.tree]
    assert sum(state(t.root).is_exact for t in trees) > 0.75 * len(trees)
