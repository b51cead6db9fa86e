"""Steps that are at work now, and steps that never ended, from the notes that writers leave in the lake's home."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.errors import CorruptMetadataError
from lake_assets.health.table_status import KilledStep, RunningStep, TableStatus
from lake_assets.lake import LakeBase
from lake_assets.pipeline.pipelines_of_lake import noted_files
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables import leftovers
from lake_assets.tables.leftovers import Note
from lake_assets.tables.standing_failures import Failure, standing


def with_steps_at_work(lake: LakeBase, tables: Sequence[TableStatus], specs: Sequence[Spec] = ()) -> list[TableStatus]:
    """Return the tables with their steps that are at work, or were killed; tables that do not exist yet come last.

    Args:
        specs: the tables whose declarations are known.
    """
    # Of a step that lost the catalog, the note stays until its process ends: the newest note of a table counts.
    began = sorted((n for n in leftovers.notes(lake) if n.tables), key=lambda n: n.began)
    stopped = _stopped_backfills(lake, {n.backfill for n in began if n.backfill})
    notes = {str(n.tables[0]): n for n in began if not (n.backfill and n.is_abandoned) or n.backfill in stopped}
    if not notes:
        return list(tables)
    failed, files = standing(lake), noted_files(lake)
    notes = {table: n for table, n in notes.items() if not _failed_since(failed.get(table), n)}
    known, declared = {t.table for t in tables}, {str(s.table): s.pipeline for s in specs}
    missing = [
        TableStatus(name, declared[name], None, {}, {}, 0.0, None)
        for name in notes
        if name not in known and name in declared and not notes[name].is_done_again
    ]

    def noted(table: TableStatus) -> TableStatus:
        if (note := notes.get(table.table)) is None:
            return table
        if not note.is_abandoned:
            return replace(table, running=RunningStep(note.began / 1000, note.process))
        is_newer = table.last_run is not None and table.last_run.timestamp() * 1000 >= note.began
        is_done = note.is_done_again or (is_newer and not note.backfill)
        file = files.get(table.pipeline)
        return table if is_done else replace(table, killed=_killed(note, str(file) if file else "", stopped))

    return [noted(t) for t in (*tables, *missing)]


def _stopped_backfills(lake: LakeBase, ids: Collection[str]) -> dict[str, BackfillRecord]:
    """Return the killed backfills that are open, but no preview that nobody was shown: the next one discards it."""
    records, stopped = Records(lake), dict[str, BackfillRecord]()
    for backfill in filter(records.has, ids):
        with contextlib.suppress(CorruptMetadataError):  # `lake-assets backfills` tells of it
            record = records.get(backfill)
            if record.is_open and not record.is_running and not record.is_unseen:
                stopped[backfill] = record
    return stopped


def _failed_since(failure: Failure | None, note: Note) -> bool:
    return failure is not None and failure.at >= note.began / 1000


def _killed(note: Note, file: str, stopped: Mapping[str, BackfillRecord]) -> KilledStep:
    """Return what is known of a step whose process has ended, or has not been heard of for long."""
    began = f"{datetime.fromtimestamp(note.began / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    command = f": `lake-assets run {shlex.quote(file)}`" if file else ""
    if note.backfill:
        text = (
            f"backfill {note.backfill} was killed or interrupted during the step that began at {began}, and has "
            f"published nothing: {stopped[note.backfill].ways_to_end}"
        )
    elif note.is_gone is None:
        text = (
            f"a step began at {began} on another machine or before a restart, and has not reported since: whether it "
            f"was killed is not known here. If so, it published nothing, and the next run does its work again{command}"
        )
    else:
        text = (
            f"a run was killed or interrupted during the step that began at {began}: that step published nothing, and "
            f"the next run does its work again{command}"
        )
    return KilledStep(note.began / 1000, note.is_gone is not None, text)
