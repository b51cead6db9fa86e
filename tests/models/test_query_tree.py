"""Key filters are pushed down to the tables, without Spark."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.models.operators.maintenance import reason_all_rows_change
from lake_assets.models.operators.operator_rows import At, KeyFilter, Rows
from lake_assets.models.operators.query_tree import Scan, column, text
from lake_assets.models.sql.model_plan import plan
from tests.support.schemas import SCHEMAS


class Shown:
    """Keys whose condition shows where a filter arrives."""

    hint = ""

    def condition(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        return " AND ".join(f"cut({text(e)})" for e in expressions)

    def join(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        return ""


def reached(sql: str, *outputs: str) -> set[str]:
    """Return the tables and columns that a key filter on some columns of the result reaches."""
    tree = plan("agg.m", sql, SCHEMAS).tree
    assert tree is not None

    def view(scan: Scan, at: At) -> str:
        return f"view_of_{scan.alias}"

    keys = tuple(column(tree.outputs[o]) for o in outputs)
    sql = Rows(view).sql(tree.root, "end", KeyFilter(keys, outputs, Shown()))
    filtered = re.findall(r"FROM view_of_(\w+)\) WHERE ((?:cut\(`\w+`\)(?: AND )?)+)", sql)
    return {
        f"{alias}.{re.sub(r'_[0-9]+$', '', c)}" for alias, cuts in filtered for c in re.findall(r"cut\(`(\w+)`\)", cuts)
    }


JOIN = "FROM final.users u JOIN final.orders o ON u.id = o.user_id"


@pytest.mark.parametrize(
    ("sql", "by", "tables"),
    [
        (f"SELECT u.id AS k, count(*) AS n {JOIN} GROUP BY u.id", "k", {"u.id", "o.user_id"}),
        (f"SELECT o.user_id AS k, max(u.name) AS n {JOIN} GROUP BY o.user_id", "k", {"u.id", "o.user_id"}),
        (f"SELECT u.name AS k, count(*) AS n {JOIN} GROUP BY u.name", "k", {"u.name"}),
        ("SELECT u.id AS k, o.day FROM final.users u LEFT JOIN final.orders o ON u.id = o.user_id", "k", {"u.id", "o.user_id"}),
        ("SELECT o.day AS k, u.id FROM final.users u LEFT JOIN final.orders o ON u.id = o.user_id", "k", set()),
        ("SELECT coalesce(u.id, o.user_id) AS k FROM final.users u FULL JOIN final.orders o ON u.id = o.user_id", "k", {"u.id", "o.user_id"}),
        ("SELECT u.id AS k FROM final.users u FULL JOIN final.orders o ON u.id = o.user_id", "k", set()),
        ("SELECT u.id AS k FROM final.users u WHERE EXISTS (SELECT 1 FROM final.orders o WHERE o.user_id = u.id)", "k", {"u.id", "o.user_id"}),
        ("SELECT u.city_id AS k, rank() OVER (PARTITION BY city_id ORDER BY id) AS r FROM final.users u", "k", {"u.city_id"}),
        ("SELECT u.name AS k, rank() OVER (PARTITION BY city_id ORDER BY id) AS r FROM final.users u", "k", set()),
        ("SELECT u.id AS k FROM final.users u UNION SELECT o.user_id FROM final.orders o", "k", {"u.id", "o.user_id"}),
        ("WITH c AS (SELECT u.city_id AS g, count(*) AS n FROM final.users u GROUP BY u.city_id) SELECT g AS k FROM c WHERE n > 1", "k", {"u.city_id"}),
    ],
)  # fmt: skip
def test_a_key_filter_is_pushed_down_to_the_tables(sql: str, by: str, tables: set[str]) -> None:
    assert reached(sql, by) == tables


def test_which_changes_affect_all_rows_depends_on_their_tables() -> None:
    users, orders = TableId.parse("final.users"), TableId.parse("final.orders")
    tree = plan("agg.m", "SELECT o.id FROM final.orders o WHERE o.id > (SELECT max(id) FROM final.users)", SCHEMAS).tree
    assert tree is not None
    assert "total of all rows" in reason_all_rows_change(tree.root, {users})
    assert reason_all_rows_change(tree.root, {orders}) == ""
