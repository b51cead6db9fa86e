"""`lake-assets rebuild`: compute a table from its sources again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.backfill import redo_everything
from lake_assets.commands.printing import console, outcome_json, print_json
from lake_assets.commands.table_lookup import AsJson, PipelineOption, pipeline_of
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.pipeline.redo import ROWS_AFTER, ROWS_BEFORE, Past
from lake_assets.tables.outcome import Outcome


def rebuild(
    table: Annotated[
        str, typer.Argument(help="a staging, final or model table, such as final.users", show_default=False)
    ],
    pipeline: PipelineOption = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="also redo everything downstream, as one backfill that can be undone")
    ] = False,
    keep_rows: Annotated[
        bool,
        typer.Option(
            "--keep-rows",
            help="of a table that cannot be computed again, such as a log: keep its rows, and apply the present "
            "declaration to the changes that are still known",
        ),
    ] = False,
    discard_rows: Annotated[
        bool, typer.Option("--discard-rows", help="of such a table: lose the rows that cannot be computed again")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute TABLE from its sources' current snapshots, and publish it in one commit.

    For tables whose sources have lost their history or were created again, or whose query, key, columns or types
    have changed. Readers see the old table or the new one. Downstream tables follow with the next run.
    """
    lake = Lake.load_existing()
    name = lake.named(table)
    declaring = pipeline_of(lake, name, pipeline)
    if keep_rows + discard_rows + downstream > 1:
        raise PipelineError("--keep-rows, --discard-rows and --downstream exclude each other: choose one")
    past: Past | None = "keep" if keep_rows else "discard" if discard_rows else None
    if downstream:
        redo_everything(lake, declaring, name, as_json=as_json)
        return
    if as_json:
        print_json(outcome_json(declaring.rebuild(lake, name, past=past)))
        return
    with console.status(f"rebuilding {table}"):
        outcome = declaring.rebuild(lake, name, past=past)
    _show(outcome)


def _show(outcome: Outcome) -> None:
    before, after = outcome.details.get(ROWS_BEFORE), outcome.details[ROWS_AFTER]
    before = f"{before:,}" if before is not None else "unreadable"
    console.print(f"[bold]{escape(outcome.table)}[/]: {before} rows before, {after:,} after")
    console.print(f"{outcome.inserted:,} inserted, {outcome.updated:,} updated, {outcome.deleted:,} deleted")
    console.print(escape(f"{outcome.why} ({outcome.seconds:.1f} s)"), style="dim")
    for found in outcome.audits:
        if not found.passed:
            console.print(escape(f"audit {found}"), style="yellow")
