"""What differs between two states of a table, as text: the same in a terminal, on a page and in Dagster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lake_assets.backfill.changed_columns import ColumnChange
from lake_assets.backfill.changed_partitions import PartitionDifference
from lake_assets.backfill.comparison import TableComparison
from lake_assets.lake.counts import plural
from lake_assets.pipeline.paired_rows import CHANGED, OF_SAMPLES
from lake_assets.report.row_values import shown_value

# How many values of a new column are named.
_VALUES = 3
Kind = Literal["added", "removed", "changed"]
_KINDS: dict[str, Kind] = {"insert": "added", "delete": "removed", "update_after": "changed"}


@dataclass(frozen=True)
class Cell:
    """A value of a sample row.

    Attributes:
        before: the former value, if the row is changed and this value differs; else empty.
        differs: whether it does.
    """

    value: str
    before: str = ""
    differs: bool = False


@dataclass(frozen=True)
class SampleRow:
    """A row that differs; its cells are in the order of `TableDifferences.sample_columns`."""

    kind: Kind
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ColumnDifference:
    """What differs in a column.

    Attributes:
        change: in some words, without the numbers.
        rows, rounding: see `ColumnChange`.
        text: all of it as a sentence.
    """

    column: str
    change: str
    rows: int | None
    rounding: int
    text: str


@dataclass(frozen=True)
class TableDifferences:
    """What differs in one table; see `TableComparison`.

    Attributes:
        written: keys of the partitions that were written to.
        partition_column: the column of the partitions.
        partitions: what differs in each; the keys are as shown.
        sums: by column, the sums over the rows that differ, before and after.
    """

    table: str
    added: int
    changed: int
    removed: int
    rows: tuple[int | None, int | None]
    key: tuple[str, ...]
    columns: tuple[ColumnDifference, ...]
    written: tuple[str, ...]
    partitions: tuple[tuple[str, PartitionDifference], ...]
    sums: tuple[tuple[str, str, str], ...]
    sample_columns: tuple[str, ...]
    samples: tuple[SampleRow, ...]

    @property
    def differing(self) -> int:
        """Number of rows that differ."""
        return self.added + self.changed + self.removed

    @property
    def is_equal(self) -> bool:
        """Whether neither rows nor columns differ."""
        return not self.differing and not self.columns

    @property
    def counts(self) -> str:
        """The numbers of rows in one short text."""
        return f"+{self.added:,} ~{self.changed:,} -{self.removed:,}"


def table_differences(comparison: TableComparison, partition_column: str = "") -> TableDifferences:
    """Return a comparison as text.

    Args:
        partition_column: the column of the table's partitions, if it has any.
    """
    table = comparison.table

    def key(value: str | None) -> str:
        return shown_value(table, partition_column, value)

    names = tuple(c for c in comparison.samples[0] if c not in OF_SAMPLES) if comparison.samples else ()
    return TableDifferences(
        table,
        comparison.inserted,
        comparison.updated,
        comparison.deleted,
        comparison.rows,
        comparison.key,
        tuple(column_difference(table, c) for c in comparison.columns),
        tuple(map(key, comparison.partitions or ())),
        tuple((key(p.key), p) for p in comparison.by_partition),
        tuple(
            (column, shown_value(table, column, before), shown_value(table, column, after))
            for column, (before, after) in comparison.sums.items()
        ),
        names,
        tuple(_sample_rows(table, names, comparison.samples)),
    )


def _sample_rows(table: str, columns: Sequence[str], samples: Sequence[Mapping[str, Any]]) -> Iterator[SampleRow]:
    """Yield sample rows; a row that differs is one, with both values where they do."""
    former: Mapping[str, Any] = {}
    for sample in samples:
        if sample["_change_type"] == "update_before":
            former = sample
            continue
        kind = _KINDS[sample["_change_type"]]
        differing = sample.get(CHANGED, ())
        yield SampleRow(
            kind,
            tuple(
                Cell(shown_value(table, c, sample[c]), shown_value(table, c, former[c]), differs=True)
                if c in differing
                else Cell(shown_value(table, c, sample[c]))
                for c in columns
            ),
        )


def column_difference(table: str, change: ColumnChange) -> ColumnDifference:
    """Return what differs in a column of a table as text."""
    values = [shown_value(table, change.column, v) for v in change.values[:_VALUES]]
    return ColumnDifference(
        change.column, _change_text(change), change.rows, change.rounding, _sentence(change, values)
    )


def _change_text(change: ColumnChange) -> str:
    match change.change:
        case "added":
            return f"new, {change.after}"
        case "dropped":
            return f"dropped, {change.before}"
        case "renamed":
            return f"renamed, was {change.before}"
        case "retyped":
            return f"{change.after}, was {change.before}"
        case "values":
            return "other values"


def _sentence(change: ColumnChange, some: Sequence[str]) -> str:
    if change.rows is None:
        return f"column {change.column} was {change.before} and is {change.after}; its values cannot be compared"
    values = plural(change.rows, "value")
    differ = f"{plural(change.rows, 'row')} differ{'s' if change.rows == 1 else ''}"
    if change.rounding:
        differ += f", {change.rounding:,} of them in the last digits of floats only"
    match change.change:
        case "added":
            such_as = f", such as {', '.join(some)}" if some else ""
            return f"column {change.column} ({change.after}) is new: {values}{such_as}"
        case "dropped":
            return f"column {change.column} ({change.before}) is dropped, with {values}"
        case "renamed":
            return f"column {change.before} is called {change.column} now; {differ}"
        case "retyped":
            return f"column {change.column} was {change.before} and is {change.after}; {differ}"
        case "values":
            return f"column {change.column}: {differ}"
