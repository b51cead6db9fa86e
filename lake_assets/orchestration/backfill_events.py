"""Events of a backfill in Dagster: its plan, its progress, and what it changed.

They are observations: rows of the past that were redone do not make a table fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from lake_assets.backfill.backfill_plan import BackfillPlan
from lake_assets.backfill.backfill_record import BackfillRecord, TableRecord
from lake_assets.backfill.comparison import TableComparison, compare
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.tables.partitioning.table_partitions import Partitions

# The tag of the run that does the work of a backfill, with its id.
BACKFILL_TAG = "lake_assets/backfill"


def comparisons(
    lake: Lake, record: BackfillRecord, partitions: Mapping[str, Partitions | None]
) -> Iterator[dg.AssetObservation]:
    """Compare each table of a backfill before and after.

    Args:
        partitions: by table, its declared partitions.
    """
    for comparison in compare(lake, record, partitions):
        yield dg.AssetObservation(asset_key(TableId.parse(comparison.table)), metadata=_metadata(record, comparison))


def progress(record: BackfillRecord, at: TableRecord) -> str:
    """Describe how far a backfill is, after a piece of work on one of its tables."""
    done = sum(t.done for t in record.tables)
    return (
        f"{at.table}: {at.done} of {len(at.chunks)} chunks, {at.inserted} inserted, {at.updated} updated, {at.deleted} "
        f"deleted in {at.seconds:.1f} s ({done} of {sum(len(t.chunks) for t in record.tables)} in all)"
    )


def plan_event(context: Any, table: TableId, planned: BackfillPlan) -> dg.AssetObservation:
    """Show a plan in the log of a run, in words, and return it as an event of a table, with its figures."""
    lines = [f"plan: {planned.request}, about {planned.seconds:.0f} s"]
    lines += [f"{t.table}: {t.what}, {t.rows_read:,} rows read, about {t.seconds:.0f} s" for t in planned.tables]
    lines += [f"{name} is left out: {why}" for name, why in planned.left_out.items()]
    context.log.info("\n".join(lines))
    return dg.AssetObservation(asset_key(table), metadata=_plan_metadata(planned))


def _plan_metadata(planned: BackfillPlan) -> dict[str, Any]:
    head = ("table", "redone", "rows", "rows read", "bytes read", "seconds", "confidence")
    rows = [
        (t.table, t.what, f"{t.rows:,}", f"{t.rows_read:,}", f"{t.bytes_read:,}", f"{t.seconds:.0f}", t.confidence)
        for t in planned.tables
    ]
    left_out = [f"\n{table} is left out: {why}" for table, why in planned.left_out.items()]
    return {
        "request": planned.request,
        "plan": dg.MetadataValue.md("\n".join([*_markdown(head, rows), *left_out])),
        "estimated_seconds": planned.seconds,
    }


def _metadata(record: BackfillRecord, comparison: TableComparison) -> dict[str, Any]:
    sums = [(column, str(before), str(after)) for column, (before, after) in comparison.sums.items()]
    metadata: dict[str, Any] = {
        "backfill": record.id,
        "state": record.state,
        "inserted": comparison.inserted,
        "updated": comparison.updated,
        "deleted": comparison.deleted,
    }
    if comparison.partitions:
        metadata["partitions"] = ", ".join(comparison.partitions[:1_000])
    if sums:
        metadata["sums of changed rows"] = dg.MetadataValue.md(
            "\n".join(_markdown(("column", "before", "after"), sums))
        )
    if comparison.samples:
        columns = tuple(comparison.samples[0])
        rows = [tuple(str(row[c]) for c in columns) for row in comparison.samples]
        metadata["samples"] = dg.MetadataValue.md("\n".join(_markdown(columns, rows)))
    return metadata


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in cells)} |"

    head = list(head)
    return [line(head), line("---" for _ in head), *map(line, rows)]
