"""Settle an interrupted step by hand: whether its job was done."""

from __future__ import annotations

import uuid
from typing import Literal

from lake_assets.errors import JobError, TableNotFoundError
from lake_assets.jobs import step_notes
from lake_assets.jobs.job_watermark import move_watermark
from lake_assets.jobs.step_notes import STEP_ID, StepNote
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import to_properties
from lake_assets.runtime.processes import is_gone
from lake_assets.tables.pending_windows import known_marks


def settle(lake: LakeBase, table: TableId, decision: Literal["done", "rerun"]) -> StepNote:
    """Decide about the interrupted step of a table.

    Args:
        lake: the lake.
        table: the table.
        decision: `done`: its rows are written, and the watermark moves to the end of its windows. `rerun`: the next
            step runs the same windows again.

    Raises:
        JobError: there is no such step.
        StepRunningError: it is running on this machine.
        TableNotFoundError: it is to be done, and there is no table.
    """
    note = step_notes.find_note(lake, table)
    if note is None:
        raise JobError(f"no step of {table} is running or interrupted: the next one continues from its watermark")
    # Processes of other machines are not visible from here; the user who settles the step knows.
    if any(is_gone(process) is False for process in note.processes):
        raise note.running()
    if decision == "rerun":
        return step_notes.change(lake, note, attempt=uuid.uuid4().hex, processes=(), is_rerun_requested=True)
    target = lake.find(table)
    if target is None:
        raise TableNotFoundError(f"there is no table {table}, so its job is not done: use --rerun")
    note = step_notes.change(lake, note, attempt=uuid.uuid4().hex, processes=())
    if note.state(target) != "done":
        base = known_marks(target)
        marks = {**base, **{s: w.head for s, w in note.windows.items()}}
        move_watermark(lake, table, base, {**to_properties(marks), STEP_ID: note.id})
    step_notes.remove(lake, note)
    return note
