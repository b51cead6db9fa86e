"""The claims of consumers: which of a table's snapshots they keep, whether they are dead, and when they lose them.

A consumer is dead if changes of the table have waited for it for longer than `dead_after`. It is told beforehand, and
its tag is removed no sooner than some days after that. A consumer that is slow, or has nothing to absorb, is not dead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.capture import source_tags
from lake_assets.capture.files.manifests import ManifestReader
from lake_assets.errors import InvalidNameError
from lake_assets.formats import SourceTable
from lake_assets.ingest.raw_tables import nothing_until
from lake_assets.ingest.staging.staging_columns import source_of
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.durations import in_words
from lake_assets.lake.metadata.clock_skew import TOLERANCE_MS
from lake_assets.lake.metadata.refs import BACKFILL_TAG
from lake_assets.lake.metadata.row_counts import is_upkeep, keeps_rows
from lake_assets.lake.metadata.snapshot_log import ancestors, between
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.models.python.python_model_spec import ignored_lookups
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.snapshot_retention import consumer_name
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.upkeep_records import ClaimNote, Look, TableRecord

log = logging.getLogger(__name__)
# A consumer of a name that is too odd for a tag.
_HASHED = "table-"
# Tags with a long life that are no consumer's.
_OTHER_TAGS = (BACKFILL_TAG, "capture.")


@dataclass(frozen=True)
class Claim:
    """A consumer that keeps a snapshot of a table although it is, or may be, dead. Times in seconds since 1970.

    Attributes:
        consumer: its name, as `Lake.consumers` lists it.
        table: the table.
        tag: the tag on the snapshot.
        snapshot: the snapshot that the tag keeps.
        absorbed: the snapshot that it has absorbed: a newer one if it was killed before it could move its tag.
        pipeline: the pipeline of the consumer; empty: it is of none, or is gone.
        is_gone: whether the consumer is a table that the lake no longer has.
        since: since when changes wait for it, as far as it is known; None: nothing waits.
        at: when it was looked at.
        warned: when people were first told that it loses its claim; None: not yet.
        loses_at: when it loses its claim, at the soonest; None: never, by `dead_after: null`, or nothing waits for it.
        is_warning: whether people are to be told.
        snapshots: how many snapshots stay for its sake alone.
        bytes: the size of the files in its snapshot that the table has replaced since.
    """

    consumer: str
    table: str
    tag: str
    snapshot: int
    absorbed: int
    pipeline: str
    is_gone: bool
    since: float | None
    at: float
    warned: float | None = None
    loses_at: float | None = None
    is_warning: bool = False
    snapshots: int = 0
    bytes: int = 0

    @property
    def is_over(self) -> bool:
        """Whether its tag is to be removed."""
        return self.warned is not None and self.loses_at is not None and self.loses_at <= self.at

    @property
    def waited(self) -> float:
        """For how many seconds changes have waited for it."""
        return 0.0 if self.since is None else max(0.0, self.at - self.since)

    @property
    def why(self) -> str:
        """Why it is, or is about to be, dead."""
        if self.is_gone:
            return f"{self.consumer}, which has absorbed {self.table}, does not exist any more"
        return f"changes of {self.table} have waited for {self.consumer} for {in_words(self.waited)}"

    @property
    def text(self) -> str:
        """What people are told."""
        if not self.is_warning:  # what it keeps is not looked up
            return f"{self.why}: it keeps the snapshot that it has absorbed{self.prospect}"
        number = f"{self.snapshots} snapshot{'' if self.snapshots == 1 else 's'}"
        return f"{self.why}: it keeps {number} and {self.bytes / 2**20:,.1f} MiB of replaced files{self.prospect}"

    @property
    def prospect(self) -> str:
        """Until when it keeps a snapshot, and what to do: the end of a sentence that says that it does."""
        name = self.tag.removeprefix(source_tags.PREFIX)
        remedy = f'`lake.consumers.remove("{self.table}", "{name}")` ends its claim now'
        if self.loses_at is None:
            return f". {remedy}"
        when = f"{datetime.fromtimestamp(self.loses_at, UTC):%Y-%m-%d %H:%M} UTC"
        if self.is_gone:
            return f", until it loses its claim at {when}. To keep the claim, create {self.consumer} again; {remedy}"
        then = f", after which {self.consumer} does what its `on_gap` says" if self.pipeline else ""
        return f", until it loses its claim at {when}{then}. To keep the claim, start {self.consumer} again; {remedy}"


def claims_of(
    lake: LakeBase,
    name: TableId,
    table: Table,
    policy: UpkeepPolicy,
    record: TableRecord,
    now: float,
    *,
    costs: bool = True,
) -> list[Claim]:
    """Return the consumers of a table that are dead, or about to be, or wait; from metadata alone.

    Args:
        table: the table, loaded.
        record: what is remembered of the table.
        costs: whether to find out what they keep, for which manifests are read.
    """
    if now * 1000 < _latest(table) - TOLERANCE_MS:
        return []  # a clock that was set back tells nothing about how long something has waited
    tags = [t for t in table.metadata.refs if source_tags.is_consumer(table, t) and _is_consumer(t)]
    hashed = _hashed(lake) if any(t.startswith(source_tags.PREFIX + _HASHED) for t in tags) else {}
    found = (_claim(lake, name, table, tag, hashed, record, now) for tag in tags)
    if policy.only_claims_of:
        found = (c for c in found if c is not None and (c.is_gone or c.pipeline in policy.only_claims_of))
    return [dated(_with_cost(table, c, policy, now) if costs else c, policy) for c in found if c is not None]


def warning_age(policy: UpkeepPolicy) -> float | None:
    """Return how long changes wait for a consumer, in seconds, before people are told; None: for ever."""
    return None if policy.dead_after is None else policy.dead_after / 2


def dated(claim: Claim, policy: UpkeepPolicy) -> Claim:
    """Return a claim with the time at which it is lost, and whether people are told so by now."""
    if policy.dead_after is None:
        return replace(claim, is_warning=claim.is_gone)
    notice = min(thresholds.CLAIM_NOTICE_SECONDS, policy.dead_after / 2)
    # A time of warning in the future is that of another clock.
    warned = claim.warned if claim.warned is not None and claim.warned <= claim.at else None
    told = (claim.at if warned is None else warned) + notice
    if claim.is_gone:
        return replace(claim, warned=warned, loses_at=told, is_warning=True)
    if claim.since is None:
        return replace(claim, warned=None)
    is_warning = claim.at >= claim.since + policy.dead_after / 2
    loses_at = max(claim.since + policy.dead_after, told if is_warning else 0.0)
    return replace(claim, warned=warned, loses_at=loses_at, is_warning=is_warning)


def _is_consumer(tag: str) -> bool:
    return not tag.removeprefix(source_tags.PREFIX).startswith(_OTHER_TAGS)


def _hashed(lake: LakeBase) -> dict[str, TableId]:
    """Return the tables whose names no tag can have, by the names of their tags."""
    named = ((consumer_name(t), t) for t in lake.all_tables())
    return {consumer: t for consumer, t in named if consumer.startswith(_HASHED)}


def _claim(
    lake: LakeBase,
    name: TableId,
    table: Table,
    tag: str,
    hashed: Mapping[str, TableId],
    record: TableRecord,
    now: float,
) -> Claim | None:
    """Return the claim of a consumer; None if nothing can be said against it."""
    consumer = tag.removeprefix(source_tags.PREFIX)
    at = kept = table.metadata.refs[tag].snapshot_id
    target = _target(consumer, hashed)
    try:
        loaded = lake.find(target) if target is not None else None
        is_gone = loaded is None and _was_table(lake, consumer, target)
    except Exception as e:  # broken metadata make PyIceberg raise many: the table exists
        log.info("%s: whether %s is dead is not known: %s", name, consumer, lake.config.hidden(str(e)))
        return None
    if loaded is not None:
        if str(name) in ignored_lookups(loaded.properties.get(FINGERPRINT_PROPERTY, "")):
            return None  # changes of it never wait: they are read with those of other tables
        mark = known_marks(loaded).get(str(name))
        if mark is not None and mark.uuid == str(table.metadata.table_uuid) and mark.snapshot is not None:
            at = mark.snapshot  # its tag may lag behind
        if (about := source_of(loaded)) is not None:
            # Of a raw table, records of other source tables do not wait for it.
            at = nothing_until(table, at, table.metadata.current_snapshot_id, SourceTable.parse(about)) or at
    note, since = record.claims.get(tag), waiting_since(table, at, record.look)
    if note is None or note.snapshot != at or note.lost is not None:
        note = None
    elif at != table.metadata.current_snapshot_id:
        # What came later is not older, and snapshots that told of older changes may have expired meanwhile.
        since = note.since
    if since is not None and since > now:
        since = None
    warned = note.warned if note is not None and note.is_gone == is_gone else None
    pipeline = "" if loaded is None else loaded.properties.get(PIPELINE_PROPERTY, "")
    shown = consumer if target is None else str(target)
    return Claim(shown, str(name), tag, kept, at, pipeline, is_gone, since, now, warned)


def _target(consumer: str, hashed: Mapping[str, TableId]) -> TableId | None:
    """Return the table that is a consumer; None if its name is not that of a table."""
    if consumer.startswith(_HASHED):
        return hashed.get(consumer)
    try:
        target = TableId.parse(consumer)
    except InvalidNameError:
        return None
    return target if target.namespace else None


def _was_table(lake: LakeBase, consumer: str, target: TableId | None) -> bool:
    """Whether a consumer that is no table was one: programs may register under any name."""
    if target is None:
        return consumer.startswith(_HASHED)
    return target.namespace in lake.namespaces()


def _brings_nothing(snapshot: Snapshot) -> bool:
    """Whether nothing of a commit waits for a consumer: it changed no row, or removed rows that nobody needs."""
    return keeps_rows(snapshot) or is_upkeep(snapshot)


def _latest(table: Table) -> int:
    """Return the latest time that a table's metadata name, in milliseconds since 1970."""
    metadata = table.metadata
    logs = (metadata.snapshots, metadata.snapshot_log, metadata.metadata_log)
    return max([metadata.last_updated_ms, *(entry.timestamp_ms for entries in logs for entry in entries)])


def waiting_since(table: Table, snapshot: int, look: Look | None = None) -> float | None:
    """Return when the oldest change after a snapshot was made, in seconds since 1970; None if none waits.

    Changes whose snapshots have expired are unknown.

    Args:
        look: an earlier look at the table: what it did not see came later, whatever the clock of its writer said.
    """
    head = table.metadata.current_snapshot_id
    if head is None or head == snapshot:
        return None
    start = table.snapshot_by_id(snapshot)
    log_of = between(table.metadata, snapshot, head)
    oldest = 0 if start is None else start.timestamp_ms
    number = 0 if start is None else start.sequence_number or 0
    changes = [s for s in log_of.steps if not _brings_nothing(s)]
    if log_of.ancestor is None:
        # Some snapshots in between have expired, and others may be older than the one that was absorbed.
        changes = [s for s in changes if (s.sequence_number or number + 1) > number]
    times = [s.timestamp_ms for s in changes]
    if log_of.ancestor is not None and any(not _brings_nothing(s) for s in log_of.undone):
        # A rollback: it was after all that it undid.
        entries = [e.timestamp_ms for e in table.metadata.snapshot_log if e.timestamp_ms >= oldest]
        times = [at for at in times if at >= oldest] or entries[-1:]
    if not times:
        return None
    # What was made after the snapshot is not older.
    since = max(min(times), oldest) / 1000
    seen = table.snapshot_by_id(look.snapshot) if look is not None and look.snapshot is not None else None
    was_seen = seen is not None and any((s.sequence_number or 0) <= (seen.sequence_number or 0) for s in changes)
    return since if look is None or seen is None or was_seen else max(since, look.at)


def _with_cost(table: Table, claim: Claim, policy: UpkeepPolicy, now: float) -> Claim:
    """Return a claim with what it costs; unknown, that is 0, while it is harmless."""
    age = warning_age(policy)
    quiet = claim.since is None or age is None or now - claim.since < age
    if quiet and not claim.is_gone:
        return claim
    return replace(claim, snapshots=_kept_alone(table, claim, policy, now), bytes=replaced_bytes(table, claim.snapshot))


def _kept_alone(table: Table, claim: Claim, policy: UpkeepPolicy, now: float) -> int:
    """Return the number of snapshots that stay for the claim alone."""
    snapshot = table.snapshot_by_id(claim.snapshot)
    newest = [s.snapshot_id for s, _ in zip(ancestors(table), range(thresholds.SNAPSHOTS_KEPT), strict=False)]
    others = [ref.snapshot_id for tag, ref in table.metadata.refs.items() if tag != claim.tag]
    is_young = snapshot is None or now - snapshot.timestamp_ms / 1000 < policy.keep
    return 0 if is_young or claim.snapshot in (*newest, *others) else 1


def replaced_bytes(table: Table, snapshot: int) -> int:
    """Return the size of a snapshot's files that the current snapshot no longer has."""
    old, new = table.snapshot_by_id(snapshot), table.current_snapshot()
    if old is None or new is None:
        return 0
    reader = ManifestReader(table.io)
    before, after = reader.manifest_list(old.manifest_list)[0], reader.manifest_list(new.manifest_list)[0]
    gone, come = reader.different([m for m in before if m not in after], [m for m in after if m not in before], ())
    paths = {e.path for e in come}
    return sum(e.bytes for e in gone if e.path not in paths)


def has_claims(table: Table) -> bool:
    """Whether a table has consumers; from its loaded metadata alone."""
    return any(tag.startswith(source_tags.PREFIX) and _is_consumer(tag) for tag in table.metadata.refs)


def noted(lake: LakeBase, name: TableId, claims: Sequence[Claim], now: float) -> None:
    """Remember since when changes wait for consumers: the snapshots that tell may expire."""

    def changed(notes: Mapping[str, ClaimNote]) -> dict[str, ClaimNote]:
        kept = dict(notes)
        for c in claims:
            note = kept.get(c.tag)
            is_same = note is not None and note.snapshot == c.absorbed and note.lost is None
            if c.since is not None and not (is_same and note is not None and note.since <= c.since):
                kept[c.tag] = replace(note, since=c.since) if is_same and note else ClaimNote(c.absorbed, c.since)
            elif c.since is None and is_same and not c.is_gone:
                del kept[c.tag]
        return kept

    upkeep_records.note_claims(lake, name, changed, now)


def carry_out(lake: LakeBase, name: TableId, claims: Sequence[Claim], now: float) -> int:
    """Remove the tags that are over, and remember who was told, and who has lost a claim; return how many have."""
    over = {c.tag: c.snapshot for c in claims if c.is_over}
    removed = source_tags.drop_tags_at(lake, lake.table(name), over) if over else ()

    def changed(notes: Mapping[str, ClaimNote]) -> dict[str, ClaimNote]:
        kept = dict(notes)
        for c in claims:
            note = kept.get(c.tag)
            if note is None or note.snapshot != c.absorbed:
                note = ClaimNote(c.absorbed, now if c.since is None else c.since)
            warned = now if c.warned is None else c.warned
            lost = now if c.tag in removed else None
            kept[c.tag] = replace(note, warned=warned, lost=lost, is_gone=c.is_gone)
        return kept

    upkeep_records.note_claims(lake, name, changed, now)
    return len(removed)


def has_lost(notes: Mapping[str, ClaimNote], target: TableId, snapshot: int | None) -> bool:
    """Whether a table has lost its claim to a snapshot: it is not to be tagged again on its behalf."""
    note = notes.get(source_tags.PREFIX + consumer_name(target))
    return note is not None and note.lost is not None and note.snapshot == snapshot
