"""The status of one table: how far it is, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyiceberg.table import Table

from lake_assets.errors import (
    CorruptMetadataError,
    HistoryError,
    InputError,
    MissingPackageError,
    StorageUnavailableError,
)
from lake_assets.formats import SourceTable
from lake_assets.health.status_of_history import lost_history, renamed_columns
from lake_assets.ingest.raw.absorbed_dumps import behind_tables, skipped_dumps
from lake_assets.ingest.raw.landing_backlog import Backlog, backlog, unused_folder
from lake_assets.ingest.raw_tables import arrived, nothing_until, skipped
from lake_assets.ingest.records.reject_reasons import RejectCounts, RejectReason, reject_counts
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.row_counts import is_upkeep, row_count, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, find_property, read_marks
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.models.python.python_model_spec import ignored_lookups
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from lake_assets.upkeep.claims import Claim
from lake_assets.upkeep.history_left import HistoryLeft, history_left


@dataclass(frozen=True)
class Overdue:
    """Something that has not happened for longer than it may: seconds, their limit, and what to do."""

    seconds: float
    limit: float
    text: str


@dataclass(frozen=True)
class RunningStep:
    """A step of a table that is at work.

    Attributes:
        since: when it began, in seconds since 1970.
        process: the id of its process, if that runs on this machine.
    """

    since: float
    process: int | None = None


@dataclass(frozen=True)
class KilledStep:
    """A step of a table that never ended.

    Attributes:
        since: when it began, in seconds since 1970.
        is_known: whether its process has ended; False: it has only not been heard of for long.
        text: what is known of it, and what happens next.
    """

    since: float
    is_known: bool
    text: str


@dataclass(frozen=True)
class TableStatus:
    """Status of one table of the lake.

    Attributes:
        rows: row count from the current snapshot's summary; None if unknown.
        watermark: the absorbed snapshot of each source, and the snapshot of each lookup that was read.
        behind: by source, the number of snapshots since the absorbed one; None if the absorbed one is not an ancestor.
        behind_seconds: age of the oldest of these snapshots.
        last_run: when the table last absorbed something.
        not_exact: why its rows are known to differ from the source.
        waiting: files in the landing folder of a raw table.
        rows_behind: records (of a raw source) or changed rows (of another source) in these snapshots.
        upstream: direct and indirect upstream tables that are behind themselves.
        error: why it is unknown how far the table is behind.
        skipped_dumps: dumps in the landing folder that are never absorbed, each with the reason.
        skipped: number of records about no row that have landed in a raw table, by what they are.
        failure: when and why its last step failed, if that still stands.
        retry: the command that runs this step again, if it is known.
        lost: the sources whose history since the watermark is lost, and what to do.
        renamed: columns that its sources have renamed or dropped since they were absorbed.
        rejected: of a raw table: how many of its records are rejected, whatever they are about.
        reject_reasons: why, the most frequent reason first.
        unrouted: why some of these may be about any table: it cannot be told which.
        closed: of a raw table: how many rejected records do not count any more, by decision of a person.
        landing: the folder that is watched for files, if it is missing, or no file has ever arrived.
        redeclared: what the next run does because the declaration has changed.
        upkeep: what `lake-assets upkeep` has to do for the table; None: its pipeline or files cannot be read.
        claims: consumers of the table that are dead, or about to be, and lose their claims to its snapshots; and those
            for which changes have waited for longer than alerts allow.
        history: by source of another program, how long that keeps the snapshot that was absorbed.
        source: of a raw table whose source is read live: how the service that reads it is.
        source_fails: whether that service is not running, or cannot read or land.
        target_lag: how many seconds the table may be behind what has arrived in the lake; None: no target is declared.
        late: that the target is exceeded, or that no run can keep it, with what takes the time; empty: neither.
        silent: that nothing arrives, for longer than declared or usual; None: something does, or that is usual.
        stalled: that changes wait for longer than usual, of a table without a target; None: they do not.
        running: its step that is at work now; None: there is none.
        killed: its step that never ended, until a later one is done; None: there is none.
        overlong: that this step takes far longer than usual; None: it does not.
        slower: that its newest steps take longer than earlier ones of their size; empty: they do not.
        warnings: the audits of `severity: warn` that did not pass in its newest step that changed rows.
        steps_known: whether the journal could be read, which tells what is silent, stalled, overlong, slower and warns.
        is_gone: whether it existed, and was dropped or renamed; `lost` says what to do.
    """

    table: str
    pipeline: str
    rows: int | None
    watermark: dict[str, int | None]
    behind: dict[str, int | None]
    behind_seconds: float
    last_run: datetime | None
    not_exact: list[str] = field(default_factory=list[str])
    waiting: Backlog = field(default_factory=Backlog)
    rows_behind: int = 0
    upstream: tuple[str, ...] = ()
    error: str | None = None
    skipped_dumps: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    failure: str | None = None
    retry: str | None = None
    lost: list[str] = field(default_factory=list[str])
    renamed: list[str] = field(default_factory=list[str])
    rejected: int = 0
    reject_reasons: tuple[RejectReason, ...] = ()
    unrouted: tuple[RejectReason, ...] = ()
    closed: int = 0
    landing: str | None = None
    redeclared: str = ""
    upkeep: tuple[str, ...] | None = None
    claims: tuple[Claim, ...] = ()
    history: dict[str, HistoryLeft] = field(default_factory=dict[str, HistoryLeft])
    source: str = ""
    source_fails: bool = False
    target_lag: float | None = None
    late: str = ""
    silent: Overdue | None = None
    stalled: Overdue | None = None
    running: RunningStep | None = None
    killed: KilledStep | None = None
    overlong: Overdue | None = None
    slower: str = ""
    warnings: tuple[str, ...] = ()
    steps_known: bool = True
    is_gone: bool = False

    @property
    def is_behind(self) -> bool:
        """Whether the table itself has something to absorb, or its watermark is lost."""
        return bool(
            self.error
            or self.failure
            or self.redeclared
            or self.source_fails
            or self.waiting.files
            or any(n is None or n for n in self.behind.values())
        )

    @property
    def rejected_text(self) -> str:
        """How many records are rejected, and the most frequent reasons."""
        records = (
            "1 record of this stream is" if self.rejected == 1 else f"{self.rejected:,} records of this stream are"
        )
        reasons = f": {reasons_text(self.reject_reasons)}" if self.reject_reasons else ""
        return f"{records} rejected{reasons}{f'; {self.closed_text}' if self.closed else ''}"

    @property
    def closed_text(self) -> str:
        """How many rejected records are closed."""
        return (
            f"{self.closed:,} more {'is' if self.closed == 1 else 'are'} closed"
            if self.rejected
            else (f"{self.closed:,} rejected record{' is' if self.closed == 1 else 's are'} closed")
        )

    @property
    def warning_text(self) -> str:
        """The audits that warn, in a line."""
        audits = "the audit" if len(self.warnings) == 1 else "the audits"
        does = "does" if len(self.warnings) == 1 else "do"
        return (
            f"{audits} {', '.join(self.warnings)} {does} not pass, and its batches are published all the "
            "same (`severity: warn`). The output of the last run names rows. The warning ends with a batch that passes"
        )

    @property
    def fails(self) -> bool:
        """Whether somebody has to do something before the table goes on."""
        is_late = self.late or self.silent or self.stalled or self.overlong
        return bool(self.error or self.failure or self.lost or self.source_fails or is_late)

    @property
    def notes(self) -> Iterator[tuple[str, str]]:
        """What needs attention, each with its colour."""
        if self.error:
            yield "red", self.error
        if self.failure:
            yield "red", self.failure
        else:
            # A failure says the same in the words of the table's declaration.
            yield from (("red", text) for text in self.lost)
        if self.source_fails:
            yield "red", f"its source is not read: {self.source}"
        if self.killed:
            yield "red" if self.killed.is_known else "yellow", self.killed.text
        if self.late:
            yield "red", self.late
        if self.overlong:
            yield "red", self.overlong.text
        if self.stalled:
            yield "red", self.stalled.text
        if self.silent:
            yield "red", self.silent.text
        if self.warnings:
            yield "yellow", self.warning_text
        if self.slower:
            yield "yellow", self.slower
        if self.redeclared:
            yield "yellow", self.redeclared
        yield from (("yellow", text) for text in self.renamed)
        yield from (("yellow", claim.text) for claim in self.claims)
        yield from (("yellow", f"not exact: {reason}") for reason in self.not_exact)
        yield from (("yellow", f"the dump {name} is skipped: {why}") for name, why in self.skipped_dumps.items())
        if self.rejected:
            yield "yellow", f"{self.rejected_text} (`lake-assets rejected`)"
        elif self.closed:
            yield "dim", f"{self.closed_text} (`lake-assets rejected list --closed`)"


def reasons_text(reasons: Sequence[RejectReason]) -> str:
    """Return the most frequent reasons to reject records, with their numbers of records."""
    shown = reasons[: thresholds.REPORT_NAMES]
    texts = [f"{r.reason} ({r.records:,})" for r in shown]
    if more := sum(r.records for r in reasons[len(shown) :]):
        texts.append(f"other reasons ({more:,})")
    return "; ".join(texts)


def table_status(lake: LakeBase, table_id: TableId) -> TableStatus:
    """Return the status of one table, with errors of its history or input as a value instead of raising them."""
    try:
        table = lake.table(table_id)
    except CorruptMetadataError as e:
        return TableStatus(str(table_id), "", None, {}, {}, 0.0, None, error=str(e))
    stored = find_property(table, WATERMARK)
    current = table.current_snapshot()
    last = stored[1] if stored else current
    result = TableStatus(
        str(table_id),
        table.properties.get(PIPELINE_PROPERTY, ""),
        row_count(table),
        {},
        {},
        0.0,
        datetime.fromtimestamp(last.timestamp_ms / 1000, UTC) if last else None,
        skipped=skipped(table),
    )
    try:
        marks = read_marks(table) if stored else {}
        watermark = {source: mark.snapshot for source, mark in marks.items()}
        result = replace(result, watermark=watermark, not_exact=exactness.reasons_of(lake, table_id))
        idle = ignored_lookups(table.properties.get(FINGERPRINT_PROPERTY, ""))
        sources = {s: lake.find(s) for s in marks}
        windows = {s: _arrears(table, sources[s], mark.snapshot) for s, mark in marks.items() if s not in idle}
        waiting, late = backlog(lake, table_id), skipped_dumps(lake, table)
        lost = lost_history(table_id, table, {s: sources[s] for s in windows})
        rejects = reject_counts(lake, table_id) if table_id.namespace == ("raw",) else RejectCounts()
    except (HistoryError, InputError, StorageUnavailableError, MissingPackageError) as e:
        return replace(result, error=str(e))
    now = datetime.now(UTC).timestamp()
    oldest = [w.oldest_ms for w in windows.values() if w.oldest_ms is not None]
    return replace(
        result,
        behind={source: w.snapshots for source, w in windows.items()} | behind_tables(lake, table),
        behind_seconds=max((now - ms / 1000 for ms in oldest), default=0.0),
        waiting=waiting,
        skipped_dumps=late,
        rows_behind=sum(w.rows for w in windows.values()),
        lost=lost,
        history=history_left(marks, {s: sources[s] for s in windows}, now),
        renamed=renamed_columns(result.table, result.pipeline, marks, sources),
        landing=unused_folder(table),
        rejected=rejects.records,
        reject_reasons=rejects.reasons,
        unrouted=rejects.unrouted,
        closed=rejects.closed,
    )


@dataclass(frozen=True)
class _Arrears:
    """Changes of a source since a snapshot; `snapshots` is None if that is not an ancestor."""

    snapshots: int | None
    rows: int = 0
    oldest_ms: int | None = None


def _arrears(table: Table, loaded: Table | None, start: int | None) -> _Arrears:
    if loaded is None:
        return _Arrears(None)
    head, about = loaded.metadata.current_snapshot_id, table.properties.get(SOURCE_TABLE_PROPERTY)
    of = SourceTable.parse(about) if about else None
    if head is None and start is not None and of is None and (emptied := loaded.snapshot_by_id(start)):
        return _Arrears(1, visible_rows(emptied))  # it was replaced by an empty table
    if of:
        # A raw table may have many staging tables: snapshots without records for this one do not move its watermark.
        start = nothing_until(loaded, start, head, of)
    newer = []
    for snapshot in ancestors(loaded):
        if snapshot.snapshot_id == start:
            break
        newer.append(snapshot)
    else:
        if start is not None:
            return _Arrears(None)
    if newer and all(map(is_upkeep, newer)):
        return _Arrears(0)  # upkeep: the next change of rows takes it along
    rows = arrived(loaded, start, head, of) if of else None
    if rows is None:
        rows = sum(sum(counts(s)) for s in newer if not is_upkeep(s))
    return _Arrears(len(newer), rows, newer[-1].timestamp_ms if newer else None)
