"""`lake-assets demo`: the recorded stream of a shop becomes final and aggregate tables, checked against Postgres."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lake_assets.commands.printing import absorbed, console, listing, outcome_table
from lake_assets.errors import InputError
from lake_assets.examples import population, shop
from lake_assets.examples.shop import Checkpoint, Comparison
from lake_assets.facade import Lake
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import Pipeline
from lake_assets.tables.outcome import Outcome


def demo(
    next_only: Annotated[bool, typer.Option("--next", help="feed only the next checkpoint")] = False,
    feed_only: Annotated[
        bool, typer.Option("--feed-only", help="only put the events into the landing folder, for Dagster to process")
    ] = False,
    reset: Annotated[bool, typer.Option("--reset", help="drop the demo's tables first and start over")] = False,
) -> None:
    """Feed a recorded change stream of Postgres in micro-batches and compare every table with Postgres; then join
    and count two change feeds, and print the figures of each step."""
    lake, pipeline = Lake.load(), Pipeline.load(shop.PIPELINE)
    landing = lake.config.home / "landing" / "shop_events"
    if reset:
        _reset(lake, pipeline, "shop_events")
        _reset(lake, Pipeline.load(population.PIPELINE), "user_name_feed", "user_city_feed")
    upto = 1 if next_only else None
    remaining = [c for c in shop.checkpoints() if c not in list(shop.fed(landing))]
    steps = [s for s in population.STEPS if s not in population.fed(lake.config.home)]
    if not remaining and not steps:
        console.print("All checkpoints have been fed already; `lake-assets demo --reset` starts over.\n")
    if feed_only:
        for checkpoint in remaining[:upto]:
            files = shop.feed(landing, checkpoint)
            console.print(f"{files} files of {checkpoint.name} are in {landing}: {checkpoint.what}")
        for step in steps[:upto]:
            files = population.feed(lake.config.home, step)
            console.print(f"{files} files of {step.name} are in {landing.parent}/user_*_feed: {step.what}")
        return
    began = time.monotonic()
    with console.status("starting Spark"):
        lake.catalog  # noqa: B018 (opened first, so that a broken catalog is reported before Spark starts)
        lake.spark()
    times: list[tuple[str, float]] = [("Spark session", time.monotonic() - began)]
    equal = True
    for checkpoint in remaining[:upto] or shop.checkpoints()[-1:]:
        equal &= _checkpoint(lake, pipeline, landing, checkpoint, times)
    _city_population(lake, done=not next_only or len(remaining) <= 1)
    equal &= _population(lake, steps[:upto] or population.STEPS[-1:], times)
    _result(lake, times, equal)
    if not equal:
        raise typer.Exit(1)


def _checkpoint(
    lake: Lake, pipeline: Pipeline, landing: Path, checkpoint: Checkpoint, times: list[tuple[str, float]]
) -> bool:
    console.print(Rule(f"[bold]{checkpoint.name}[/]: {checkpoint.what}", align="left"))
    began = time.monotonic()
    shop.feed(landing, checkpoint)
    with console.status("absorbing") as status:
        outcomes = pipeline.run(lake, on_start=lambda table: status.update(f"absorbing: {table}"))
    times.append((f"{checkpoint.name}: absorbing", time.monotonic() - began))
    if failed := [o for o in outcomes if o.status == "failed"]:
        console.print(outcome_table(failed))
        if isinstance(failed[0].exception, InputError):
            console.print("[bold]The input was rejected: no table holds anything of this batch.[/]")
        raise typer.Exit(1)
    began = time.monotonic()
    with console.status("comparing with Postgres"):
        comparisons = shop.compare(lake, checkpoint)
    times.append((f"{checkpoint.name}: comparing", time.monotonic() - began))
    console.print(_absorbed(outcomes, {f"final.{c.table}": c for c in comparisons}))
    for comparison in comparisons:
        for difference in comparison.differences[:5]:
            console.print(f"[red]{comparison.table}[/]: {difference}")
    console.print()
    return all(c.equal for c in comparisons)


def _absorbed(outcomes: list[Outcome], comparisons: dict[str, Comparison]) -> Table:
    """Return one line per table; how long each took is not shown, since they are absorbed side by side."""
    table = listing("table", "captured", "rows", "how", "Postgres", fixed=["table", "rows", "Postgres"])
    printed = outcome_table(outcomes)
    cells = list(zip(*(list(c.cells) for c in printed.columns), strict=True))
    for outcome, (name, captured, changed, _, how, _) in zip(outcomes, cells, strict=True):
        comparison = comparisons.get(outcome.table)
        verdict = ""
        if comparison is not None:
            verdict = f"[green]= {plural(comparison.rows, 'row')}[/]" if comparison.equal else "[bold red]differs[/]"
        table.add_row(name, _one_line(_LAYER.sub("", str(captured))), changed, _one_line(how), verdict)
    return table


# Of the tables that were captured: a table reads those of the layer before.
_LAYER = re.compile(r"\b(raw|staging|final)\.(?=\w+: )")


def _one_line(cell: Any) -> Text:
    """Return a cell that is shortened where the terminal is narrow: the demo has one line per table."""
    line = Text.from_markup(str(cell).replace("\n", "; "), overflow="ellipsis")
    line.no_wrap = True
    return line


def _population(lake: Lake, steps: Sequence[population.Step], times: list[tuple[str, float]]) -> bool:
    """Absorb the worked example, one line per step: who moved, and how the cities' counts changed."""
    console.print(Rule("[bold]population[/]: user_name ⋈ user_city, counted by city", align="left"))
    pipeline = Pipeline.load(population.PIPELINE)
    table = listing("what changed", "population", "joined", "counted", "as expected")
    began, equal = time.monotonic(), True
    for step in steps:
        population.feed(lake.config.home, step)
        with console.status(f"absorbing: {step.name}"):
            outcomes = {o.table: o for o in pipeline.run(lake)}
        if failed := [o for o in outcomes.values() if o.status == "failed"]:
            console.print(outcome_table(failed))
            raise typer.Exit(1)
        wrong = population.differences(lake, step)
        equal &= not wrong
        for message in wrong:
            console.print(message, markup=False)
        counts = ", ".join(f"{city} {count}" for city, count in sorted(step.population.items()))
        joined, counted = (absorbed(outcomes[t]) for t in (population.NAME_CITY, population.POPULATION))
        table.add_row(step.what, counts, joined, counted, "[bold red]no[/]" if wrong else "[green]yes[/]")
    times.append(("population", time.monotonic() - began))
    console.print(table)
    console.print()
    return equal


def _city_population(lake: Lake, *, done: bool) -> None:
    if not done or not lake.exists("agg.city_population"):
        return
    what = "[bold]agg.city_population[/], maintained from what changed in final.users and final.user_city"
    console.print(Rule(what, align="left"))
    table = listing("city", "population", "balance", right=["population", "balance"])
    for row in lake.spark().table(lake.sql_name("agg.city_population")).orderBy("city").collect():
        city = "(null)" if row["city"] is None else row["city"] or "(empty)"
        table.add_row(city, str(row["population"]), str(row["balance"]))
    console.print(table)
    console.print()


def _result(lake: Lake, times: list[tuple[str, float]], equal: bool) -> None:
    spent = listing("where the time went", "s", right=["s"])
    for what, seconds in [*times, ("total", sum(s for _, s in times))]:
        spent.add_row(what, f"{seconds:.1f}")
    console.print(spent)
    console.print()
    verdict = (
        "[bold green]Every final table equals Postgres, and every step of population its numbers.[/]"
        if equal
        else "[bold red]Some tables differ from the expected rows.[/]"
    )
    console.print(f"{verdict} The lake is in {lake.config.home}.")
    is_clone = (Path(__file__).parents[2] / "Makefile").is_file()
    in_ui = (
        "  make ui                                        the same tables as Dagster assets, on http://127.0.0.1:3000\n"
    )
    console.print(
        f"\nNext:\n{in_ui if is_clone else ''}"
        "  lake-assets status                             rows, watermarks, how far behind\n"
        "  lake-assets capture final.users                what changed last, from metadata alone\n"
        "  lake-assets verify agg.city_population         compare the table with a fresh run of its query\n"
        "  lake-assets demo --reset --next                start over, one checkpoint at a time (then: --next)\n"
        "  lake-assets demo --next --feed-only            only deliver the files; the sensor in the UI does the rest"
        + ("\n(in the clone's folder `lake-assets` is .venv/bin/lake-assets)" if is_clone else "")
    )


def _reset(lake: Lake, pipeline: Pipeline, *streams: str) -> None:
    """Drop a pipeline's own tables with their files, and empty its landing folders."""
    owned = [
        s.table
        for s in pipeline.specs(lake, alone=False)
        if lake.exists(s.table) and _is_ours(lake, s.table, pipeline.name)
    ]
    ledgers = [ledger_of(t) for t in owned if t.namespace == ("raw",)]
    for table in [*reversed(owned), *(t for t in ledgers if lake.exists(t))]:
        lake.catalog.purge_table(table.parts)
    for stream in streams:
        if (landing := lake.config.home / "landing" / stream).is_dir():
            shutil.rmtree(landing)


def _is_ours(lake: Lake, table: TableId, pipeline: str) -> bool:
    return lake.table(table).properties.get(PIPELINE_PROPERTY) == pipeline
