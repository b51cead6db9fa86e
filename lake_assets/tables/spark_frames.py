"""DataFrames in SQL, as temporary views or by name, also over Spark Connect; and checkpoints of their rows."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from lake_assets.lake import quote
from lake_assets.lake._compat import active_session

_BOUND_BY_ANALYZER = "spark.sql.legacy.parameterSubstitution.constantsOnly"
# Set once a parser of this process's Spark has left out bound values.
_left_out = threading.Event()


@contextlib.contextmanager
def temp_view(rows: DataFrame) -> Generator[str]:
    """Yield the name of a temporary view of `rows`, and drop the view afterwards."""
    name = new_name()
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def over(
    spark: SparkSession, sql: str, frames: Mapping[str, DataFrame], args: Mapping[str, object] | None = None
) -> DataFrame:
    """Run SQL that refers to frames by name, which must not occur in it with another meaning (see `new_name`).

    It takes one message over Spark Connect; creating, reading and dropping a view would take three.

    `args` are values of named parameters. Spark 4.1 binds them in its parser, and parsers of some extensions (Delta's)
    leave them out: then the session's analyzer binds them, as in Spark 4.0.
    """
    # PySpark interprets braces only if frames are passed.
    text = sql.replace("{", "{{").replace("}", "}}") if frames else sql
    for name in frames:
        text = text.replace(name, f"{{{name}}}")
    values = dict(args) if args else None
    try:
        if values and _left_out.is_set():
            spark.conf.set(_BOUND_BY_ANALYZER, "true")
        return spark.sql(text, args=values, **frames)
    except AnalysisException as e:
        is_unbound = values and e.getCondition() == "UNBOUND_SQL_PARAMETER"
        if not is_unbound or spark.conf.get(_BOUND_BY_ANALYZER, "false") == "true":
            raise
    _left_out.set()
    return over(spark, sql, frames, args)


def cols(names: Iterable[str]) -> list[Column]:
    """Return the columns of these names."""
    return [F.col(quote(name)) for name in names]


def new_name() -> str:
    """Return a unique name for a view."""
    return f"lake_assets_{uuid.uuid4().hex}"


def checkpoint(frame: DataFrame, *, eager: bool = True) -> DataFrame:
    """Compute the rows of `frame` and store them until the result is garbage-collected.

    Unlike `persist`, this cuts the plan: with `persist`, Spark would analyze the whole lineage again for every query,
    and each of several consecutive steps would take longer than the last. If not `eager`, the first query that
    reads all
    rows computes them.
    """
    with active_session(frame.sparkSession):
        rows = frame.localCheckpoint(eager=eager)
    # Without new aliases, Spark could not distinguish its columns from those of `frame` in a join.
    return rows.selectExpr(*(f"{quote(c)} AS {quote(c)}" for c in rows.columns))


def computed(rows: DataFrame, *aggregates: str) -> tuple[DataFrame, list[Any]]:
    """Compute rows now, and return them with the values of SQL aggregates over them, in one job if possible."""
    looks = [F.expr(f"{e} AS look{i}") for i, e in enumerate(aggregates)]
    values: Mapping[str, Any] = {}
    if isinstance(rows, ClassicDataFrame):
        observation = Observation()
        materialized = checkpoint(rows.observe(observation, *looks))
        values = observation.get
    else:
        # Spark Connect reports observations only for collected rows: the aggregation itself computes the rows.
        materialized = checkpoint(rows, eager=False)
    values = values or materialized.agg(*looks).collect()[0].asDict()
    return materialized, [values[f"look{i}"] for i in range(len(aggregates))]


def observed(rows: DataFrame, seen: Observation, *looks: Column) -> DataFrame:
    """Return the batch rows such that `seen` reports the metrics `looks` once the rows have been written."""
    if isinstance(getattr(type(rows), "isStreaming", None), cached_property):
        # Avoids a request: over Spark Connect, `isStreaming` makes Spark analyze the whole plan.
        vars(rows)["isStreaming"] = False
    return rows.observe(seen, *looks)


def together(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all `frames`; their columns have the same names, in any order."""
    return reduce(DataFrame.unionByName, frames)
