"""Find the models whose SQL Spark's parser rejects: sqlglot, which reads all SQL first, accepts more than Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from lake_assets.lake.foreign_errors import first_line_and_place
from lake_assets.lake.sql_text import DIALECT, changed
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import parse
from lake_assets.models.sql.query_text import replace_tables, text_over
from lake_assets.models.sql.sql_errors import located, model_error
from lake_assets.models.sql.sql_rewrite import is_text, qualify_as_where
from lake_assets.pipeline.table_graph import Spec

# No table is looked up in the lake: only the parser is asked.
_ANY_TABLE = "spark_catalog.default.lake_assets_any"


def syntax_mistakes(spark: SparkSession, specs: Sequence[Spec]) -> list[str]:
    """Return what Spark's parser says of the SQL models that it rejects, with file and line.

    Args:
        specs: the tables of a pipeline; models that are refused anyway are skipped.
    """
    mistakes: list[str] = []
    for spec in specs:
        if isinstance(spec, ModelSpec) and not spec.refused and (rejected := _rejected(spark, spec)):
            text, line = rejected
            error = model_error(str(spec.table), [(line, f"Spark does not accept its SQL: {text}")])
            mistakes.append(str(located(error, spec.origin)))
    return mistakes


def _rejected(spark: SparkSession, spec: ModelSpec) -> tuple[str, int | None] | None:
    """Return the parser's message and its line; None if it accepts the SQL in one of the forms that a step tries."""
    query = parse(str(spec.table), spec.sql)
    rejected: tuple[str, int | None] | None = None
    as_written = bool(changed(spec.sql, query))
    if as_written or is_text(query):
        rejected = _parsed(spark, text_over(query, spec.sql, lambda _: _ANY_TABLE))
        if as_written or rejected is None:
            return rejected
    in_sqlglots_words = _parsed(spark, qualify_as_where(replace_tables(query, lambda _: _ANY_TABLE)).sql(DIALECT))
    if in_sqlglots_words is None:
        return None
    return rejected or (in_sqlglots_words[0], None)


def _parsed(spark: SparkSession, sql: str) -> tuple[str, int | None] | None:
    try:
        # EXPLAIN reports all errors but the parser's in its result.
        spark.sql(f"EXPLAIN {sql}")
    except ParseException as e:
        return first_line_and_place(e)
    return None
