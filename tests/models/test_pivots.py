"""PIVOT is computed in full where its meaning is not known; `test_maintained_constructs` has those that are maintained."""

from __future__ import annotations

import pytest

from lake_assets.models.sql.model_plan import plan
from tests.support.table_changes import SCHEMAS


@pytest.mark.parametrize(
    ("clause", "why"),
    [
        ("PIVOT (count(id) FOR b IN (NULL))", "it is no plain value"),
        ("PIVOT (first(name) AS n, count(*) AS m FOR b IN (1))", "may be no numbers"),
        ("PIVOT (count(*) FILTER (WHERE v > 1) FOR b IN (1))", "in PIVOT"),
    ],
)
def test_what_it_means_elsewhere_is_not_known_and_the_reason_is_given(clause: str, why: str) -> None:
    planned = plan("agg.m", f"SELECT * FROM final.a {clause}", SCHEMAS)
    assert planned.strategy == "full"
    assert why in planned.why
