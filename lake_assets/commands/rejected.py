"""`lake-assets rejected`: list records that could not be read, explain why, replay them after a fix, or close them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
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
from lake_assets.ingest.records.reject_reasons import advice, can_be_replayed, fix, kind_of, without_values
from lake_assets.ingest.records.rejects import CLOSING
from lake_assets.ingest.staging import closed_rejects
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.lake.redaction import HIDDEN
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipelines_of_lake import noted_files
from lake_assets.runtime.processes import user

SUFFIX = "_rejected"
app = typer.Typer(
    help="Records that could not be read: list them, explain one, read them again after a fix, or close them.",
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
    closed, fixes = set[tuple[str, int]](), dict[tuple[str, str, str], str]()
    for name, row in _rows(Lake.load_existing(), raw, shows_sensitive=show_sensitive):
        if row["closed_at"]:
            closed.add((name, row["position"]))
            continue
        key = (name, row["source_table"] or "", kind_of(row["reason"]))
        # A record may hold several events.
        arrivals.setdefault(key, {})[row["position"]] = row["arrived_at"]
        fixes.setdefault(key, fix(row["reason"]))
    counts = {key: (len(at), min(at), max(at.values())) for key, at in arrivals.items()}
    listed = sorted(counts.items(), key=lambda c: (-c[1][0], c[0]))
    if as_json:
        print_json([
            {"raw": k[0], "source_table": k[1] or None, "reason": k[2], "records": n, "first_position": p,
             "last_arrived_at": t, "can_be_replayed": can_be_replayed(k[2]), "fix": fixes[k] or None}
            for k, (n, p, t) in listed
        ])  # fmt: skip
        return
    note = _closed_note(len(closed))
    if not listed:
        console.print(f"no record {'stands rejected' if closed else 'was rejected'}{note}", markup=False)
        return
    numbers = ("records", "first position", "last arrival (UTC)")
    table = listing("raw table", "source table", "reason", *numbers, "then", right=numbers, fold=True)
    for key, (n, position, at) in listed:
        name, source, reason = key
        cells = map(escape, (name, source or "(unknown)", reason))
        then = "fix, replay" if can_be_replayed(reason) else "deliver again, close"
        table.add_row(*cells, f"{n:,}", str(position), f"{at:%Y-%m-%d %H:%M:%S}", then)
    console.print(table)
    for key, _ in listed:
        if setting := fixes[key]:
            text = f"{key[2]}: declare `{setting}` beside other settings of {key[1]}, or correct the source"
            console.print(text, markup=False, soft_wrap=True)
    replay = (
        ", and `... replay PIPELINE` reads them again after a fix"
        if any(can_be_replayed(reason) for (_, _, reason), _ in listed)
        else ". None of them can be read as they were delivered: no replay changes that"
    )
    console.print(
        f"\n`lake-assets rejected list` shows the records, `... explain RAW POSITION` one of them with what can be done"
        f"{replay}. `... close RAW --all --because WHY` says that records do not count, as when their rows were "
        f"delivered again{note}",
        style="dim",
        soft_wrap=True,
    )


@app.command("list")
def listed(
    raw: Raw = None,
    source: Annotated[str | None, typer.Option("--source-table", help="only records of this source table")] = None,
    limit: Annotated[int, typer.Option(help="maximum records to show")] = 50,
    closed: Annotated[
        bool, typer.Option("--closed", help="show closed records instead, with who, when and why")
    ] = False,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """List the rejected records, newest first."""
    rows = list(_rows(Lake.load_existing(), raw, source, shows_sensitive=show_sensitive))
    records = [{"raw": name, **row} for name, row in rows if bool(row["closed_at"]) == closed]
    records.sort(key=lambda r: (r["rejected_at"], r["position"]), reverse=True)
    records = records[:limit]
    if as_json:
        print_json(records)
        return
    decision = ["closed"] if closed else []
    table = listing("raw table", "position", "file, line", "source table", "reason", *decision, "record", fold=True)
    for r in records:
        where = f"{r['source_file']}, {r['source_line']}"
        text = r["record"] if len(r["record"]) <= 200 else r["record"][:199] + "…"
        why = [_decision(r)] if closed else []
        cells = (r["raw"], str(r["position"]), where, r["source_table"] or "", r["reason"], *why, text)
        table.add_row(*map(escape, cells))
    none = "no record is closed" if closed else "no record stands rejected" if rows else "no record was rejected"
    console.print(table if records else none)
    if note := _closed_note(len({(n, r["position"]) for n, r in rows if r["closed_at"] and not closed})):
        console.print(note.removeprefix("; "), markup=False, style="dim")


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
        if row["closed_at"]:
            console.print(f"[bold]closed[/] {escape(_decision(row))}: it counts in no table")
            console.print(f"`lake-assets rejected reopen {raw} --position {position}` undoes that", markup=False)
        else:
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


Positions = Annotated[list[int] | None, typer.Option("--position", help="the record at this position; may be repeated")]
About = Annotated[str | None, typer.Option("--source-table", help="records about this source table")]
File = Annotated[str | None, typer.Option("--file", help="records of this file, by its path or name")]
_WHICH = "say which records: --position, --source-table, --file, or --all"
All = Annotated[bool, typer.Option("--all", help="all of them")]


@app.command("close")
def close(
    raw: Annotated[str, typer.Argument(help="the raw table, for example raw.shop_events")],
    because: Annotated[str, typer.Option(help="why: it is kept with the records")] = "",
    position: Positions = None,
    source: About = None,
    file: File = None,
    every: All = False,
) -> None:
    """Decide that rejected records do not count, since their rows were delivered again, or are not missed.

    Their tables are exact again as far as these records are concerned, and alerts of them end. They count in no table
    until `reopen`, whatever is declared later. Several options select the records that meet all of them.
    """
    if not because.strip():
        more = "" if position or source or file or every else f", and {_WHICH}"
        raise PipelineError(f"say with --because why the records do not count{more}")
    lake = Lake.load_existing()
    table, of = _raw(lake, raw), _selection(position, source, file, every=every)
    count = closed_rejects.close(lake, table, of, f"{user()}@{socket.gethostname()}", because.strip())
    if not count:
        raise PipelineError(f"{table} has no such record that stands rejected: see `lake-assets rejected list`")
    console.print(f"{_records(count)} closed; `lake-assets rejected list --closed` shows them", markup=False)


@app.command("reopen")
def reopen(
    raw: Annotated[str, typer.Argument(help="the raw table, for example raw.shop_events")],
    position: Positions = None,
    source: About = None,
    file: File = None,
    every: All = False,
) -> None:
    """Undo `close`: the records stand rejected again, and can be replayed."""
    lake = Lake.load_existing()
    table, of = _raw(lake, raw), _selection(position, source, file, every=every)
    if not (count := closed_rejects.reopen(lake, table, of)):
        raise PipelineError(f"{table} has no such closed record: see `lake-assets rejected list --closed`")
    console.print(f"{_records(count)} opened again; `lake-assets rejected replay` reads them", markup=False)


def _selection(
    positions: Sequence[int] | None, source: str | None, file: str | None, *, every: bool
) -> closed_rejects.Selection:
    is_part = bool(positions) or source is not None or file is not None
    if every == is_part:
        raise PipelineError(f"--all and a part of the records contradict each other: {_WHICH}" if every else _WHICH)
    return closed_rejects.Selection(tuple(positions or ()), source, file)


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count:,} records are"


def _decision(row: Mapping[str, Any]) -> str:
    """Return who closed a record, when and why."""
    return f"by {row['closed_by']} at {row['closed_at']:%Y-%m-%d %H:%M} UTC: {row['closed_because']}"


def _closed_note(count: int) -> str:
    return f"; {_records(count)} closed: `lake-assets rejected list --closed`" if count else ""


def _raw(lake: Lake, raw: str) -> TableId:
    named = lake.named(raw)
    if not lake.exists(named):
        existing = [str(t) for t in lake.tables("raw") if not t.name.endswith(SUFFIX)]
        near = nearest(str(named), existing)
        raise TableNotFoundError(f"no raw table {named}{near}; there are: {', '.join(existing) or 'none'}")
    return named


def _rows(
    lake: Lake,
    raw: str | None,
    source: str | None = None,
    position: int | None = None,
    *,
    shows_sensitive: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    named = _raw(lake, raw) if raw is not None else None
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
                row = {**dict.fromkeys(CLOSING), **row}
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
