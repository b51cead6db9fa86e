"""`lake-assets run`: absorb what is pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.backfill.publishing import settle_all
from lake_assets.commands.printing import console, outcome_json, outcome_table, print_json, stderr, visible
from lake_assets.commands.table_lookup import AsJson, ShowSensitive, find_pipeline
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.lake.names import nearest
from lake_assets.lake.sensitive_values import shown
from lake_assets.pipeline import Pipeline
from lake_assets.tables.outcome import Outcome
from lake_assets.upkeep.attend import attend_after_run

# Exit code of a run that rejected records and in which no table failed.
REJECTED = 3


def run(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
    table: Annotated[list[str] | None, typer.Option("--table", "-t", help="only this table; may be repeated")] = None,
    upkeep: Annotated[
        bool, typer.Option("--upkeep/--no-upkeep", help="combine small files and expire snapshots afterwards, if due")
    ] = True,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Absorb everything that is pending, then exit (for cron).

    Exit code: 1 if a table failed; 3 if no table failed but records were rejected, unless their stream allows it
    (max_rejected).
    """
    loaded, lake = find_pipeline(pipeline), Lake.load()
    settle_all(lake)
    if table:
        existing = {str(s.table) for s in loaded.specs(lake)}
        if unknown := sorted(set(table) - existing):
            near = nearest(unknown[0], existing)
            raise PipelineError(
                f"{pipeline} has no table {', '.join(unknown)}{near}; it has {', '.join(sorted(existing)) or 'none'}"
            )
    if as_json:
        outcomes = _shown(loaded.run(lake, table), with_values=show_sensitive)
        print_json([outcome_json(o) for o in outcomes])
    else:
        with console.status("looking at what is pending") as status:
            outcomes = loaded.run(
                lake, table, on_start=lambda name: status.update(f"absorbing: {escape(visible(name))}")
            )
        outcomes = _shown(outcomes, with_values=show_sensitive)
        console.print(outcome_table(outcomes))
    for note in filter(None, (rejection_note(outcomes, pipeline), pipeline_note(outcomes, pipeline))):
        stderr.print(note, markup=False)
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)
    if upkeep:
        attend_after_run(lake, loaded)
    if _unexpected_rejects(loaded, lake, outcomes):
        raise typer.Exit(REJECTED)


def _shown(outcomes: Sequence[Outcome], *, with_values: bool) -> list[Outcome]:
    """Return outcomes as they are, or with the whole text of errors that hide it."""
    if not with_values:
        return list(outcomes)
    errors = [shown(o.exception) for o in outcomes]
    return [
        replace(o, error=f"{type(e).__name__}: {e}") if e is not o.exception else o
        for o, e in zip(outcomes, errors, strict=True)
    ]


def _unexpected_rejects(pipeline: Pipeline, lake: Lake, outcomes: Sequence[Outcome]) -> bool:
    """Whether records were rejected of a stream without `max_rejected`."""
    tables = {o.table for o in outcomes if o.rejected}
    specs = pipeline.specs(lake, alone=False) if tables else []
    return any(str(s.table) in tables and s.max_rejected is None for s in specs if isinstance(s, RawSpec | StagingSpec))


def rejection_note(outcomes: Sequence[Outcome], pipeline: str) -> str | None:
    """Return how many records of which tables were rejected, and what to do about them; None if none."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.rejected:
            counts[outcome.table] = counts.get(outcome.table, 0) + outcome.rejected
    if not counts:
        return None
    total, listed = sum(counts.values()), ", ".join(f"{table} {n:,}" for table, n in counts.items())
    which = "1 record was rejected and is" if total == 1 else f"{total:,} records were rejected and are"
    return (
        f"{which} in no staging or final table ({listed}). `lake-assets rejected list` shows each with its reason; "
        f"after a fix, `lake-assets rejected replay {pipeline}` reads them again"
    )


def pipeline_note(outcomes: Sequence[Outcome], pipeline: str) -> str | None:
    """Return how `lake-assets rebuild`, if an error recommends it, finds the pipeline; else None.

    Args:
        outcomes: outcomes of the run.
        pipeline: the pipeline's file or folder; shipped pipelines are found without it.
    """
    if not Path(pipeline).exists() or not any("`lake-assets rebuild" in (o.error or "") for o in outcomes):
        return None
    return f"`lake-assets rebuild` finds this pipeline's tables with `--pipeline {pipeline}`, or below LAKE_PIPELINES"
