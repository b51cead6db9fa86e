"""`lake-assets run` and `lake-assets status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation
from rich.markup import escape
from rich.table import Table

from lake_assets.commands.printing import (
    console,
    local,
    outcome_json,
    outcome_table,
    pipeline_note,
    print_json,
    rejection_note,
    size,
    stderr,
    visible,
)
from lake_assets.commands.table_problems import failure_text, lost_history, renamed_columns, retry_command
from lake_assets.errors import HistoryError, InputError, PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw.landing import Backlog, backlog, unused_folder
from lake_assets.ingest.raw.shared_streams import arrived, nothing_until
from lake_assets.ingest.raw_tables import skipped, skipped_text
from lake_assets.ingest.records.rejects import rejected_records
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY
from lake_assets.lake import TableId
from lake_assets.lake.metadata.row_counts import row_count, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, find_property, read_marks
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.names import nearest
from lake_assets.models.python.python_model_spec import ignored_lookups
from lake_assets.pipeline import Pipeline, own_pipelines
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.standing_failures import standing
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY

# Exit code of a run that rejected records and in which no table failed.
REJECTED = 3
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def find_pipeline(name: str) -> Pipeline:
    """Load the pipeline of a YAML file or of a folder with a defs.yaml, or a shipped one by its name.

    Raises:
        PipelineError: no such pipeline, or its settings are wrong.
        ConfigError: the name is a URL or not a valid path.
    """
    return Pipeline.load(find_file(name))


def find_file(name: str) -> Path:
    """Return the file of a pipeline; see `find_pipeline`."""
    path, shipped = local(Path(name), "the pipeline"), {p.parent.name: p for p in shipped_pipelines()}
    if path.is_dir() and (path / "defs.yaml").is_file():
        return path / "defs.yaml"
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    here = (
        sorted(p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml")) if path.parent.is_dir() else []
    )
    problem = f"{path} is a folder without a defs.yaml" if path.is_dir() else f"no pipeline {name}"
    raise PipelineError(
        f"{problem}{nearest(path.name, [*shipped, *here])}: name a YAML file, a folder with a defs.yaml, or a shipped "
        f"pipeline ({', '.join(shipped)})"
    )


def find_spec(lake: Lake, table: str, pipeline: str | None = None) -> ComputedSpec | JobSpec:
    """Return the current declaration of a model, a final table or the table of a job.

    Args:
        lake: the lake with the table.
        table: layer.name.
        pipeline: as for `find_pipeline`; default: search the shipped pipelines and those in LAKE_PIPELINES.

    Raises:
        PipelineError: no pipeline declares the table, or it is a raw or staging table.
    """
    requested = TableId.parse(table)
    searched = [find_pipeline(pipeline)] if pipeline else [*map(Pipeline.load, shipped_pipelines()), *own_pipelines()]
    declared: list[str] = []
    for candidate in searched:
        for spec in candidate.specs(lake, alone=False):
            declared.append(str(spec.table))
            if spec.table == requested and isinstance(spec, ComputedSpec | JobSpec):
                return spec
            if spec.table == requested:
                raise PipelineError(
                    f"{requested} holds records or events as they arrived, so there is nothing to compare it with: "
                    "verify final tables, models and tables of jobs"
                )
    names = ", ".join(c.name for c in searched)
    where = "" if pipeline else ". Name its pipeline with --pipeline, or set LAKE_PIPELINES to its folder"
    raise PipelineError(f"no table {requested} in pipeline {names}{nearest(str(requested), declared)}{where}")


def run(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
    table: Annotated[list[str] | None, typer.Option("--table", "-t", help="only this table; may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """Absorb everything that is pending, then exit (for cron).

    Exit code: 1 if a table failed; 3 if no table failed but records were rejected, unless their stream allows it
    (max_rejected).
    """
    loaded, lake = find_pipeline(pipeline), Lake.load()
    if table:
        existing = {str(s.table) for s in loaded.specs(lake)}
        if unknown := sorted(set(table) - existing):
            near = nearest(unknown[0], existing)
            raise PipelineError(
                f"{pipeline} has no table {', '.join(unknown)}{near}; it has {', '.join(sorted(existing)) or 'none'}"
            )
    if as_json:
        outcomes = loaded.run(lake, table)
        print_json([outcome_json(o) for o in outcomes])
    else:
        with console.status("looking at what is pending") as status:
            outcomes = loaded.run(
                lake, table, on_start=lambda name: status.update(f"absorbing: {escape(visible(name))}")
            )
        console.print(outcome_table(outcomes))
    for note in filter(None, (rejection_note(outcomes, pipeline), pipeline_note(outcomes, pipeline))):
        stderr.print(note, markup=False)
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)
    if _unexpected_rejects(loaded, lake, outcomes):
        raise typer.Exit(REJECTED)


def _unexpected_rejects(pipeline: Pipeline, lake: Lake, outcomes: Sequence[Outcome]) -> bool:
    """Whether records were rejected of a stream without `max_rejected`."""
    tables = {o.table for o in outcomes if o.rejected}
    specs = pipeline.specs(lake, alone=False) if tables else []
    return any(str(s.table) in tables and s.max_rejected is None for s in specs if isinstance(s, RawSpec | StagingSpec))


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

    @property
    def is_behind(self) -> bool:
        """Whether the table itself has something to absorb, or its watermark is lost."""
        return bool(
            self.error or self.failure or self.waiting.files or any(n is None or n for n in self.behind.values())
        )

    @property
    def notes(self) -> Iterator[tuple[str, str]]:
        """What needs attention, each with its colour."""
        if self.failure:
            yield "red", self.failure
        else:
            # A failure says the same in the words of the table's declaration.
            yield from (("red", text) for text in self.lost)
        yield from (("yellow", text) for text in self.renamed)
        yield from (("yellow", f"not exact: {reason}") for reason in self.not_exact)
        if self.rejected:
            records = "1 record is" if self.rejected == 1 else f"{self.rejected:,} records are"
            yield "yellow", f"{records} rejected, of all tables (`lake-assets rejected`)"


def status(as_json: AsJson = False) -> None:
    """Print one line per table: rows, watermark, pending changes, last run. Reads metadata only."""
    lake = Lake.load_existing()
    statuses = with_upstream(_with_failures(lake, [table_status(lake, t) for t in _own_tables(lake)]))
    if as_json:
        print_json(statuses)
        return
    if not statuses:
        home = lake.config.home
        console.print(f"no pipeline has filled a table in the lake at {home} yet: try `lake-assets demo`", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, justify in (
        ("table", "left"),
        ("rows", "right"),
        ("watermark", "left"),
        ("behind", "left"),
        ("last run (UTC)", "left"),
    ):
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for s in statuses:
        marks = ", ".join(f"{source} @ {snapshot}" for source, snapshot in s.watermark.items())
        table.add_row(
            escape(s.table),
            "" if s.rows is None else f"{s.rows:,}",
            escape(marks),
            _behind(s),
            f"{s.last_run:%Y-%m-%d %H:%M:%S}" if s.last_run else "never",
        )
    console.print(table)
    for s in statuses:
        for colour, text in s.notes:
            console.print(f"[{colour}]{escape(s.table)}: {escape(text)}[/]", soft_wrap=True)
        if s.skipped:
            text = f"{s.table}: records about no row, skipped so far: {skipped_text(s.skipped)}"
            console.print(text, markup=False, style="dim", soft_wrap=True)


def _with_failures(lake: Lake, tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables with their standing failures; tables that failed before they existed come last."""
    failures = standing(lake)
    known = {t.table for t in tables}
    missing = [TableStatus(f.table, f.pipeline, None, {}, {}, 0.0, None) for t, f in failures.items() if t not in known]
    return [
        replace(t, failure=failure_text(failure), retry=retry_command(failure)) if failure else t
        for t in (*tables, *missing)
        for failure in (failures.get(t.table),)
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
        windows = {s: _newer(table, sources[s], mark.snapshot) for s, mark in marks.items() if s not in idle}
        waiting = backlog(lake, table_id)
        lost = lost_history(table_id, table, {s: sources[s] for s in windows})
    except (HistoryError, InputError) as e:
        return replace(result, error=str(e))
    oldest = [w.oldest_ms for w in windows.values() if w.oldest_ms is not None]
    now = datetime.now(UTC).timestamp()
    return replace(
        result,
        behind={source: w.snapshots for source, w in windows.items()},
        behind_seconds=max((now - ms / 1000 for ms in oldest), default=0.0),
        waiting=waiting,
        rows_behind=sum(w.rows for w in windows.values()),
        lost=lost,
        renamed=renamed_columns(marks, sources),
        landing=unused_folder(table),
        rejected=rejected_records(lake, table_id) if table_id.namespace == ("raw",) else 0,
    )


@dataclass(frozen=True)
class _Newer:
    """Changes of a source since a snapshot; `snapshots` is None if that is not an ancestor."""

    snapshots: int | None
    rows: int = 0
    oldest_ms: int | None = None


def _newer(table: IcebergTable, loaded: IcebergTable | None, start: int | None) -> _Newer:
    if loaded is None:
        return _Newer(None)
    head, about = loaded.metadata.current_snapshot_id, table.properties.get(SOURCE_TABLE_PROPERTY)
    of = SourceTable.parse(about) if about else None
    if head is None and start is not None and of is None and (emptied := loaded.snapshot_by_id(start)):
        return _Newer(1, visible_rows(emptied))  # it was replaced by an empty table
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
            return _Newer(None)
    rows = arrived(loaded, start, head, of) if of else None
    if rows is None:
        changed = (s for s in newer if s.summary is None or s.summary.operation != Operation.REPLACE)
        rows = sum(sum(counts(s)) for s in changed)
    return _Newer(len(newer), rows, newer[-1].timestamp_ms if newer else None)


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
    if status.upstream:
        parts.append(f"waits for {', '.join(status.upstream)}")
    if not parts:
        return "[green]up to date[/]"
    return f"[{'bold red' if status.failure else 'yellow'}]{escape('; '.join(parts))}[/]"
