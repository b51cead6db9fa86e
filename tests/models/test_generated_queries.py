"""Generated queries over generated histories: after every run each model equals its query, by Spark and by DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake
from tests.support import table_changes
from tests.support.models import Proof
from tests.support.queries import TABLES, queries
from tests.support.seeds import histories, seeds


def check(lake: Lake, seed: int, *, models: int, runs: int, spark: bool = True) -> Proof:
    """Models with queries of a seed over a history of the same seed."""
    choose = random.Random(seed)
    named = {f"agg.m{n}": q for n, q in enumerate(queries(seed, models))}
    proof = Proof(lake, named, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run(spark=False)
    for n in range(runs):
        for _ in range(choose.choice([0, 1, 1, 2, 3]) if runs > 1 else 3):
            proof.sql(*table_changes.change(choose, lake))
        proof.run(spark=spark or n == runs - 1)
    return proof


@pytest.mark.parametrize(
    ("seed", "models"), [(2, 3), *(pytest.param(s, 25, marks=pytest.mark.long) for s in seeds(0, 1))]
)
def test_a_hundred_generated_models_equal_their_queries(lake: Lake, seed: int, models: int) -> None:
    proof = check(lake, seed, models=models, runs=1)
    assert proof.asked["Spark"] >= models
    assert proof.asked["DuckDB"] > models


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))  # so that processes can share them
def test_generated_models_equal_their_queries_after_any_changes(
    new_lake: Callable[[str], Lake], record_property: Callable[[str, object], None], part: int
) -> None:
    """Some 120 combinations of a query and a change in each history.

    A failure names the queries, what differs and all statements: such a one becomes a test with a name of its own.
    """
    strategies: Counter[str] = Counter()
    queries: Counter[str] = Counter()
    seeds: list[int] = []

    @settings(
        max_examples=histories(4), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(seed=st.integers(0, 2**63))
    def run(seed: int) -> None:
        seeds.append(seed)
        proof = check(new_lake(f"lake{len(seeds)}"), seed, models=42, runs=3)
        strategies.update(proof.strategies)
        queries.update(proof.asked)

    run()
    assert queries["DuckDB"] > 0.8 * queries["Spark"]
    record_property("summary", f"strategies, first runs included: {dict(strategies.most_common())}")
    record_property("summary", f"results compared: {dict(queries)}")
