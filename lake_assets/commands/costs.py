"""`lake-assets costs`: what the steps of each table used, and what computing everything would have used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json, size
from lake_assets.commands.table_lookup import AsJson, declared_specs
from lake_assets.facade import Lake
from lake_assets.journal.step_costs import CostLine, Grouping, cost_lines, total_line
from lake_assets.lake.config import CostsConfig
from lake_assets.report.amounts import duration, money, short_time
from lake_assets.report.cost_sentences import cost_sentences, not_counted
from lake_assets.report.full_steps import Advisor
from lake_assets.report.period import costs_since, since_of

Since = Annotated[
    str, typer.Option("--since", help="how far back: 12h, 7d, or a date (2026-11-01) or time in UTC", metavar="WHEN")
]


def costs(
    since: Since = "7d",
    by: Annotated[Grouping, typer.Option("--by", help="what the steps are added up by")] = "table",
    as_json: AsJson = False,
) -> None:
    """Print what steps used (time, cores, bytes), and an estimate of what computing everything would have used."""
    lake, start = Lake.load_existing(), since_of(since)
    prices, steps = lake.config.costs, costs_since(lake, start)
    lines = cost_lines(steps, by, prices)
    tables = lines if by == "table" else cost_lines(steps, "table", prices)
    sentences = cost_sentences(tables, Advisor(lake, declared_specs(lake) if steps else {}))
    if as_json:
        total = total_line(steps, prices)
        print_json({
            "since": start,
            "by": by,
            "currency": prices.currency,
            "total": _json(total),
            "lines": [_json(line) for line in lines],
            "sentences": sentences,
            "not_counted": not_counted(lake.config),
        })  # fmt: skip
        return
    if not steps:
        console.print(f"no step has absorbed anything or failed since {start:%Y-%m-%d %H:%M} UTC", markup=False)
        return
    _show(lines, total_line(steps, prices), by, prices)
    if text := not_counted(lake.config):
        console.print(text, markup=False, style="yellow", soft_wrap=True)
    for text in sentences:
        console.print(f"- {text}", markup=False, soft_wrap=True)


def _json(line: CostLine) -> dict[str, object]:
    return {**vars(line), "saved": line.saved, "money_saved": line.money_saved}


def _show(lines: Sequence[CostLine], total: CostLine, by: Grouping, prices: CostsConfig) -> None:
    numbers = ["steps", "full", "time", "core time", "share", "read", "written", "in full (estimate)", "saved"]
    numbers += ["cost", "saved cost"] if prices.are_known else []
    table = listing(by, *numbers, right=numbers, fixed=["core time"] if by == "reason" else [by, "core time"])
    for line in (*lines, total):
        cells = [
            escape(line.name),
            f"{line.steps:,}" + (f" ({line.failed:,} failed)" if line.failed else ""),
            f"{line.complete:,}",
            duration(line.seconds),
            short_time(line.cpu_seconds),
            f"{line.share:.0%}",
            size(line.bytes_read),
            size(line.bytes_written),
            _in_full(line),
            "unknown" if line.saved is None else short_time(line.saved),
        ]
        if prices.are_known:
            cells.append(money(line.money or 0.0, prices.currency))
            cells.append("unknown" if line.money_saved is None else money(line.money_saved, prices.currency))
        table.add_row(*cells, style="bold" if line is total else None)
    console.print(table)
    console.print(
        "in full: what computing everything in each step is estimated to use, from steps that did so. Steps that land "
        "records, and published backfills, have no such estimate.",
        style="dim",
        soft_wrap=True,
    )


def _in_full(line: CostLine) -> str:
    if not line.estimated:
        return "unknown"
    of = "" if line.estimated == line.steps else f" ({line.estimated:,} of {line.steps:,})"
    return short_time(line.in_full) + of
