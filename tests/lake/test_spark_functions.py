"""Spark's functions, compared with Spark's own documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import sqlglot
from pyspark.errors import PySparkException
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from lake_assets import Lake
from lake_assets.lake.spark_functions import is_aggregate, is_generator
from lake_assets.lake.sql_text import DIALECT, changed, changed_calls, misread, not_repeatable

# Operators have no call syntax: `x = 1`.
OPERATORS = {"=", "==", "<=>", "!=", "<>", "<", "<=", ">", ">=", "%", "&", "/", "^", "|", "||", "<<", ">>", ">>>"}


@pytest.fixture(scope="module")
def groups(spark_lake: Lake) -> Mapping[str, str]:
    """Return each function's group in Spark's documentation."""
    spark = spark_lake.spark()
    catalog = spark._jsparkSession.sessionState().catalog()
    identifier = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    names = {r[0] for r in spark.sql("SHOW SYSTEM FUNCTIONS").collect()} - OPERATORS
    return {n: catalog.lookupFunctionInfo(identifier(n)).getGroup() for n in names if n.isidentifier()}


def call(name: str) -> exp.Expr | None:
    """Return a call of a function with as many arguments as its parser accepts."""
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


def test_other_functions_are_not_aggregates(groups: Mapping[str, str]) -> None:
    others = {n for n, g in groups.items() if g not in ("agg_funcs", "window_funcs")}
    assert len(others) > 350
    assert not [n for n in others if (c := call(n)) is not None and is_aggregate(c)]


def test_all_generators_are_known(groups: Mapping[str, str]) -> None:
    makers = {n for n, g in groups.items() if g == "generator_funcs"}
    assert len(makers) > 8
    assert not [n for n in makers if (c := call(n)) is None or not is_generator(c)]


@pytest.mark.long
def test_written_sql_returns_the_same_rows(spark_lake: Lake) -> None:
    """The examples of Spark's documentation, unchanged and as written by sqlglot."""
    spark = spark_lake.spark()
    catalog = spark._jsparkSession.sessionState().catalog()
    identifier = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    same, wrong = 0, []
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if not name.isidentifier():
            continue
        examples = catalog.lookupFunctionInfo(identifier(name)).getExamples()
        for sql in re.findall(r"^\s*> (SELECT.*?);\s*$", examples, re.MULTILINE | re.DOTALL):
            # VALUES without parentheses is parsed as one row with an alias; a model over it runs unchanged.
            if "FROM VALUES '" in sql or sql == "SELECT current_time":
                continue
            try:
                query = sqlglot.parse_one(sql, dialect=DIALECT)
                expected = [tuple(map(str, row)) for row in spark.sql(sql).collect()]
            except (SqlglotError, PySparkException):
                continue  # errors of sqlglot or Spark are reported; some examples are meant to fail
            if not_repeatable(query) or changed_calls(query):
                continue
            output = query.sql(DIALECT)
            try:
                actual: object = [tuple(map(str, row)) for row in spark.sql(output).collect()]
            except PySparkException as e:
                actual = str(e).splitlines()[0]
            if actual == expected:
                same += 1
            else:
                wrong.append(f"{sql} -> {output}: {actual} instead of {expected}")
    assert not wrong, "\n".join(wrong)
    assert same > 900


@pytest.mark.parametrize(
    "call",
    [
        "TO_CHAR(x, '999')",
        "TO_DATE(x, 'yyyy-MM-dd')",
        "PARSE_JSON(x)",
        "VARIANT_GET(PARSE_JSON(x), '$.a', 'int')",
        "LISTAGG(x)",
        "STRING_AGG(DISTINCT x)",
        "LISTAGG(x, '-') WITHIN GROUP (ORDER BY y)",
        "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x)",
        "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY x)",
        "COLLATE(x, 'UNICODE')",
        "SPACE(2)",
    ],
)
def test_calls_are_written_as_they_were_read(call: str) -> None:
    query = sqlglot.parse_one(f"SELECT {call} AS y FROM final.a", dialect=DIALECT)
    assert query.sql(DIALECT) == f"SELECT {call} AS y FROM final.a"
    assert not changed_calls(query)


def test_a_type_written_as_another_one_is_reported() -> None:
    assert changed_calls(sqlglot.parse_one("SELECT TIME '10:00:00' AS y FROM final.a", dialect=DIALECT))
    assert misread("SELECT CAST(x AS TIMESTAMP WITHOUT  TIME ZONE) AS y FROM final.a").endswith("TIMESTAMP_NTZ")
    assert not misread("SELECT 'without time zone' AS y, ' WITHOUT TIME ZONE' AS z FROM final.a")


@pytest.mark.parametrize(
    "call",
    [
        "moment - INTERVAL 1 DAY 2 HOURS",
        "v & 1 << 3",
        "percentile(v, 0.5, id)",
        "date_trunc(kind, moment)",
        "date_trunc(day, moment)",
        "trunc(day, 'Q')",
        "regexp_like(name, 'x') = ok",
        "like(name, 'x') IS NULL",
    ],
)
def test_changed_tokens_are_reported(call: str) -> None:
    sql = f"SELECT {call} AS y FROM final.a"
    assert changed(sql, sqlglot.parse_one(sql, dialect=DIALECT))


@pytest.mark.parametrize(
    "call",
    [
        "substr(name, 1, 2) || nvl(name, 'x')",
        "v::BIGINT + int(id) - 1L",
        "date_sub(day, 3) < DATE '2024-01-01'",
        "struct(id, v)",
        "v <=> id AND NOT v != 3",
        "sum(v) OVER (PARTITION BY id ORDER BY day ROWS UNBOUNDED PRECEDING)",
        "day - INTERVAL 1 DAY",
        "date_trunc('month', moment) = trunc(day, 'year')",
        "date_diff(day, day) + 1 = to_timestamp(moment)",
        "named_struct('a', v, 'B', id)",
        "CAST(from_utc_timestamp(moment, 'Europe/Berlin') AS DATE) = to_utc_timestamp(moment, 'CET')",
        "position('b' IN name) + length(substring(name FROM 2 FOR 1))",
        "name RLIKE r'\\d'",
    ],
)
def test_equivalent_spellings_are_not_reported(call: str) -> None:
    sql = f"SELECT {call} AS y FROM final.a, final.b QUALIFY count(*) OVER (PARTITION BY id) = 1"
    assert changed(sql, sqlglot.parse_one(sql, dialect=DIALECT)) == ""
