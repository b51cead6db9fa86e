"""`window(at, ...)` as operators: each row is in exactly the windows in which Spark puts it."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.models.sql.model_plan import plan
from tests.support.models import Proof
from tests.support.queries import Query
from tests.support.table_changes import SCHEMAS

MOMENTS = [
    "'2024-01-01 00:00:00'", "'2024-03-31 02:30:00'", "'1969-12-31 23:59:59.999999'", "'1970-01-01 00:00:00'",
    "'0001-02-01 00:00:00'", "'9999-11-30 23:00:00'", "'2024-02-29 12:34:56.789012'", "NULL",
]  # fmt: skip
LENGTHS = [
    "'1 day'", "'7 hours'", "'1 week'", "'1 second'", "'90 minutes', '20 minutes'", "'1 day', '7 hours', '-2 hours'",
    "'1 hour', '1 hour', '5 minutes'", "'interval 1 hour 30 minutes'", "1500000", "'3 days', 86400000000, '1 hour'",
    "'250 milliseconds 7 microseconds'",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("TIMESTAMP", 4),
        *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE")),
    ],
)
def test_rows_at_all_bounds_are_in_the_windows_of_spark(lake: Lake, kind: str, every: int) -> None:
    queries = {
        f"agg.m{n}": Query(f"SELECT id, window(at, {lengths}) AS w FROM final.t", (), not_duckdb="Spark's function")
        for n, lengths in enumerate(LENGTHS[::every])
    }
    proof = Proof(lake, queries, ["final.t"])
    proof.sql(f"CREATE TABLE final.t (id INT, at {kind}) USING iceberg", "INSERT INTO final.t VALUES (0, NULL)")
    proof.run()
    proof.sql(*(f"INSERT INTO final.t VALUES ({n}, CAST({m} AS {kind}))" for n, m in enumerate(MOMENTS, 1)))
    proof.run()
    proof.sql("DELETE FROM final.t WHERE id % 2 = 0", "UPDATE final.t SET at = NULL WHERE id = 3")
    proof.run()
    assert proof.strategies["retract"] >= 2 * len(queries)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("window(moment, '1 month')", "lengths that are not written as '1 hour 30 minutes'"),
        ("window(moment, '1.5 hours')", "lengths that are not written as"),
        ("window(moment, '1 day', '1 second')", "more than 1000 windows per row"),
        ("window(kind, '1 day')", "over values that are not of a type of times"),
        ("session_window(moment, '1 day')", "the length of a session depends on neighboring rows"),
    ],
)
def test_other_windows_are_computed_in_full_with_the_reason(call: str, why: str) -> None:
    planned = plan("agg.m", f"SELECT count(*) AS n FROM final.c GROUP BY {call}", SCHEMAS)
    assert planned.strategy == "full"
    assert why in planned.why
