"""The rows of a capture as DataFrames: upserts, feed and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lake_assets.capture.rows import row_lineage, value_differences
from lake_assets.capture.rows.row_bitmaps import NUMBER, named
from lake_assets.capture.rows.value_differences import PAIR, SIGN
from lake_assets.capture.snapshot_points import Point
from lake_assets.lake import quote

CHANGE = "_change_type"
COMMIT = (
    ("_commit_snapshot_id", "BIGINT"),
    ("_commit_sequence_number", "BIGINT"),
    ("_commit_timestamp", "TIMESTAMP"),
)
_IS_SAME = "__lake_is_same"

# Changed rows of at most this many captured ones are grouped in one partition.
ONE_PARTITION_ROWS = 1_000_000
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_before", "update_after"


@dataclass(frozen=True)
class View:
    """One captured window as Spark sees it; tables are quoted SQL names."""

    spark: SparkSession
    columns: list[str]
    types: str
    """The columns and their types as a schema string."""
    has_both: bool = False
    """Whether files of the start and of the end were captured."""
    after: str | None = None
    """Every file as of the end; None: there is none, or what came and went is told without it."""
    before: str | None = None
    shared: tuple[str, str] | None = None
    """Without lineage: the files that are on both sides, as before and as after."""
    only_before: str | None = None
    only_after: str | None = None
    newer: str | None = None
    """With lineage: the files of the end that may hold inserted or updated rows; None: there is none."""
    all_newer: bool = False
    """Whether all rows of these files were."""
    gone: tuple[str | None, str | None] | None = None
    """With lineage, where deletion vectors tell: the rows that went, and the files in which some may be carried on."""
    carried_rows: int = 0
    """How many rows these files have."""
    has_lineage: bool = False
    first_new_id: int | None = None
    """With lineage: rows with ids from here on did not exist at the start, or were rewritten under new ids."""
    has_new_ids: bool = False
    """With lineage: whether rows may have come under new ids while others went."""
    is_rewritten: bool = False
    """With lineage: whether a commit replaced rows without keeping ids, so that many may be as they were."""
    since: int | None = None
    """With lineage: rows of a higher version were inserted or updated; None: versions have to be compared."""
    ancestor: int | None = None
    """The sequence number of the newest common ancestor: versions up to it are the same on both sides."""
    rows: int = 0
    identifiers: Sequence[str] = ()
    """The table's own key."""
    labelled: bool = False
    """Whether rows come with the snapshot that made the change."""
    commit: Point | None = None
    commits: Mapping[str, Point] = field(default_factory=dict[str, Point])
    """That snapshot: one for all rows, or by the file that a row is in."""
    casts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns that files of the start hold with another type, and the type that they have at the end."""

    @property
    def output(self) -> list[str]:
        """The names of the columns that rows come with."""
        return [*self.columns, *(c for c, _ in COMMIT)] if self.labelled else self.columns

    def went(self, table: str) -> DataFrame:
        """A table over files of the start, with the end's types."""
        rows = self.spark.table(table)
        for name, kind in self.casts.items():
            rows = rows.withColumn(name, F.col(quote(name)).cast(kind))
        return rows


def upserts(view: View) -> DataFrame:
    """Rows that were inserted or updated, as of the end.

    With lineage, an update that left a row as it was counts: to see that, before-images would have to be read.
    """
    if view.after and not view.has_both:
        return _whole(view, view.after)
    if view.has_both and view.has_lineage and view.since is not None and not view.is_rewritten:
        return _label(view, _newer(view, view.since).drop(NUMBER))
    return _signed(view).where(F.col(SIGN) > 0).select(*named(view.output))


def keys(view: View, columns: list[str]) -> DataFrame:
    """The values of `columns` over all before- and after-images, not yet distinct."""
    return _signed(view).select(*named(columns))


def feed(view: View, by: Sequence[str] | None = None, *, pairs: bool = False) -> DataFrame:
    """All changed rows with `_change_type`.

    Args:
        view: the captured window.
        by: columns by which a delete and an insert make an update, whatever row lineage says. Default: row lineage;
            the table's identifier fields where there is none.
        pairs: keep the column `PAIR`, which is the same for both images of an update and null for other rows.
    """
    by = list(by or ()) if by is not None or view.has_lineage else list(view.identifiers)
    rows = _net(view, by_row_id=not by)
    if by and view.has_both:
        rows = value_differences.paired(rows, by)
    paired = F.col(PAIR).isNotNull()
    change = F.when(F.col(SIGN) > 0, _either(paired, AFTER, INSERT)).otherwise(_either(paired, BEFORE, DELETE))
    commits = view.output[len(view.columns) :]
    kept = [*named(commits), *([F.col(PAIR)] if pairs else [])]
    return rows.select(*named(view.columns), change.alias(CHANGE), *kept)


def signed(view: View) -> DataFrame:
    """All changed rows with `SIGN`; with lineage, an update that left a row as it was may be among them, twice."""
    return _signed(view).select(*named(view.output), SIGN)


def _signed(view: View) -> DataFrame:
    """What went (`SIGN` -1) and what came (`SIGN` 1), without comparing images where lineage tells them apart."""
    if view.has_both and view.has_lineage and not view.is_rewritten:
        return _label(view, _by_row_id(view))
    return _net(view)


def _net(view: View, *, by_row_id: bool = True) -> DataFrame:
    """What went (`SIGN` -1) and what came (`SIGN` 1), no row of which is as it was.

    `PAIR` brings the two images of a row together where `by_row_id` is set and lineage knows of them.
    """
    spark, columns = view.spark, view.columns
    no_pair = F.lit(None).cast("string").alias(PAIR)
    if not view.has_both:
        sign = F.lit(1 if view.after else -1)
        rows = _whole(view, view.after or view.before, came=bool(view.after)).withColumn(SIGN, sign)
        return rows.withColumn(PAIR, no_pair)
    if not view.has_lineage:
        shared = (view.went(view.shared[0]), spark.table(view.shared[1])) if view.shared else None
        only_before = view.went(view.only_before) if view.only_before else None
        only_after = spark.table(view.only_after) if view.only_after else None
        rows = value_differences.changes(columns, shared=shared, before=only_before, after=only_after, rows=view.rows)
        return _label(view, rows.withColumn(PAIR, no_pair))
    changed = _by_row_id(view)
    if not by_row_id:
        return _label(view, value_differences.net(changed, columns).withColumn(PAIR, no_pair))
    # A row id that went and came: only changed rows are brought together.
    if view.has_new_ids and view.rows <= ONE_PARTITION_ROWS:
        # Row ids and values are then grouped where they are, after one shuffle instead of two.
        changed = changed.repartition(1)
    same_row = Window.partitionBy(NUMBER)
    is_pair = (F.count(SIGN).over(same_row) == 2) & (F.sum(SIGN).over(same_row) == 0)
    pair = F.when(is_pair, F.col(NUMBER).cast("string"))
    if view.has_new_ids:
        # A row without a pair may have come back under another id.
        changed = value_differences.net(changed.withColumn(PAIR, pair), columns, within=[PAIR])
    else:
        image = value_differences.image(changed, columns)
        is_same = is_pair & (F.min(image).over(same_row) == F.max(image).over(same_row))
        changed = changed.withColumns({PAIR: pair, _IS_SAME: is_same}).where(f"NOT {_IS_SAME}")
    return _label(view, changed.select(*named(columns), SIGN, PAIR))


def _by_row_id(view: View) -> DataFrame:
    """With lineage: what went and what came, with `SIGN` and `NUMBER`."""
    if view.since is not None:
        came, went = _newer(view, view.since), _gone(view, view.since)
    else:
        was, now = view.went(view.before or ""), view.spark.table(view.after or "")
        went, came = row_lineage.compared(was, now, view.columns, ancestor=view.ancestor, rows=view.rows)
    return went.selectExpr("*", f"-1 AS {SIGN}").unionAll(came.selectExpr("*", f"1 AS {SIGN}"))


def _newer(view: View, since: int) -> DataFrame:
    """With lineage: the rows that were inserted or updated, and their `NUMBER`."""
    if view.newer is None:
        return _none(view)
    since_or_all = None if view.all_newer else since
    rows = view.spark.table(view.newer)
    return row_lineage.newer(rows, view.columns, since=since_or_all, first_new=view.first_new_id)


def _gone(view: View, since: int) -> DataFrame:
    """With lineage: the rows of the start that the end does not have as they were, and their `NUMBER`."""
    if view.gone is None:
        was, now = view.went(view.before or ""), view.spark.table(view.after or "")
        return row_lineage.gone(was, now, view.columns, since=since, rows=view.rows)
    if view.gone[0] is None:
        return _none(view)
    was = view.went(view.gone[0])
    carried = view.spark.table(view.gone[1]) if view.gone[1] else None
    return row_lineage.gone(was, carried, view.columns, since=since, rows=view.carried_rows)


def _none(view: View) -> DataFrame:
    return view.spark.createDataFrame([], f"{view.types}, {NUMBER} BIGINT")


def _whole(view: View, table: str | None, *, came: bool = True) -> DataFrame:
    """All rows of a table over captured files; none where there is no table."""
    if table is None:
        return _label(view, view.spark.createDataFrame([], view.types))
    rows = view.spark.table(table) if came else view.went(table)
    if not (view.labelled and view.commits):
        return _label(view, rows.select(*named(view.columns)))
    known = [(path, p.snapshot_id, p.sequence_number, p.timestamp) for path, p in view.commits.items()]
    types = ", ".join(f"{c} {t}" for c, t in COMMIT)
    files = view.spark.createDataFrame(known, f"__lake_path STRING, {types}")
    return (
        rows.withColumn("__lake_path", F.col("_file"))
        .join(F.broadcast(files), "__lake_path")
        .select(*named(view.output))
    )


def _label(view: View, rows: DataFrame) -> DataFrame:
    if not view.labelled:
        return rows
    p = view.commit
    values = (p.snapshot_id, p.sequence_number, p.timestamp) if p else (None, None, None)
    return rows.select("*", *(F.lit(v).cast(t).alias(c) for (c, t), v in zip(COMMIT, values, strict=True)))


def _either(condition: Column, yes: str, no: str) -> Column:
    return F.when(condition, F.lit(yes)).otherwise(F.lit(no))
