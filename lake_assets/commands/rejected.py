"""`lake-assets rejected`: list records that could not be read, explain why, and replay them after a fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from rich.markup import escape

from lake_assets.commands.printing import console, listing, outcome_json, outcome_table, print_json
from lake_assets.commands.table_lookup import AsJson, ShowSensitive, find_pipeline, sensitive_of
from lake_assets.errors import PipelineError, TableNotFoundError
from lake_assets.facade import Lake
from lake_assets.ingest.records.event_rows import SEPARATOR, UNREADABLE
from lake_assets.lake import TableId
from lake_assets.lake.redaction import HIDDEN

SUFFIX = "_rejected"
app = typer.Typer(
    help="Records that could not be read: list them, explain one, read them again after a fix.",
    invoke_without_command=True,
    no_args_is_help=False,
)
# Reasons that quote nothing of a record.
_WITHOUT_VALUES = re.compile(rf"key column .+ is (null|missing|null or missing)|{re.escape(UNREADABLE)}")
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
        key = (name, row["source_table"] or "", _kind(row["reason"]))
        # A record may hold several events.
        arrivals.setdefault(key, {})[row["position"]] = row["arrived_at"]
    counts = {key: (len(at), min(at), max(at.values())) for key, at in arrivals.items()}
    listed = sorted(counts.items(), key=lambda c: (-c[1][0], c[0]))
    if as_json:
        print_json([
            {"raw": k[0], "source_table": k[1] or None, "reason": k[2], "records": n, "first_position": p,
             "last_arrived_at": t}
            for k, (n, p, t) in listed
        ])  # fmt: skip
        return
    if not listed:
        console.print("no record was rejected")
        return
    numbers = ("records", "first position", "last arrival (UTC)")
    table = listing("raw table", "source table", "reason", *numbers, right=numbers, fold=True)
    for (name, source, reason), (n, position, at) in listed:
        cells = map(escape, (name, source or "(unknown)", reason))
        table.add_row(*cells, f"{n:,}", str(position), f"{at:%Y-%m-%d %H:%M:%S}")
    console.print(table)
    console.print(
        "\n`lake-assets rejected list` shows the records, `... explain RAW POSITION` one of them, and "
        "`... replay PIPELINE` reads them again after a fix",
        style="dim",
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
        console.print(_advice(row), markup=False)
    console.print()
    console.print(_pretty(records[0]["record"]), markup=False, highlight=False, soft_wrap=True)


@app.command("replay")
def replay(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or `shop`")],
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="only this raw or staging table; may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the rejected records again, and insert the readable ones at their place in the stream."""
    outcomes = find_pipeline(pipeline).replay(Lake.load_existing(), table)
    if as_json:
        print_json([outcome_json(o) for o in outcomes])
    else:
        console.print(outcome_table(outcomes))
        if any(o.status == "absorbed" for o in outcomes):
            console.print(f"`lake-assets run {pipeline}` brings them to the downstream tables", style="dim")
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
    if raw is not None and not lake.exists(raw):
        raise TableNotFoundError(f"no raw table {raw}; there are: {', '.join(map(str, lake.tables('raw'))) or 'none'}")
    row_filter: BooleanExpression = AlwaysTrue()
    if source is not None:
        row_filter = And(row_filter, EqualTo("source_table", source))  # pyright: ignore[reportCallIssue]
    if position is not None:
        row_filter = And(row_filter, EqualTo("position", position))  # pyright: ignore[reportCallIssue]
    named = TableId.parse(raw) if raw is not None else None
    for table in lake.tables("raw") if named is None else [TableId(named.namespace, named.name + SUFFIX)]:
        of = TableId(table.namespace, table.name.removesuffix(SUFFIX))
        if table.name.endswith(SUFFIX) and lake.exists(of) and lake.exists(table):
            is_hidden = not shows_sensitive and bool(sensitive_of(lake, of))
            for row in lake.table(table).scan(row_filter=row_filter).to_arrow().to_pylist():
                yield str(of), _without_values(row) if is_hidden else row


def _without_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return a rejected record without its text, and its reason without what that may quote of it."""
    reason = row["reason"]
    if misfits := _misfits(reason):
        reason = SEPARATOR.join(f"{column} does not fit {kind}: {HIDDEN}" for column, kind in misfits)
    elif not _WITHOUT_VALUES.fullmatch(reason):
        reason = HIDDEN
    return {**row, "record": HIDDEN, "reason": reason}


def _kind(reason: str) -> str:
    """Return a reason without its value, so that similar reasons are counted together."""
    if " is unknown" in reason and " is " in reason.split(": ", 1)[0]:
        return f"{reason.split(' is ', 1)[0]} has no place in the order of changes"
    if misfits := _misfits(reason):
        return ", ".join(f"{column} does not fit {kind}" for column, kind in misfits)
    return reason.split(" (", 1)[0]


def _misfits(reason: str) -> list[tuple[str, str]]:
    """Return the columns, with their types, whose values do not fit."""
    return re.findall(rf"(?:^|{SEPARATOR})((?:(?!{SEPARATOR}).)+?) does not fit ([a-z_]+(?:[(<][^:]*?[)>])?): ", reason)


def _advice(row: dict[str, Any]) -> str:
    reason, heal = row["reason"], "Correct it at the source (a newer event of the row heals it)"
    if misfits := _misfits(reason):
        types = ", ".join(f"{column}: ..." for column, _ in misfits)
        # Bytes and arrays as text are in the notation of the format.
        is_text_lossy = any(kind.startswith(("binary", "array")) for _, kind in misfits)
        keeps = "" if is_text_lossy else " (string keeps every value)"
        return (
            f"{heal}, or declare `types: {{{types}}}`{keeps}, or `on_misfit: null` to take such values as null; then "
            "replay"
        )
    if "place in the order of changes" in reason or "order of changes is unknown" in reason:
        return "Correct it at the source, or declare `order_by` with columns that order the changes; then replay"
    if reason.startswith("key column "):
        values = "whose values are never null" if reason.endswith(" is null") else "that every event has"
        return f"Correct it at the source, or declare the table's `key` with columns {values}; then replay"
    if row["source_table"] is None:
        return "Check the stream's `format`, and name its one table if records do not say; then replay"
    return f"{heal}, or the declaration; then replay"


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
