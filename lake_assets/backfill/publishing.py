"""Publish the working copies of a backfill in one commit, find out whether a killed process did, and clean up."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.backfill import cleanup
from lake_assets.backfill.after_publication import follow_up
from lake_assets.backfill.backfill_record import BackfillRecord, Records, State, TableRecord
from lake_assets.backfill.side_lake import BACKFILL_PROPERTY, SideLake
from lake_assets.capture import source_tags
from lake_assets.errors import (
    BackfillError,
    ConcurrentWriteError,
    DefinitionChangedError,
    LakeError,
    StaleBackfillError,
)
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.file_deletion import delete_file
from lake_assets.lake.metadata.metadata_commits import (
    Metadata,
    PartlyCommittedError,
    TableChange,
    changes_together,
    commit_together,
    now_ms,
    read_metadata,
    read_metadata_at,
)
from lake_assets.lake.metadata.metadata_versions import version_of, versions
from lake_assets.lake.metadata.row_counts import keeps_rows, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors, between
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import Watermark, back_to_watermark, read_marks
from lake_assets.lake.metadata.working_copies import grafted, is_redefined
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.redo import RECOMPUTED_PROPERTY
from lake_assets.pipeline.table_graph import Spec
from lake_assets.runtime.processes import owner
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY, FINGERPRINT_PROPERTY, KEY_PROPERTY

log = logging.getLogger(__name__)
# How long main keeps the snapshots that a working copy starts from.
BUILDING_DAYS = 30
# Properties of a table that say what its rows were computed from.
_DECLARED = (FINGERPRINT_PROPERTY, DECLARATION_PROPERTY, KEY_PROPERTY)


def publish(lake: Lake, side: SideLake, records: Records, record: BackfillRecord) -> BackfillRecord:
    """Move main of all tables to their working copies, in one commit if the catalog can; return the new record.

    Where the catalog changes one table at a time, the record is the journal: called again, this publishes what is left.

    Raises:
        ConcurrentWriteError: main has absorbed more than the copies; catch up and try again.
        StaleBackfillError: a table was changed on main other than by micro-batches, and none is published.
    """
    done = published(lake, record)
    grafts = [_Graft(lake, side, record, t) for t in record.tables if t.name not in done]
    if not any(g.is_changed for g in grafts) and not record.undoes and not done:
        # The same rows: tables downstream need not read anything again.
        record = replace(record, state="published", published=time.time())
        records.save(record)
        return record
    left: list[_Graft] = []
    changes: list[TableChange] = []
    for graft in grafts:
        try:
            graft.check()
            changes.append(TableChange(graft.table, graft.metadata()))
            left.append(graft)
        except StaleBackfillError as e:
            if not done:
                raise
            # Other tables cannot wait for it. It follows them as it follows any change of its sources.
            record = replace(record, error=str(e)).with_table(replace(graft.record, before=None, after=None))
    _keep_for_undo(lake, record, left, changes)
    for g in left:
        after = g.copy.metadata.current_snapshot_id
        record = record.with_table(replace(g.record, before=g.head, after=after, redefined=g.is_redefined))
    way = "in one commit" if changes_together(lake.catalog) else "one table after the other"
    record = replace(record, state="publishing", way=way)
    records.save(record)
    try:
        if changes:
            commit_together(changes)
    except CommitFailedException as e:
        if not done and not isinstance(e, PartlyCommittedError):
            records.save(settle(lake, side, records, record))
        raise ConcurrentWriteError(str(e)) from e
    record = replace(record, state="published", published=time.time())
    records.save(record)
    return record


def check_starts(lake: Lake, record: BackfillRecord) -> None:
    """Raise StaleBackfillError if snapshots that the working copies started from have expired on main."""
    for t in record.tables:
        if t.start is not None and t.metadata and record.tag not in lake.table(t.table).metadata.refs:
            raise StaleBackfillError(
                f"{t.table} no longer keeps the snapshot that the backfill {record.id} started from, which is kept "
                f"for {BUILDING_DAYS} days, or until the table is replaced. Discard the backfill (`lake-assets "
                f"discard {record.id}`) and begin again"
            )


def check_reviewed(side: SideLake, record: BackfillRecord, specs: Iterable[Spec]) -> None:
    """Raise DefinitionChangedError if tables are declared otherwise than when somebody was asked to review them."""
    if record.publish != "manual" or record.state != "ready":
        return
    if changed := [str(s.table) for s in specs if after_redeclaration(side.lake, s)]:
        raise DefinitionChangedError(
            f"the declaration of {', '.join(changed)} has changed since the backfill {record.id} was built, so nobody "
            f"has reviewed what it would publish. `lake-assets resume {record.id}` builds it by the present "
            f"declaration, for another review. Or restore the former one, or discard the backfill (`lake-assets "
            f"discard {record.id}`)"
        )


class _Graft:
    """One table of a backfill on main, and its working copy."""

    def __init__(self, lake: Lake, side: SideLake, backfill: BackfillRecord, record: TableRecord) -> None:
        self._lake, self._backfill, self.record = lake, backfill, record
        self.table, self.copy = lake.table(record.table), side.lake.table(record.table)
        self.head = self.table.metadata.current_snapshot_id
        self._start = read_metadata_at(self.copy.io, record.metadata)
        self.is_redefined = is_redefined(read_metadata(self.copy), self._start, _DECLARED)

    @property
    def is_changed(self) -> bool:
        """Whether redoing the table changed, or may have changed, a row or its declaration."""
        record = self.record
        return bool(record.inserted + record.updated + record.deleted) or record.is_repeated or self.is_redefined

    def metadata(self) -> Metadata:
        """Return the table's next metadata.

        Raises:
            StaleBackfillError: see `grafted`.
        """
        try:
            return grafted(read_metadata(self.table), read_metadata(self.copy), self._start, now_ms())
        except StaleBackfillError as e:
            raise self._stale(str(e)) from e

    def check(self) -> None:
        """Check that the copy has everything that the table has.

        Raises:
            ConcurrentWriteError: the table has absorbed more.
            StaleBackfillError: the table was changed other than by micro-batches.
        """
        if self.table.metadata.table_uuid != self.copy.metadata.table_uuid:
            raise self._stale("it was dropped and created again")
        log, undone = between(self.table.metadata, self._base, self.head), self._undone
        if self._base is not None and not log.is_forward:
            is_lost = log.ancestor is None and log.steps and log.steps[0].parent_snapshot_id is not None
            lost = "the snapshots that would tell who wrote to it have expired"
            raise self._stale(lost if is_lost else "it was rolled back, or computed again as a whole")
        for snapshot in log.steps:
            properties = summary_of(snapshot)
            if properties.get(BACKFILL_PROPERTY) not in (None, *undone):
                raise self._stale(f"the backfill {properties[BACKFILL_PROPERTY]} was published")
            if RECOMPUTED_PROPERTY in properties:
                raise self._stale("partitions of it were recomputed")
            if WATERMARK not in properties and not keeps_rows(snapshot):
                raise self._stale("another program wrote to it")
        own = {t.table for t in self._backfill.tables}
        marks, copied = read_marks(self.table), read_marks(self.copy)
        # Another query may read fewer sources: what main absorbs of the others is none of the copy's.
        read = copied if self.is_redefined else marks
        for source, mark in marks.items():
            if source in read and source not in own and not self._has(source, copied.get(source), mark):
                raise ConcurrentWriteError(f"{self.record.table} has absorbed more of {source} than its working copy")

    @property
    def _base(self) -> int | None:
        """The snapshot of main since which only micro-batches may have changed the table."""
        if not self._backfill.undoes:
            return self.record.start
        return Records(self._lake).get(self._backfill.undoes).of(self.record.table).after

    @property
    def _undone(self) -> set[str]:
        """The backfills whose commits make no difference: they are taken back, or take another one back."""
        past = {r.id: r for r in Records(self._lake).all()}
        undone = {r.undoes: r.id for r in past.values() if r.undoes and r.state == "published"}
        return {*undone, *undone.values(), self._backfill.undoes}

    def _has(self, source: str, copied: Watermark | None, mark: Watermark) -> bool:
        """Whether the copy has absorbed at least as much of a source as the table."""
        if copied == mark or copied is None:
            return copied == mark
        loaded = self._lake.find(source)
        if loaded is None:
            return False
        if copied.snapshot == loaded.metadata.current_snapshot_id:
            return copied.uuid == str(loaded.metadata.table_uuid)
        return copied.snapshot is not None and mark.snapshot in {
            s.snapshot_id for s in ancestors(loaded, copied.snapshot)
        }

    def _stale(self, why: str) -> StaleBackfillError:
        backfill, undone = self._backfill.id, self._backfill.undoes
        since = f"{undone} was published" if undone else f"{backfill} began"
        then = f": {undone} can no longer be undone" if undone else " and begin again"
        return StaleBackfillError(
            f"{self.record.table} has changed since the backfill {since}: {why}. Discard "
            f"{backfill if undone else 'it'} (`lake-assets discard {backfill}`){then}"
        )


def _keep_for_undo(
    lake: Lake, record: BackfillRecord, grafts: Sequence[_Graft], changes: Sequence[TableChange]
) -> None:
    """Keep, for some days, the snapshots from which the tables would continue if the backfill were undone."""
    by_name = {g.record.table: change for g, change in zip(grafts, changes, strict=True)}
    for graft in grafts:
        metadata = by_name[graft.record.table].metadata
        if graft.head is not None:
            _add_tag(metadata, record.tag, graft.head, record.keep_days)
        for n, snapshot in enumerate(back_to_watermark(graft.table)):
            _add_tag(metadata, f"{record.tag}.{n}", snapshot, record.keep_days)
        for source, mark in read_marks(graft.table).items():
            loaded = lake.find(source)
            if mark.snapshot is None or loaded is None:
                continue
            name = record.source_tag(loaded, graft.record.name)
            if source in by_name:
                _add_tag(by_name[source].metadata, name, mark.snapshot, record.keep_days)
            else:
                # If it has expired, undoing rebuilds the table.
                source_tags.keep(lake, loaded, {name: mark.snapshot}, record.keep_days)


def _add_tag(metadata: Metadata, name: str, snapshot: int, days: int) -> None:
    """Add a tag to metadata that is about to be committed, unless the snapshot has expired."""
    metadata["refs"] = refs.with_tag(metadata, name, snapshot, days)["refs"]


def settled(lake: Lake, record: BackfillRecord) -> BackfillRecord:
    """Return a record after finding out, if its process was killed while it published, whether it did.

    Of one that was killed after that, what was left to do is done: the one that it takes back is marked, and its
    working copies are removed.
    """
    records, is_elsewhere = Records(lake), record.is_running and record.process != owner()
    if record.state in ("published", "undone") and not record.is_clean and not is_elsewhere:
        if record.state == "published":
            mark_undone(records, record)
        return cleaned(lake, SideLake(lake, record), records, record)
    if record.state != "publishing":
        return record
    with records.exclusive():
        record = records.get(record.id)
        if record.state != "publishing" or (record.is_running and record.process != owner()):
            return record
        return settle(lake, SideLake(lake, record), records, record)


def settle_all(lake: Lake) -> None:
    """Settle all backfills whose process was killed while it published; errors are logged."""
    try:
        for record in Records(lake).all():
            settled(lake, record)
    except LakeError as e:  # of one backfill: nothing else may wait for it
        log.warning("an interrupted backfill is not settled for now: %s", e)


def settle(lake: Lake, side: SideLake, records: Records, record: BackfillRecord) -> BackfillRecord:
    """Find out from the tables whether a backfill was published, and finish it; else remove what it had prepared.

    Where the catalog changes one table at a time, what is left of a begun publication is published, unless main has
    absorbed more meanwhile: then the state stays `publishing`, until somebody continues the backfill.
    """
    if done := published(lake, record):
        if len(done) == len(record.tables) or changes_together(lake.catalog):
            record = replace(record, state="published", published=record.published or time.time(), process="")
            records.save(record)
        else:
            try:
                record = publish(lake, side, records, record)
            except ConcurrentWriteError as e:
                log.warning("%s is published in part, `lake-assets publish` continues: %s", record.id, e)
                return record
        mark_undone(records, record)
        return cleaned(lake, side, records, record)
    tables = [(t, lake.table(t.table)) for t in record.tables]
    # A server writes metadata files only for commits that happen.
    for t, table in tables if isinstance(lake.catalog, CachingSqlCatalog) else ():
        current = version_of(table.metadata_location)
        for version in versions(table.io, table.metadata_location):
            # Written for a commit that did not happen. `repair` would take it for a newer version of the table.
            if version.number > current and _is_graft(record, t, read_metadata_at(table.io, version.location)):
                delete_file(table.io, version.location)
    record = replace(record, state="ready", tables=tuple(replace(t, after=None) for t, _ in tables), process="")
    records.save(record)
    return record


def cleaned(lake: Lake, side: SideLake, records: Records, record: BackfillRecord) -> BackfillRecord:
    """Remove the working copies of a backfill that has ended, and return its record, which says so. Can be repeated."""
    if record.state == "published":
        follow_up(lake, record)
    cleanup.clean_up(lake, side, record)
    record = records.get(record.id)  # it may have been undone meanwhile
    state: State = "discarded" if record.state == "discarding" else record.state
    record = replace(record, state=state, process="", is_clean=True)
    records.save(record)
    return record


def published(lake: Lake, record: BackfillRecord) -> set[TableId]:
    """Return the tables whose main has the commits of a backfill; none unless it is being published."""
    if record.state != "publishing":
        return set()
    return {t.name for t in record.tables if _is_published(record, t, lake.table(t.table))}


def _is_published(record: BackfillRecord, t: TableRecord, table: Table) -> bool:
    ref = table.metadata.refs.get(record.tag)
    return _has_commit(t, {s.snapshot_id for s in table.metadata.snapshots}, ref.snapshot_id if ref else None)


def _has_commit(t: TableRecord, snapshots: Collection[int], tagged: int | None) -> bool:
    """Whether metadata of a table, with these snapshots, contain the commit of a backfill.

    Until the commit moves it, the backfill's tag is at the start of the copy.
    """
    if t.after is not None and t.after != t.start:
        return t.after in snapshots
    return t.before is not None and t.before != t.start and tagged == t.before


def _is_graft(record: BackfillRecord, t: TableRecord, metadata: Metadata) -> bool:
    """Whether a metadata file was written to publish a backfill, and not by a micro-batch that is about to commit."""
    tagged = metadata.get("refs", {}).get(record.tag, {}).get("snapshot-id")
    return _has_commit(t, {s["snapshot-id"] for s in metadata.get("snapshots", ())}, tagged)


def mark_undone(records: Records, record: BackfillRecord) -> None:
    """Mark the backfill that a published one takes back as undone; what that one took back is in effect again."""
    state: State = "undone"
    while record.undoes:
        record = replace(records.get(record.undoes), state=state)
        records.save(record)
        state = "published" if state == "undone" else "undone"


def check_undoable(
    lake: LakeBase, past: BackfillRecord, others: Sequence[BackfillRecord], specs: Iterable[Spec]
) -> None:
    """Raise BackfillError if a published backfill cannot be taken back; `specs` are the declared tables."""
    tables = {t.table for t in past.tables}
    later = [r for r in others if r.state == "published" and r.published > past.published]
    # One that takes a later one back leaves the tables as they were.
    ids = {r.id for r in others if r.published > past.published}
    later = [r for r in later if r.undoes not in ids and not r.changed_nothing]
    if built := [r.id for r in later if tables.intersection(t.table for t in r.tables)]:
        raise BackfillError(
            f"the backfill {past.id} cannot be undone: {', '.join(built)} redid some of its tables later. Undo "
            f"{built[-1]} first (`lake-assets undo {built[-1]}`)"
        )
    changed = {str(s.table) for s in specs if after_redeclaration(lake, s)}
    for t in past.tables:
        if t.after is None:
            continue
        if t.table in changed:
            raise BackfillError(
                f"the backfill {past.id} cannot be undone while {t.table} is declared otherwise than its rows were "
                "computed: its rows from before do not follow the new declaration. Declare it as before, then undo"
            )
        if t.redefined:
            raise BackfillError(
                f"the backfill {past.id} cannot be undone: the declaration of {t.table} changed with it, and its "
                "former rows do not follow the current one. Declare it as before, then run `lake-assets backfill "
                f"{t.table} --all`"
            )
        ref = lake.table(t.table).metadata.refs.get(past.tag)
        if ref is None or ref.snapshot_id != t.before:
            raise BackfillError(
                f"the backfill {past.id} cannot be undone: {t.table} no longer has its rows from before, which were "
                f"kept for {past.keep_days} days (--keep-days). Correct what made its rows wrong, and redo them: "
                f"`lake-assets backfill {t.table} --all`"
            )
