"""What is to be known of SQL texts wherever they come from."""

from __future__ import annotations

from sqlglot import exp

DIALECT = "spark"

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
        if called & _NOT_REPEATABLE or isinstance(node, exp.TableSample):
            return node.sql(DIALECT)
    return None
