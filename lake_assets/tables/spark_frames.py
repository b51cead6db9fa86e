"""Temporary views: how a DataFrame gets into SQL, over Spark Connect too; and frames that are kept for a while."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession

from lake_assets.lake import quote
from lake_assets.lake._compat import active_session


@contextlib.contextmanager
def temp_view(rows: DataFrame) -> Generator[str]:
    """Name of a temporary view of `rows`, dropped afterwards."""
    name = new_name()
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def over(
    spark: SparkSession, sql: str, frames: Mapping[str, DataFrame], args: Mapping[str, object] | None = None
) -> DataFrame:
    """What SQL gives in which each frame stands under its name: one message over Spark Connect, where to make a view,
    to read it and to drop it would be three.

    Args:
        spark: the session.
        sql: the names are those of nothing else in it (see `new_name`).
        frames: by name.
        args: what is bound.
    """
    # PySpark looks for names in braces only where there are frames.
    text = sql.replace("{", "{{").replace("}", "}}") if frames else sql
    for name in frames:
        text = text.replace(name, f"{{{name}}}")
    return spark.sql(text, args=dict(args) if args else None, **frames)


def new_name() -> str:
    """Return a unique name for a view."""
    return f"lake_assets_{uuid.uuid4().hex}"


def held(frame: DataFrame, *, eager: bool = True) -> DataFrame:
    """The rows of `frame`, computed now (else by the first query that reads all of them) and kept for as long as
    somebody uses them.

    Not `persist`: Spark would go through all that a frame was made of again whenever it plans what is made of it, and
    steps that build on each other would take the longer the more of them there are.
    """
    with active_session(frame.sparkSession):
        checkpoint = frame.localCheckpoint(eager=eager)
    # Without new aliases, Spark could not distinguish its columns from those of `frame` in a join.
    return checkpoint.selectExpr(*(f"{quote(c)} AS {quote(c)}" for c in checkpoint.columns))


def observed(rows: DataFrame, seen: Observation, *looks: Column) -> DataFrame:
    """The same rows, of which `seen` tells `looks` when they have been written; they are no stream."""
    if isinstance(getattr(type(rows), "isStreaming", None), cached_property):
        # Over Spark Connect it is asked whether they are one, and to tell it Spark analyses all that they are made of.
        vars(rows)["isStreaming"] = False
    return rows.observe(seen, *looks)


def together(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all `frames`; their columns have the same names, in any order."""
    return reduce(DataFrame.unionByName, frames)
