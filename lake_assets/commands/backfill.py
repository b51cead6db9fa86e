"""`lake-assets backfill`, which plans and runs a backfill, and the commands that list, review and undo them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_plan import BackfillPlan, TablePlan, plan
from lake_assets.backfill.backfill_record import KEEP_DAYS, BackfillRecord, Records, TableRecord
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.backfills import undo as begin_undo
from lake_assets.backfill.cleanup import discard_without_record
from lake_assets.backfill.comparison import TableComparison
from lake_assets.backfill.comparison import compare as compared
from lake_assets.backfill.publishing import settled
from lake_assets.backfill.row_selection import Selection
from lake_assets.commands.compared_tables import show_differences
from lake_assets.commands.printing import console, listing, local, print_json, say_written, size, stderr, visible
from lake_assets.commands.table_lookup import AsJson, Html, PipelineOption, ShowSensitive, page_file, pipeline_of
from lake_assets.errors import (
    BackfillError,
    BackfillNotFoundError,
    CorruptMetadataError,
    LakeError,
    StaleBackfillError,
)
from lake_assets.facade import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.pipeline import Pipeline, PipelineGroup, grouped
from lake_assets.report.backfill_contents import backfill_report, partition_column
from lake_assets.report.backfill_sentences import outcome_text
from lake_assets.report.html_page import write_page
from lake_assets.report.table_differences import table_differences


def backfill(
    table: Annotated[str, typer.Argument(help="the table to redo, such as final.users", show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help="redo all rows")] = False,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", help="redo this partition; may be repeated", metavar="KEY")
    ] = None,
    low: Annotated[str | None, typer.Option("--from", help="redo a range, both ends included", metavar="VALUE")] = None,
    high: Annotated[str | None, typer.Option("--to", help="the end of the range", metavar="VALUE")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="column of the range; default: the column of the partitions by time, else the source time of a "
            "final table's events",
            metavar="COLUMN",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="redo the keys in a .csv, .jsonl or .parquet file", metavar="FILE")
    ] = None,
    downstream: Annotated[bool, typer.Option(help="also redo the tables that read it")] = True,
    publish: Annotated[
        Literal["auto", "manual"],
        typer.Option(
            help="auto: publish when everything is built; manual: wait for `lake-assets publish` or `discard`"
        ),
    ] = "auto",
    max_rows: Annotated[
        int, typer.Option(help="rows that are computed at a time, roughly", min=1)
    ] = thresholds.ROWS_A_CHUNK,
    keep_days: Annotated[int, typer.Option(help="days in which it can be undone", min=1)] = KEEP_DAYS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop")] = False,
    html: Html = None,
    pipeline: PipelineOption = None,
    as_json: AsJson = False,
) -> None:
    """Redo TABLE and everything downstream in working copies, and publish all tables at once.

    Choose --all, --partition, --from and --to, or --keys. The plan is printed first. Readers see nothing of the
    backfill until every table is built and has passed its audits. Micro-batches continue meanwhile.
    """
    selection = Selection(tuple(partition or ()), low, high, by, local(keys, "--keys") if keys else None)
    if everything != selection.is_everything:
        raise BackfillError(
            "--all excludes every other choice of rows"
            if everything
            else "choose what to redo: --all, --partition KEY, --from VALUE --to VALUE, or --keys FILE"
        )
    if dry_run and html:
        raise BackfillError("--html shows rows before and after, and --dry-run computes none: leave one of them out")
    file = page_file(html)
    lake = Lake.load_existing()
    name = lake.named(table)
    declaring = pipeline_of(lake, name, pipeline)
    planned = plan(lake, declaring, name, selection, downstream=downstream, max_rows=max_rows, past=Records(lake).all())
    if dry_run:
        print_json(planned_json(planned)) if as_json else show_plan(planned)
        return
    if not as_json:
        show_plan(planned)
    begun = Backfill.begin(lake, declaring, planned, publish=publish, keep_days=keep_days)
    run(begun, as_json=as_json)
    if file:
        specs = declaring.specs(lake, alone=False)
        comparisons = list(compared(lake, begun.record, specs))
        write_page(file, backfill_report(lake, begun.record, comparisons, specs))
        if not as_json:
            say_written(file)


def redo_everything(lake: Lake, pipeline: Pipeline, table: TableId, *, as_json: bool) -> None:
    """Redo a table and everything downstream, for `lake-assets rebuild TABLE --downstream`."""
    planned = plan(lake, pipeline, table, Selection(), past=Records(lake).all())
    if not as_json:
        show_plan(planned)
    run(Backfill.begin(lake, pipeline, planned), as_json=as_json)


def run(begun: Backfill, *, as_json: bool) -> None:
    """Build a backfill, print its progress, and publish it unless it waits for a decision.

    Raises:
        LakeError: it failed; says how to continue.
    """
    backfill_id = begun.record.id
    try:
        if as_json:
            begun.build()
        else:
            with console.status(f"backfill {backfill_id}: building") as status:
                begun.build(lambda record, at: show_progress(record, at))
                status.update(f"backfill {backfill_id}: publishing")
        if begun.record.publish == "auto":
            begun.publish()
    except LakeError as e:
        # The errors of other states, and of stale backfills, say themselves how it ends.
        if begun.record.state in ("building", "failed", "ready") and not isinstance(e, StaleBackfillError):
            stderr.print(
                f"the backfill {backfill_id} is not published, and main is unchanged. After a correction, `lake-assets "
                f"resume {backfill_id}` continues it; `lake-assets discard {backfill_id}` drops it",
                markup=False,
            )
        raise
    if as_json:
        print_json(record_json(begun.record))
        return
    console.print(outcome_text(begun.record), markup=False)


def show_progress(record: BackfillRecord, at: TableRecord) -> None:
    """Print what a piece of work has done to a table."""
    done = f"{at.done} of {len(at.chunks)} chunks, " if len(at.chunks) > 1 else ""
    console.print(
        f"{escape(at.table)}: {done}+{at.inserted:,} ~{at.updated:,} -{at.deleted:,} in {at.seconds:.1f} s "
        f"[dim]({escape(': '.join(filter(None, (at.strategy, at.why))))})[/]"
    )


def show_plan(planned: BackfillPlan) -> None:
    """Print a plan."""
    headers = ("table", "redone", "rows", "reads", "writes about", "s", "confidence")
    printed = listing(*headers, right=["rows", "s"], fixed=["table"])
    for t in planned.tables:
        printed.add_row(
            escape(visible(t.table)),
            f"{escape(t.what)}\n[dim]{escape(t.why)}[/]",
            _rows_text(t),
            f"{plural(t.rows_read, 'row')}, {plural(t.files_read, 'file')}, {size(t.bytes_read)}",
            size(t.bytes_written),
            f"{t.seconds:.0f}",
            t.confidence + (f" ({t.runs} past runs)" if t.runs else ""),
        )
    console.print(printed)
    for table, why in planned.left_out.items():
        console.print(f"{table} is left out: {why}", style="yellow", markup=False)


def _rows_text(planned: TablePlan) -> str:
    """Return how many rows change: an estimate, the bound of stored rows, and what past backfills changed."""
    text = f"at most {planned.most:,} stored, plus new"
    if planned.rows < planned.most:
        text = f"about {planned.rows:,}, {text}"
    if planned.changed:
        low, high = planned.changed
        text += f"\n[dim]{f'{low:,} to {high:,}' if low < high else f'{low:,}'} in past runs[/]"
    return text


def planned_json(planned: BackfillPlan) -> dict[str, object]:
    """Convert a plan to JSON values."""
    tables = [
        {**vars(t), "chunks": [{"rows": c.label, "where": c.where} for c in t.chunks], "confidence": t.confidence}
        for t in planned.tables
    ]
    return {**vars(planned), "tables": tables, "seconds": planned.seconds}


def record_json(record: BackfillRecord) -> dict[str, object]:
    """Convert a record to JSON values, without the conditions of its chunks."""
    tables = [{**vars(t), "chunks": len(t.chunks)} for t in record.tables]
    return {**vars(record), "tables": tables}


def pipeline_of_record(lake: Lake, record: BackfillRecord, named: str | None) -> Pipeline | PipelineGroup:
    """Find the pipeline of a backfill: the named one, the file that it was begun with, or one with its name."""
    files = record.files
    if named is None and files and all(file.is_file() for file in files):
        return grouped(map(Pipeline.load, files))
    return pipeline_of(lake, record.tables[0].name, named)


Id = Annotated[str, typer.Argument(help="id of the backfill, see `lake-assets backfills`", metavar="ID")]
_STYLES = {"published": "green", "ready": "bold yellow", "failed": "bold red", "building": "yellow"}


def backfills(as_json: AsJson = False) -> None:
    """List all backfills, newest last: state, progress, who began them and when."""
    lake = Lake.load_existing()
    records = [settled(lake, r) for r in Records(lake).all()]
    if as_json:
        print_json([record_json(r) for r in records])
        return
    if not records:
        console.print("no backfill yet: `lake-assets backfill TABLE --all` redoes a table and everything downstream")
        return
    printed = listing("id", "what", "state", "progress", "rows", "by", "began (UTC)", fixed=["id"], fold=True)
    for r in records:
        printed.add_row(
            r.id,
            escape(visible(f"{r.request} ({r.pipeline})")),
            _state(r),
            _progress(r),
            f"+{sum(t.inserted for t in r.tables):,} ~{sum(t.updated for t in r.tables):,} "
            f"-{sum(t.deleted for t in r.tables):,}",
            escape(r.by),
            f"{datetime.fromtimestamp(r.created, UTC):%Y-%m-%d %H:%M:%S}",
        )
    console.print(printed)
    for r in records:
        if r.state == "failed":
            console.print(f"{r.id}: {r.error}", style="red", markup=False, soft_wrap=True)


def _state(record: BackfillRecord) -> str:
    text = "no row differed" if record.changed_nothing else record.state
    if record.state == "building" and not record.is_running:
        text = "interrupted"
    return f"[{_STYLES.get(record.state, 'dim')}]{text}[/]"


def _progress(record: BackfillRecord) -> str:
    done, chunks = sum(t.done for t in record.tables), sum(len(t.chunks) for t in record.tables)
    tables = sum(1 for t in record.tables if t.is_done)
    pieces = f", {done} of {chunks} chunks" if chunks > len(record.tables) else ""
    return f"{tables} of {len(record.tables)} tables{pieces}"


def compare(
    backfill: Id,
    samples: Annotated[int, typer.Option(help="changed rows to show of each table", min=0)] = 5,
    html: Html = None,
    pipeline: PipelineOption = None,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Show what a backfill changes, or has changed: rows, columns, partitions, sums of numbers, and sample rows."""
    file = page_file(html)
    lake = Lake.load_existing()
    record = settled(lake, Records(lake).get(backfill))
    specs = pipeline_of_record(lake, record, pipeline).specs(lake, alone=False)
    by_table = {str(s.table): s for s in specs}
    results: list[TableComparison] = []
    for result in compared(lake, record, specs, samples, shows_sensitive=show_sensitive):
        results.append(result)
        if not as_json:
            show_differences(table_differences(result, partition_column(by_table.get(result.table))))
    if record.state == "ready":
        Records(lake).note_comparison(record.id, {r.table: r.numbers() for r in results})
    if file:
        write_page(file, backfill_report(lake, record, results, specs))
    if as_json:
        print_json(results)
    elif file:
        say_written(file)


def publish(backfill: Id, pipeline: PipelineOption = None, as_json: AsJson = False) -> None:
    """Let a backfill that is ready catch up with main, and publish all of its tables at once."""
    loaded = _load(backfill, pipeline)
    loaded.publish()
    _end(loaded, as_json=as_json)


def discard(
    backfill: Id,
    pipeline: PipelineOption = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="its record is lost, and no process on any machine is at work on it")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a backfill that is not published, and delete its files; also one whose record is lost or damaged."""
    lake = Lake.load_existing()
    try:
        Records(lake).get(backfill)
    except (CorruptMetadataError, BackfillNotFoundError) as e:
        if isinstance(e, BackfillNotFoundError) and not lost:
            raise BackfillNotFoundError(
                f"{e}. Records are in the home of the lake ({lake.config.home}): if another machine began it, discard "
                f"it there. If its record is lost, `lake-assets discard {backfill} --lost` removes what is left of it"
            ) from e
        is_known = Records(lake).has(backfill)
        tables = discard_without_record(lake, backfill)
        if not is_known and not tables:
            raise
        if as_json:
            print_json({"id": backfill, "state": "discarded", "tables": tables})
        else:
            console.print(f"backfill {backfill} is discarded; its record could not be read", markup=False)
        return
    loaded = _load(backfill, pipeline)
    loaded.discard()
    _end(loaded, as_json=as_json)


def resume(backfill: Id, pipeline: PipelineOption = None, as_json: AsJson = False) -> None:
    """Continue a backfill that was interrupted or has failed, from the last finished piece of work."""
    run(_load(backfill, pipeline), as_json=as_json)


def undo(backfill: Id, pipeline: PipelineOption = None, as_json: AsJson = False) -> None:
    """Undo a published backfill: publish the rows from before it, with everything absorbed since."""
    lake = Lake.load_existing()
    record = Records(lake).get(backfill)
    run(begin_undo(lake, pipeline_of_record(lake, record, pipeline), backfill), as_json=as_json)


def _load(backfill: str, pipeline: str | None) -> Backfill:
    lake = Lake.load_existing()
    record = Records(lake).get(backfill)
    return Backfill.load(lake, pipeline_of_record(lake, record, pipeline), backfill)


def _end(loaded: Backfill, *, as_json: bool) -> None:
    if as_json:
        print_json(record_json(loaded.record))
        return
    text = f"backfill {loaded.record.id} is {loaded.record.state}"
    if loaded.record.changed_nothing:
        text += ", and no row differed"
    elif loaded.record.state == "published":
        text += f" {loaded.record.way}".rstrip()
        text += f"; {loaded.record.undo_text}"
    console.print(text, markup=False)
