"""Print what differs between the tables of a backfill and production."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape

from lake_assets.backfill.changed_columns import CHANGED, OF_SAMPLES, ColumnChange
from lake_assets.backfill.comparison import TableComparison
from lake_assets.commands.printing import console, listing, visible

_SIGNS = {"insert": "[green]+[/]", "delete": "[red]-[/]", "update_after": "[yellow]~[/]"}
# How many partitions, and how many values of a new column, are listed.
_SHOWN, _VALUES = 10, 3


def show_comparison(result: TableComparison) -> None:
    """Print the differences of one table: numbers, columns, partitions, sums, and some rows."""
    keys = f", {result.changed:,} key{'s' if result.changed != 1 else ''}" if result.key and result.changed else ""
    totals = " to ".join("?" if n is None else f"{n:,}" for n in result.rows)
    console.print(
        f"[bold]{escape(result.table)}[/]: {result.inserted:,} inserted, {result.updated:,} updated, "
        f"{result.deleted:,} deleted{keys} [dim]({totals} rows)[/]"
    )
    for change in result.columns:
        console.print(f"  {column_text(change)}", markup=False, soft_wrap=True)
    if result.partitions:
        shown = ", ".join(result.partitions[:_SHOWN]) + (", ..." if len(result.partitions) > _SHOWN else "")
        console.print(escape(f"  partitions ({len(result.partitions)}): {shown}"))
    for column, (before, after) in result.sums.items():
        console.print(escape(f"  sum of {column} over these rows: {before} before, {after} after"))
    if result.samples:
        printed = listing(
            "", *(escape(visible(c)) for c in result.samples[0] if c not in OF_SAMPLES), fold=True, style="dim"
        )
        for cells in _sample_rows(result):
            printed.add_row(*cells)
        console.print(printed)


def column_text(change: ColumnChange) -> str:
    """Describe what differs in a column."""
    if change.rows is None:
        return f"column {change.column} was {change.before} and is {change.after}; its values cannot be compared"
    is_one = change.rows == 1
    values = f"{change.rows:,} value{'' if is_one else 's'}"
    differ = f"{change.rows:,} row{'' if is_one else 's'} differ{'s' if is_one else ''}"
    if change.rounding:
        differ += f", {change.rounding:,} of them in the last digits of floats only"
    match change.change:
        case "added":
            some = f", such as {', '.join(map(str, change.values[:_VALUES]))}" if change.values else ""
            return f"column {change.column} ({change.after}) is new: {values}{some}"
        case "dropped":
            return f"column {change.column} ({change.before}) is dropped, with {values}"
        case "renamed":
            return f"column {change.before} is called {change.column} now; {differ}"
        case "retyped":
            return f"column {change.column} was {change.before} and is {change.after}; {differ}"
        case "values":
            return f"column {change.column}: {differ}"


def _sample_rows(result: TableComparison) -> Iterator[list[str]]:
    """Yield the cells of sample rows; a row that differs is one line, with both values where they do."""
    before: Mapping[str, Any] = {}
    for sample in result.samples:
        kind = sample["_change_type"]
        if kind == "update_before":
            before = sample
            continue
        cells = [_SIGNS[kind]]
        for column, value in sample.items():
            if column in OF_SAMPLES:
                continue
            text = escape(visible(str(value)))
            if column in sample.get(CHANGED, ()):
                text = f"[red]{escape(visible(str(before[column])))}[/] [dim]->[/] [green]{text}[/]"
            cells.append(text)
        yield cells
