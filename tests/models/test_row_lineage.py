"""Which source rows a row of a model is computed from, by the text of its query; without Spark."""

from __future__ import annotations

import pytest

from lake_assets.models.operators.row_lineage import RowLineage, row_lineage
from lake_assets.models.sql.model_plan import plan
from tests.support.schemas import SCHEMAS

JOINED = "FROM final.users u JOIN final.cities c ON u.city_id = c.id"


def lineage(sql: str, *key: str) -> RowLineage:
    planned = plan("agg.m", sql, SCHEMAS, key)
    assert planned.tree is not None
    return row_lineage(planned.tree, planned.key)


@pytest.mark.parametrize(
    ("sql", "key", "bound"),
    [
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id", (), ["users: city_id"]),
        ("SELECT city_id AS city, count(*) AS n FROM final.users GROUP BY city_id", (), ["users: city_id = city"]),
        (f"SELECT c.name, count(*) AS n {JOINED} GROUP BY c.name", (), ["cities: name", "users: city_id = c.id"]),
        # Equal columns of a join are pinned by the key alone.
        (f"SELECT c.id, count(*) AS n {JOINED} GROUP BY c.id", (), ["users: city_id = id", "cities: id"]),
        (f"SELECT u.id, c.name {JOINED}", ("id",), ["users: id", "cities: id = u.city_id"]),
        (
            "SELECT u.id, n FROM final.users u LEFT JOIN (SELECT city_id, count(*) AS n FROM final.users GROUP BY "
            "city_id) c ON c.city_id = u.city_id",
            ("id",),
            ["users: id", "users: city_id = u.city_id"],
        ),
        ("SELECT id FROM final.users UNION SELECT id FROM final.orders", (), ["users: id", "orders: id"]),
        ("SELECT id + 1 AS id FROM final.users", ("id",), []),
    ],
)
def test_rows_are_found_by_copied_columns_and_joins(sql: str, key: tuple[str, ...], bound: list[str]) -> None:
    found = lineage(sql, *key)
    assert [f"{b.scan.table.name}: {b.how}" for b in found.bound] == bound


def test_what_is_not_traced_is_told() -> None:
    crossed = lineage("SELECT a.id, count(*) AS n FROM final.users a, final.users b WHERE a.id < b.id GROUP BY a.id")
    assert [s.alias for s in crossed.loose] == ["b"]
    ranked = lineage("SELECT id, rank() OVER (PARTITION BY city_id ORDER BY name) AS r FROM final.users", "id")
    assert "other rows of the same partition" in ranked.notes[0]
    filtered = lineage("SELECT city_id, count(*) AS n FROM final.users WHERE name LIKE 'a%' GROUP BY city_id")
    assert "LIKE" in filtered.bound[0].conditions[0]
    shouted = lineage(f"SELECT upper(u.name) AS y, c.name, count(*) AS n {JOINED} GROUP BY upper(u.name), c.name")
    assert shouted.notes[0].startswith("y is computed, ")
    assert shouted.bound
    missing = lineage("SELECT u.id FROM final.users u LEFT ANTI JOIN final.cities c ON c.id = u.city_id", "id")
    assert any("missing" in n for n in missing.notes)
