"""`lake-assets rejected`: list records that could not be read, explain why, and replay them after a fix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from rich.markup import escape

from lake_assets.commands.printing import console, listing, outcome_json, outcome_table, print_json
from lake_assets.commands.table_lookup import (
    AsJson,
    PipelineArgument,
    ShowSensitive,
    command,
    named_files,
    sensitive_of,
)
from lake_assets.errors import PipelineError, TableNotFoundError
from lake_assets.facade import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.records.reject_reasons import advice, can_be_replayed, kind_of, without_values
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.lake.redaction import HIDDEN
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipelines_of_lake import noted_files

SUFFIX = "_rejected"
app = typer.Typer(
    help="Records that could not be read: list them, explain one, read them again after a fix.",
    invoke_without_command=True,
    no_args_is_help=False,
)
Raw = Annotated[str | None, typer.Option("--raw", help="only records of this raw table, such as raw.shop_events")]


@app.callback()
def overview(context: typer.Context) -> None:
    """Count the rejected records by table and reason."""
    if context.invoked_subcommand is None:
        summary()


@app.command("summary")
def summary(raw: Raw = None, show_sensitive: ShowSensitive = False, as_json: AsJson = False) -> None:
    """Count the rejected records by table and reason."""
    arrivals: dict[tuple[str, str, str], dict[int, datetime]] = {}
    for name, row in _rows(Lake.load_existing(), raw, shows_sensitive=show_sensitive):
        key = (name, row["source_table"] or "", kind_of(row["reason"]))
        # A record may hold several events.
        arrivals.setdefault(key, {})[row["position"]] = row["arrived_at"]
    counts = {key: (len(at), min(at), max(at.values())) for key, at in arrivals.items()}
    listed = sorted(counts.items(), key=lambda c: (-c[1][0], c[0]))
    if as_json:
        print_json([
            {"raw": k[0], "source_table": k[1] or None, "reason": k[2], "records": n, "first_position": p,
             "last_arrived_at": t, "can_be_replayed": can_be_replayed(k[2])}
            for k, (n, p, t) in listed
        ])  # fmt: skip
        return
    if not listed:
        console.print("no record was rejected")
        return
    numbers = ("records", "first position", "last arrival (UTC)")
    table = listing("raw table", "source table", "reason", *numbers, "then", right=numbers, fold=True)
    for (name, source, reason), (n, position, at) in listed:
        cells = map(escape, (name, source or "(unknown)", reason))
        then = "fix, replay" if can_be_replayed(reason) else "deliver again"
        table.add_row(*cells, f"{n:,}", str(position), f"{at:%Y-%m-%d %H:%M:%S}", then)
    console.print(table)
    replay = (
        ", and `... replay PIPELINE` reads them again after a fix"
        if any(can_be_replayed(reason) for (_, _, reason), _ in listed)
        else ". None of them can be read as they were delivered: no replay changes that"
    )
    console.print(
        f"\n`lake-assets rejected list` shows the records, `... explain RAW POSITION` one of them with what can be done"
        f"{replay}",
        style="dim",
        soft_wrap=True,
    )


@app.command("list")
def listed(
    raw: Raw = None,
    source: Annotated[str | None, typer.Option("--source-table", help="only records of this source table")] = None,
    limit: Annotated[int, typer.Option(help="maximum records to show")] = 50,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """List the rejected records, newest first."""
    records = [
        {"raw": name, **row} for name, row in _rows(Lake.load_existing(), raw, source, shows_sensitive=show_sensitive)
    ]
    records.sort(key=lambda r: (r["rejected_at"], r["position"]), reverse=True)
    records = records[:limit]
    if as_json:
        print_json(records)
        return
    table = listing("raw table", "position", "file, line", "source table", "reason", "record", fold=True)
    for r in records:
        where = f"{r['source_file']}, {r['source_line']}"
        text = r["record"] if len(r["record"]) <= 200 else r["record"][:199] + "…"
        cells = (r["raw"], str(r["position"]), where, r["source_table"] or "", r["reason"], text)
        table.add_row(*map(escape, cells))
    console.print(table if records else "no record was rejected")


@app.command("explain")
def explain(
    raw: Annotated[str, typer.Argument(help="the raw table, for example raw.shop_events")],
    position: Annotated[int, typer.Argument(help="the record's position")],
    show_sensitive: ShowSensitive = False,
) -> None:
    """Show one rejected record in full: its origin, why it was rejected, and how to fix it."""
    found = _rows(Lake.load_existing(), raw, position=position, shows_sensitive=show_sensitive)
    records = [row for _, row in found]
    if not records:
        raise PipelineError(f"{raw} has no rejected record at position {position}: see `lake-assets rejected list`")
    for row in records:
        where = escape(f"{row['source_file']}, line {row['source_line']}")
        console.print(f"[bold]{escape(raw)}, position {position}[/]: {where}", end="")
        console.print(f", arrived {row['arrived_at']:%Y-%m-%d %H:%M:%S} UTC")
        if row["source_table"]:
            console.print(f"about {row['source_table']}, event {row['event_index']} of the record", markup=False)
        console.print("[bold red]rejected[/]: ", end="")
        console.print(row["reason"], markup=False)
        console.print(advice(row["reason"], row["source_table"]), markup=False)
    console.print()
    console.print(_pretty(records[0]["record"]), markup=False, highlight=False, soft_wrap=True)


@app.command("replay")
def replay(
    pipeline: PipelineArgument = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="only this raw or staging table; may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the rejected records again, and insert the readable ones at their place in the stream."""
    lake, loaded = Lake.load_existing(), [Pipeline.load(file) for file in named_files(pipeline)]
    for one in loaded:
        raws = [s.table for s in one.specs(lake) if isinstance(s, RawSpec)]
        if pipeline is not None and raws and not any(lake.exists(t) for t in raws):
            known = ", ".join(noted_files(lake)) or "none of your own"
            raise PipelineError(
                f"pipeline {one.name} ({named_files(pipeline)[0]}) has no table in this lake; pipelines that have run "
                f"here: {known}"
            )
    outcomes = [o for one in loaded for o in one.replay(lake, table)]
    if as_json:
        print_json([outcome_json(o) for o in outcomes])
    else:
        console.print(outcome_table(outcomes))
        if any(o.status == "absorbed" for o in outcomes):
            console.print(f"`{command('lake-assets run', pipeline)}` brings them to the downstream tables", style="dim")
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)


def _rows(
    lake: Lake,
    raw: str | None,
    source: str | None = None,
    position: int | None = None,
    *,
    shows_sensitive: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    named = lake.named(raw) if raw is not None else None
    if named is not None and not lake.exists(named):
        existing = [str(t) for t in lake.tables("raw") if not t.name.endswith(SUFFIX)]
        near = nearest(str(named), existing)
        raise TableNotFoundError(f"no raw table {named}{near}; there are: {', '.join(existing) or 'none'}")
    row_filter: BooleanExpression = AlwaysTrue()
    if source is not None:
        row_filter = And(row_filter, EqualTo("source_table", source))  # pyright: ignore[reportCallIssue]
    if position is not None:
        row_filter = And(row_filter, EqualTo("position", position))  # pyright: ignore[reportCallIssue]
    for table in lake.tables("raw") if named is None else [TableId(named.namespace, named.name + SUFFIX)]:
        of = TableId(table.namespace, table.name.removesuffix(SUFFIX))
        if table.name.endswith(SUFFIX) and lake.exists(of) and lake.exists(table):
            is_hidden = not shows_sensitive and bool(sensitive_of(lake, of))
            for row in lake.table(table).scan(row_filter=row_filter).to_arrow().to_pylist():
                yield str(of), _without_values(row) if is_hidden else row


def _without_values(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "record": HIDDEN, "reason": without_values(row["reason"])}


def _pretty(record: str) -> str:
    """Indent the record, if that keeps its meaning exactly: duplicate keys, or `1e999`, stay unformatted."""
    try:
        read = json.loads(record)
        for is_ascii in (False, True):
            indented = json.dumps(read, indent=2, ensure_ascii=is_ascii)
            if "".join(indented.split()) == "".join(record.split()):
                return indented
    except (ValueError, RecursionError):
        pass  # perhaps it was rejected because it is not JSON, or nested too deeply
    return record
