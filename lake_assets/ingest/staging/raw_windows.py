"""Which records of the raw table a staging table has to read: its pending window, also after raw was rolled back.

The position of a record is its identity. After a rollback, landing assigns the positions of the undone records again:
to the same records if it finds the same files in the same order, otherwise to others. Until raw has as many records as
before, it is unknown which of the two will be true, so staging waits.
"""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.formats.event_model import ARRIVED_AT, MANY, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import POSITION_PROPERTY, next_position, nothing_until
from lake_assets.ingest.records import rejects
from lake_assets.ingest.staging.rereading import reason_to_reread
from lake_assets.ingest.staging.staging_columns import has_former_names
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.lake.metadata.watermark import find_property
from lake_assets.tables.pending_windows import Window, rebuild_advice, window_of


def pending_of(spec: StagingSpec, table: Table | None, raw: Table) -> tuple[Window, str | None]:
    """Return the pending window of the raw table, and why all of it must be read again, if so (see `rereading`).

    Reads metadata only. Many tables share a raw table: the window begins at the first commit that may have brought
    records for this one. If there is none, nothing is pending, and the watermark does not move.

    If the raw table's history is lost, the window is the whole table: positions tell which records are new.

    Raises:
        TableReplacedError: the raw table was replaced by another one.
    """
    spec = spelled(spec, table)
    window = window_of(spec.table, table, spec.raw, raw)
    if window.lost and window.lost.option == "on_replaced":
        raise window.lost.error(rebuild_advice(spec.table, spec.raw))
    reached = nothing_until(raw, window.start, window.head.snapshot, spec.source_table)
    if reached != window.start:
        window = replace(window, mark=replace(window.mark or window.head, snapshot=reached))
    reason = reason_to_reread(spec, table) if table is not None else None
    if reason:
        return replace(window, mark=None, lost=None), reason
    if window.mark and missing_after_rollback(raw, window):
        window = replace(window, head=window.mark)
    return replace(window, is_due=has_former_names(spec, table)), None


def spelled(spec: StagingSpec, table: Table | None) -> StagingSpec:
    """Return the declaration with its columns spelled as in the table, if that exists."""
    return spec.spelled_as(f.name for f in table.schema().fields) if table else spec


def about(records: DataFrame, spec: StagingSpec) -> DataFrame:
    """Return the records about the source table, alone or with others, from `start_position` on."""
    own = records.where(F.col("source_table").isin(str(spec.source_table), MANY))
    return own.where(F.col("position") >= spec.start) if spec.start else own


# --- after a rollback of raw ------------------------------------------------------------------------------------


def reason_to_wait(lake: LakeBase, spec: StagingSpec, table: Table, raw: Table, pending: Window) -> str:
    """Return why staging waits until raw has landed undone records again; empty: it does not wait."""
    missing = 0
    if pending.lost:
        last = lake.spark().table(lake.sql_name(spec.table)).agg(F.max(POSITION)).collect()[0][0]
        missing = max(0, (-1 if last is None else last) + 1 - next_position(lake, spec.raw, raw))
    elif pending.is_empty:
        missing = missing_after_rollback(raw, window_of(spec.table, table, spec.raw, raw))
    return what_is_missing(spec.table, spec.raw, missing) if missing else ""


def what_is_missing(table: TableId, raw: TableId, records: int) -> str:
    """Return what a staging table waits for, and what to do, given the number of missing records."""
    return (
        f"{raw} was rolled back, and {records:,} records that {table} may have absorbed have not landed again. Land "
        f"them again, or roll {raw} back to a snapshot that has them. To start from the records that {raw} holds now, "
        f"drop {table} and run the pipeline"
    )


def missing_after_rollback(raw: Table, window: Window) -> int:
    """Return how many records the raw table lacks at its end, compared with the absorbed snapshot."""
    if window.start is None or between(raw.metadata, window.start, window.head.snapshot).is_forward:
        return 0
    before, now = (_records_until(raw, snapshot) for snapshot in (window.start, window.head.snapshot))
    # Without the snapshots of landings, nothing is known.
    return max(0, before - now) if before is not None and now is not None else 0


def _records_until(raw: Table, snapshot_id: int | None) -> int | None:
    """Return the position after the last record as of a snapshot; None: its landing has expired."""
    if snapshot_id is None:
        return 0
    match = find_property(raw, POSITION_PROPERTY, snapshot_id)
    return int(match[0]) if match else None


def reason_of_rollback(lake: LakeBase, spec: StagingSpec, raw: Table, pending: Window) -> str:
    """Return why every record is read again: raw has other records at absorbed positions. Empty: it has not."""
    if pending.start is None and not pending.lost:
        return ""
    if pending.lost:
        other = _of_other_landings(lake, spec).count()
    elif between(raw.metadata, pending.start, pending.head.snapshot).is_forward:
        return ""
    else:
        with capture(lake, spec.raw, pending.start, pending.head.snapshot) as captured:
            rows = about(captured.signed(lake.spark(), ("position", "source_table", "record")), spec)
            # A record that landed again is a deleted and an inserted row.
            sums = rows.groupBy("position", "record").agg(F.sum("__lake_sign").alias("n"))
            other = sums.where("n < 0").count()
    return f"{spec.raw} was rolled back, and {other:,} records have not landed again in their places" if other else ""


def _of_other_landings(lake: LakeBase, spec: StagingSpec) -> DataFrame:
    """Return the positions at which the raw table has a record that landed at another time than the absorbed one."""
    absorbed = (
        lake.spark().table(lake.sql_name(spec.table)).selectExpr(f"{POSITION} AS position", f"{ARRIVED_AT} AS then")
    )
    raw = about(lake.spark().table(lake.sql_name(spec.raw)), spec)
    return raw.join(absorbed.distinct(), "position").where("NOT arrived_at <=> then").select("position").distinct()


def without_absorbed(lake: LakeBase, spec: StagingSpec, records: DataFrame) -> DataFrame:
    """Return the records that are neither in the table nor rejected."""
    spark = lake.spark()
    absorbed = spark.table(lake.sql_name(spec.table)).select(F.col(POSITION).alias("position"))
    rejected = rejects.rejected_of(spec.raw)
    if lake.exists(rejected):
        listed = spark.table(lake.sql_name(rejected)).where(F.col("source_table") == str(spec.source_table))
        absorbed = absorbed.unionAll(listed.select("position"))
    return records.join(absorbed.distinct(), "position", "left_anti")
