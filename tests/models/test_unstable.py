"""Models whose values depend on the order of rows: each table is always a possible result of its query."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.outcome import Outcome
from tests.support.oracle import rows_of
from tests.support.seeds import histories
from tests.support.unstable_queries import ARBITRARY, MAGNITUDES, ROUNDED, TABLES, Rounded, changes, fill


class History:
    """Models over tables that another writer changes and compacts.

    Args:
        lake: where the tables are.
        names: of the models, as in `ROUNDED` and `ARBITRARY`.
        magnitude: of the floating-point numbers.
    """

    def __init__(self, lake: Lake, names: Collection[str], magnitude: str, *first: str) -> None:
        self.lake, self.names, self.statements = lake, names, list[str]()
        # Rounding errors of sums are at most this large.
        self.error = 1e-15 * 200 * max(map(abs, MAGNITUDES[magnitude]))
        queries = {n: ROUNDED[n].sql if n in ROUNDED else ARBITRARY[n][0] for n in names}
        models = [{"name": f"agg.{n}", "sql": sql} for n, sql in queries.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": models}))
        lake.ensure_namespace(("final",))
        self.run(*TABLES, *first)

    def run(self, *statements: str) -> dict[str, Outcome]:
        """Change the tables, bring the models up to date, and check each."""
        for sql in statements:
            self.statements.append(sql)
            self.lake.spark().sql(sql)
        outcomes = {o.table: o for o in self.pipeline.run(self.lake)}
        source = self.lake.spark().table("final.t").collect()
        for name in self.names:
            outcome = outcomes[f"agg.{name}"]
            if outcome.exception:
                raise outcome.exception
            # Nobody else writes the tables of the models.
            assert "missing in the table" not in (outcome.why or ""), outcome.why
            table = self.lake.spark().table(f"agg.{name}").collect()
            try:
                if query := ROUNDED.get(name):
                    self._same_but_for_rounding(query, table)
                else:
                    ARBITRARY[name][1](source, table)
            except AssertionError as e:
                e.add_note(f"agg.{name} ({outcome.strategy}: {outcome.why}) after:\n" + ";\n".join(self.statements))
                raise
        return outcomes

    def _same_but_for_rounding(self, query: Rounded, table: Sequence[Any]) -> None:
        expected = _by_exact(self.lake.spark().sql(query.sql).collect(), query.floats)
        results = _by_exact(table, query.floats)
        assert results.keys() == expected.keys()
        for key, values in results.items():
            if query.is_set:
                assert all(any(self._near(a, b) for b in expected[key]) for a in values), (key, values, expected[key])
                assert all(any(self._near(a, b) for b in values) for a in expected[key]), (key, values, expected[key])
            else:
                assert len(values) == len(expected[key]), (key, values, expected[key])
                assert all(map(self._near, sorted(values), sorted(expected[key]))), (key, values, expected[key])

    def _near(self, one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        # Variances are of the squares, correlations of quotients of them.
        return all(abs(a - b) <= max(self.error, 1e-9 * max(abs(a), abs(b))) for a, b in zip(one, other, strict=True))


def _by_exact(rows: Sequence[Any], floats: Collection[str]) -> dict[Any, list[tuple[float, ...]]]:
    results: dict[Any, list[tuple[float, ...]]] = defaultdict(list)
    for row in rows:
        values = tuple(-1.5 if row[f] is None else float(row[f]) for f in floats)
        results[tuple(row[c] for c in row.__fields__ if c not in floats)].append(values)
    return results


def check(lake: Lake, seed: int, names: Collection[str], runs: int) -> History:
    choose, new = random.Random(seed), itertools.count(61)
    magnitude = choose.choice(list(MAGNITUDES))
    history = History(lake, names, magnitude, *fill(choose, MAGNITUDES[magnitude]))
    for _ in range(runs):
        history.run(*changes(choose, MAGNITUDES[magnitude], new))
    return history


@pytest.mark.long
def test_rows_without_a_key_are_neither_gained_nor_lost_when_sums_differ(lake: Lake) -> None:
    choose = random.Random(2)
    names = ["window", "average_joined", "other_table", "keyed_both", "distinct"]
    history = History(lake, names, "alike", *fill(choose, MAGNITUDES["alike"]))
    rewrite = "CALL lake.system.rewrite_data_files(table => 'final.{}', strategy => 'sort', sort_order => '{} DESC', "
    rewrite += "options => map('rewrite-all', 'true'))"
    outcomes = history.run(
        rewrite.format("t", "x"), rewrite.format("c", "y"), "DELETE FROM final.t WHERE id IN (3, 30)",
        "UPDATE final.t SET x = 0.9D, g = 2 WHERE id = 7", "INSERT INTO final.c VALUES (2, 'n', 0.3D)",
    )  # fmt: skip
    results = {name: outcomes[f"agg.{name}"].strategy for name in names}
    assert results == {**dict.fromkeys(names, "keys"), "distinct": "full"}


@pytest.mark.long
def test_rows_grouped_by_a_sum_are_not_found_by_it(lake: Lake) -> None:
    names = ["distinct_beside", "grouped_by_sum"]
    history = History(
        lake, names, "alike", "INSERT INTO final.t VALUES (1, 1, 1, 0.1D), (2, 1, 2, 0.2D), (3, 1, 1, 0.3D)"
    )
    # Added in this order, the numbers give 0.6 instead of 0.6000000000000001.
    history.run(
        "CALL lake.system.rewrite_data_files(table => 'final.t', strategy => 'sort', sort_order => 'x DESC', "
        "options => map('rewrite-all', 'true'))"
    )
    outcomes = history.run("UPDATE final.t SET x = 0.9D WHERE id = 1")
    assert {outcomes[f"agg.{n}"].strategy for n in names} == {"keys"}


@pytest.mark.long
def test_values_that_depend_on_ties_are_those_of_one_computation(lake: Lake) -> None:
    choose = random.Random(3)
    names = ["numbered", "first_of_each", "first_joined", "placed"]
    history = History(lake, names, "alike", *fill(choose, MAGNITUDES["alike"]))
    first = lake.spark().table("agg.first_of_each").first()
    assert first is not None
    outcomes = history.run(
        "CALL lake.system.rewrite_data_files(table => 'final.t', strategy => 'sort', sort_order => 'id DESC', "
        "options => map('rewrite-all', 'true'))",
        f"DELETE FROM final.t WHERE id = {first['id']}",
        "INSERT INTO final.t VALUES (90, 1, 1, 0.1D), (91, 1, 1, 0.1D)",
    )
    assert [outcomes[f"agg.{n}"].strategy for n in names] == ["keys", "keys", "full", "full"]
    assert outcomes["agg.numbered"].changed < 60  # those of the touched groups


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT v FROM final.t", []),
        pytest.param("SELECT id, v FROM final.t", ["id"], marks=pytest.mark.long),
        pytest.param("SELECT id, sum(x) OVER (PARTITION BY g) AS s FROM final.t", [], marks=pytest.mark.long),
    ],
    ids=["exact", "key", "rounded"],
)
def test_a_removal_that_does_not_find_its_rows_recomputes_everything(lake: Lake, sql: str, key: list[str]) -> None:
    lake.ensure_namespace(("final",))
    model = {"name": "agg.m", "sql": sql, "key": key}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": [model]}))
    spark = lake.spark()
    for statement in (TABLES[0], "INSERT INTO final.t VALUES (1, 1, 4, 0.5D), (2, 1, 5, 0.25D), (3, 2, 6, 0.125D)"):
        spark.sql(statement)
    pipeline.run(lake)
    # Another writer deletes the rows that the next change removes.
    spark.sql("DELETE FROM agg.m WHERE true")
    spark.sql("UPDATE final.t SET v = 7, x = 1.5D WHERE id = 1")
    (outcome,) = pipeline.run(lake)
    assert outcome.strategy == "full"
    assert "missing in the table" in outcome.why
    assert rows_of(spark.table("agg.m")) == rows_of(spark.sql(sql))


@pytest.mark.long
def test_rows_deleted_one_after_the_other_from_one_file_are_all_found(lake: Lake) -> None:
    lake.ensure_namespace(("final",))
    model = {"name": "agg.m", "sql": "SELECT id, v FROM final.t", "key": ["id"]}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": [model]}))
    spark = lake.spark()
    for statement in (TABLES[0], "INSERT INTO final.t SELECT id, 1, 2, 0.5D FROM range(9)"):
        spark.sql(statement)
    pipeline.run(lake)
    for statement in (
        "UPDATE final.t SET v = 7 WHERE id IN (1, 2)",
        "DELETE FROM final.t WHERE id IN (2, 3)",
        "INSERT INTO final.t VALUES (3, 1, 9, NULL)",
    ):
        spark.sql(statement)
        (outcome,) = pipeline.run(lake)
        assert outcome.strategy == "retract", outcome.why
        assert rows_of(spark.table("agg.m")) == rows_of(spark.sql(str(model["sql"])))


@pytest.mark.long
def test_models_in_doubt_keep_a_possible_result_through_random_histories(new_lake: Callable[[str], Lake]) -> None:
    seeds: list[int] = []

    @settings(
        max_examples=histories(3), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(seed=st.integers(0, 2**63))
    def run(seed: int) -> None:
        seeds.append(seed)
        check(new_lake(f"lake{len(seeds)}"), seed, [*ROUNDED, *ARBITRARY], runs=6)

    run()
