"""`lake-assets playback` and `lake-assets flights`: bring the data of an example, day by day, and absorb it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Annotated

import typer

from lake_assets.commands.printing import console, outcome_table
from lake_assets.examples import flights as year_of_flights
from lake_assets.examples import playback as plays
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.pipeline import Pipeline

Days = Annotated[int, typer.Option("--days", min=1, help="how many days to bring")]
OnlyData = Annotated[
    bool, typer.Option("--only-data", help="bring the data only, and let the sensor in Dagster absorb it")
]


def playback(days: Days = 3, only_data: OnlyData = False) -> None:
    """Bring made-up playback events of the next days, absorb them in all forms of a batch job, and check the tables."""
    lake, pipeline = Lake.load(), Pipeline.load(plays.PIPELINE)
    plays.prepare(lake)
    newest = lake.spark().table(lake.sql_name(plays.EVENTS)).agg({"id": "max"}).collect()[0][0] or 0
    before = newest // plays.PER_DAY
    arrivals = list(islice(plays.days(), before + days))
    for n, day in enumerate(arrivals[before:], before + 1):
        console.print(
            f"[bold]day {n}[/]: {len(day.arrived)} events arrive, {len(day.corrected)} are corrected, "
            f"{len(day.deleted)} deleted"
        )
        plays.arrive(lake, day)
        if not only_data:
            _absorb(lake, pipeline)
            _compare(lake, plays.expected(plays.after(arrivals[:n])))


def flights(days: Days = 3, only_data: OnlyData = False) -> None:
    """Bring the flights of the next days in the order of landing, and absorb them."""
    year, lake, pipeline = year_of_flights.read(), Lake.load(), Pipeline.load(year_of_flights.PIPELINE)
    year_of_flights.prepare(lake, year)
    last = lake.spark().table(lake.sql_name(year_of_flights.FLIGHTS)).agg({"landed_at": "max"}).collect()[0][0]
    coming = (b for b in year.by_day() if last is None or b["landed_at"][0].as_py().timestamp() > last.timestamp())
    for batch in islice(coming, days):
        console.print(f"[bold]{batch['landed_at'][0].as_py():%Y-%m-%d}[/]: {len(batch)} flights landed")
        year_of_flights.arrive(lake, batch)
        if not only_data:
            _absorb(lake, pipeline)


def _absorb(lake: Lake, pipeline: Pipeline) -> None:
    with console.status("absorbing") as status:
        outcomes = pipeline.run(lake, on_start=lambda table: status.update(f"absorbing: {table}"))
    console.print(outcome_table(outcomes))
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)


def _compare(lake: Lake, expected: dict[str, Counter[tuple[object, ...]]]) -> None:
    wrong = [t for t, rows in expected.items() if _rows(lake, t) != rows]
    if wrong:
        console.print(f"[bold red]{', '.join(wrong)} differ from what the events say.[/]")
        raise typer.Exit(1)
    console.print(f"[green]All {len(expected)} tables are what the events say.[/]\n")


def _rows(lake: Lake, table: str) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, lake.spark().table(lake.sql_name(TableId.parse(table))).collect()))
