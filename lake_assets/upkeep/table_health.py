"""How well a table's files are kept, from metadata alone: small files, deleted rows, manifests, snapshots, versions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.capture.files.manifests import DATA, EQUALITY_DELETES, Entry, ManifestReader
from lake_assets.ingest.raw_tables import OFFSETS_PROPERTY, POSITION_PROPERTY
from lake_assets.ingest.records.rejects import PROPERTY as REJECTED_PROPERTY
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.row_counts import keeps_rows, number, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PROPERTY, find_property
from lake_assets.tables.upkeep_policy import UpkeepPolicy

# A file of this share of the target size is as good as one of the whole; Iceberg's own number.
_LARGE = 0.75
# What the next step starts from is in the newest commits with these: watermarks, how far a raw table has landed, and
# which of its records are in its table of rejected ones.
_PROGRESS = (PROPERTY, POSITION_PROPERTY, OFFSETS_PROPERTY, REJECTED_PROPERTY)
# Iceberg's own property for branches and tags without an age.
_REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True)
class Hold:
    """A branch or tag that keeps a snapshot.

    Attributes:
        name: its name.
        is_branch: whether it is a branch.
        snapshot: the snapshot.
        age: the seconds since that snapshot was made.
    """

    name: str
    is_branch: bool
    snapshot: int
    age: float


@dataclass(frozen=True)
class SmallFiles:
    """Small files of one partition that are worth combining: together they are as large as the next larger one.

    Attributes:
        files: how many.
        bytes: their size.
        largest: the size of the largest.
        oldest: the age of the oldest, in seconds; None: its snapshot has expired.
    """

    files: int
    bytes: int
    largest: int
    oldest: float | None


@dataclass(frozen=True)
class TableHealth:
    """What upkeep looks at; sizes in bytes, ages in seconds.

    Attributes:
        table: the table.
        format_version: Iceberg's format version.
        files, bytes, rows: its data files, their size, and their rows with deleted ones.
        small: by partition, the small files that are worth combining.
        deleted_rows: rows that deletes hide.
        worn: files of which the policy's share of rows is deleted.
        worn_bytes: their size.
        worn_rows: their deleted rows.
        delete_files: deletion vectors and delete files.
        equality_deletes: delete files of foreign writers that name values.
        manifests: manifests of the current snapshot.
        manifest_bytes: their size.
        snapshots: all snapshots.
        expirable: snapshots that nothing needs any more by the policy.
        expire_before: the time up to which snapshots expire, in milliseconds since 1970.
        metadata_bytes: the size of the current metadata file.
        since_watermark: commits since the one with the watermark, or since the last landing.
        holds: branches and tags.
        may_delete: whether the table's owner allows to delete files (see `may_delete_files`).
    """

    table: str
    format_version: int
    files: int = 0
    bytes: int = 0
    rows: int = 0
    small: Sequence[SmallFiles] = ()
    deleted_rows: int = 0
    worn: int = 0
    worn_bytes: int = 0
    worn_rows: int = 0
    delete_files: int = 0
    equality_deletes: int = 0
    manifests: int = 0
    manifest_bytes: int = 0
    snapshots: int = 0
    expirable: int = 0
    expire_before: int = 0
    metadata_bytes: int = 0
    since_watermark: int = 0
    holds: Sequence[Hold] = field(default_factory=tuple)
    may_delete: bool = True

    @property
    def small_files(self) -> int:
        """The number of small files that are worth combining."""
        return sum(s.files for s in self.small)

    @property
    def small_bytes(self) -> int:
        """Their size."""
        return sum(s.bytes for s in self.small)


def health_of(name: TableId, table: Table, policy: UpkeepPolicy, now: float | None = None) -> TableHealth:
    """Return the health of a loaded table.

    Args:
        now: seconds since 1970; default: the clock.

    Raises:
        MissingDataFileError, CorruptMetadataError: its metadata is missing or broken.
    """
    now = time.time() if now is None else now
    before = _expire_before(table, policy, now)
    return TableHealth(
        table=str(name),
        format_version=table.metadata.format_version,
        snapshots=len(table.metadata.snapshots),
        expirable=_expirable(table, before, now),
        expire_before=before,
        metadata_bytes=len(table.io.new_input(table.metadata_location)),
        since_watermark=_since_watermark(table),
        holds=tuple(_holds(table, now)),
        may_delete=may_delete_files(table),
        **_of_files(table, policy, now),
    )


def _of_files(table: Table, policy: UpkeepPolicy, now: float) -> dict[str, Any]:
    """Return what the files of the current snapshot tell."""
    current = table.current_snapshot()
    if current is None:
        return {}
    reader = ManifestReader(table.io)
    manifests, _ = reader.manifest_list(current.manifest_list)
    entries = reader.entries(manifests)
    data = [e for e in entries if e.content == DATA]
    deletes = [e for e in entries if e.content != DATA]
    # A deletion vector names its file. Delete files of older formats may be about any: they count for the table only.
    hidden: dict[str, int] = defaultdict(int)
    for e in deletes:
        if of := e.file.get("referenced_data_file"):
            hidden[of] += e.records
    worn = [e for e in data if hidden[e.path] >= max(1.0, policy.deleted_rows * e.records)]
    times = {s.snapshot_id: s.timestamp_ms / 1000 for s in table.metadata.snapshots}
    return {
        "files": len(data),
        "bytes": sum(e.bytes for e in data),
        "rows": sum(e.records for e in data),
        "small": tuple(_small_files(data, policy, times, now)),
        "deleted_rows": sum(e.records for e in deletes if e.content != EQUALITY_DELETES),
        "worn": len(worn),
        "worn_bytes": sum(e.bytes for e in worn),
        "worn_rows": sum(hidden[e.path] for e in worn),
        "delete_files": len(deletes),
        "equality_deletes": sum(e.content == EQUALITY_DELETES for e in deletes),
        "manifests": len(manifests),
        "manifest_bytes": sum(m.length for m in manifests),
    }


def _small_files(
    data: Sequence[Entry], policy: UpkeepPolicy, times: dict[int, float], now: float
) -> Iterator[SmallFiles]:
    """Yield the small files of each partition that are worth combining.

    A file that is larger than all smaller ones together is left out: otherwise every few small files would have it
    rewritten, again and again. So a row is rewritten about as often as the table doubles. Fewer files than Iceberg
    combines are left out as well.
    """
    partitions: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for e in data:
        if e.bytes < _LARGE * policy.target_file_size:
            partitions[e.spec_id, *map(repr, e.partition)].append(e)
    for files in partitions.values():
        files.sort(key=lambda e: e.bytes)
        chosen, size = list[Entry](), 0
        for e in files:
            if len(chosen) >= thresholds.UPKEEP_INPUT_FILES and e.bytes > size:
                break
            chosen.append(e)
            size += e.bytes
        while len(chosen) > 1 and 2 * chosen[-1].bytes > size:
            size -= chosen.pop().bytes
        if len(chosen) < thresholds.UPKEEP_INPUT_FILES:
            continue
        written = [times[e.snapshot_id] for e in chosen if e.snapshot_id in times]
        oldest = now - min(written) if len(written) == len(chosen) else None
        yield SmallFiles(len(chosen), size, chosen[-1].bytes, oldest)


def _expire_before(table: Table, policy: UpkeepPolicy, now: float) -> int:
    """Return the time up to which the policy lets snapshots expire, in milliseconds since 1970.

    It is not later than the commits that tell the next step where to start, however many commits followed them.
    """
    before = int((now - policy.keep) * 1000)
    newest = _newest(table, policy.snapshots)
    if len(newest) == policy.snapshots:
        before = max(before, newest[-1].timestamp_ms)
    progress = [found[1].timestamp_ms for name in _PROGRESS if (found := find_property(table, name))]
    return min([before, *progress])


def _expirable(table: Table, before: int, now: float) -> int:
    """Return the number of snapshots that may expire: old ones that no branch and tag needs, nor the watermark.

    Source: `RemoveSnapshots` of Iceberg
    """
    if not may_delete_files(table):
        return 0
    refs = {name: ref for name, ref in table.metadata.refs.items() if name == "main" or not is_over(table, ref, now)}
    kept, named = set[int](), set[int]()
    for ref in refs.values():
        if ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            kept.add(ref.snapshot_id)
            continue
        oldest = before if ref.max_snapshot_age_ms is None else int(now * 1000) - ref.max_snapshot_age_ms
        most, is_kept = ref.min_snapshots_to_keep or thresholds.SNAPSHOTS_KEPT, True
        for n, snapshot in enumerate(ancestors(table, ref.snapshot_id)):
            named.add(snapshot.snapshot_id)
            is_kept = is_kept and (n < most or snapshot.timestamp_ms >= oldest)
            if is_kept:
                kept.add(snapshot.snapshot_id)
    named |= kept
    kept |= {s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in named and s.timestamp_ms >= before}
    return sum(s.snapshot_id not in kept for s in table.metadata.snapshots)


def may_delete_files(table: Table) -> bool:
    """Whether files of a table may be deleted: Iceberg refuses to where `gc.enabled` says that tables share them."""
    return table.properties.get("gc.enabled", "true").lower() != "false"


def is_over(table: Table, ref: SnapshotRef, now: float) -> bool:
    """Whether a branch or tag expires with the next snapshots: its age is that of its snapshot."""
    of_table = table.properties.get(_REF_AGE)
    most = ref.max_ref_age_ms if ref.max_ref_age_ms is not None else int(of_table) if of_table else None
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    return snapshot is None or (most is not None and int(now * 1000) - snapshot.timestamp_ms > most)


def _newest(table: Table, count: int) -> list[Snapshot]:
    return [s for s, _ in zip(ancestors(table), range(count), strict=False)]


def _since_watermark(table: Table) -> int:
    """Return the number of commits since the one with the watermark, or since the last landing; 0 without either."""
    found = find_property(table, PROPERTY) or find_property(table, POSITION_PROPERTY)
    if found is None:
        return 0
    return next(n for n, s in enumerate(ancestors(table)) if s.snapshot_id == found[1].snapshot_id)


def _holds(table: Table, now: float) -> Iterator[Hold]:
    for name, ref in table.metadata.refs.items():
        snapshot = table.snapshot_by_id(ref.snapshot_id)
        if name != "main" and snapshot is not None:
            is_branch = ref.snapshot_ref_type == SnapshotRefType.BRANCH
            yield Hold(name, is_branch, ref.snapshot_id, now - snapshot.timestamp_ms / 1000)


def may_need_upkeep(table: Table, policy: UpkeepPolicy, now: float) -> bool:
    """Whether it is worth reading a table's manifests: what its loaded metadata alone tell.

    This is what a sensor asks of each table at each tick. What is left of a rewrite does not show here, nor whether
    the table was looked at before: see `attend.needs_a_look`.
    """
    summary = summary_of(table.current_snapshot())
    if number(summary, "total-equality-deletes"):
        return True
    worn = number(summary, "total-delete-files") >= policy.commits
    if worn or number(summary, "total-position-deletes") >= thresholds.UPKEEP_ROWS_A_FILE:
        return True
    if number(summary, "total-data-files") >= thresholds.UPKEEP_INPUT_FILES and _may_combine(table, policy, now):
        return True
    return _expirable(table, _expire_before(table, policy, now), now) >= thresholds.UPKEEP_EXPIRED_SNAPSHOTS


def _may_combine(table: Table, policy: UpkeepPolicy, now: float) -> bool:
    written = list(_since_rewrite(table, policy.commits))
    return len(written) >= policy.commits or (bool(written) and now - written[-1].timestamp_ms / 1000 >= policy.age)


def _since_rewrite(table: Table, most: int) -> Iterator[Snapshot]:
    """Yield the newest commits that changed rows, up to the last one that rewrote files."""
    for snapshot, _ in zip(ancestors(table), range(2 * most), strict=False):
        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE:
            return
        if not keeps_rows(snapshot):
            yield snapshot
