"""Totals of the steps of each table, which only grow: every record of the journal is counted once.

They are kept in the lake's home, so that an exporter that is started again, or a command that runs once a minute,
continues them. Counting begins when metrics are first asked for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.capture import capture
from lake_assets.errors import LakeError, Refused
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import BACKFILL, StepRecord
from lake_assets.lake import LakeBase
from lake_assets.lake.metadata.row_counts import is_upkeep
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.runtime.private_files import write_private
from lake_assets.signals import file_lock

log = logging.getLogger(__name__)
_FOLDER, _FILE = "metrics", "steps.json"
# Another process counts for less than a second.
_LOCK_SECONDS = 10.0
# Commits of the journal that are read at once; after a longer pause, older ones are not counted.
_COMMITS = 1_000


@dataclass(frozen=True)
class StepTotals:
    """What the steps of a table have done and used, since counting began.

    Attributes:
        absorbed, failed, held: numbers of steps; `held`: of those that failed by an audit.
        last_seconds, last_lag: of the last step that absorbed something.
    """

    pipeline: str
    absorbed: int = 0
    failed: int = 0
    held: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    records_rejected: int = 0
    last_seconds: float | None = None
    last_lag: float | None = None
    last_ended: float = 0.0

    def with_step(self, record: StepRecord) -> StepTotals:
        """Return the totals with one more step."""
        is_absorbed = record.status == "absorbed"
        is_last = is_absorbed and record.ended_at >= self.last_ended
        return replace(
            self,
            pipeline=record.pipeline,
            absorbed=self.absorbed + is_absorbed,
            failed=self.failed + (not is_absorbed),
            held=self.held + (not is_absorbed and bool(record.failed_audits)),
            seconds=self.seconds + record.seconds,
            cpu_seconds=self.cpu_seconds + record.cpu_seconds,
            bytes_read=self.bytes_read + record.bytes_read,
            bytes_written=self.bytes_written + record.bytes_written,
            rows_inserted=self.rows_inserted + record.rows_inserted,
            rows_updated=self.rows_updated + record.rows_updated,
            rows_deleted=self.rows_deleted + record.rows_deleted,
            records_rejected=self.records_rejected + record.records_rejected,
            last_seconds=record.seconds if is_last else self.last_seconds,
            last_lag=record.lag_seconds if is_last else self.last_lag,
            last_ended=record.ended_at if is_last else self.last_ended,
        )


@dataclass(frozen=True)
class _Counted:
    """What has been counted.

    Attributes:
        tables: the totals.
        uuid, snapshot: the journal's table, and its last snapshot that was read; None: it had none.
        waiting: ids of records that were counted while they waited.
    """

    tables: Mapping[str, StepTotals]
    uuid: str | None = None
    snapshot: int | None = None
    waiting: Sequence[str] = field(default_factory=list[str])


def step_totals(lake: LakeBase) -> Mapping[str, StepTotals]:
    """Return the totals by table, with all records that have come since they were asked for last."""
    folder = Path(lake.config.home) / _FOLDER
    with file_lock.locked(folder, _LOCK_SECONDS) as is_held:
        before = _read(folder / _FILE)
        # Those that wait are read first: a record that moves to the table meanwhile is seen twice, and counted once.
        waiting = step_journal.waiting(lake)
        now = _counted(before, waiting, lake.find(step_journal.TABLE), lake)
        if is_held and now != before:
            _write(folder / _FILE, now)
    return now.tables


def _counted(before: _Counted | None, waiting: Sequence[StepRecord], table: Table | None, lake: LakeBase) -> _Counted:
    uuid = str(table.metadata.table_uuid) if table is not None else None
    head = table.metadata.current_snapshot_id if table is not None else None
    if before is None:
        # Counters begin at zero, so that no rate is made of what happened before somebody looked.
        return _Counted({}, uuid, head, [r.id for r in waiting])
    seen = set(before.waiting)
    new = _since(lake, table, before, uuid)
    fresh = [r for r in (*new, *waiting) if r.id not in seen]
    tables = dict(before.tables)
    for record in {r.id: r for r in fresh}.values():
        tables[record.table] = tables.get(record.table, StepTotals(record.pipeline)).with_step(record)
    # Ids are kept for as long as their records wait, also if these are in the table: a process may have been killed
    # before it deleted their files. What no longer waits is in commits up to `head`, which are never read again.
    return _Counted(tables, uuid, head, sorted(r.id for r in waiting))


def _since(lake: LakeBase, table: Table | None, before: _Counted, uuid: str | None) -> list[StepRecord]:
    """Return the records that were written since the last look."""
    if table is None or table.metadata.current_snapshot_id in (None, before.snapshot):
        return []
    start = before.snapshot if before.uuid == uuid else None
    steps = between(table.metadata, start, table.metadata.current_snapshot_id).steps
    return [r for s in steps[-_COMMITS:] if not is_upkeep(s) for r in _of_commit(lake, s)]


def _of_commit(lake: LakeBase, snapshot: Snapshot) -> Iterable[StepRecord]:
    try:
        with capture(lake, step_journal.TABLE, snapshot.parent_snapshot_id, snapshot.snapshot_id) as captured:
            rows = captured.few_rows()
    except LakeError as e:  # its parent has expired, or a file is missing
        rows = Refused(str(e))
    if isinstance(rows, Refused):
        log.warning("steps of snapshot %s of %s are not counted: %s", snapshot.snapshot_id, step_journal.TABLE, rows)
        return []
    found = (StepRecord.from_row(r) for r in rows.to_pylist())
    return [r for r in found if r.strategy != BACKFILL]


def _read(file: Path) -> _Counted | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            tables = {t: StepTotals(**totals) for t, totals in stored.pop("tables").items()}
            return _Counted(tables, **stored)
        except (ValueError, TypeError, KeyError, AttributeError) as e:  # of another version, or cut by a full disk
            log.warning("%s cannot be read, and counting begins anew: %s", file, e)
    return None


def _write(file: Path, counted: _Counted) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    write_private(partial, json.dumps(asdict(counted)))
    partial.replace(file)
