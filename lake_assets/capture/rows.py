"""The rows of a capture as DataFrames: upserts, feed and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.capture import lineage, values
from lake_assets.capture.bitmaps import IN_BOTH, NUMBER, named
from lake_assets.capture.parts import Part
from lake_assets.capture.values import PAIR, SIGN
from lake_assets.capture.windows import Point

CHANGE = "_change_type"
COMMIT = (
    ("_commit_snapshot_id", "BIGINT"),
    ("_commit_sequence_number", "BIGINT"),
    ("_commit_timestamp", "TIMESTAMP"),
)
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_before", "update_after"


@dataclass(frozen=True)
class View:
    """One captured window as Spark sees it; tables are quoted SQL names."""

    spark: SparkSession
    columns: list[str]
    after: str | None
    """Every file as of the end; None: there is none."""
    before: str | None
    shared: tuple[str, str] | None
    """Without lineage: the files that are on both sides, as before and as after."""
    only_before: str | None
    only_after: str | None
    has_lineage: bool
    is_forward: bool
    since: int | None
    rows: int
    identifiers: list[str]
    """The table's own key."""


def upserts(view: View) -> DataFrame:
    """Rows that were inserted or updated, as of the end."""
    spark, columns = view.spark, view.columns
    if view.after and view.before is None:
        return spark.table(view.after).select(*named(columns))
    if view.after and view.has_lineage and view.is_forward and view.since is not None:
        return lineage.upserts(spark, view.after, columns, since=view.since)
    return _signed(view).where(F.col(SIGN) > 0).select(*named(columns))


def keys(view: View, columns: list[str]) -> DataFrame:
    """The values of `columns` over all before- and after-images, not yet distinct."""
    return _signed(view).select(*named(columns))


def feed(view: View, by: Sequence[str] | None = None, *, pairs: bool = False) -> DataFrame:
    """All changed rows with `_change_type`.

    Args:
        view: the captured window.
        by: columns by which a delete and an insert make an update, where row lineage does not know of one. Default:
            the table's identifier fields where there is no row lineage.
        pairs: keep the column `PAIR`, which is the same for both images of an update and null for other rows.
    """
    rows = _signed(view)
    by = list(by) if by is not None else [] if view.has_lineage else view.identifiers
    if by and view.after and view.before:
        rows = values.paired(rows, by)
    paired = F.col(PAIR).isNotNull()
    change = F.when(F.col(SIGN) > 0, _either(paired, AFTER, INSERT)).otherwise(_either(paired, BEFORE, DELETE))
    return rows.select(*named(view.columns), change.alias(CHANGE), *([F.col(PAIR)] if pairs else []))


def committed(view: View, read: Callable[[View], DataFrame], part: Part) -> DataFrame:
    """What `read` gives, every row with the snapshot that made the change."""
    if part.commit is not None:
        return read(view).select(
            "*", *(F.lit(v).cast(t).alias(c) for (c, t), v in zip(COMMIT, _commit(part.commit), strict=True))
        )
    # The appends of several snapshots: the file tells which.
    spark = view.spark
    known = spark.createDataFrame(
        [(path, *_commit(p)) for path, p in part.commits.items()],
        f"__lake_path STRING, {', '.join(f'{c} {t}' for c, t in COMMIT)}",
    )
    rows = spark.table(view.after or "").withColumn("__lake_path", F.col("_file"))
    labelled = rows.join(F.broadcast(known), "__lake_path")
    shape = read(view).columns
    change = [F.lit(INSERT).alias(CHANGE)] if CHANGE in shape else []
    return labelled.select(*named(view.columns), *change, *(F.col(c) for c, _ in COMMIT))


def nothing(source: DataFrame, columns: list[str], more: list[str], *, commits: bool) -> DataFrame:
    """No rows, of the shape that some would have."""
    empty = [F.lit(None).cast(t).alias(c) for c, t in COMMIT] if commits else []
    return source.select(*named(columns), *(F.lit("").alias(c) for c in more), *empty).where(F.lit(False))


def _commit(point: Point) -> tuple[int, int, datetime]:
    return point.snapshot_id, point.sequence_number, point.timestamp


def _signed(view: View) -> DataFrame:
    """What went (`SIGN` -1) and what came (`SIGN` 1), with `PAIR` where row lineage knows of a pair."""
    spark, columns = view.spark, view.columns
    if view.before is None or view.after is None:
        rows = spark.table(view.after or view.before or "").select(
            *named(columns), F.lit(1 if view.after else -1).alias(SIGN)
        )
    elif view.has_lineage:
        went, came = lineage.changes(
            spark, view.after, view.before, columns, since=view.since, forward=view.is_forward, rows=view.rows
        )
        pair = F.when(F.col(IN_BOTH), F.col(NUMBER).cast("string")).alias(PAIR)
        both = ((went, -1), (came, 1))
        went, came = (side.select(*named(columns), F.lit(sign).alias(SIGN), pair) for side, sign in both)
        return went.unionAll(came)
    else:
        rows = values.changes(
            spark, columns, shared=view.shared, before=view.only_before, after=view.only_after, rows=view.rows
        )
    return rows.withColumn(PAIR, F.lit(None).cast("string"))


def _either(condition: Column, yes: str, no: str) -> Column:
    return F.when(condition, F.lit(yes)).otherwise(F.lit(no))
