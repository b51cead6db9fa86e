"""`lake-assets backfills`, and the commands for one of them: compare, publish, discard, resume, undo."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.backfills import undo as begin_undo
from lake_assets.backfill.comparison import TableComparison
from lake_assets.backfill.comparison import compare as compared
from lake_assets.backfill.publishing import settled
from lake_assets.commands.backfill import pipeline_of_record, record_json, run
from lake_assets.commands.printing import console, listing, print_json, visible
from lake_assets.commands.table_lookup import AsJson, PipelineOption
from lake_assets.facade import Lake

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
    pipeline: PipelineOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what a backfill changes, or has changed: rows, keys, partitions, sums of numbers, and sample rows."""
    lake = Lake.load_existing()
    record = settled(lake, Records(lake).get(backfill))
    specs = pipeline_of_record(lake, record, pipeline).specs(lake, alone=False)
    partitions = {str(s.table): s.partitions for s in specs}
    results = []
    for result in compared(lake, record, partitions, samples):
        results.append(result)
        if not as_json:
            _show(result)
    if as_json:
        print_json(results)


def _show(result: TableComparison) -> None:
    keys = f", {result.changed:,} key{'s' if result.changed != 1 else ''}" if result.key else ""
    console.print(
        f"[bold]{escape(result.table)}[/]: {result.inserted:,} inserted, {result.updated:,} updated, "
        f"{result.deleted:,} deleted{keys}"
    )
    if result.partitions:
        shown = ", ".join(result.partitions[:10]) + (", ..." if len(result.partitions) > 10 else "")
        console.print(escape(f"  partitions ({len(result.partitions)}): {shown}"))
    for column, (before, after) in result.sums.items():
        console.print(escape(f"  sum of {column} over these rows: {before} before, {after} after"))
    if result.samples:
        columns = ("" if c == "_change_type" else escape(visible(c)) for c in result.samples[0])
        printed = listing(*columns, fold=True, style="dim")
        for row in result.samples:
            printed.add_row(*(escape(visible(str(v))) for v in row.values()))
        console.print(printed)


def publish(backfill: Id, pipeline: PipelineOption = None, as_json: AsJson = False) -> None:
    """Let a backfill that is ready catch up with main, and publish all of its tables at once."""
    loaded = _load(backfill, pipeline)
    loaded.publish()
    _end(loaded, as_json=as_json)


def discard(backfill: Id, pipeline: PipelineOption = None, as_json: AsJson = False) -> None:
    """Drop a backfill that is not published, and delete its files."""
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
        text += f"; `lake-assets undo {loaded.record.id}` takes it back, for {loaded.record.keep_days} days"
    console.print(text, markup=False)
