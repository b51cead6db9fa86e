"""Print what differs between the tables of a backfill and production."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape

from lake_assets.backfill.changed_partitions import PartitionDifference
from lake_assets.commands.printing import console, listing, visible
from lake_assets.lake.counts import plural
from lake_assets.report.table_differences import SampleRow, TableDifferences

_SIGNS = {"added": "[green]+[/]", "removed": "[red]-[/]", "changed": "[yellow]~[/]"}
# How many partitions are listed.
_SHOWN = 10


def show_differences(table: TableDifferences) -> None:
    """Print the differences of one table: numbers, columns, partitions, sums, and some rows."""
    keys = f", {plural(table.differing, 'key')}" if table.key and table.differing else ""
    totals = " to ".join("?" if n is None else f"{n:,}" for n in table.rows)
    console.print(
        f"[bold]{escape(table.table)}[/]: {table.added:,} inserted, {table.changed:,} updated, "
        f"{table.removed:,} deleted{keys} [dim]({totals} rows)[/]"
    )
    for column in table.columns:
        console.print(f"  {column.text}", markup=False, soft_wrap=True)
    if table.written:
        shown = ", ".join(_partitions(table)) + (", ..." if len(table.written) > _SHOWN else "")
        console.print(escape(f"  partitions ({len(table.written)}): {shown}"))
    for column, before, after in table.sums:
        console.print(escape(f"  sum of {column} over these rows: {before} before, {after} after"))
    if table.samples:
        printed = listing("", *(escape(visible(c)) for c in table.sample_columns), fold=True, style="dim")
        for row in table.samples:
            printed.add_row(*_cells(row))
        console.print(printed)


def _partitions(table: TableDifferences) -> Iterator[str]:
    """Yield the keys of partitions with the numbers of their rows."""
    differences = dict(table.partitions)
    for key in table.written[:_SHOWN]:
        yield f"{key} ({_numbers(differences[key])})" if key in differences else key


def _numbers(partition: PartitionDifference) -> str:
    added, changed, removed = (
        "?" if n is None else f"{n:,}" for n in (partition.added, partition.changed, partition.removed)
    )
    return f"+{added} ~{changed} -{removed}"


def _cells(row: SampleRow) -> Iterator[str]:
    yield _SIGNS[row.kind]
    for cell in row.cells:
        value = escape(cell.value)
        yield f"[red]{escape(cell.before)}[/] [dim]->[/] [green]{value}[/]" if cell.differs else value
