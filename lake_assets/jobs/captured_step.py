"""`lake.step`: fixed windows for a job, and the watermark of its table moved once the job is done.

The watermark moves with the job's own commit if that carries `CapturedStep.properties`: then rows and watermark are one
commit. Otherwise the step moves it after the job by a commit without files, and the note of the step (`step_notes`)
tells the next one that a job was interrupted between the two.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StringType

from lake_assets.capture import Capture, FieldRange, IcdcTables, capture, source_tags
from lake_assets.errors import ConcurrentWriteError, JobError, JobNotStartedError, LakeError
from lake_assets.jobs import step_notes
from lake_assets.jobs.changed_ranges_and_keys import changed_keys, united_ranges
from lake_assets.jobs.job_watermark import move_watermark
from lake_assets.jobs.step_notes import STEP_ID, StepNote, WindowNote
from lake_assets.jobs.step_parameters import StepParameters, StepSource
from lake_assets.jobs.step_settings import StepSettings, check_columns
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark, find_property, to_properties
from lake_assets.lake.names import nearest
from lake_assets.runtime.processes import owner
from lake_assets.tables.leftovers import sweep
from lake_assets.tables.pending_windows import Window, continues, head_of, known_marks
from lake_assets.tables.snapshot_retention import consumer_name, keep_sources
from lake_assets.tables.writing.table_ddl import set_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
Choose = Callable[[dict[TableId, Window], dict[TableId, Table]], dict[TableId, Window]]


class CapturedStep:
    """The windows of one run of a job.

    Attributes:
        lake: the lake.
        table: the table whose watermark the step moves.
        windows: by source, the window; it stays the same, whatever is committed to the source meanwhile.
        moved_by: after the block, who moved the watermark: the `job` with its commit, or the `step` after it.
        resumed: what became of an interrupted step before this one; empty if there was none.
    """

    def __init__(
        self,
        lake: LakeBase,
        settings: StepSettings,
        windows: Mapping[TableId, Window],
        base: Mapping[str, Watermark],
        note: StepNote,
        resumed: str,
    ) -> None:
        self.table, self.resumed = settings.table, resumed
        self.windows = {str(s): w for s, w in windows.items()}
        self.lake, self._settings, self._base, self._note = lake, settings, base, note
        self.moved_by: Literal["job", "step", "nobody"] = "nobody"
        self._may_have_run = True
        self._captures: dict[str, Capture] = {}
        self._icdc: dict[str, IcdcTables] = {}
        self._scope = contextlib.ExitStack()

    @property
    def id(self) -> str:
        """The id of the step; the same if the same windows are run again after an interruption."""
        return self._note.id

    @property
    def is_initial(self) -> bool:
        """Whether the job has to read everything that its sources hold: a first run, or a rebuild."""
        return not continues(self.windows.values())

    @cached_value
    def is_empty(self) -> bool:
        """Whether the job has nothing to do: no row changed in any source, and its table holds no rows of former
        ones."""
        has_lost = any(w.lost for w in self.windows.values()) or any(m.snapshot for m in self._base.values())
        return not (self.is_initial and has_lost) and all(self.capture(s).is_empty for s in self.windows)

    @property
    def marks(self) -> dict[str, Watermark]:
        """The watermarks after the step."""
        return {**self._base, **{s: w.head for s, w in self.windows.items()}}

    @property
    def properties(self) -> dict[str, str]:
        """Snapshot properties with the watermark, for the job's own commit.

        PyIceberg: `table.append(rows, snapshot_properties=step.properties)`. Spark: see `committing`. A job of several
        commits gives them to the last one.
        """
        return {**to_properties(self.marks), STEP_ID: self.id}

    def capture(self, source: str | TableId) -> Capture:
        """Return the changes of a source. Its rows can be read until the end of the block.

        Raises:
            JobError: the step has no such source.
            LakeError: see `Lake.capture`.
        """
        name = str(TableId.parse(source))
        if name not in self.windows:
            raise JobError(
                f"{self.table}: {name} is no source of this step{nearest(name, self.windows)}: its sources are "
                f"{', '.join(self.windows)}. To read another table, add it to them (`inputs` in YAML)"
            )
        if name not in self._captures:
            window = self.windows[name]
            # What outlives the block has to be kept beyond the step's own tags.
            keeps = self._settings.lifetime is not None
            captured = capture(self.lake, name, window.start, window.end, table_uuid=window.head.uuid, keeps=keeps)
            self._captures[name] = self._scope.enter_context(captured)
        return self._captures[name]

    def icdc(self, source: str | TableId) -> IcdcTables:
        """Register tables over the changed files of a source, which other processes and engines can read.

        They hold all rows of these files, as of the window's end (`after`) and start (`before`): for a source that is
        only appended to, `after` holds exactly the new rows. They last for the step's `lifetime`; without one, until
        the end of the block.

        Raises:
            JobError: the step has no such source.
            LakeError: a captured file is missing, or the tables cannot be written.
        """
        name = str(TableId.parse(source))
        captured = self.capture(name)
        if name not in self._icdc:
            if self._settings.lifetime is None:
                self._icdc[name] = self._scope.enter_context(captured.icdc())
            else:
                self._icdc[name] = captured.register_icdc(datetime.now(UTC) + self._settings.lifetime)
        return self._icdc[name]

    @cached_value
    def ranges(self) -> dict[str, FieldRange]:
        """By declared column, the range over the changed files of all sources (`FieldRange`): least low, greatest high.

        No changed row has a value outside its range. `low` and `high` are None if no bound is known, and if there are
        no values at all (`has_values` tells); `nulls` tells whether rows may have no value.
        """
        return united_ranges(self.table, self._settings.ranges, self._changed)

    @cached_value
    def keys(self) -> list[dict[str, Any]]:
        """The distinct values of the declared key expressions over all changed rows, before and after the change.

        Starts Spark.

        Raises:
            JobError: there are too many; or Spark does not accept an expression.
        """
        return changed_keys(self.table, self.lake.spark, self._settings.keys, self._changed)

    @property
    def _changed(self) -> dict[str, Capture]:
        return {s: c for s in self.windows if not (c := self.capture(s)).is_empty}

    @cached_value
    def parameters(self) -> StepParameters:
        """Everything that the job has to know, for another process; registers the ICDC tables of all sources."""
        lookups = {str(t): head_of(self.lake.table(t)).snapshot for t in self._settings.lookups}
        keys = self.keys if self._settings.keys else None
        sources = {s: self._source(s, w) for s, w in self.windows.items()}
        return StepParameters(
            str(self.table), self.id, sources, lookups, self.ranges, keys, self.properties, self.is_initial,
            self.is_empty,
        )  # fmt: skip

    def _source(self, name: str, window: Window) -> StepSource:
        if name not in self._changed:
            return StepSource(window.start, window.head.snapshot, is_empty=True)
        tables = self.icdc(name)
        after, before = (self.lake.table(t).metadata_location if t else None for t in (tables.after, tables.before))
        return StepSource(window.start, window.head.snapshot, False, tables.after, tables.before, after, before)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a process of the job; see `StepParameters.env`."""
        return self.parameters.env

    def json(self) -> str:
        """Return the parameters as JSON."""
        return self.parameters.json()

    def run_config(self, op: str = "job") -> dict[str, Any]:
        """Return the parameters as Dagster run configuration of an op or asset."""
        return self.parameters.run_config(op)

    def committing(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Add the watermark to the commit that Spark makes in the block. It must be one commit, to the step's table.

        Raises:
            ConcurrentWriteError: another writer was faster; nothing of the commit is in the table.
        """
        from lake_assets.tables.writing.publication import committing

        return committing(spark, self.table, self.properties)

    def runs_in(self, *processes: Sequence[float]) -> None:
        """Note that the job also runs in other processes, named by `runtime.processes.identity`.

        As long as one of them runs, no other step begins, even if this process is killed.
        """
        names = dict.fromkeys((owner(), *map(owner, processes)))
        self._note = step_notes.change(self.lake, self._note, processes=tuple(names))

    def finish(self) -> None:
        """Move the watermark if the job has not, and remove the note.

        Raises:
            ConcurrentWriteError: another writer moved the watermark, or another step took this one's place.
            JobError: the job made no table; or another step, which counted as ended, committed meanwhile.
        """
        lake, target = self.lake, self.lake.find(self.table)
        if not step_notes.is_current(lake, self._note):
            raise ConcurrentWriteError(
                f"{self.table}: while its job was running, this step was settled by hand (`lake-assets step`), or "
                f"counted as ended, so its rows may be missing or there twice. {_corrected(self.table)}"
            )
        self.moved_by = self._move(target)
        if target is not None:
            # A watermark that expires is then missed.
            set_properties(lake, self.table, {PIPELINE_PROPERTY: self._settings.owner})
            keep_sources(lake, self.table, self._settings.sources)
        self._forget()

    def _forget(self) -> None:
        """Remove the tags on the ends of the windows, then the note: after it, the next step sets its own."""
        for source in self._settings.sources:
            source_tags.release(self.lake, source, lambda _: [_end_tag(self.table)])
        step_notes.remove(self.lake, self._note)

    def _move(self, target: Table | None) -> Literal["job", "step", "nobody"]:
        if target is not None and (others := step_notes.other_steps(target, self._note)):
            raise JobError(
                f"{self.table}: another step, which counted as ended, committed during this step, so both may have "
                f"written the same changes. {_corrected(self.table)} (step {', '.join(others)})"
            )
        last = find_property(target, STEP_ID) if target is not None else None
        if last and last[0] == self.id:
            return "job"
        if target is None:
            if self.is_empty:
                return "nobody"
            raise JobError(
                f"the job of {self.table} is done, and there is no table {self.table}: create it in the job. If the "
                "job writes to another system, declare `writes: elsewhere`: the table then only holds the watermark"
            )
        if self.marks == self._base:
            return "nobody"
        move_watermark(self.lake, self.table, self._base, self.properties)
        return "step"

    @contextlib.contextmanager
    def before_job(self) -> Generator[None]:
        """Tell an error in the block from one of the job: of that job, nothing has run."""
        try:
            yield
        except BaseException:
            self._may_have_run = False
            raise

    def fail(self, error: BaseException) -> None:
        """Note that the job failed; without a trace if it is known what it has written."""
        has_not_run = isinstance(error, JobNotStartedError) or not self._may_have_run
        ended = replace(self._note, processes=())
        state = "nothing-written" if has_not_run else ended.state(self.lake.find(self.table))
        if state == "unknown":
            message = f"{type(error).__name__}: {error}"[:1000]
            self._note = step_notes.change(self.lake, self._note, processes=(), error=message)
        elif state == "nothing-written" and self._note.before:
            step_notes.withdraw(self.lake, self._note)
        else:
            self._forget()

    def close(self) -> None:
        """Drop the ICDC tables without a lifetime."""
        self._scope.close()


def _corrected(table: TableId) -> str:
    """Return the advice for a table in which the changes of a step may be missing or absorbed twice."""
    return (
        f"Compare the table with its sources, and correct it, or rebuild it: `lake-assets rebuild {table}`, or "
        "`rebuild=True` in `lake.step`"
    )


@contextlib.contextmanager
def captured_step(
    lake: LakeBase, settings: StepSettings, *, choose: Choose | None = None, rebuild: bool = False
) -> Generator[CapturedStep]:
    """Fix the windows of a job, and move the watermark of its table when the block ends without an error.

    `choose` returns the part of the pending windows that this step takes. If it is a `rebuild`, the job receives all
    rows of its sources, whatever an interrupted step has written.

    Raises:
        StepRunningError: a step over the same table is running.
        StepUnknownError: the last step was interrupted, what it wrote is unknown, and `on_unknown` is `stop`.
        HistoryError: the history of a source is lost, and the step is declared to stop.
        ConcurrentWriteError: another writer moved the watermark.
        JobError: the job made no table.
    """
    check_columns(settings.table, settings.ranges, settings.keys, settings.sources)
    step = _begin(lake, settings, choose, rebuild=rebuild)
    try:
        yield step
        step.finish()
    except BaseException as e:
        try:
            step.fail(e)
        except LakeError as second:  # the first error counts; the note then says that the process is gone
            log.warning("%s: the note of its step stays: %s", settings.table, second)
        raise
    finally:
        step.close()


def _begin(lake: LakeBase, settings: StepSettings, choose: Choose | None, *, rebuild: bool) -> CapturedStep:
    sweep(lake)
    table, writes_target = settings.table, settings.writes == "table"
    if not writes_target:
        _ensure_holder(lake, settings)
    former, target = step_notes.find_note(lake, table), lake.find(table)
    settings.check_owner(target)
    again, resumed = step_notes.settled(former, target, "rerun" if rebuild else settings.on_unknown)
    before = again.without_before.text if again else ""
    if rebuild and again:
        again, resumed = None, "everything is computed again, whatever the interrupted step before has written"
    tables = {s: lake.table(s) for s in settings.sources}
    if rebuild:
        windows = {s: Window(s, None, head_of(t)) for s, t in tables.items()}
    else:
        windows = settings.windows(target, tables, again)
        windows = choose(windows, tables) if choose and not again else windows
    base = known_marks(target)
    note = StepNote(
        str(table),
        {str(s): WindowNote(w.head.uuid, w.start, w.head.snapshot) for s, w in windows.items()},
        target.metadata.current_snapshot_id if target is not None else None,
        writes_target,
        hours=(settings.lifetime or timedelta(hours=step_notes.HOURS)).total_seconds() / 3600,
        before=before,
    )
    note = replace(note, id=again.id) if again else note
    step_notes.claim(lake, note, former)
    # A whole step may have run since the target was loaded.
    if known_marks(lake.find(table)) != base:
        step_notes.withdraw(lake, note)
        raise ConcurrentWriteError(
            f"{table}: another step absorbed the same windows at the same time. Run again: the next step takes what is "
            "pending then"
        )
    for source, window in windows.items():
        if not window.is_empty and window.head.snapshot is not None:
            # While the job runs, a source may be compacted, and its older snapshots expired.
            days = source_tags.days_until(note.hours * 3600)
            source_tags.keep(lake, tables[source], {_end_tag(table): window.head.snapshot}, days)
    return CapturedStep(lake, settings, windows, base, note, resumed)


def _end_tag(table: TableId) -> str:
    """Name of the tag on the end of a window, until the consumer's own tag is moved there."""
    return f"{source_tags.PREFIX}{consumer_name(table)}.step"


def _ensure_holder(lake: LakeBase, settings: StepSettings) -> None:
    """Make the table that holds the watermark of a job that writes elsewhere."""
    if not lake.exists(settings.table):
        lake.ensure_namespace(settings.table.namespace)
        doc = "this table has no rows: its snapshots say what a job that writes elsewhere has absorbed"
        schema = Schema(NestedField(1, "watermark", StringType(), required=False, doc=doc))
        lake.catalog.create_table_if_not_exists(
            settings.table.parts,
            schema,
            location=lake.location_of(settings.table),
            properties={PIPELINE_PROPERTY: settings.owner},
        )
