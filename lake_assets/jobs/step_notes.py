"""The note of a step: which windows a job was given, by which process, and what that means if the process was killed.

A note is a table without rows in the namespace `icdc`, one per target, whose properties hold the note. Every catalog
creates a table for one caller only, so of two steps over the same target one finds the note of the other. The target
itself may be missing, or be dropped and created by the job.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType

from lake_assets.capture.icdc import NAMESPACE
from lake_assets.errors import CorruptMetadataError, StepRunningError, StepUnknownError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermark, find_property
from lake_assets.runtime.processes import is_gone, owner

# The snapshot property with the id of the step that a commit belongs to.
STEP_ID = "lake-assets.step-id"
_NOTE = "lake-assets.step-note"
# After that long, a process of another machine counts as ended, unless a lifetime is declared.
HOURS = 24
_ATTEMPTS = 5

State = Literal["running", "done", "nothing-written", "unknown"]


@dataclass(frozen=True)
class WindowNote:
    """The window of one source, as its table's uuid and two snapshots; `start` None: the beginning."""

    uuid: str
    start: int | None
    end: int | None

    @property
    def head(self) -> Watermark:
        """The watermark after the step."""
        return Watermark(self.uuid, self.end)

    def __str__(self) -> str:
        return f"({self.start or 'beginning'}, {self.end or 'empty'}]"


@dataclass(frozen=True)
class StepNote:
    """The note of a step that is running, or was interrupted.

    Attributes:
        target: the table whose watermark the step moves.
        windows: by source, what the job was given.
        snapshot: the target's snapshot before the job; None: it had none.
        writes_target: whether the job writes the target, and nothing else.
        id: of the step; the same if it is run again.
        attempt: differs each time that it is run.
        processes: the processes of the job, as `runtime.processes.owner` names them.
        began: when it began, in seconds since 1970.
        hours: after that long, processes of other machines count as ended.
        error: the message, if the job failed.
        is_rerun_requested: whether somebody has decided to run the same windows again.
        before: the text of the interrupted step before, if it is unknown what that one wrote; it is in force again if
            this one writes nothing.
    """

    target: str
    windows: Mapping[str, WindowNote]
    snapshot: int | None
    writes_target: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    processes: tuple[str, ...] = field(default_factory=lambda: (owner(),))
    began: float = field(default_factory=time.time)
    hours: float = HOURS
    error: str = ""
    is_rerun_requested: bool = False
    before: str = ""

    @classmethod
    def of(cls, text: str) -> StepNote:
        """Parse a note.

        Raises:
            ValueError, TypeError, LookupError: it is none.
        """
        fields: dict[str, Any] = json.loads(text)
        windows = {s: WindowNote(**w) for s, w in fields.pop("windows").items()}
        return cls(windows=windows, processes=tuple(fields.pop("processes")), **fields)

    @property
    def text(self) -> str:
        """The note as text; see `of`."""
        return json.dumps(asdict(self))

    @property
    def without_before(self) -> StepNote:
        """The note alone, with the snapshot from before all attempts of which it is unknown what they wrote."""
        snapshot = StepNote.of(self.before).snapshot if self.before else self.snapshot
        return replace(self, before="", snapshot=snapshot)

    @property
    def is_running(self) -> bool:
        """Whether one of its processes may still be running."""
        return any(self._may_run(process) for process in self.processes)

    def _may_run(self, process: str) -> bool:
        has_ended = is_gone(process)
        return time.time() < self.began + self.hours * 3600 if has_ended is None else not has_ended

    def state(self, target: Table | None) -> State:
        """Return what is known of the job, from the table whose watermark it moves (None: it does not exist)."""
        if self.processes and self.is_running:
            return "running"
        if target is not None and (last := find_property(target, STEP_ID)) and last[0] == self.id:
            return "done"
        if self.writes_target and _is_unchanged(target, self.snapshot):
            return "nothing-written"
        return "unknown"

    def running(self) -> StepRunningError:
        """The error for a second step."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.began))
        where = ", ".join(self.processes)
        return StepRunningError(
            f"{self.target}: a step is running since {since} UTC. Run again when it is done. If it was killed on "
            f"another machine, run `lake-assets step {self.target} --rerun`, or, if its rows were written, "
            f"`lake-assets step {self.target} --done` (machine, process id, start: {where})"
        )

    def unknown(self) -> StepUnknownError:
        """The error for an interrupted step that is declared to stop."""
        windows = ", ".join(f"{s} {w}" for s, w in self.windows.items())
        how = f"failed ({self.error})" if self.error else "was killed"
        evidence = (
            f"{self.target} has changed since, but no commit carries the step's watermark"
            if self.writes_target
            else "its writes are not visible from here"
        )
        return StepUnknownError(
            f"{self.target}: a step {how}, and whether its rows were written is unknown: {evidence}. Look at the "
            f"table. If the rows are there, run `lake-assets step {self.target} --done`, else `lake-assets step "
            f"{self.target} --rerun`. With `on_unknown: rerun`, the next step runs the job over the same windows "
            f"again by itself ({windows})"
        )


def _is_unchanged(target: Table | None, snapshot: int | None) -> bool:
    """Whether the target holds no row of the job: it is gone, or nothing but upkeep has happened since a snapshot."""
    if target is None:
        return True
    for step in ancestors(target):
        if step.snapshot_id == snapshot:
            return True
        if step.summary is None or step.summary.operation != Operation.REPLACE:
            return False
    return snapshot is None


def other_steps(target: Table, note: StepNote) -> list[str]:
    """Return the other steps whose commits are in the target since a step began."""
    steps: dict[str, None] = {}
    for snapshot in ancestors(target):
        if snapshot.snapshot_id == note.snapshot:
            break
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if (step := properties.get(STEP_ID, note.id)) != note.id:
            steps[step] = None
    return [*steps]


def note_name(target: TableId) -> TableId:
    """Return the name of the table that holds the note of a target."""
    plain = "".join(c if c.isalnum() else "_" for c in "_".join(target.parts))[:80]
    return TableId(NAMESPACE, f"step_{plain}_{hashlib.sha256(str(target).encode()).hexdigest()[:8]}")


def find_note(lake: LakeBase, target: TableId) -> StepNote | None:
    """Return the note of a target; None if no step is running or interrupted.

    Raises:
        CorruptMetadataError: the note cannot be read.
    """
    loaded = _load(lake, target)
    return loaded[0] if loaded else None


def _load(lake: LakeBase, target: TableId) -> tuple[StepNote, Table] | None:
    for attempt in range(_ATTEMPTS):
        try:
            table = lake.find(note_name(target))
        except CorruptMetadataError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue  # its step has just removed it, together with its files
        if table is None:
            return None
        try:
            return StepNote.of(table.properties[_NOTE]), table
        except (ValueError, TypeError, LookupError) as e:
            name = note_name(target)
            raise CorruptMetadataError(
                f"{name} is no note of a step of {target} ({type(e).__name__}: {e}), so an interrupted "
                f"step is not known. If no job of {target} is running, compare {target} with its sources, and drop the "
                f"table {name}: the next step continues from the watermark"
            ) from e
    return None


def settled(former: StepNote | None, target: Table | None, on_unknown: str) -> tuple[StepNote | None, str]:
    """Return the note whose windows are run again, and what became of an interrupted step, if one left a note.

    Raises:
        StepRunningError: the step before is still running.
        StepUnknownError: it may have written, and the declaration (`on_unknown`) is to stop.
    """
    if former is None:
        return None, ""
    match former.state(target):
        case "running":
            raise former.running()
        case "done":
            return None, "the interrupted step before had committed"
        case "nothing-written" if former.before:
            return settled(StepNote.of(former.before), target, on_unknown)
        case "nothing-written":
            return None, "the step interrupted before wrote nothing"
        case "unknown":
            if on_unknown == "stop" and not former.is_rerun_requested:
                raise former.unknown()
            return former, "the windows of the interrupted step before are run again"


def claim(lake: LakeBase, note: StepNote, former: StepNote | None) -> None:
    """Write the note of a step that begins; it takes the place of the note of an interrupted, `former` step.

    Raises:
        StepRunningError: another step was faster.
    """
    target = TableId.parse(note.target)
    if former is not None:
        _swap(lake, note, former)
        return
    lake.ensure_namespace(NAMESPACE)
    name = note_name(target)
    try:
        lake.catalog.create_table(name.parts, Schema(), properties={_NOTE: note.text})
    except TableAlreadyExistsError as e:
        raise (find_note(lake, target) or note).running() from e


def change(lake: LakeBase, note: StepNote, **changes: Any) -> StepNote:
    """Change the note of a step, and return it.

    Raises:
        StepRunningError: another step has taken its place.
    """
    changed = replace(note, **changes)
    _swap(lake, changed, note)
    return changed


def _swap(lake: LakeBase, note: StepNote, former: StepNote) -> None:
    """Replace a note if it is still the former one."""
    loaded = _load(lake, TableId.parse(note.target))
    if loaded is None or (loaded[0].id, loaded[0].attempt) != (former.id, former.attempt):
        raise (loaded[0] if loaded else former).running()
    try:
        with loaded[1].transaction() as transaction:
            # Catalogs compare a table's schema before they change it, and properties they do not: of two processes
            # that take the place of one note, the second finds another schema than it has read.
            with transaction.update_schema() as schema:
                schema.add_column(uuid.uuid4().hex, StringType())
            transaction.set_properties({_NOTE: note.text})
    except (CommitFailedException, NoSuchTableError) as e:
        raise (find_note(lake, TableId.parse(note.target)) or former).running() from e


def withdraw(lake: LakeBase, note: StepNote) -> StepNote | None:
    """Take back the note of a step that has written nothing; return the note of the step before, if that is in force.

    Raises:
        StepRunningError: another step has taken its place.
    """
    if not note.before:
        remove(lake, note)
        return None
    before = replace(StepNote.of(note.before), attempt=uuid.uuid4().hex, processes=())
    _swap(lake, before, note)
    return before


def is_current(lake: LakeBase, note: StepNote) -> bool:
    """Whether the note is still the one of its target."""
    current = find_note(lake, TableId.parse(note.target))
    return current is not None and (current.id, current.attempt) == (note.id, note.attempt)


def remove(lake: LakeBase, note: StepNote) -> None:
    """Remove the note of a step, unless another step has taken its place."""
    if is_current(lake, note):
        try:
            lake.catalog.purge_table(note_name(TableId.parse(note.target)).parts)
        except NoSuchTableError:
            return
