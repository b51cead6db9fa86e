"""The rows of a capture as DataFrames: upserts, feed and keys."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.capture import lineage
from lake_assets.capture.lineage import AFTER, CHANGE, DELETE, INSERT
from lake_assets.errors import UnsupportedCaptureError
from lake_assets.lake import quote


@dataclass(frozen=True)
class View:
    """A capture as Spark sees it; names are quoted SQL names."""

    spark: SparkSession
    after: str | None
    before: str | None
    columns: list[str]
    empty: str
    """The source, for the types of columns where no file was captured."""
    has_lineage: bool
    is_forward: bool
    since: int | None
    rows: int
    table: str


def upserts(view: View) -> DataFrame:
    """Rows that were inserted or updated, as of the end."""
    if view.after is None:
        return feed(view).where(F.lit(False)).drop(CHANGE)
    if view.before is None:
        return view.spark.table(view.after).select(*_columns(view.columns))
    if view.has_lineage and view.is_forward and view.since is not None:
        return lineage.upserts(view.spark, view.after, view.columns, since=view.since)
    return feed(view).where(F.col(CHANGE).isin(INSERT, AFTER)).drop(CHANGE)


def feed(view: View) -> DataFrame:
    """All changed rows with `_change_type`."""
    spark, columns = view.spark, _columns(view.columns)
    if view.after is None and view.before is None:
        return spark.table(view.empty).select(*columns, F.lit(INSERT).alias(CHANGE)).where(F.lit(False))
    if view.before is None:
        return spark.table(view.after or "").select(*columns, F.lit(INSERT).alias(CHANGE))
    if view.after is None:
        return spark.table(view.before).select(*columns, F.lit(DELETE).alias(CHANGE))
    if view.has_lineage:
        olds, news = lineage.changes(
            spark, view.after, view.before, view.columns, since=view.since, forward=view.is_forward, rows=view.rows
        )
        return olds.unionAll(news)
    raise UnsupportedCaptureError(
        f"{view.table}: rows were removed or rewritten, and the table has no row lineage (format v3)"
    )


def keys(view: View, columns: list[str]) -> DataFrame:
    """The distinct values of `columns` over all before- and after-images."""
    return feed(view).select(*_columns(columns)).distinct()


def _columns(names: list[str]) -> list[Column]:
    return [F.col(quote(n)) for n in names]
