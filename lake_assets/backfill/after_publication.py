"""What follows the publication of a backfill: its tables keep their sources, and the journal tells what it has done."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from lake_assets.backfill.backfill_record import BackfillRecord, Redo, TableRecord
from lake_assets.facade import Lake
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import BACKFILL, StepRecord
from lake_assets.lake import TableId
from lake_assets.lake.metadata.row_counts import number, summary_of, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.snapshot_retention import keep_sources

log = logging.getLogger(__name__)
# In words without values: what was asked for may name keys and partitions.
_REASONS: Mapping[Redo, str] = {
    "everything": "all rows were redone",
    "rows": "chosen rows were redone",
    "changes": "what other tables of the backfill changed was absorbed",
    "before": "the rows from before another backfill came back",
}


def follow_up(lake: Lake, record: BackfillRecord) -> None:
    """Do what follows the publication of a backfill, before its working copies go. Can be repeated."""
    # Before the tags of what the copies have absorbed go: main's tables continue from there.
    for t in record.tables:
        keep_sources(lake, t.name, map(TableId.parse, known_marks(lake.find(t.table))))
    try:
        for t in record.tables:
            step_journal.note(lake, _step(lake, record, t))
    except Exception as e:  # of the catalog, of a full disk, ...: it is published all the same
        text = lake.config.hidden(str(e))
        log.warning("the backfill %s is missing in %s: %s", record.id, step_journal.TABLE, text)


def _step(lake: Lake, record: BackfillRecord, t: TableRecord) -> StepRecord:
    """Return what a backfill did to a table as a record of the journal, with its time of publication as the end.

    What was redone and used counts for a table that came out as it was before, or was left behind, too: without a
    snapshot.
    """
    table = lake.find(t.table)
    used = StepRecord(
        table.properties.get(PIPELINE_PROPERTY, record.pipeline) if table is not None else record.pipeline,
        t.table, "absorbed", record.published - t.seconds, t.seconds, t.cpu_seconds,
        strategy=BACKFILL,
        reason=f"{_REASONS[t.redo]} ({t.strategy})" if t.strategy else _REASONS[t.redo],
        run=f"{BACKFILL} {record.id}",
        # The same each time: a process may be killed before it has noted that all is done.
        id=uuid.uuid5(uuid.NAMESPACE_OID, f"{record.id} {record.created} {t.table}").hex,
    )  # fmt: skip
    if table is None or t.after is None or t.after == t.start:
        return used
    # The commits of the working copy, which are the table's now.
    summaries = [*map(summary_of, takewhile(lambda s: s.snapshot_id != t.start, ancestors(table, t.after)))]

    def total(name: str) -> int:
        return sum(number(summary, name) for summary in summaries)

    return replace(
        used,
        rows_inserted=t.inserted,
        rows_updated=t.updated,
        rows_deleted=t.deleted,
        table_rows=visible_rows(table.snapshot_by_id(t.after)),
        snapshot=t.after,
        bytes_read=total("removed-files-size"),
        bytes_written=total("added-files-size"),
        files_read=total("deleted-data-files"),
        files_written=total("added-data-files") + total("added-delete-files"),
    )
