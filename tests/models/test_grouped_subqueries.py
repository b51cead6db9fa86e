"""Subqueries beside aggregates and in HAVING: strategy and reasons; `test_maintained_constructs` compares their rows."""

from __future__ import annotations

from lake_assets.models.sql.model_plan import plan
from tests.support.table_changes import SCHEMAS


def test_a_change_of_the_groups_leaves_a_threshold_of_another_table_alone() -> None:
    sql = "SELECT b, count(*) AS n FROM final.a GROUP BY b HAVING count(*) > (SELECT min(n) FROM final.d)"
    planned = plan("agg.m", sql, SCHEMAS)
    assert (planned.strategy, planned.key) == ("keys", ("b",))


def test_a_share_of_the_total_of_the_same_rows_is_computed_in_full() -> None:
    sql = "SELECT b, sum(v) / (SELECT sum(v) FROM final.a) AS share FROM final.a GROUP BY b"
    planned = plan("agg.m", sql, SCHEMAS)
    assert planned.strategy == "full"
    assert planned.why == "each row is compared with a total of all rows, which any change may alter"
