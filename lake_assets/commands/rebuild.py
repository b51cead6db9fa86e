"""`lake-assets rebuild`: compute a table from its sources again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, outcome_json, print_json
from lake_assets.commands.run_and_status import AsJson, find_pipeline
from lake_assets.errors import PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.pipeline import Pipeline, own_pipelines
from lake_assets.pipeline.table_rebuild import ROWS_AFTER, ROWS_BEFORE
from lake_assets.tables.outcome import Outcome


def rebuild(
    table: Annotated[
        str, typer.Argument(help="a staging, final or model table, such as final.users", show_default=False)
    ],
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            "-p",
            help="YAML file, folder or name of its pipeline; default: the shipped ones and LAKE_PIPELINES",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute TABLE from everything its sources hold now and publish it in one commit.

    For tables whose sources have lost history or were dropped and created again, or whose query, key, columns or types
    have changed. Readers see the old table or the new one. Downstream tables follow with the next run.
    """
    lake = Lake.load_existing()
    found = pipeline_of(lake, TableId.parse(table), pipeline)
    if as_json:
        print_json(outcome_json(found.rebuild(lake, table)))
        return
    with console.status(f"rebuilding {table}"):
        outcome = found.rebuild(lake, table)
    _show(outcome)


def pipeline_of(lake: Lake, table: TableId, named: str | None) -> Pipeline:
    """Find the pipeline that declares a table.

    Raises:
        PipelineError: no pipeline does.
    """
    searched = [find_pipeline(named)] if named else [*own_pipelines(), *map(Pipeline.load, shipped_pipelines())]
    declared: list[str] = []
    for candidate in searched:
        tables = [s.table for s in candidate.specs(lake, alone=False)]
        if table in tables:
            return candidate
        declared += map(str, tables)
    names = ", ".join(c.name for c in searched)
    where = "" if named else ". Name its pipeline with --pipeline, or set LAKE_PIPELINES to its folder"
    raise PipelineError(f"no table {table} in pipeline {names}{nearest(str(table), declared)}{where}")


def _show(outcome: Outcome) -> None:
    before, after = outcome.details.get(ROWS_BEFORE), outcome.details[ROWS_AFTER]
    before = f"{before:,}" if before is not None else "unreadable"
    console.print(f"[bold]{escape(outcome.table)}[/]: {before} rows before, {after:,} after")
    console.print(f"{outcome.inserted:,} inserted, {outcome.updated:,} updated, {outcome.deleted:,} deleted")
    console.print(escape(f"{outcome.why} ({outcome.seconds:.1f} s)"), style="dim")
    for found in outcome.audits:
        if not found.passed:
            console.print(escape(f"audit {found}"), style="yellow")
