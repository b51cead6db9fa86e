"""`lake-assets run`: absorb what is pending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.backfill.publishing import settle_all
from lake_assets.commands.printing import (
    OutcomeLines,
    console,
    outcome_json,
    outcome_table,
    print_json,
    stderr,
    visible,
)
from lake_assets.commands.table_lookup import AsJson, PipelineArgument, ShowSensitive, command, named_files
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.lake.counts import plural
from lake_assets.lake.names import nearest_table
from lake_assets.lake.sensitive_values import shown
from lake_assets.pipeline import Pipeline
from lake_assets.tables.outcome import Outcome
from lake_assets.upkeep.attend import attend_after_run

# Exit code of a run that rejected records and in which no table failed.
REJECTED = 3


def run(
    pipeline: PipelineArgument = None,
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
    loaded, lake = [Pipeline.load(file) for file in named_files(pipeline)], Lake.load()
    lake.catalog  # noqa: B018 (if it cannot be opened, that is one error, not one of each table)
    settle_all(lake)
    loaded = in_order(lake, loaded) if len(loaded) > 1 else loaded
    # Tables of one pipeline may read those of another one that the same command is about to make.
    ids = sorted({s.table for p in loaded for s in p.specs(lake, alone=len(loaded) == 1)})
    tables = [str(t) for t in ids]
    if table and (unknown := sorted({*table} - {*tables})):
        near = nearest_table(unknown[0], ids)
        raise PipelineError(
            f"{pipeline or 'the project'} has no table {', '.join(unknown)}{near}; it has "
            f"{', '.join(sorted(tables)) or 'none'}"
        )
    by_pipeline = _absorbed(lake, loaded, table, tables, as_json=as_json, with_values=show_sensitive)
    outcomes = [o for part in by_pipeline for o in part]
    if as_json:
        print_json([outcome_json(o) for o in outcomes])
    for note in filter(None, (rejection_note(outcomes, pipeline), pipeline_note(outcomes, pipeline))):
        stderr.print(note, markup=False)
    if not as_json:
        console.print(summary(outcomes), markup=False)
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)
    if upkeep:
        for one in loaded:
            attend_after_run(lake, one)
    if any(_unexpected_rejects(one, lake, part) for one, part in zip(loaded, by_pipeline, strict=True)):
        raise typer.Exit(REJECTED)


def _absorbed(
    lake: Lake,
    pipelines: Sequence[Pipeline],
    select: Sequence[str] | None,
    tables: Sequence[str],
    *,
    as_json: bool,
    with_values: bool,
) -> list[list[Outcome]]:
    """Run pipelines, showing the progress, and print the outcomes unless they are wanted as JSON."""

    def shown_of(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [_shown(o, with_values=with_values) for o in outcomes]

    if as_json:
        return [shown_of(p.run(lake, select)) for p in pipelines]
    if not console.is_terminal:
        lines = OutcomeLines(tables)
        return [
            shown_of(p.run(lake, select, on_outcome=lambda o: lines.show(_shown(o, with_values=with_values))))
            for p in pipelines
        ]
    with console.status("looking at what is pending") as status:
        done = [
            shown_of(p.run(lake, select, on_start=lambda name: status.update(f"absorbing: {escape(visible(name))}")))
            for p in pipelines
        ]
    console.print(outcome_table([o for part in done for o in part]))
    return done


def in_order(lake: Lake, pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """Return pipelines in the order of their tables: one that reads tables of another one comes after it."""
    specs = {p.name: p.specs(lake, alone=False) for p in pipelines}
    makes = {name: {s.table for s in of} for name, of in specs.items()}
    reads = {name: {t for s in of for t in s.sources} for name, of in specs.items()}
    left, ordered = list(pipelines), list[Pipeline]()
    while left:
        waits_for_none = (p for p in left if not any(reads[p.name] & makes[o.name] for o in left if o is not p))
        # Of pipelines that read each other, the first one starts: the next run brings the rest.
        ordered.append(next(waits_for_none, left[0]))
        left.remove(ordered[-1])
    return ordered


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many tables absorbed something, or did not, and how many records were rejected."""
    last: dict[str, str] = {}
    for outcome in outcomes:
        # With limited batches, a table has several outcomes: the last one may find nothing more.
        if last.get(outcome.table) not in ("absorbed", "failed") or outcome.status == "failed":
            last[outcome.table] = outcome.status
    words = {"absorbed": "absorbed changes", "nothing": "had none", "waiting": "wait", "failed": "failed"}
    counts = Counter(last.values())
    parts = [f"{counts[status]} {text}" for status, text in words.items() if counts[status]]
    rejected = sum(o.rejected for o in outcomes)
    records = "no record rejected" if not rejected else f"{plural(rejected, 'record')} rejected"
    seconds = sum(o.seconds for o in outcomes)
    return f"{plural(len(last), 'table')}: {', '.join(parts) or 'none'}; {records}; {seconds:.1f} s"


def _shown(outcome: Outcome, *, with_values: bool) -> Outcome:
    """Return an outcome as it is, or with the whole text of an error that hides it."""
    error = shown(outcome.exception) if with_values else outcome.exception
    return outcome if error is outcome.exception else replace(outcome, error=f"{type(error).__name__}: {error}")


def _unexpected_rejects(pipeline: Pipeline, lake: Lake, outcomes: Sequence[Outcome]) -> bool:
    """Whether records were rejected of a stream without `max_rejected`."""
    tables = {o.table for o in outcomes if o.rejected}
    specs = pipeline.specs(lake, alone=False) if tables else []
    return any(str(s.table) in tables and s.max_rejected is None for s in specs if isinstance(s, RawSpec | StagingSpec))


def rejection_note(outcomes: Sequence[Outcome], pipeline: str | None) -> str | None:
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
        f"{which} in no staging or final table ({listed}). `lake-assets rejected list` shows each with its reason, and "
        f"for which reasons `{command('lake-assets rejected replay', pipeline)}` reads them again after a fix"
    )


def pipeline_note(outcomes: Sequence[Outcome], pipeline: str | None) -> str | None:
    """Return how `lake-assets rebuild`, if an error recommends it, finds the pipeline; else None.

    Args:
        outcomes: outcomes of the run.
        pipeline: the pipeline's file or folder; shipped pipelines are found without it.
    """
    if not any("`lake-assets rebuild" in (o.error or "") for o in outcomes):
        return None
    if pipeline is None or not Path(pipeline).exists():
        return None
    return (
        f"`lake-assets rebuild` finds this pipeline's tables with `--pipeline {pipeline}`, or in its project's folder"
    )
