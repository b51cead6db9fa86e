"""Records of steps: what a step absorbed, wrote and needed, or why it failed."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from lake_assets.errors import InvalidNameError
from lake_assets.journal.resource_use import ResourceUse
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.foreign_errors import error_text
from lake_assets.lake.metadata.row_counts import number, summary_of, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.visible_text import visible
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import INEXACT, Absorbed, Outcome

_SOURCE = pa.struct(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start_snapshot", pa.int64()),
        pa.field("end_snapshot", pa.int64()),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
# A column may be added at the end; its values in older records are null.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("strategy", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("cpu_seconds", pa.float64(), nullable=False),
        pa.field("lag_seconds", pa.float64()),
        pa.field("rows_inserted", pa.int64(), nullable=False),
        pa.field("rows_updated", pa.int64(), nullable=False),
        pa.field("rows_deleted", pa.int64(), nullable=False),
        pa.field("records_rejected", pa.int64(), nullable=False),
        pa.field("table_rows", pa.int64()),
        pa.field("bytes_read", pa.int64(), nullable=False),
        pa.field("bytes_written", pa.int64(), nullable=False),
        pa.field("files_read", pa.int64(), nullable=False),
        pa.field("files_written", pa.int64(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
        pa.field("snapshot", pa.int64()),
        pa.field("sources", pa.list_(_SOURCE)),
        pa.field("failed_audits", pa.list_(pa.string())),
        pa.field("not_exact", pa.list_(pa.string())),
        pa.field("error", pa.string()),
        pa.field("run", pa.string()),
        pa.field("host", pa.string()),
        pa.field("computed_all", pa.bool_()),
        pa.field("in_full_cpu_seconds", pa.float64()),
        pa.field("in_full_basis", pa.string()),
        pa.field("started_spark", pa.bool_()),
    ]
)
# Strategies that land records, for which there is no other way; that compute all rows; and that change none.
LANDING = ("land", "replay")
COMPLETE = ("full", "rebuild")
NO_CHANGE = "none"
# What a published backfill did to a table: no step, from which nothing follows about how steps come and what they take.
BACKFILL = "backfill"


@dataclass(frozen=True)
class StepRecord:
    """What a step did.

    Attributes:
        id: unique.
        started_at: seconds since 1970.
        status: `absorbed` or `failed`.
        seconds: time taken.
        cpu_seconds: CPU time, of one core; see `resource_use`.
        lag_seconds: when the step ended, how long ago the oldest change that it absorbed had arrived in the lake; None:
            unknown.
        table_rows: rows in the table after the step; None: unknown.
        bytes_read, files_read: of the captured files, and of the table's files that the step replaced.
        bytes_written, files_written: of the files that the step added to the table.
        source_bytes: size of all sources: what a computation from scratch would read.
        sources: of each absorbed window: source, start_snapshot, end_snapshot, files, bytes.
        error: class and message of the error, without secrets, shortened.
        run: what executed the step: `dagster ID`, or `backfill ID`; empty: a command or another program.
        in_full_cpu_seconds: what computing everything would have used, as was estimated when the step ended; None:
            unknown. `in_full_basis` says what it is taken from; see `step_costs`.
        started_spark: whether Spark was started meanwhile, which may take longer than the step.
    """

    pipeline: str
    table: str
    status: str
    started_at: float
    seconds: float
    cpu_seconds: float
    strategy: str = ""
    reason: str = ""
    lag_seconds: float | None = None
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    records_rejected: int = 0
    table_rows: int | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    files_read: int = 0
    files_written: int = 0
    source_bytes: int = 0
    snapshot: int | None = None
    sources: Sequence[Mapping[str, Any]] = ()
    failed_audits: Sequence[str] = ()
    not_exact: Sequence[str] = ()
    error: str = ""
    run: str = ""
    host: str = field(default_factory=socket.gethostname)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    in_full_cpu_seconds: float | None = None
    in_full_basis: str = ""
    started_spark: bool = False

    @property
    def rows_changed(self) -> int:
        """Rows inserted, updated and deleted."""
        return self.rows_inserted + self.rows_updated + self.rows_deleted

    @property
    def ended_at(self) -> float:
        """When the step ended, in seconds since 1970."""
        return self.started_at + self.seconds

    @property
    def arrived_at(self) -> float | None:
        """When the oldest change arrived that the step absorbed, in seconds since 1970; None: unknown."""
        return None if self.lag_seconds is None else self.ended_at - self.lag_seconds

    @property
    def computed_all(self) -> bool:
        """Whether the step read all rows of its sources: it computed everything, or was the first of its table."""
        if self.status != "absorbed" or self.strategy in (*LANDING, NO_CHANGE):
            return False
        starts = [source["start_snapshot"] for source in self.sources]
        return self.strategy in COMPLETE or (bool(starts) and all(start is None for start in starts))

    def to_row(self) -> dict[str, Any]:
        """Return the row of the table."""
        at = datetime.fromtimestamp(self.started_at, UTC)
        values = {n: _storable(v) for n, v in asdict(self).items()}
        return {**values, "day": at.date(), "started_at": at, "computed_all": self.computed_all}

    @classmethod
    def from_json(cls, text: str) -> StepRecord:
        """Return the record of a file; values of a later version are left out, as in `from_row`.

        Raises:
            ValueError, TypeError, AttributeError: it is none.
        """
        return cls(**{n: v for n, v in json.loads(text).items() if n in cls.__dataclass_fields__})

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StepRecord:
        """Inverse of `to_row`; columns of a later version are left out."""
        known = {n: row[n] for n in cls.__dataclass_fields__ if row.get(n) is not None}
        return cls(**{**known, "started_at": row["started_at"].timestamp()})


def of_outcome(
    lake: LakeBase, pipeline: str, outcome: Outcome, use: ResourceUse, run: str, arrivals: Mapping[int, float]
) -> StepRecord:
    """Return the record of a step that has absorbed something; reads metadata only.

    Args:
        arrivals: see `RecentSteps`.
    """
    table, ended = lake.find(outcome.table), use.started_at + use.seconds
    snapshot = table.snapshot_by_id(outcome.snapshot) if table is not None and outcome.snapshot is not None else None
    summary = summary_of(snapshot)
    sources = {w.source: found for w in outcome.windows if (found := _found(lake, w.source)) is not None}
    oldest = [at for w in outcome.windows if w.source in sources and (at := _oldest(sources[w.source], w, arrivals))]
    return StepRecord(
        pipeline, outcome.table, outcome.status, use.started_at, use.seconds, use.cpu_seconds,
        strategy=outcome.strategy,
        reason=outcome.why,
        lag_seconds=max(0.0, ended - min(oldest)) if oldest else None,
        rows_inserted=outcome.inserted,
        rows_updated=outcome.updated,
        rows_deleted=outcome.deleted,
        records_rejected=outcome.rejected,
        table_rows=visible_rows(snapshot) if snapshot else None,
        bytes_read=sum(w.bytes for w in outcome.windows) + number(summary, "removed-files-size"),
        bytes_written=number(summary, "added-files-size"),
        files_read=sum(w.files for w in outcome.windows) + number(summary, "deleted-data-files"),
        files_written=number(summary, "added-data-files") + number(summary, "added-delete-files"),
        source_bytes=sum(_size(s) for s in sources.values()),
        snapshot=outcome.snapshot,
        sources=[_window(w) for w in outcome.windows],
        failed_audits=failed_audits(outcome.audits),
        not_exact=[str(reason) for reason in outcome.details.get(INEXACT, ())],
        run=run,
        started_spark=use.started_spark,
    )  # fmt: skip


def of_error(lake: LakeBase, pipeline: str, table: TableId, error: Exception, use: ResourceUse, run: str) -> StepRecord:
    """Return the record of a step that failed."""
    text = lake.config.hidden(error_text(error))[: thresholds.JOURNAL_ERROR_CHARACTERS]
    findings: Sequence[Finding] = getattr(error, "findings", ())
    return StepRecord(
        pipeline, str(table), "failed", use.started_at, use.seconds, use.cpu_seconds,
        error=text, failed_audits=failed_audits(findings), run=run,
    )  # fmt: skip


def arrivals_of(records: Iterable[StepRecord]) -> dict[int, float]:
    """Return by snapshot when the oldest change arrived that its step absorbed, in seconds since 1970."""
    return {r.snapshot: at for r in records if r.snapshot and (at := r.arrived_at)}


def failed_audits(findings: Sequence[Finding]) -> list[str]:
    """Return the names of the audits that found something."""
    return [f.audit for f in findings if not f.passed]


def _storable(value: Any) -> Any:
    """Return a value whose texts can be encoded: errors quote what may hold half of a surrogate pair, and one such
    record would keep all others out of the table."""
    if isinstance(value, str):
        return visible(value)
    return [*map(_storable, value)] if isinstance(value, list | tuple) else value


def _found(lake: LakeBase, source: str) -> Table | None:
    # Files of a landing folder are named by it.
    try:
        return lake.find(source)
    except InvalidNameError:
        return None


def _oldest(source: Table, window: Absorbed, arrivals: Mapping[int, float]) -> float | None:
    """Return when the oldest change of a window arrived, in seconds since 1970; None: its commits have expired.

    Everything that a table holds when it is read for the first time is as old as its newest commit.
    """
    oldest: float | None = None
    for snapshot in ancestors(source, window.end):
        if snapshot.snapshot_id == window.start:
            break
        at = arrivals.get(snapshot.snapshot_id, snapshot.timestamp_ms / 1000)
        oldest = at if oldest is None else min(oldest, at)
        if window.start is None:
            break
    return oldest


def _size(table: Table) -> int:
    return number(summary_of(table.current_snapshot()), "total-files-size")


def _window(window: Absorbed) -> dict[str, Any]:
    return {
        "source": window.source,
        "start_snapshot": window.start,
        "end_snapshot": window.end,
        "files": window.files,
        "bytes": window.bytes,
    }
