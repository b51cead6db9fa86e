"""Joins by name: their rewritten form gives the rows and columns, in order, that Spark gives for the original text."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.errors import AnalysisException

from lake_assets import Lake
from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.sql.model_plan import parse, qualified_query
from lake_assets.models.sql.query_text import replace_tables
from tests.support.models import bag

# Columns of the same name differ in type and position.
TABLES = {
    "a": ({"k": "int", "g": "string", "v": "int"}, "(1, '1', 1), (2, '2', NULL), (3, NULL, 2), (NULL, '01', 3)"),
    "b": ({"g": "string", "w": "int", "k": "bigint"}, "('1', 1, 1), ('3', 2, 2), (NULL, 3, 4), ('2', NULL, NULL)"),
    "c": ({"u": "int", "v": "bigint", "k": "string"}, "(1, 1, '01'), (2, 2, '4'), (3, NULL, '2'), (4, 3, NULL)"),
    "d": ({"v": "int", "u": "int", "g": "string"}, "(1, 1, '1'), (2, 5, '7'), (NULL, 2, '2'), (3, 3, NULL)"),
}
SCHEMAS = {TableId(("final",), t): columns for t, (columns, _) in TABLES.items()}
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


def _query(choose: random.Random) -> str:
    """Return a random SELECT with joins by name; Spark does not accept all of them."""
    names: set[str] = set()
    aliases: list[str] = []

    def source() -> tuple[str, set[str]]:
        table = choose.choice(list(TABLES))
        alias = f"t{len(aliases)}"
        aliases.append(alias)
        columns = set(TABLES[table][0])
        match choose.randrange(6):
            case 0:
                return f"(SELECT * FROM final.{table}) {alias}", columns
            case 1:
                return f"(SELECT upper(g) AS G, 7 AS k FROM final.{choose.choice('abd')}) AS {alias}", {"g", "k"}
            case 2:
                return f"(SELECT g, count(*) FROM final.{choose.choice('abd')} GROUP BY g) AS {alias}(g, v)", {"g", "v"}
            case _:
                return f"final.{table} {alias}", columns

    def joined(left: set[str]) -> tuple[str, set[str]]:
        right, columns = source()
        common = sorted(left & columns)
        kind = choose.choice(JOINS)
        match choose.randrange(8):
            case 0:
                return f" NATURAL {choose.choice(JOINS[:4])} {right}", left | columns
            case 1:
                return f", {right}", left | columns
            case 2:
                on = f"{choose.choice(sorted(left))} <=> {aliases[-1]}.{choose.choice(sorted(columns))}"
                return f" {kind} {right} ON {on}", left | columns
            case _ if not common:
                return f" CROSS JOIN {right}", left | columns
            case _:
                by = choose.sample(common, choose.randint(1, len(common)))
                return f" {kind} {right} USING ({', '.join(by)})", left | columns

    text, names = source()
    for _ in range(choose.randint(1, 3)):
        more, names = joined(names)
        text += more
    # A join in parentheses that begins with a subquery, or has a semi or anti join, is refused: sqlglot does not parse
    # it.
    if text.startswith("final.") and "SEMI" not in text and "ANTI" not in text and choose.random() < 0.2:
        inner, right = source()
        by = sorted(names & right)
        if by:
            text = f"{inner} {choose.choice(JOINS[:4])} ({text}) USING ({by[0]})"
            names |= right
    if choose.random() < 0.1:
        text += " LATERAL VIEW explode(array(1, 2)) e AS n"
        names = names | {"n"}
    name = choose.choice(sorted(names))
    where = choose.choice(
        [
            "",
            "",
            f" WHERE {name} IS NOT NULL",
            f" WHERE EXISTS (SELECT 1 FROM final.c y WHERE y.k <=> cast({name} AS STRING))",
            f" WHERE EXISTS (SELECT 1 FROM final.a y JOIN final.b USING (k) WHERE {name} IS NULL)",
        ]
    )
    table = choose.choice(aliases)
    listed = ", ".join(choose.sample(sorted(names), min(2, len(names))))
    select = choose.choice(
        [
            f"SELECT * FROM {text}{where}",
            f"SELECT * FROM {text}{where}",
            f"SELECT {table}.* FROM {text}{where}",
            f"SELECT {table}.*, 1 + 1 FROM {text}{where}",
            f"SELECT {table}.* EXCEPT ({name}) FROM {text}{where}",
            f"SELECT * EXCEPT ({name}) FROM {text}{where}",
            f"SELECT {listed} FROM {text}{where}",
            f"SELECT {listed} FROM {text}{where}",
            f"SELECT {name} AS x, {table}.{name} AS y FROM {text}{where}",
            f"SELECT {name}, count(*) AS n FROM {text}{where} GROUP BY {name} HAVING count({name}) > 0",
            f"SELECT {name}, count(*) AS n FROM {text}{where} GROUP BY ALL HAVING {name} IS NULL OR max({name}) > 0",
            f"SELECT {name} AS z, max({name}) AS {name} FROM {text}{where} GROUP BY {name} ORDER BY {name}",
            f"SELECT row_number() OVER (PARTITION BY {name} ORDER BY {listed}) AS r, {name} AS g FROM {text}{where}",
            f"SELECT (SELECT count(*) FROM final.d y WHERE y.u <=> {name}) AS n, struct({listed}) AS s FROM {text}",
            f"SELECT transform(array({name}), g -> g) AS l FROM {text}{where}",
        ]
    )
    match choose.randrange(8):
        case 0:
            return f"WITH q AS ({select}) SELECT * FROM q"
        case 1:
            return f"WITH q AS ({select}) SELECT count(*) AS n FROM q NATURAL JOIN final.a"
        case 2:
            return f"SELECT * FROM ({select}) UNION ALL SELECT * FROM ({select})"
        case _:
            return select


@pytest.mark.long
@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.long)])
def test_rewritten_joins_by_name_equal_spark_s_result(spark_lake: Lake, count: int) -> None:
    spark = spark_lake.spark()
    for table, (columns, rows) in TABLES.items():
        values = ", ".join(f"CAST({c} AS {kind}) AS {c}" for c, kind in columns.items())
        frame = spark.sql(f"SELECT {values} FROM VALUES {rows} AS t({', '.join(columns)})").collect()
        schema = ", ".join(f"{c} {kind}" for c, kind in columns.items())
        rows_in_memory(spark, frame, schema).createOrReplaceTempView(f"using_{table}")
    choose, seen, wrong = random.Random(count), Counter[str](), list[str]()
    while seen["asked"] < count:
        text = _query(choose)
        try:
            expected = spark.sql(text.replace("final.", "using_"))
            expected_rows = bag(expected.collect())
        except AnalysisException:
            continue
        if len({c.lower() for c in expected.columns}) < len(expected.columns):
            continue
        seen["asked"] += 1
        try:
            query, unlike = qualified_query("agg.m", parse("agg.m", text), SCHEMAS)
        except ModelError as e:
            wrong.append(f"{text}\n  {e}")
            continue
        if unlike:
            seen["unlike"] += 1
            continue
        rewritten = replace_tables(query, lambda t: f"using_{t.name}").sql(DIALECT)
        try:
            result = spark.sql(rewritten)
            rows = bag(result.collect())
        except Exception as e:
            wrong.append(f"{text}\n{rewritten}\n  {str(e)[:300]}")
            continue
        of_text, of_written = (
            [
                ("" if "(" in f.name or f.name.startswith("_col") else f.name.lower(), f.dataType.simpleString())
                for f in s
            ]
            for s in (expected.schema, result.schema)
        )
        if rows != expected_rows or of_text != of_written:
            wrong.append(f"{text}\n{rewritten}\n  {of_text} {sorted(map(repr, expected_rows - rows))[:9]}\n"
                         f"  {of_written} {sorted(map(repr, rows - expected_rows))[:9]}")  # fmt: skip
    assert not wrong, "\n\n".join([f"{len(wrong)} of {seen}", *wrong[:8]])
    assert seen["unlike"] < 0.25 * count, seen
