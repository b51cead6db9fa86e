"""`lake-assets status`: how far each table is, and what stands in its way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from lake_assets.commands.printing import console, listing, print_json, size
from lake_assets.commands.table_lookup import AsJson, known_pipelines
from lake_assets.facade import Lake
from lake_assets.health.lake_status import lake_status
from lake_assets.health.table_lag import lag_of
from lake_assets.health.table_status import TableStatus
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw_tables import skipped_text
from lake_assets.lake.counts import plural
from lake_assets.lake.durations import in_words


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="print it again and again, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(help="seconds between two refreshes of --watch", min=0.5)] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Print one line per table, failing ones first: rows, watermark, pending changes, last run. Reads metadata only."""
    if watch and as_json:
        raise typer.BadParameter("--json prints the status once: leave out --watch, or call it again and again")
    lake = Lake.load_existing()
    if as_json:
        print_json(lake_status(lake, known_pipelines(lake)[0]).tables)
        return
    while watch:
        with console.capture() as printed:
            _show(lake)
        if console.is_terminal:
            console.clear()
        print(printed.get(), end="")
        console.print(f"{datetime.now(UTC):%H:%M:%S} UTC, again every {every:g} s", style="dim")
        time.sleep(every)
    _show(lake)


def failing_first(statuses: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables that need somebody first, then those with something to absorb, upstream first."""
    return sorted(statuses, key=lambda s: 0 if s.fails else 1 if s.is_behind else 2)


def notes_of(statuses: Sequence[TableStatus]) -> dict[tuple[str, str], list[str]]:
    """Return what is to be said, as colours and texts, each once, with the tables that it is about: one cause, such as
    a server that is away, has the same text for many tables."""
    found: dict[tuple[str, str], list[str]] = {}
    for s in statuses:
        notes = list(s.notes)
        if s.skipped:
            notes.append(("dim", f"records about no row, skipped so far: {skipped_text(s.skipped)}"))
        for note in notes:
            found.setdefault(note, []).append(s.table)
    return found


def _show(lake: Lake) -> None:
    pipelines, unread = known_pipelines(lake)
    found = lake_status(lake, pipelines)
    statuses = failing_first(found.tables)
    if statuses:
        console.print(_listing(statuses))
    else:
        home = lake.config.home
        console.print(f"no pipeline has filled a table in the lake at {home} yet: try `lake-assets demo`", markup=False)
    for (colour, text), tables in notes_of(statuses).items():
        console.print(f"[{colour}]{escape(', '.join(tables))}: {escape(text)}[/]", soft_wrap=True)
    for disk in found.disks:
        console.print(f"[red]{escape(disk.advice)}[/]", soft_wrap=True)
    if found.erasure:
        console.print(f"[yellow]{escape(found.erasure)}[/]", soft_wrap=True)
    for text in (
        c.text for t, kept in found.upkeep.items() if t not in {s.table for s in statuses} for c in kept.claims
    ):
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    for text in [*unread, *found.unread]:
        console.print(f"whether declarations have changed is not known: {text}", markup=False, soft_wrap=True)


def _listing(statuses: Sequence[TableStatus]) -> Table:
    table = listing("table", "rows", "watermark", "behind", "upkeep", "last run (UTC)", right=["rows"], fold=True)
    others = {s.table: s for s in statuses}
    for s in statuses:
        marks = ", ".join(f"{source} @ {snapshot}" for source, snapshot in s.watermark.items())
        table.add_row(
            escape(s.table),
            "" if s.rows is None else f"{s.rows:,}",
            escape(marks),
            behind_column(s, others),
            _upkeep(s.upkeep),
            f"{s.last_run:%Y-%m-%d %H:%M:%S}" if s.last_run else "never",
        )
    return table


def _upkeep(due: Sequence[str] | None) -> str:
    """Return the column of a table."""
    if due is None:
        return "unknown"
    return f"[yellow]{escape(', '.join(due))}[/]" if due else "[green]ok[/]"


def behind_column(status: TableStatus, others: Mapping[str, TableStatus]) -> str:
    """Return how far a table is behind, and how far it may be.

    Args:
        others: the status of all tables by name.
    """
    target = None if status.target_lag is None else in_words(status.target_lag)
    if status.error:
        return "[bold red]error, see below[/]"
    if status.lost:
        return f"[bold red]{'gone' if status.is_gone else 'history lost'}[/]"
    parts: list[str] = ["failed"] if status.failure else []
    if status.source_fails:
        parts.append("its source is not read")
    if status.redeclared:
        parts.append("declared otherwise")
    if any(n is None for n in status.behind.values()):
        parts.append("a source was rolled back or rebuilt, or is gone")
    if status.landing and not status.waiting.files:
        is_missing = Landing.parse(status.landing).is_missing
        parts.append(f"{status.landing} does not exist" if is_missing else f"no file yet in {status.landing}")
    if files := status.waiting.files:
        records = status.waiting.records
        about = f", about {plural(records, 'record')}" if records is not None else f", {size(status.waiting.bytes)}"
        parts.append(f"{plural(files, 'file')}{about}")
    if snapshots := sum(n or 0 for n in status.behind.values()):
        rows = f", {plural(status.rows_behind, 'row')}" if status.rows_behind else ""
        age = "" if target else f", {status.behind_seconds:,.0f} s"
        parts.append(f"{plural(snapshots, 'snapshot')}{rows}{age}")
    parts += [left.text(source) for source, left in status.history.items() if left.matters]
    if status.running:
        where = "" if status.running.process else ", if it is alive (not here)"
        parts.append(f"a step runs for {in_words(max(0.0, time.time() - status.running.since))}{where}")
    if status.killed:
        parts.append("its step was killed" if status.killed.is_known else "a step does not report")
    if status.upstream:
        parts.append(f"waits for {', '.join(status.upstream)}")
    if not parts:
        return f"[green]{escape(status.source or 'up to date')}{f', target {target}' if target else ''}[/]"
    if target:
        lag = lag_of(status, others)
        parts.append(f"{in_words(lag)} of {target}" if lag else f"target {target}")
    return f"[{'bold red' if status.failure else 'yellow'}]{escape('; '.join(parts))}[/]"
