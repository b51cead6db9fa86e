"""The changed rows of a capture as DataFrames: upserts, feed, keys and change events.

With row lineage (format v3), `_row_id` identifies a row, and `_last_updated_sequence_number` its version. Engines keep
both when they rewrite a file. Without it, rows are compared by value (`value_differences`).

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.capture.changed_files import Part
from lake_assets.capture.files.planned_files import Plan
from lake_assets.capture.files.row_ids import RowIds
from lake_assets.capture.icdc_session import PartTables
from lake_assets.capture.rows import value_differences
from lake_assets.capture.rows.row_bitmaps import NUMBER, Identity, absent, differences, named
from lake_assets.capture.rows.value_differences import PAIR, SIGN
from lake_assets.lake import quote, thresholds
from lake_assets.lake.rows_in_memory import no_rows, rows_in_memory

CHANGE = "_change_type"
COMMIT = (
    ("_commit_snapshot_id", "BIGINT"),
    ("_commit_sequence_number", "BIGINT"),
    ("_commit_timestamp", "TIMESTAMP"),
)
_IS_SAME = "__lake_is_same"
ROW_ID, VERSION = "_row_id", "_last_updated_sequence_number"
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_before", "update_after"


@dataclass(frozen=True)
class View:
    """One captured part in Spark.

    Attributes:
        columns: the columns to read.
        types: these columns and their types as a schema string.
        part: the part; None if the window is empty.
        tables: the tables over its files, as quoted SQL names.
        ids: with row lineage: its row ids, if the start's sequence number identifies changed rows; otherwise row
            versions have to be compared.
        identifiers: the table's identifier fields.
        labelled: whether rows have columns with the snapshot of their change.
        casts: type at the end of each column that has another type in files of the start.
    """

    spark: SparkSession
    columns: list[str]
    types: str
    part: Part | None
    tables: PartTables
    ids: RowIds | None
    identifiers: Sequence[str]
    labelled: bool
    casts: Mapping[str, str]

    @property
    def plan(self) -> Plan:
        """The files of the part."""
        return self.part.plan if self.part else Plan()

    @property
    def has_both(self) -> bool:
        """Whether files of the start and of the end were captured."""
        return bool(self.plan.after.data and self.plan.before.data)

    @property
    def has_lineage(self) -> bool:
        """Whether rows are identified by their row ids."""
        return self.part is not None and self.part.has_lineage

    @property
    def has_new_ids(self) -> bool:
        """With lineage: whether rows were removed while rows with new ids were added, which may be the same rows."""
        return self.ids is None or self.ids.has_new_ids(self.plan)

    @property
    def is_rewritten(self) -> bool:
        """With lineage: whether a commit replaced rows without keeping ids, so that many may be unchanged."""
        return self.ids is None or self.ids.is_rewritten(self.plan)

    @property
    def ancestor(self) -> int | None:
        """The sequence number of the newest common ancestor: versions up to it are equal on both sides."""
        window = self.part.window if self.part else None
        known = window.ancestor if window and (self.ids or not window.is_forward) else None
        return known.sequence_number if known else None

    @property
    def output(self) -> list[str]:
        """The names of the columns of the rows."""
        return [*self.columns, *(c for c, _ in COMMIT)] if self.labelled else self.columns

    def read_start(self, table: str) -> DataFrame:
        """Return a table over files of the start, with the end's types."""
        rows = self.spark.table(table)
        for name, kind in self.casts.items():
            rows = rows.withColumn(name, F.col(quote(name)).cast(kind))
        return rows


def upserts(view: View) -> DataFrame:
    """Return the rows that were inserted or updated, as of the end.

    With lineage, they include rows that an update did not change: detecting that would require their before-images.
    """
    if view.tables.after and not view.has_both:
        return _all_rows(view, view.tables.after)
    if view.has_both and view.has_lineage and view.ids and not view.is_rewritten:
        return _label(view, _newer(view, view.ids).drop(NUMBER))
    return _signed(view).where(F.col(SIGN) > 0).select(*named(view.output))


def keys(view: View, columns: list[str]) -> DataFrame:
    """Return the values of `columns` in all before- and after-images, not distinct."""
    return _signed(view).select(*named(columns))


def feed(view: View, by: Sequence[str] | None = None, *, pairs: bool = False) -> DataFrame:
    """Return all changed rows with `_change_type`.

    Args:
        by: columns by which a delete and an insert are paired to an update, regardless of row lineage. Default: row
            lineage, or without it, the table's identifier fields.
        pairs: keep the column `PAIR`, which is equal for both images of an update and null for other rows.
    """
    by = list(by or ()) if by is not None or view.has_lineage else list(view.identifiers)
    rows = _net(view, by_row_id=not by)
    if by and view.has_both:
        rows = value_differences.paired(rows, by)
    paired = F.col(PAIR).isNotNull()
    change = F.when(F.col(SIGN) > 0, _either(paired, AFTER, INSERT)).otherwise(_either(paired, BEFORE, DELETE))
    commits = view.output[len(view.columns) :]
    extra = [*named(commits), *([F.col(PAIR)] if pairs else [])]
    return rows.select(*named(view.columns), change.alias(CHANGE), *extra)


def signed(view: View) -> DataFrame:
    """Return all changed rows with `SIGN`; with lineage, possibly also both images of a row that did not change."""
    return _signed(view).select(*named(view.output), SIGN)


def _signed(view: View) -> DataFrame:
    """Return removed (`SIGN` -1) and added (`SIGN` 1) rows; with lineage, without comparing their values."""
    if view.has_both and view.has_lineage and not view.is_rewritten:
        return _label(view, _by_row_id(view))
    return _net(view)


def _net(view: View, *, by_row_id: bool = True) -> DataFrame:
    """Return removed (`SIGN` -1) and added (`SIGN` 1) rows, without rows that did not change.

    With `by_row_id`, `PAIR` identifies the two images of a row, if it has lineage.
    """
    spark, columns, tables, limit = view.spark, view.columns, view.tables, view.plan.rows
    no_pair = F.lit(None).cast("string").alias(PAIR)
    if not view.has_both:
        sign = F.lit(1 if tables.after else -1)
        rows = _all_rows(view, tables.after or tables.before, is_end=bool(tables.after)).withColumn(SIGN, sign)
        return rows.withColumn(PAIR, no_pair)
    if not view.has_lineage:
        shared = (view.read_start(tables.shared[0]), spark.table(tables.shared[1])) if tables.shared else None
        only_before = view.read_start(tables.only_before) if tables.only_before else None
        only_after = spark.table(tables.only_after) if tables.only_after else None
        rows = value_differences.changes(columns, shared=shared, before=only_before, after=only_after, rows=limit)
        return _label(view, rows.withColumn(PAIR, no_pair))
    changed = _by_row_id(view)
    if not by_row_id:
        return _label(view, value_differences.net(changed, columns).withColumn(PAIR, no_pair))
    # Pair removed and added rows with the same row id; unchanged rows are not shuffled.
    if view.has_new_ids and limit <= thresholds.ONE_TASK_CAPTURED_ROWS:
        # Row ids and values are then grouped within one partition, after one shuffle instead of two.
        changed = changed.repartition(1)
    same_row = Window.partitionBy(NUMBER)
    is_pair = (F.count(SIGN).over(same_row) == 2) & (F.sum(SIGN).over(same_row) == 0)
    pair = F.when(is_pair, F.col(NUMBER).cast("string"))
    if view.has_new_ids:
        # A row without a pair may have been added again with another id.
        changed = value_differences.net(changed.withColumn(PAIR, pair), columns, within=[PAIR])
    else:
        image = value_differences.image(changed, columns)
        is_same = is_pair & (F.min(image).over(same_row) == F.max(image).over(same_row))
        changed = changed.withColumns({PAIR: pair, _IS_SAME: is_same}).where(f"NOT {_IS_SAME}")
    return _label(view, changed.select(*named(columns), SIGN, PAIR))


def _by_row_id(view: View) -> DataFrame:
    """Return removed and added rows with `SIGN` and `NUMBER`, by row lineage."""
    if view.ids is not None:
        added, removed = _newer(view, view.ids), _deleted_or_updated(view, view.ids.since)
    else:
        start, end = view.read_start(view.tables.before or ""), view.spark.table(view.tables.after or "")
        version = F.col(VERSION) if view.ancestor is None else F.greatest(F.col(VERSION), F.lit(view.ancestor))
        row = Identity(ROW_ID, version=version)
        removed, added = differences(start, end, view.columns, row, view.plan.rows)
    return removed.selectExpr("*", f"-1 AS {SIGN}").unionAll(added.selectExpr("*", f"1 AS {SIGN}"))


def _newer(view: View, ids: RowIds) -> DataFrame:
    """Return the inserted and updated rows with their `NUMBER`, by row lineage."""
    if view.tables.newer is None:
        return _none(view)
    rows = view.spark.table(view.tables.newer)
    # Without a number, the query is equal for all windows, so Spark need not compile it again.
    if not view.tables.all_newer:
        # An engine that rewrites files without keeping row ids may give the new files an old sequence number.
        rows = rows.where((F.col(VERSION) > ids.since) | (F.col(ROW_ID) >= ids.first_new))
    return rows.select(*named(view.columns), F.col(ROW_ID).alias(NUMBER))


def _deleted_or_updated(view: View, since: int) -> DataFrame:
    """Return the rows of the start that were deleted or updated, with their `NUMBER`, by row lineage."""
    tables = view.tables
    start, end = tables.deleted or (tables.before, tables.after)
    if start is None:
        return _none(view)
    rows = view.read_start(start)
    if end is None:
        return rows.select(*named(view.columns), F.col(ROW_ID).alias(NUMBER))
    # All rows of the start have versions up to `since`, so comparing row ids suffices.
    kept = view.spark.table(end).where(F.col(VERSION) <= since)
    limit = tables.carried_rows if tables.deleted else view.plan.rows
    return absent(rows, kept, view.columns, Identity(ROW_ID), limit)


def _none(view: View) -> DataFrame:
    return no_rows(view.spark, f"{view.types}, {NUMBER} BIGINT")


def _all_rows(view: View, table: str | None, *, is_end: bool = True) -> DataFrame:
    """Return all rows of a table over captured files; no rows without a table."""
    if table is None:
        return _label(view, no_rows(view.spark, view.types))
    rows = view.spark.table(table) if is_end else view.read_start(table)
    if not (view.labelled and view.part and view.part.commits):
        return _label(view, rows.select(*named(view.columns)))
    commits = [(path, p.snapshot_id, p.sequence_number, p.timestamp) for path, p in view.part.commits.items()]
    types = ", ".join(f"{c} {t}" for c, t in COMMIT)
    files = rows_in_memory(view.spark, commits, f"__lake_path STRING, {types}")
    return (
        rows.withColumn("__lake_path", F.col("_file"))
        .join(F.broadcast(files), "__lake_path")
        .select(*named(view.output))
    )


def _label(view: View, rows: DataFrame) -> DataFrame:
    if not view.labelled:
        return rows
    p = view.part.commit if view.part else None
    values = (p.snapshot_id, p.sequence_number, p.timestamp) if p else (None, None, None)
    return rows.select("*", *(F.lit(v).cast(t).alias(c) for (c, t), v in zip(COMMIT, values, strict=True)))


def _either(condition: Column, yes: str, no: str) -> Column:
    return F.when(condition, F.lit(yes)).otherwise(F.lit(no))


OPS = {INSERT: "c", DELETE: "d", AFTER: "u"}


def events(view: View, by: Sequence[str] | None, source: str) -> DataFrame:
    """Return events with `op` (c, u, d), `before`, `after` and `source.table`, as in Debezium's envelope.

    Args:
        by: see `changed_rows.feed`.
    """
    rows = feed(view, by, pairs=True)
    image = F.struct(*named(view.columns))
    commits = view.output[len(view.columns) :]
    unpaired = rows.where(F.col(PAIR).isNull())
    is_insert = F.col(CHANGE) == INSERT
    single = unpaired.select(
        F.when(is_insert, F.lit(OPS[INSERT])).otherwise(F.lit(OPS[DELETE])).alias("op"),
        F.when(~is_insert, image).alias("before"),
        F.when(is_insert, image).alias("after"),
        *named(commits),
    )
    pairs = rows.where(F.col(PAIR).isNotNull()).groupBy(PAIR, *commits)
    update = pairs.agg(
        F.first(F.when(F.col(CHANGE) == BEFORE, image), ignorenulls=True).alias("before"),
        F.first(F.when(F.col(CHANGE) == AFTER, image), ignorenulls=True).alias("after"),
    ).select(F.lit(OPS[AFTER]).alias("op"), "before", "after", *commits)
    name = F.struct(F.lit("iceberg").alias("connector"), F.lit(source).alias("table"))
    return single.unionAll(update).withColumn("source", name)


def reduced(frame: DataFrame, keys: Sequence[str], *, keep_before: bool) -> DataFrame:
    """Reduce a feed or events to the keys, and whole before-images if `keep_before` is set."""
    kinds = {f.name: f.dataType for f in frame.schema.fields}
    if "op" in kinds and isinstance(kinds.get("after"), T.StructType):
        frame = frame.withColumn("after", _key_struct("after", keys))
        return frame if keep_before else frame.withColumn("before", _key_struct("before", keys))
    if not keep_before:
        own = [c for c in frame.columns if c in keys or c.startswith(("_change_", "_commit_"))]
        return frame.select(*named(own))
    # An update is represented by its before-image, an insert, which has none, by its key.
    has_before = F.col(CHANGE).isin(BEFORE, DELETE)
    columns = [
        F.col(quote(c))
        if c in keys or c.startswith(("_change_", "_commit_"))
        else F.when(has_before, F.col(quote(c))).alias(c)
        for c in frame.columns
    ]
    return frame.where(F.col(CHANGE) != AFTER).select(*columns)


def _key_struct(image: str, keys: Sequence[str]) -> Column:
    fields = F.struct(*(F.col(image).getField(k).alias(k) for k in keys))
    return F.when(F.col(image).isNotNull(), fields)
