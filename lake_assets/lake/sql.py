"""What is to be known of SQL texts wherever they come from."""

from __future__ import annotations

from typing import ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

# sqlglot reads these as what other engines have, and writes something else: `to_char` as a cast, without its format;
# `to_date` without the format 'yyyy-MM-dd', which refuses what Spark reads without one.
_AS_THEY_ARE = {
    "COLLATE", "JSON_PARSE", "LISTAGG", "PARSE_JSON", "PERCENTILE_CONT", "PERCENTILE_DISC", "SPACE", "STRING_AGG",
    "TO_CHAR", "TO_DATE",
}  # fmt: skip


class LakeSpark(Spark):
    """Spark's SQL, of which nothing is written otherwise than it was read, as far as that is known."""

    class Parser(Spark.Parser):
        """See there."""

        FUNCTIONS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTIONS.items() if n not in _AS_THEY_ARE}
        FUNCTION_PARSERS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTION_PARSERS.items() if n not in _AS_THEY_ARE}

    class Generator(Spark.Generator):
        """See there."""

        TYPE_MAPPING: ClassVar = {**Spark.Generator.TYPE_MAPPING, exp.DataType.Type.TIME: "TIME"}


DIALECT = "lakespark"

# Of Spark 4.1's functions those whose value is not told by their arguments alone.
# Source: https://spark.apache.org/docs/latest/api/sql/
_NOT_REPEATABLE = {
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle",
    "now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time",
    "current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "current_timezone",
    "version", "monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start",
    "input_file_block_length", "reflect", "java_method", "try_reflect",
}  # fmt: skip


def not_repeatable(tree: exp.Expr) -> str | None:
    """The first part of an expression that gives another value each time; None: there is none."""
    for node in tree.walk():
        called: set[str] = set()
        if isinstance(node, exp.Func):
            called = {node.name.lower()} if isinstance(node, exp.Anonymous) else {n.lower() for n in node.sql_names()}
        if "aes_encrypt" in called and len(node.expressions) < 5:
            return node.sql(DIALECT)  # without a vector to begin with it takes any
        if called & _NOT_REPEATABLE or isinstance(node, exp.TableSample):
            return node.sql(DIALECT)
    return None


def changed_calls(tree: exp.Expr) -> str:
    """The first call that sqlglot would write otherwise than it read it; empty: there is none.

    Parts of a query reach Spark as sqlglot writes them.
    """
    for node in tree.find_all(exp.Func, exp.WithinGroup, exp.DataType):
        if isinstance(node, exp.DataType):
            if node.this == exp.DataType.Type.TIME:
                return "TIME"  # its literals become casts, which Spark does not have
            continue
        if node.find_ancestor(exp.Func, exp.WithinGroup):
            continue  # compared with what it is in
        written = node.sql(DIALECT, comments=False)
        try:
            again = sqlglot.parse_one(written, dialect=DIALECT)
        except SqlglotError:
            return written
        if _normal(again) != _normal(node):
            return written
    return ""


def misread(sql: str) -> str:
    """What sqlglot reads of a text that it can parse as something else than Spark does, and what to write; or empty."""
    words = " ".join(t.text.upper() for t in sqlglot.tokenize(sql, dialect=DIALECT) if t.token_type != TokenType.STRING)
    return "TIMESTAMP WITHOUT TIME ZONE: write TIMESTAMP_NTZ" if " WITHOUT TIME ZONE" in words else ""


def _normal(node: exp.Expr) -> exp.Expr:
    """With one form of what has several that are written alike: `int(x)`, `CAST(x AS INT)`; `r'a'`, `'a'`."""
    copy = node.copy()
    for raw in list(copy.find_all(exp.RawString)):
        raw.replace(exp.Literal.string(raw.name))
    for cast in reversed(list(copy.find_all(exp.Cast))):
        name = "try_cast" if cast.sql(DIALECT).startswith("TRY_CAST") else "cast"
        new = exp.Anonymous(this=name, expressions=[cast.this, exp.Literal.string(cast.to.sql(DIALECT))])
        if cast is copy:
            return new
        cast.replace(new)
    return copy
