"""Models with rare constructs: after every run each equals its query, as Spark reads its text."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lake_assets import Lake
from lake_assets.models.sql.model_plan import plan
from tests.support import table_changes
from tests.support.constructs import CONSTRUCTS
from tests.support.models import Proof
from tests.support.queries import TABLES, Query
from tests.support.seeds import seeds
from tests.support.table_changes import SCHEMAS

# As many tests, for `VARIANTS` to choose from.
PARTS = 4


def test_most_are_maintained_by_what_changed() -> None:
    strategies = Counter(plan(f"agg.m{n}", sql, SCHEMAS).strategy for n, sql in enumerate(CONSTRUCTS))
    assert strategies["full"] < 0.3 * len(CONSTRUCTS), strategies


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_models_equal_what_spark_makes_of_their_text(lake: Lake, seed: int, part: int) -> None:
    choose, constructs = random.Random(f"{seed} {part}"), CONSTRUCTS[part::PARTS]
    # DuckDB has other names for many of these functions.
    queries = {f"agg.m{n}": Query(sql, (), not_duckdb="another dialect") for n, sql in enumerate(constructs)}
    proof = Proof(lake, queries, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run()
    for _ in range(3):
        for _ in range(choose.choice([1, 1, 2, 3])):
            proof.sql(*table_changes.change(choose, lake))
        proof.run()
    assert proof.strategies["keys"] + proof.strategies["retract"] > 100 // PARTS
