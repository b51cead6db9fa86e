"""Run a backfill: make working copies, redo their rows, catch up with main, publish, discard, undo.

The record is saved before and after each piece of work, so a backfill that was killed continues where it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self

from lake_assets.backfill import publishing
from lake_assets.backfill.backfill_plan import BackfillPlan
from lake_assets.backfill.backfill_record import (
    KEEP_DAYS,
    BackfillRecord,
    Publish,
    Records,
    TableRecord,
    joined,
)
from lake_assets.backfill.side_lake import SideLake
from lake_assets.capture import source_tags
from lake_assets.errors import BackfillError, ConcurrentWriteError, HistoryError
from lake_assets.facade import Lake
from lake_assets.journal.resource_use import ResourceUse, measured
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.working_copies import REVIEW_PROPERTY
from lake_assets.pipeline import Outcome, Pipeline, PipelineGroup, SnapshotPins
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.redo import redo
from lake_assets.pipeline.row_scope import EVERYTHING
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import Spec, also_read_by
from lake_assets.runtime.processes import owner
from lake_assets.tables.batch_limits import LEFT
from lake_assets.tables.writing.table_ddl import set_properties

log = logging.getLogger(__name__)
# How often publishing catches up before it gives way to micro-batches that keep coming.
_ROUNDS = 10
Progress = Callable[[BackfillRecord, TableRecord], None]


class Backfill:
    """One backfill of a lake.

    Attributes:
        record: what is known of it; replaced after each piece of work.
    """

    def __init__(self, lake: Lake, pipeline: Pipeline | PipelineGroup, record: BackfillRecord) -> None:
        self._lake, self._pipeline, self.record = lake, pipeline, record
        self._records = Records(lake)
        self._side = SideLake(lake, record)

    # --- beginning ----------------------------------------------------------------------------------------------------

    @classmethod
    def begin(
        cls,
        lake: Lake,
        pipeline: Pipeline | PipelineGroup,
        plan: BackfillPlan,
        *,
        publish: Publish = "auto",
        keep_days: int = KEEP_DAYS,
        run: str = "",
    ) -> Backfill:
        """Begin a planned backfill: claim its tables. Nothing is computed yet.

        It can be undone for `keep_days` after it is published. `run` is the run of an orchestrator that begins it.

        Raises:
            BackfillError: another backfill has one of the tables, or the catalog is not a SQL catalog.
        """
        record = BackfillRecord(
            Records(lake).new_id(), pipeline.name, plan.request, tuple(t.record for t in plan.tables),
            publish=publish, keep_days=keep_days,
            file=joined(pipeline.files), run=run, is_unseen=plan.is_preview, left_out=plan.left_out,
        )  # fmt: skip
        return cls(lake, pipeline, record).claimed()

    def claimed(self) -> Self:
        """Store the record, and return the backfill.

        Raises:
            BackfillError: another backfill has one of the tables.
        """
        self.record = self._records.create(self.record)
        return self

    @classmethod
    def load(cls, lake: Lake, pipeline: Pipeline | PipelineGroup, backfill: str, *, run: str = "") -> Backfill:
        """Load an open backfill to continue, publish or discard it, and take it over from a process that has ended.

        `run` is the run of an orchestrator that takes it over; default: it stays that of the other one.

        Raises:
            BackfillNotFoundError: there is no such backfill.
            BackfillError: it is finished, another process is at work on it, or it belongs to another pipeline.
        """
        publishing.settled(lake, Records(lake).get(backfill))
        records = Records(lake)
        with records.exclusive():
            record = records.get(backfill)
            if not record.is_open:
                raise BackfillError(f"the backfill {record.id} is {record.state}{_advice(records, record)}")
            if record.is_running and record.process != owner():
                raise BackfillError(
                    f"another process is at work on the backfill {record.id}: wait until it ends, or end it "
                    f"({record.process_text}). If its machine was restarted or no longer exists, empty `process` in "
                    f"{records.file_of(record.id)}"
                )
            if record.pipeline != pipeline.name:
                raise BackfillError(
                    f"the backfill {record.id} is of pipeline {record.pipeline!r}, not {pipeline.name!r}: name the "
                    "file of its own with --pipeline. If that was renamed, let it have its former name until the "
                    "backfill is published or discarded"
                )
            loaded = cls(lake, pipeline, record)
            # Whoever takes it over decides what becomes of it.
            loaded._save(replace(record, process=owner(), run=run or record.run, is_unseen=False))
        return loaded

    # --- building -----------------------------------------------------------------------------------------------------

    def build(self, on_progress: Progress = lambda record, table: None) -> None:
        """Do all pieces of work that are left, and report each of them.

        Raises:
            AuditFailedError: rows do not pass the audits of their table. Nothing is published; after a correction the
                backfill can be continued.
            LakeError: see the steps.
        """
        self._check_not_discarded()
        if self.record.state == "publishing":  # one table after the other, and some are published
            return
        try:
            self._save(replace(self.record, state="building", error="", process=owner()))
            self._prepare()
            pins = SnapshotPins.for_run(self._specs)
            if not any(t.done for t in self.record.tables):
                # What is pending anyway is no difference; what another declaration makes of a table is one.
                follow = [s for s in self._specs if self.record.of(s.table).redo != "everything"]
                self._follow([s for s in follow if not after_redeclaration(self._side.lake, s)])
            for spec in self._specs:
                while not (at := self.record.of(spec.table)).is_done:
                    at = replace(at, begun=at.done + 1, is_repeated=at.is_repeated or at.begun > at.done)
                    self._save(self.record.with_table(at))
                    use = ResourceUse(time.time())
                    with measured(self._side.lake, use):
                        outcome = self._redo(spec, at, pins)
                    self._save(self.record.with_table(at.with_work(outcome, use.cpu_seconds)))
                    on_progress(self.record, self.record.of(spec.table))
            if self.record.publish == "manual":
                self._catch_up()
            # Until it waits for a decision, it is this process's: nobody else may settle or discard it.
            waits = self.record.publish == "manual" and not self.record.is_unseen
            self._save(replace(self.record, state="ready", process="" if waits else owner()))
        except BaseException as e:
            state = "failed" if isinstance(e, Exception) else "building"
            self._save(replace(self.record, state=state, error=f"{type(e).__name__}: {e}", process=""))
            raise

    def _check_not_discarded(self) -> None:
        if self.record.state == "discarding":
            raise BackfillError(
                f"the backfill {self.record.id} was being discarded: `lake-assets discard {self.record.id}` completes "
                "that"
            )

    def _prepare(self) -> None:
        """Make the working copies, unless they exist; a process that was killed while it made them begins again."""
        for spec in self._specs:
            # From here on, no other run brings the new declaration to readers.
            if after_redeclaration(self._lake, spec):
                set_properties(self._lake, spec.table, {REVIEW_PROPERTY: self.record.id})
        if all(t.metadata for t in self.record.tables):
            publishing.check_starts(self._lake, self.record)
            # What was corrected in the sources, since audits failed, has to be seen.
            self._pin_sources()
            return
        tables = []
        for record in self.record.tables:
            table = self._lake.table(record.table)
            start = record.start if record.redo == "before" else table.metadata.current_snapshot_id
            if start is not None:
                # Until it is published, the copy needs the files of its first snapshot.
                refs.set_tag(table, self.record.tag, start, publishing.BUILDING_DAYS)
            tables.append((self._lake.table(record.table), start))
        paths = self._side.copy_tables(tables)
        starts = {TableId.parse(table.name()): start for table, start in tables}
        done = [
            replace(t, start=starts[TableId.parse(t.table)], metadata=paths[TableId.parse(t.table)])
            for t in self.record.tables
        ]
        self.record = replace(self.record, tables=tuple(done))
        # After the copies: they tell what they have absorbed, and main may have absorbed more by now.
        self._pin_sources()
        self._save(self.record)

    def _redo(self, spec: Spec, at: TableRecord, pins: SnapshotPins) -> Outcome:
        lake, chunk = self._side.lake, at.chunks[at.done]
        if at.redo == "everything":
            return redo(lake, spec, pins=pins, is_aside=True)
        followed = self._absorb_all(spec, pins)
        if at.redo != "rows":
            return followed
        redone = redo(lake, spec, chunk)
        if followed.changed and not redone.changed:
            redone = replace(redone, why=f"{followed.why}; {redone.why}")
        return _together(followed, redone)

    def _absorb_all(self, spec: Spec, pins: SnapshotPins) -> Outcome:
        """Absorb everything that is pending for a table's copy, in batches; return all of it as one outcome."""
        total: Outcome | None = None
        while True:
            try:
                outcome = absorb(self._side.lake, spec, pins, is_aside=True)
            except HistoryError as e:
                discard = f"lake-assets discard {self.record.id}"
                raise type(e)(f"{e}. The backfill {self.record.id} cannot go on: discard it first (`{discard}`)") from e
            total = outcome if total is None else _together(total, outcome)
            if outcome.status != "absorbed" or LEFT not in outcome.details:
                return total

    def _catch_up(self) -> None:
        """Absorb what has arrived in the sources on main since the copies were made, or caught up last."""
        # A table that is published is a source like others.
        published = publishing.published(self._lake, self.record)
        self._pin_sources(published)
        self._follow([s for s in self._specs if s.table not in published])

    def _follow(self, specs: Sequence[Spec]) -> None:
        """Absorb everything that is pending for the copies of some tables."""
        pins = SnapshotPins.for_run(specs)
        for spec in specs:
            if self._absorb_all(spec, pins).status == "absorbed" and not self.record.has_news:
                self._save(replace(self.record, has_news=True))

    def _pin_sources(self, published: Iterable[TableId] = ()) -> None:
        """Let the copies read all other tables as they are on main now."""
        sources = [t for name in (*self._sources, *published) if (t := self._lake.find(name)) is not None]
        first = self._lake.table(self.record.tables[0].table)
        self._side.pin_sources(sources, f"{self._side.folder(first)}/sources")
        for table in sources:
            tags = self._side.absorbed(self.record, table)
            if (at := table.metadata.current_snapshot_id) is not None:
                tags[self.record.source_tag(table)] = at
            source_tags.keep(self._lake, table, tags, publishing.BUILDING_DAYS)

    @cached_property
    def _specs(self) -> list[Spec]:
        """The declared tables of the backfill, upstream first."""
        declared = {str(s.table): s for s in self._pipeline.specs(self._lake, alone=False)}
        if missing := [t.table for t in self.record.tables if t.table not in declared]:
            raise BackfillError(
                f"the pipeline {self._pipeline.name!r} no longer declares {', '.join(missing)}: discard the backfill "
                f"(`lake-assets discard {self.record.id}`)"
            )
        return [declared[t.table] for t in self.record.tables]

    @cached_property
    def _sources(self) -> list[TableId]:
        """The tables that the steps read and the backfill does not redo."""
        own = {s.table for s in self._specs}
        read = (t for s in self._specs for t in (*s.sources, *also_read_by(s)))
        return [t for t in dict.fromkeys(read) if t not in own]

    # --- ending -------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Catch up with main, and publish all tables in one commit.

        Raises:
            BackfillError: it is not built, or micro-batches were faster each time.
            StaleBackfillError: a table was changed on main other than by micro-batches.
            DefinitionChangedError: nobody has reviewed the present declaration of a table.
        """
        self._check_not_discarded()
        if self.record.state not in ("ready", "publishing"):
            raise BackfillError(
                f"the backfill {self.record.id} is {self.record.state}: `lake-assets resume {self.record.id}` builds it"
            )
        self._save(replace(self.record, process=owner()))
        try:
            self._publish()
        finally:
            # An interrupt in the commit leaves `publishing`, which only the tables can settle.
            stored = self._records.get(self.record.id)
            if stored.state == "ready":
                self._save(replace(stored, process=""))

    def _publish(self) -> None:
        publishing.check_starts(self._lake, self.record)
        publishing.check_reviewed(self._side, self.record, self._specs)
        for _ in range(_ROUNDS):
            self._catch_up()
            try:
                self.record = publishing.publish(self._lake, self._side, self._records, self.record)
            except ConcurrentWriteError as e:
                log.info("the backfill %s catches up again: %s", self.record.id, e)
                # It says which tables are published, where the catalog changes one at a time.
                self._save(replace(self._records.get(self.record.id), process=owner()))
                continue
            self._finish()
            return
        raise BackfillError(
            f"the backfill {self.record.id} was not published, because micro-batches changed its tables {_ROUNDS} "
            f"times meanwhile. Run `lake-assets publish {self.record.id}` when fewer micro-batches run"
        )

    def discard(self) -> None:
        """Drop the working copies and delete their files. Main is unchanged.

        Raises:
            BackfillError: some of its tables are published already.
        """
        if self.record.state == "publishing":
            raise BackfillError(
                f"the backfill {self.record.id} is published in part: `lake-assets publish {self.record.id}` "
                f"publishes the other tables. `lake-assets undo {self.record.id}` can then undo all of them"
            )
        # A discard that is killed has deleted files: from here on it can only be discarded.
        self._save(replace(self.record, state="discarding", process=owner()))
        self.record = publishing.cleaned(self._lake, self._side, self._records, self.record)

    def _finish(self) -> None:
        publishing.mark_undone(self._records, self.record)
        self.record = publishing.cleaned(self._lake, self._side, self._records, self.record)

    def _save(self, record: BackfillRecord) -> None:
        self._records.save(record)
        self.record = record


def undo(lake: Lake, pipeline: Pipeline | PipelineGroup, backfill: str) -> Backfill:
    """Begin a backfill that takes a published one back: copies start from before it and absorb what came since.

    Raises:
        BackfillError: it was not published, is too old, changed definitions, or a later one builds on it.
    """
    records = Records(lake)
    past = publishing.settled(lake, records.get(backfill))
    if past.state != "published":
        how = f". First {past.ways_to_end}" if past.is_open else _advice(records, past)
        raise BackfillError(f"only a published backfill can be undone, and {past.id} is {past.state}{how}")
    others = [publishing.settled(lake, r) for r in records.all()]
    publishing.check_undoable(lake, past, others, pipeline.specs(lake, alone=False))
    tables = [
        TableRecord(
            t.table,
            "before",
            (EVERYTHING,),
            start=t.before,
            why=f"starts from before {past.id}",
            inserted=t.deleted,
            updated=t.updated,
            deleted=t.inserted,
        )
        for t in past.tables
        if t.after is not None
    ]
    if not tables:
        raise BackfillError(f"the backfill {past.id} changed no row, so there is nothing to undo")
    record = BackfillRecord(
        records.new_id(), past.pipeline, f"undo {past.id}", tuple(tables), undoes=past.id, file=joined(pipeline.files)
    )
    return Backfill(lake, pipeline, record).claimed()


def _together(one: Outcome, other: Outcome) -> Outcome:
    if other.status != "absorbed":
        return one
    return replace(
        other,
        inserted=one.inserted + other.inserted,
        updated=one.updated + other.updated,
        deleted=one.deleted + other.deleted,
        seconds=one.seconds + other.seconds,
    )


def _advice(records: Records, record: BackfillRecord) -> str:
    """Return what can be done with a backfill that has ended, after its state."""
    if record.changed_nothing:
        return ", and no row differed"
    if record.state == "published":
        return f": {record.undo_text}"
    if later := records.undo_of(record.id):
        return f": `lake-assets undo {later.id}` brings it into effect again"
    return ": `lake-assets backfill` begins another one"
