"""`lake-assets backfill`: plan a backfill, and run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_plan import BackfillPlan, plan
from lake_assets.backfill.backfill_record import KEEP_DAYS, BackfillRecord, Records, TableRecord
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection
from lake_assets.commands.printing import console, listing, local, print_json, size, stderr, visible
from lake_assets.commands.table_lookup import AsJson, PipelineOption, pipeline_of
from lake_assets.errors import BackfillError, LakeError
from lake_assets.facade import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.pipeline import Pipeline, PipelineGroup, grouped


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
    lake, name = Lake.load_existing(), TableId.parse(table)
    declaring = pipeline_of(lake, name, pipeline)
    planned = plan(lake, declaring, name, selection, downstream=downstream, max_rows=max_rows, past=Records(lake).all())
    if dry_run:
        print_json(planned_json(planned)) if as_json else show_plan(planned)
        return
    if not as_json:
        show_plan(planned)
    begun = Backfill.begin(lake, declaring, planned, publish=publish, keep_days=keep_days)
    run(begun, as_json=as_json)


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
                begun.build(lambda record, at: _show_progress(record, at))
                status.update(f"backfill {backfill_id}: publishing")
        if begun.record.publish == "auto":
            begun.publish()
    except LakeError:
        if begun.record.is_open:
            stderr.print(
                f"the backfill {backfill_id} is not published, and main is unchanged. After a correction, `lake-assets "
                f"resume {backfill_id}` continues it; `lake-assets discard {backfill_id}` drops it",
                markup=False,
            )
        raise
    if as_json:
        print_json(record_json(begun.record))
        return
    console.print(_result(begun.record), markup=False)


def _show_progress(record: BackfillRecord, at: TableRecord) -> None:
    done = f"{at.done} of {len(at.chunks)} chunks, " if len(at.chunks) > 1 else ""
    console.print(
        f"{escape(at.table)}: {done}+{at.inserted:,} ~{at.updated:,} -{at.deleted:,} in {at.seconds:.1f} s "
        f"[dim]({escape(': '.join(filter(None, (at.strategy, at.why))))})[/]"
    )


def _result(record: BackfillRecord) -> str:
    if record.state == "ready":
        return (
            f"backfill {record.id} is ready: `lake-assets compare {record.id}` shows what changes, then `lake-assets "
            f"publish {record.id}` or `lake-assets discard {record.id}`"
        )
    if record.undoes:
        return (
            f"backfill {record.undoes} is undone: its tables hold what they would hold without it. That is the "
            f"backfill {record.id}, which can be undone as well"
        )
    if record.changed_nothing:
        return f"backfill {record.id}: no row differs, so nothing was published"
    tables = f"{len(record.tables)} table{'s' if len(record.tables) > 1 else ''}"
    return (
        f"backfill {record.id} published {tables} in one transaction of the catalog's database; `lake-assets undo "
        f"{record.id}` takes it back, for {record.keep_days} days"
    )


def show_plan(planned: BackfillPlan) -> None:
    """Print a plan."""
    headers = ("table", "redone", "rows", "reads", "writes up to", "s", "confidence")
    printed = listing(*headers, right=["rows", "s"], fixed=["table"])
    for t in planned.tables:
        printed.add_row(
            escape(visible(t.table)),
            f"{escape(t.what)}\n[dim]{escape(t.why)}[/]",
            f"{'up to ' if t.redo == 'changes' else ''}{t.rows:,}",
            f"{t.rows_read:,} rows, {t.files_read:,} files, {size(t.bytes_read)}",
            size(t.bytes_written),
            f"{t.seconds:.0f}",
            t.confidence + (f" ({t.runs} past runs)" if t.runs else ""),
        )
    console.print(printed)
    for table, why in planned.left_out.items():
        console.print(f"{table} is left out: {why}", style="yellow", markup=False)


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
