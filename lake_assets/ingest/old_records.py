"""Delete old records of a raw table: those whose events every staging table of it has stored.

A raw table is what staging is read from again, after another declaration for example. Where its records are declared to
be kept for some time only (`keep_records`), that is no longer possible for older ones, and stops with
RecordsGoneError. Rejected records stay until they are read or forgotten. Lines about the schema of a live source stay:
it cannot go on without them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from pyiceberg.table import Table

from lake_assets.errors import Refused
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw_tables import (
    ARRIVED_PROPERTY,
    DELETED_PROPERTY,
    SCHEMA_HISTORY,
    SINCE_PROPERTY,
    deleted_about,
    position_after,
    routes_of,
)
from lake_assets.ingest.records import rejects
from lake_assets.ingest.staging.due_records import pending_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY
from lake_assets.tables.writing.publication import committing
from lake_assets.tables.writing.table_ddl import set_properties


def delete_old_records(lake: LakeBase, raw: TableId, readers: Sequence[StagingSpec], before: datetime) -> int | Refused:
    """Delete records that arrived before a time, and whose events are in staging.

    Args:
        readers: all staging tables that read the raw table.

    Returns:
        How many were deleted; or why none can be.

    Raises:
        ConcurrentWriteError: another writer was faster.
    """
    # Both are derived from the records: they have to know those that go.
    file_ledger.catch_up(lake, raw)
    rejects.catch_up(lake, raw)
    end = _stored_until(lake, lake.table(raw), readers)
    if isinstance(end, Refused):
        return end
    where = f"arrived_at < TIMESTAMP '{before.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00:00}' AND position < {end}"
    where += f" AND source_file <> '{SCHEMA_HISTORY}'"
    name, listed = rejects.rejected_of(raw), rejects.positions(lake, raw, end)
    if listed:
        where += f" AND position NOT IN (SELECT position FROM {lake.sql_name(name)})"
    rows = f"FROM {lake.sql_name(raw)} WHERE {where}"
    spark = lake.spark()
    counted = f"SELECT source_table, count(*) AS n, max(position) + 1 AS until {rows} GROUP BY source_table"
    found = spark.sql(counted).collect()
    if not found:
        return 0
    about = deleted_about(lake.table(raw))
    about |= {t: max(about.get(t, 0), r["until"]) for r in found if (t := r["source_table"])}
    # Before they are deleted: nobody may take the rest for all of them.
    set_properties(lake, raw, {SINCE_PROPERTY: before.isoformat(), DELETED_PROPERTY: json.dumps(about, sort_keys=True)})
    with committing(spark, raw, {UPKEEP_PROPERTY: "records", ARRIVED_PROPERTY: "{}"}):
        spark.sql(f"DELETE {rows}")
    return sum(r["n"] for r in found)


def _stored_until(lake: LakeBase, raw: Table, readers: Sequence[StagingSpec]) -> int | Refused:
    """Return the position up to which every staging table has stored the events of the records."""
    landed = position_after(raw, raw.metadata.current_snapshot_id)
    # The last record stays: its position tells the next one, should another program expire the landing's snapshot.
    ends = [landed - 1 if landed else landed]
    routed = set(routes_of(raw))
    for spec in readers:
        table = lake.find(spec.table)
        if table is None:
            if spec.source_table in routed:
                return Refused(f"{spec.table} has not been filled yet")
            continue
        window, reread = pending_of(spec, table, raw)
        if reread or window.lost:
            return Refused(f"{spec.table} is about to read all records again")
        if window.mark is None:
            return Refused(f"{spec.table} has absorbed nothing yet")
        ends.append(position_after(raw, window.start))
    if None in ends:
        return Refused("it is unknown how far a staging table has read: the snapshot of a landing has expired")
    return min(end for end in ends if end is not None)
