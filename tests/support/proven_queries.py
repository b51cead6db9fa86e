"""Models of given queries over a random history of tables."""

from __future__ import annotations

import random

from lake_assets import Lake
from tests.support import table_changes
from tests.support.models import Proof
from tests.support.queries import TABLES, Query


def prove(lake: Lake, choose: random.Random, queries: list[str], runs: int) -> None:
    """Compare models with their queries over a random history."""
    named = {f"agg.m{n}": Query(sql, (), not_duckdb="another dialect") for n, sql in enumerate(queries)}
    proof = Proof(lake, named, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run()
    for _ in range(runs):
        proof.sql(*(s for _ in range(3) for s in table_changes.change(choose, lake)))
        # What most of the queries read.
        proof.sql(*(table_changes.insert(choose, table, 2) for table in ("final.a", "final.b")))
        proof.run()
    assert proof.strategies["keys"] + proof.strategies["retract"] > len(queries) / 2
