"""`lake-assets status`: how far each table is, and what stands in its way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.table import Table
from rich.markup import escape

from lake_assets.capture.renamed_columns import renamed_since
from lake_assets.commands.printing import console, listing, print_json, size
from lake_assets.commands.table_lookup import AsJson, all_pipelines
from lake_assets.commands.upkeep_status import shown, upkeep_statuses
from lake_assets.errors import HistoryError, InputError, LakeError
from lake_assets.facade import Lake
from lake_assets.formats import SourceTable
from lake_assets.ingest.raw.landing import Backlog, backlog, unused_folder
from lake_assets.ingest.raw_tables import arrived, nothing_until, skipped, skipped_text
from lake_assets.ingest.records.rejects import rejected_records
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.due_records import missing_after_rollback, what_is_missing
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY, source_of
from lake_assets.lake import TableId
from lake_assets.lake.metadata.row_counts import is_upkeep, row_count, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark, find_property, read_marks
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.models.python.python_model_spec import ignored_lookups
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.service import service_state
from lake_assets.tables.pending_windows import rebuild_advice, window_of
from lake_assets.tables.standing_failures import Failure, standing
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from lake_assets.upkeep.claims import Claim
from lake_assets.upkeep.history_left import HistoryLeft, history_left


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
        skipped: number of records about no row that have landed in a raw table, by what they are.
        failure: when and why its last step failed, if that still stands.
        retry: the command that runs this step again, if it is known.
        lost: the sources whose history since the watermark is lost, and what to do.
        renamed: columns that its sources have renamed or dropped since they were absorbed.
        rejected: of a raw table: how many of its records are rejected, whatever they are about.
        landing: the folder that is watched for files, if it is missing, or no file has ever arrived.
        redeclared: what the next run does because the declaration has changed.
        upkeep: what `lake-assets upkeep` has to do for the table; None: its pipeline or files cannot be read.
        claims: consumers of the table that are dead, or about to be, and lose their claims to its snapshots.
        history: by source of another program, how long that keeps the snapshot that was absorbed.
        source: of a raw table whose source is read live: how the service that reads it is.
        source_fails: whether that service is not running, or cannot read or land.
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
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    failure: str | None = None
    retry: str | None = None
    lost: list[str] = field(default_factory=list[str])
    renamed: list[str] = field(default_factory=list[str])
    rejected: int = 0
    landing: str | None = None
    redeclared: str = ""
    upkeep: tuple[str, ...] | None = None
    claims: tuple[Claim, ...] = ()
    history: dict[str, HistoryLeft] = field(default_factory=dict[str, HistoryLeft])
    source: str = ""
    source_fails: bool = False

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
    def notes(self) -> Iterator[tuple[str, str]]:
        """What needs attention, each with its colour."""
        if self.failure:
            yield "red", self.failure
        else:
            # A failure says the same in the words of the table's declaration.
            yield from (("red", text) for text in self.lost)
        if self.source_fails:
            yield "red", f"its source is not read: {self.source}"
        if self.redeclared:
            yield "yellow", self.redeclared
        yield from (("yellow", text) for text in self.renamed)
        yield from (("yellow", claim.text) for claim in self.claims)
        yield from (("yellow", f"not exact: {reason}") for reason in self.not_exact)
        if self.rejected:
            records = "1 record is" if self.rejected == 1 else f"{self.rejected:,} records are"
            yield "yellow", f"{records} rejected, of all tables (`lake-assets rejected`)"


def status(as_json: AsJson = False) -> None:
    """Print one line per table: rows, watermark, pending changes, last run. Reads metadata only."""
    lake = Lake.load_existing()
    redeclared, unread = _redeclared(lake)
    kept = upkeep_statuses(lake)
    tables = [table_status(lake, t) for t in _own_tables(lake)]
    tables = [
        replace(t, redeclared=redeclared.get((t.pipeline, t.table), ""), upkeep=found and found.due, claims=claims)
        for t in tables
        for found in (kept.get(t.table),)
        for claims in (found.claims if found else (),)
    ]
    statuses = with_upstream(_with_services(lake, _with_failures(lake, tables)))
    if as_json:
        print_json(statuses)
        return
    if not statuses:
        home = lake.config.home
        console.print(f"no pipeline has filled a table in the lake at {home} yet: try `lake-assets demo`", markup=False)
        return
    table = listing("table", "rows", "watermark", "behind", "upkeep", "last run (UTC)", right=["rows"], fold=True)
    for s in statuses:
        marks = ", ".join(f"{source} @ {snapshot}" for source, snapshot in s.watermark.items())
        table.add_row(
            escape(s.table),
            "" if s.rows is None else f"{s.rows:,}",
            escape(marks),
            _behind(s),
            shown(s.upkeep),
            f"{s.last_run:%Y-%m-%d %H:%M:%S}" if s.last_run else "never",
        )
    console.print(table)
    for s in statuses:
        for colour, text in s.notes:
            console.print(f"[{colour}]{escape(s.table)}: {escape(text)}[/]", soft_wrap=True)
        if s.skipped:
            text = f"{s.table}: records about no row, skipped so far: {skipped_text(s.skipped)}"
            console.print(text, markup=False, style="dim", soft_wrap=True)
    for text in (c.text for t, found in kept.items() if t not in {s.table for s in statuses} for c in found.claims):
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    for text in unread:
        console.print(f"whether declarations have changed is not known: {text}", markup=False, soft_wrap=True)


def _redeclared(lake: Lake) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return what changed declarations do to tables, by pipeline and table; and errors of pipelines that cannot be
    read."""
    found: dict[tuple[str, str], str] = {}
    try:
        pipelines = all_pipelines()
    except LakeError as e:
        return found, [str(e)]
    unread: list[str] = []
    for pipeline in pipelines:
        try:
            specs = pipeline.specs(lake, alone=False)
        except LakeError as e:
            unread.append(str(e))
            continue
        for spec in specs:
            try:
                text = after_redeclaration(lake, spec)
            except LakeError as e:  # the table's own failure, which its next run reports
                text = str(e)
            if text:
                found[pipeline.name, str(spec.table)] = text
    return found, unread


def _with_failures(lake: Lake, tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables with their standing failures; tables that failed before they existed come last."""
    failures = standing(lake)
    known = {t.table for t in tables}
    missing = [TableStatus(f.table, f.pipeline, None, {}, {}, 0.0, None) for t, f in failures.items() if t not in known]
    return [
        replace(t, failure=_failure_text(failure), retry=_retry_command(failure)) if failure else t
        for t in (*tables, *missing)
        for failure in (failures.get(t.table),)
    ]


def _with_services(lake: Lake, tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables with the state of the services that read live sources; a source of which nothing has landed
    has no table yet."""
    states = service_state.of_all(lake)
    known = {t.table for t in tables}
    missing = [TableStatus(name, "", None, {}, {}, 0.0, None) for name in states if name not in known]
    return [
        replace(t, source=state.text, source_fails=not state.is_well) if state else t
        for t in (*tables, *missing)
        for state in (states.get(t.table),)
    ]


def with_upstream(tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables, each with its upstream tables that are behind."""
    by_name = {t.table: t for t in tables}

    def upstream(table: TableStatus, seen: set[str]) -> Iterator[TableStatus]:
        # Of a lookup whose changes trigger nothing, it is not said how far the table is behind.
        for source in table.behind or table.watermark:
            if source in by_name and source not in seen:
                seen.add(source)
                yield from upstream(by_name[source], seen)
                yield by_name[source]

    return [replace(t, upstream=tuple(u.table for u in upstream(t, {t.table}) if u.is_behind)) for t in tables]


def table_status(lake: Lake, table_id: TableId) -> TableStatus:
    """Return the status of one table, with errors of its history or input as a value instead of raising them."""
    table = lake.table(table_id)
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
        exactness.reasons_of(lake, table_id),
        skipped=skipped(table),
    )
    try:
        marks = read_marks(table) if stored else {}
        result = replace(result, watermark={source: mark.snapshot for source, mark in marks.items()})
        idle = ignored_lookups(table.properties.get(FINGERPRINT_PROPERTY, ""))
        sources = {s: lake.find(s) for s in marks}
        windows = {s: _arrears(table, sources[s], mark.snapshot) for s, mark in marks.items() if s not in idle}
        waiting = backlog(lake, table_id)
        lost = _lost_history(table_id, table, {s: sources[s] for s in windows})
    except (HistoryError, InputError) as e:
        return replace(result, error=str(e))
    now = datetime.now(UTC).timestamp()
    oldest = [w.oldest_ms for w in windows.values() if w.oldest_ms is not None]
    return replace(
        result,
        behind={source: w.snapshots for source, w in windows.items()},
        behind_seconds=max((now - ms / 1000 for ms in oldest), default=0.0),
        waiting=waiting,
        rows_behind=sum(w.rows for w in windows.values()),
        lost=lost,
        history=history_left(marks, {s: sources[s] for s in windows}, now),
        renamed=_renamed_columns(marks, sources),
        landing=unused_folder(table),
        rejected=rejected_records(lake, table_id) if table_id.namespace == ("raw",) else 0,
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


def _own_tables(lake: Lake) -> list[TableId]:
    order = {"raw": 0, "staging": 1, "final": 2, "agg": 3}
    spaces = sorted((n for n in lake.namespaces() if n[0] != "icdc"), key=lambda n: (order.get(n[0], 9), n))
    tables = [t for n in spaces for t in lake.tables(n)]
    return [t for t in tables if PIPELINE_PROPERTY in lake.table(t).properties]


def _behind(status: TableStatus) -> str:
    if status.error:
        return f"[bold red]{escape(status.error)}[/]"
    if status.lost:
        return "[bold red]history lost[/]"
    parts: list[str] = ["failed"] if status.failure else []
    if status.source_fails:
        parts.append("its source is not read")
    if status.redeclared:
        parts.append("declared otherwise")
    if any(n is None for n in status.behind.values()):
        parts.append("a source was rolled back")
    if status.landing and not status.waiting.files:
        is_there = Path(status.landing).exists()
        parts.append(f"no file yet in {status.landing}" if is_there else f"{status.landing} does not exist")
    if files := status.waiting.files:
        records = status.waiting.records
        about = f", about {records:,} records" if records is not None else f", {size(status.waiting.bytes)}"
        parts.append(f"{files:,} file{'s' if files > 1 else ''}{about}")
    if snapshots := sum(n or 0 for n in status.behind.values()):
        rows = f", {status.rows_behind:,} row{'s' if status.rows_behind != 1 else ''}" if status.rows_behind else ""
        parts.append(f"{snapshots} snapshot{'s' if snapshots > 1 else ''}{rows}, {status.behind_seconds:,.0f} s")
    parts += [left.text(source) for source, left in status.history.items() if left.matters]
    if status.upstream:
        parts.append(f"waits for {', '.join(status.upstream)}")
    if not parts:
        return f"[green]{escape(status.source or 'up to date')}[/]"
    return f"[{'bold red' if status.failure else 'yellow'}]{escape('; '.join(parts))}[/]"


def _failure_text(failure: Failure) -> str:
    """Return when and why the last step of a table failed, and the command that tries again."""
    command = _retry_command(failure)
    then = f"\nThen `{command}` tries again" if command else ""
    return f"failed at {datetime.fromtimestamp(failure.at, UTC):%Y-%m-%d %H:%M:%S} UTC: {failure.error}{then}"


def _retry_command(failure: Failure) -> str | None:
    """Return the command that runs the failed step again; None if the file of its pipeline is unknown."""
    if not failure.file:
        return None
    return f"lake-assets run {shlex.quote(failure.file)} --table {shlex.quote(failure.table)}"


def _lost_history(table_id: TableId, table: Table, sources: Mapping[str, Table | None]) -> list[str]:
    """Return the sources whose history since the watermark is lost, each with what to do."""
    if source_of(table) is not None:
        return _undone_records(table_id, table, sources)
    texts: list[str] = []
    for name, source in sources.items():
        if source is None:
            texts.append(f"{name}, which was read before, does not exist any more")
            continue
        source_id = TableId.parse(name)
        if lost := window_of(table_id, table, source_id, source).lost:
            # A raw table may be the only copy of its records: its next run says what to do.
            advice = (
                f". {rebuild_advice(table_id, source_id, option=lost.option)}" if table_id.namespace != ("raw",) else ""
            )
            texts.append(f"{lost.why}{advice}")
    return texts


def _undone_records(table_id: TableId, table: Table, raws: Mapping[str, Table | None]) -> list[str]:
    """Return which raw tables have to land records again. Not checked if history is lost: that needs Spark."""
    windows = [(raw, window_of(table_id, table, TableId.parse(n), raw)) for n, raw in raws.items() if raw is not None]
    return [
        what_is_missing(table_id, window.source, missing)
        for raw, window in windows
        if (missing := missing_after_rollback(raw, window))
    ]


def _renamed_columns(marks: Mapping[str, Watermark], sources: Mapping[str, Table | None]) -> list[str]:
    """Return the columns that sources have renamed or dropped since they were absorbed."""
    texts: list[str] = []
    for name, source in sources.items():
        # The columns of staging tables follow declared renames, and their readers do too.
        if source is None or source_of(source) is not None:
            continue
        if changes := renamed_since(source, marks[name].snapshot):
            texts.append(
                f"columns of {name} have changed their names since it was absorbed: {', '.join(changes)}. "
                "`lake-assets check PIPELINE` names the SQL that reads a name that is gone"
            )
    return texts
