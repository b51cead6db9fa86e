"""What is known of Spark's functions, against what Spark says of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from lake_assets import Lake
from lake_assets.lake.sql import DIALECT
from lake_assets.models.functions import is_aggregate, is_generator

# `x = 1` is how such are called.
OPERATORS = {"=", "==", "<=>", "!=", "<>", "<", "<=", ">", ">=", "%", "&", "/", "^", "|", "||", "<<", ">>", ">>>"}


@pytest.fixture(scope="module")
def groups(spark_lake: Lake) -> Mapping[str, str]:
    """By function the group that Spark's documentation has it in."""
    spark = spark_lake.spark()
    catalog = spark._jsparkSession.sessionState().catalog()
    identifier = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    names = {r[0] for r in spark.sql("SHOW SYSTEM FUNCTIONS").collect()} - OPERATORS
    return {n: catalog.lookupFunctionInfo(identifier(n)).getGroup() for n in names if n.isidentifier()}


def call(name: str) -> exp.Expr | None:
    """A call of a function, with as many arguments as it is parsed with."""
    for arguments in ("x", "x, y", "x, y, z", ""):
        try:
            query = sqlglot.parse_one(f"SELECT {name}({arguments}) FROM final.a", dialect=DIALECT)
        except (ParseError, IndexError):
            continue
        assert isinstance(query, exp.Select)
        return query.selects[0]
    return None


def test_all_aggregates_are_known(groups: Mapping[str, str]) -> None:
    of_rows = {n for n, g in groups.items() if g == "agg_funcs"} - {"grouping", "grouping_id"}
    assert len(of_rows) > 70
    assert not [n for n in of_rows if (c := call(n)) is None or not is_aggregate(c)]


def test_nothing_else_is_taken_for_one(groups: Mapping[str, str]) -> None:
    others = {n for n, g in groups.items() if g not in ("agg_funcs", "window_funcs")}
    assert len(others) > 350
    assert not [n for n in others if (c := call(n)) is not None and is_aggregate(c)]


def test_all_generators_are_known(groups: Mapping[str, str]) -> None:
    makers = {n for n, g in groups.items() if g == "generator_funcs"}
    assert len(makers) > 8
    assert not [n for n in makers if (c := call(n)) is None or not is_generator(c)]
