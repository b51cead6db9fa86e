"""Many models of one pipeline over the same tables: after each run every one of them equals its query, twice over.

Once as Spark recomputes it, and once as DuckDB computes it over the same rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.outcome import Outcome
from tests.support.queries import Query

SHOWN_ROWS = 6


@dataclass
class Proof:
    """Models over tables that somebody else writes, and what they are compared with.

    Attributes:
        lake: where the tables are.
        queries: by model.
        tables: what the queries read.
        history: every statement so far, for whoever has to see a failure again.
        may_fail_in_parts: whether Spark need not take what a step makes of the queries.
        strategies: how often each strategy was used, and how often the two engines were asked.
    """

    lake: Lake
    queries: Mapping[str, Query]
    tables: Sequence[str]
    history: list[str] = field(default_factory=list)
    strategies: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    may_fail_in_parts: bool = False

    def __post_init__(self) -> None:
        declared = [{"name": name, "sql": q.sql} for name, q in self.queries.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": declared}))
        for table in self.tables:
            self.lake.ensure_namespace((table.split(".")[0],))

    def sql(self, *statements: str) -> None:
        """Change the tables."""
        for text in statements:
            self.history.append(text)
            self.lake.spark().sql(text)

    def run(self, *, spark: bool = True) -> dict[str, Outcome]:
        """Bring the models up to date and compare each.

        Args:
            spark: ask Spark too where DuckDB can be asked.

        Raises:
            AssertionError: what differs or failed, all of it, with the statements that led there.
        """
        self.history.append("-- run")
        outcomes = {o.table: o for o in self.pipeline.run(self.lake)}
        wrong: list[str] = []
        with duckdb.connect() as connection:
            self._copy(connection)
            for name, q in self.queries.items():
                outcome = outcomes[name]
                self.strategies[outcome.strategy or outcome.status] += 1
                problem = outcome.error or self._differs(name, q, connection, spark=spark)
                if not self.may_fail_in_parts and "did not accept a part" in (outcome.why or ""):
                    problem = problem or "it was to be computed by parts"
                if "missing in the table" in (outcome.why or ""):
                    problem = problem or "its table was to hold what was removed"
                if problem:
                    wrong.append(f"{name} ({outcome.strategy}: {outcome.why})\n{q.sql}\n{problem}")
        assert not wrong, "\n\n".join([*wrong, "after:", ";\n".join(self.history)])
        return outcomes

    def _differs(self, name: str, q: Query, connection: duckdb.DuckDBPyConnection, *, spark: bool) -> str:
        digits = 10 if q.inexact else 17
        found = bag(self.lake.spark().table(self.lake.sql_name(name)).collect(), digits)
        if not q.not_duckdb:
            self.asked["DuckDB"] += 1
            if difference := _difference("DuckDB", bag(connection.sql(q.for_duckdb).fetchall(), digits), found):
                return difference
        if spark or q.not_duckdb:
            self.asked["Spark"] += 1
            # Over copies: what Spark gives for conditions over Iceberg's floating-point columns depends on the files.
            copied = re.sub(rf"\b({'|'.join({t.split('.')[0] for t in self.tables})})\.", "global_temp.", q.for_spark)
            return _difference("Spark", bag(self._asked(copied), digits), found)
        return ""

    def _asked(self, sql: str) -> Sequence[Iterable[Any]]:
        conf, name = self.lake.spark().conf, "spark.sql.constraintPropagation.enabled"
        # A bug of Spark's: over rows in memory some UNIONs fail at it ("key not found").
        conf.set(name, "false")
        try:
            return self.lake.spark().sql(sql).collect()
        finally:
            conf.unset(name)

    def _copy(self, connection: duckdb.DuckDBPyConnection) -> None:
        """The tables' rows, by Arrow: to DuckDB, and to Spark as rows in memory."""
        for table in self.tables:
            namespace = table.split(".")[0]
            rows = self.lake.spark().table(self.lake.sql_name(table)).toArrow()
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {namespace}")
            connection.register("rows", rows)
            connection.execute(f"CREATE TABLE {table} AS SELECT * FROM rows")
            connection.unregister("rows")
            self.lake.spark().createDataFrame(rows).createOrReplaceGlobalTempView(table.split(".")[1])


def bag(rows: Iterable[Iterable[Any]], digits: int = 17) -> Counter[Any]:
    """Rows as a multiset; numbers count by their value, NaN equals itself; floats to so many digits (17: exactly)."""
    return Counter(tuple(_plain(v, digits) for v in row) for row in rows)


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.{digits}g}")
    if isinstance(value, list | tuple):
        return tuple(_plain(v, digits) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((k, _plain(v, digits)) for k, v in value.items()))
    return value


def _difference(engine: str, expected: Counter[Any], found: Counter[Any]) -> str:
    missing, more = expected - found, found - expected
    if not missing and not more:
        return ""
    return "\n".join(
        [f"  {engine} says: {n} x {row}" for row, n in list(missing.items())[:SHOWN_ROWS]]
        + [f"  instead there: {n} x {row}" for row, n in list(more.items())[:SHOWN_ROWS]]
    )
