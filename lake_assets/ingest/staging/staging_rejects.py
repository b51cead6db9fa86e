"""What of a staging batch cannot be read, counted and recorded."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.formats.event_model import INDEX, MISFITS, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.lake import LakeBase


def record_rejects(
    lake: LakeBase, spec: StagingSpec, rows: DataFrame | None, parsed: Parsed, records: DataFrame
) -> list[Row]:
    """Write what cannot be read to the table of rejected records; returns `position` and `reason` of each."""
    bad = _bad(rows, parsed)
    found = bad.select("position", "reason").orderBy("position").collect() if bad is not None else []
    if bad is None or not found:
        return []
    name = str(spec.table)
    rejects.check_limit(name, spec.max_rejected, len(found), records.count(), found[0]["reason"])
    first, last = found[0]["position"], found[-1]["position"]
    rejects.reject(lake, spec.raw, str(spec.source_table), _described(bad, records), first, last)
    return found


def batch_stats(rows: DataFrame | None) -> Row | None:
    """Counts and positions of a batch; None: it holds no event."""
    if rows is None:
        return None
    stats = rows.agg(
        *event_counts(rows),
        F.min(POSITION).alias("first"),
        F.max(POSITION).alias("last"),
    ).collect()[0]
    return stats if stats["events"] else None


def event_counts(rows: DataFrame) -> list[Column]:
    """Aggregates: `events`, `bad` ones, and those with `misfits`."""
    misfits = f"{BAD} IS NULL AND {MISFITS} IS NOT NULL" if MISFITS in rows.columns else "false"
    return [
        F.count(F.lit(1)).alias("events"),
        F.count(BAD).alias("bad"),
        F.expr(f"count_if({misfits}) AS misfits"),
    ]


def _bad(rows: DataFrame | None, parsed: Parsed) -> DataFrame | None:
    """`position`, `event_index` and `reason` of everything that is rejected."""
    found: list[DataFrame] = []
    if rows is not None:
        bad = rows.where(F.col(BAD).isNotNull())
        found.append(bad.select(F.col(POSITION).alias("position"), F.col(INDEX).alias("event_index"), _reason()))
    if parsed.refused is not None:
        found.append(parsed.refused.select("position", F.lit(0).alias("event_index"), _reason()))
    return found[0].unionAll(found[1]) if len(found) > 1 else found[0] if found else None


def _reason() -> Column:
    return F.left(F.col(BAD), F.lit(2_000)).alias("reason")


def _described(bad: DataFrame, records: DataFrame) -> DataFrame:
    columns = ("position", "record", "source_file", "source_line", "arrived_at")
    return bad.join(records.select(*columns), "position")
