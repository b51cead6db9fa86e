"""The watermark of a job's table, where the job's own commit does not carry it: after the job, or settled by hand."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from lake_assets.errors import ConcurrentWriteError, JobError, TableNotFoundError
from lake_assets.jobs import step_notes
from lake_assets.jobs.step_notes import STEP_ID, StepNote, WindowNote
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermark, Watermarks, to_properties
from lake_assets.runtime.processes import is_gone
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.snapshot_retention import keep_sources
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_writer import TableWriter

_ATTEMPTS = 5


def move_watermark(lake: LakeBase, table: TableId, base: Watermarks, properties: Mapping[str, str]) -> None:
    """Move the watermark by a commit without files; without Spark, unless PyIceberg cannot write the table's format.

    The snapshot `properties` have the new watermarks; `base` are those that the table is expected to have.

    Raises:
        ConcurrentWriteError: the table has other watermarks, or every attempt lost against another writer.
    """
    for attempt in range(_ATTEMPTS):
        loaded = lake.table(table)
        if known_marks(loaded) != dict(base):
            raise ConcurrentWriteError(
                f"{table}: another writer moved its watermark during this step. Look at the table. If the rows of this "
                f"step are there, run `lake-assets step {table} --done`, else `lake-assets step {table} --rerun`"
            )
        try:
            if loaded.format_version >= 3:
                TableWriter(Commit(lake, table, loaded, properties=properties)).nothing()
            else:
                write_arrow(table, loaded, loaded.schema().as_arrow().empty_table(), properties)
        except ConcurrentWriteError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def settle(lake: LakeBase, table: TableId, decision: Literal["done", "rerun"]) -> StepNote:
    """Decide about the interrupted step of a table.

    `done`: its rows are written, and the watermark moves to the end of its windows. `rerun`: the next step runs the
    same windows again.

    Raises:
        JobError: there is no such step.
        TableNotFoundError: there is neither a step nor a table; or the step is to be done, and there is no table.
        StepRunningError: it is running on this machine.
    """
    note = step_notes.find_note(lake, table)
    if note is None:
        lake.table(table)  # its name may be mistyped
        raise JobError(f"no step of {table} is running or interrupted: the next one continues from its watermark")
    # Processes of other machines are not visible from here; the user who settles the step knows.
    if any(is_gone(process) is False for process in note.processes):
        raise note.running()
    if note.before and replace(note, processes=()).state(lake.find(table)) == "nothing-written":
        note = step_notes.withdraw(lake, note) or note  # it is about the step before
    if decision == "rerun":
        return step_notes.change(lake, note, attempt=uuid.uuid4().hex, processes=(), is_rerun_requested=True)
    target = lake.find(table)
    if target is None:
        raise TableNotFoundError(
            f"there is no table {table}, so it holds no rows of the step: run `lake-assets step {table} --rerun`"
        )
    note = step_notes.change(lake, note, attempt=uuid.uuid4().hex, processes=())
    if note.state(target) != "done":
        base = known_marks(target)
        ends = {s: w.head for s, w in note.windows.items() if not _is_beyond(lake, base.get(s), s, w)}
        marks = {**base, **ends}
        move_watermark(lake, table, base, {**to_properties(marks), STEP_ID: note.id})
    keep_sources(lake, table, map(TableId.parse, note.windows))
    step_notes.remove(lake, note)
    return note


def _is_beyond(lake: LakeBase, mark: Watermark | None, source: str, window: WindowNote) -> bool:
    """Whether another writer has moved a watermark beyond the end of a window meanwhile."""
    table = lake.find(source)
    if mark is None or mark.snapshot is None or table is None or mark.uuid != window.uuid:
        return False
    if window.end is None or table.snapshot_by_id(window.end) is None:
        return mark.snapshot != window.start
    return window.head.snapshot in {s.snapshot_id for s in ancestors(table, mark.snapshot)}
