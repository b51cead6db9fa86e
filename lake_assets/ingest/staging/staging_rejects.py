"""Count and record the events of a staging batch that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.formats.event_model import INDEX, MISFITS, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.event_rows import BAD, DOES_NOT_FIT
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.names import literal


def record_rejects(
    lake: LakeBase, spec: StagingSpec, rows: DataFrame | None, parsed: Parsed, records: DataFrame
) -> list[Row]:
    """Write unreadable records and events to the table of rejected records; return `position` and `reason` of each."""
    rejected = _bad(rows, parsed)
    reasons = rejected.select("position", "reason").orderBy("position").collect() if rejected is not None else []
    if rejected is None or not reasons:
        return []
    name = str(spec.table)
    rejects.check_limit(name, spec.max_rejected, records_in(reasons), records.count(), reasons[0]["reason"])
    first, last = reasons[0]["position"], reasons[-1]["position"]
    rejects.reject(lake, spec.raw, str(spec.source_table), _described(rejected, records), first, last)
    return reasons


def records_in(rejected: Sequence[Row]) -> int:
    """Return the number of records that rejects, each with its `position`, belong to: a record may hold many events."""
    return len({r["position"] for r in rejected})


def batch_stats(rows: DataFrame | None, parsed: Parsed) -> Row | None:
    """Return counts, and the first and last position, of a batch; None if it holds no event."""
    if rows is None:
        return None
    stats = rows.agg(
        *event_counts(rows, parsed),
        F.min(POSITION).alias("first"),
        F.max(POSITION).alias("last"),
    ).collect()[0]
    return stats if stats["events"] else None


def event_counts(rows: DataFrame, parsed: Parsed) -> list[Column]:
    """Return the aggregates `events`, `bad` (events to reject), `misfits` (events with values that do not fit) and
    `saturated0`, ... (whether a value of a column of `parsed.saturating` stands for one beyond the type)."""
    limits = (f"coalesce(bool_or({BAD} IS NULL AND {at_limit(quote(c))}), false)" for c in parsed.saturating)
    misfits = f"{BAD} IS NULL AND {MISFITS} IS NOT NULL" if MISFITS in rows.columns else "false"
    return [
        F.count(F.lit(1)).alias("events"),
        F.count(BAD).alias("bad"),
        F.expr(f"count_if({misfits}) AS misfits"),
        *(F.expr(f"{limit} AS saturated{i}") for i, limit in enumerate(limits)),
    ]


def at_limit(value: str) -> str:
    """Return SQL of a boolean: a bigint is the greatest or the smallest one."""
    return f"({value} IN (9223372036854775807L, -9223372036854775807L - 1L))"


def _bad(rows: DataFrame | None, parsed: Parsed) -> DataFrame | None:
    """Return `position`, `event_index` and `reason` of all rejects; None if there can be none."""
    parts: list[DataFrame] = []
    if rows is not None:
        bad = rows.where(F.col(BAD).isNotNull())
        parts.append(bad.select(F.col(POSITION).alias("position"), F.col(INDEX).alias("event_index"), _reason()))
    if parsed.refused is not None:
        parts.append(parsed.refused.select("position", F.lit(0).alias("event_index"), _reason()))
    return parts[0].unionAll(parts[1]) if len(parts) > 1 else parts[0] if parts else None


def _reason() -> Column:
    return F.left(F.col(BAD), F.lit(2_000)).alias("reason")


def _described(bad: DataFrame, records: DataFrame) -> DataFrame:
    columns = ("position", "record", "source_file", "source_line", "arrived_at")
    return bad.join(records.select(*columns), "position")


def misfitting_columns(lake: LakeBase, staging: TableId) -> list[str]:
    """Return the columns with values that do not fit their types and are null instead."""
    rows = lake.spark().table(lake.sql_name(staging)).where(F.col(MISFITS).isNotNull())
    names = rows.select(F.explode(MISFITS).alias("m")).select(F.expr(f"split_part(m, {literal(DOES_NOT_FIT)}, 1)"))
    return sorted(r[0] for r in names.distinct().collect())
