"""Arguments of a Python model's function: changes, lookups, and the affected keys or range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import sqlglot
from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lake_assets.capture import Capture, FieldRange
from lake_assets.capture.renamed_columns import reused_names, schema_at
from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.errors import ModelError
from lake_assets.lake import LakeBase, TableId, quote, thresholds
from lake_assets.lake.names import nearest
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.kept_frames import Frame, types_of
from lake_assets.tables.pending_windows import Window


@dataclass(frozen=True)
class Lookup:
    """A table that a function reads at its current snapshot; its changes trigger no run.

    Attributes:
        name: the table.
        snapshot: the snapshot that is read.
        table: its rows at that snapshot.
    """

    name: TableId
    snapshot: int | None
    table: DataFrame


@dataclass(frozen=True)
class Changes:
    """The changes of an input since the last step; on a first run and in a rebuild, all of its rows.

    Rows can be read until the function's rows are written.

    Attributes:
        name: the table.
        window: the two snapshots that are compared.
        capture: the captured change.
    """

    name: TableId
    window: Window
    capture: Capture
    _spark: SparkSession = field(repr=False)
    _table: DataFrame = field(repr=False)
    _affected: Callable[[], Affected] = field(repr=False)
    _expressions: Mapping[str, str] = field(repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed in this input."""
        return self.capture.is_empty

    @property
    def is_initial(self) -> bool:
        """Whether these are all rows of the input: on a first run, or in a rebuild."""
        return self.window.mark is None

    @cached_property
    def rows(self) -> DataFrame:
        """The inserted rows, and updated rows after the change."""
        return self.capture.upserts(self._spark)

    def feed(self, keys: str | Sequence[str] | None = None) -> DataFrame:
        """Return all row-level changes with `_change_type` (insert, update_before, update_after, delete).

        Args:
            keys: the column or columns that identify a row; see `Capture.feed`.
        """
        return self.capture.feed(self._spark, keys)

    @cached_property
    def table(self) -> DataFrame:
        """The whole input, at the snapshot up to which its changes are absorbed."""
        return self._table

    def keys(self, *expressions: str | Column) -> DataFrame:
        """Return the distinct values of columns or expressions over all changed rows, as before and after the change.

        Args:
            expressions: SQL (`account`, `to_date(started_at) AS day`) or columns.
        """
        rows = self.capture.signed(self._spark).drop(SIGN)
        return rows.select(*(F.expr(e) if isinstance(e, str) else e for e in expressions)).distinct()

    @property
    def ranges(self) -> Mapping[str, FieldRange]:
        """The range of each column's values in the changed files, from metadata alone."""
        return self.capture.ranges

    def low(self, column: str) -> Any:
        """Return the least value of a column in the changed files; None: unbounded, or no value."""
        return self._range(column).low

    def high(self, column: str) -> Any:
        """Return the greatest value of a column in the changed files; None: unbounded, or no value."""
        return self._range(column).high

    def affected(self) -> DataFrame:
        """Return the rows of the whole input that belong to the affected keys or range.

        For `replace-ranges` with `back` or `forward`, also the rows that these reach.
        """
        affected = self._affected()
        return affected.of(self.table, **self._expressions)

    def _range(self, column: str) -> FieldRange:
        if column not in self.ranges:
            near = nearest(column, self.ranges)
            raise ModelError(f"{self.name} has no range of {column!r}{near}: it has ranges of {', '.join(self.ranges)}")
        return self.ranges[column]


@dataclass(frozen=True)
class Affected:
    """The keys, or the range, of a table that this step recomputes.

    Attributes:
        keys: the distinct affected values, one column per column in `replace`; None: everything is computed.
    """

    keys: DataFrame | None
    _frame: Frame | None = field(default=None, repr=False)
    _span: Span | None = field(default=None, repr=False)

    @property
    def is_everything(self) -> bool:
        """Whether the whole table is computed: a first run, or a rebuild."""
        return self.keys is None

    def of(self, rows: DataFrame, /, **expressions: str) -> DataFrame:
        """Return the rows that belong to the affected keys or range.

        Args:
            rows: rows of any table.
            expressions: by column in `replace`, the SQL expression over `rows`; default: the column of that name.
        """
        if self._frame is None:
            return rows
        if self._span is not None:
            column = next(iter(self._frame.bounds))
            return rows.where(self._span.condition(rows, self._value(rows, column, expressions), read=True))
        columns = self._frame.frame.columns
        return matching(rows, self._frame, {c: self._value(rows, c, expressions) for c in columns})

    def _value(self, rows: DataFrame, column: str, expressions: Mapping[str, str]) -> str:
        """Return the SQL of a replaced column over rows, in the column's type."""
        assert self._frame is not None
        expression = expressions.get(column, quote(column))
        wanted = self._frame.frame.schema[column].dataType
        found = rows.select(F.expr(expression)).schema.fields[0].dataType
        is_comparable = found == wanted or (isinstance(found, IntegralType) and isinstance(wanted, IntegralType))
        return expression if is_comparable else f"CAST({expression} AS {wanted.simpleString()})"


@dataclass(frozen=True)
class Span:
    """The affected range of one column, as SQL literals of its type.

    Attributes:
        low, high: the bounds of the replaced range, inclusive; None: unbounded.
        read_low, read_high: the bounds of the rows that are read for it; None: unbounded.
        nulls: whether rows without a value are affected.
        text: the range that is replaced, for people.
        empty: whether only rows without a value are affected.
    """

    low: str | None
    high: str | None
    read_low: str | None
    read_high: str | None
    nulls: bool
    text: str
    empty: bool = False

    def condition(self, rows: DataFrame, expression: str, *, read: bool = False) -> str:
        """Return SQL for the affected rows.

        Args:
            read: whether to select the rows that are read for the range instead of the range itself.
        """
        low, high = (self.read_low, self.read_high) if read else (self.low, self.high)
        parts = [f"({expression}) {op} {end}" for op, end in ((">=", low), ("<=", high)) if end is not None]
        at = timestamp_of_day(rows, expression)
        if at is not None:
            # Iceberg skips files by the column itself, not by a day derived from it.
            parts += [f"{at} >= CAST({low} AS TIMESTAMP)"] if low is not None else []
            parts += [f"{at} < CAST(date_add({high}, 1) AS TIMESTAMP)"] if high is not None else []
        inside = " AND ".join(parts) if parts else f"({expression}) IS NOT NULL"
        null = f"({expression}) IS NULL"
        if self.empty:
            return null if self.nulls else "false"
        return f"(({inside}) OR {null})" if self.nulls else inside


def matching(rows: DataFrame, keys: Frame, expressions: Mapping[str, str], *, are_not: bool = False) -> DataFrame:
    """Return the rows whose values are among `keys`; NULL is a value.

    Args:
        expressions: by column of `keys`, SQL over `rows`.
        are_not: whether to return the other rows instead.
    """
    names = {c: f"__lake_key{i}" for i, c in enumerate(expressions)}
    pruned = [] if are_not else [bound for c, e in expressions.items() if (bound := _bounded(rows, keys, c, e))]
    filtered = reduce(lambda some, condition: some.where(condition), pruned, rows)
    looked_up = keys.frame.select(*(F.col(quote(c)).alias(n) for c, n in names.items()))
    if keys.rows <= thresholds.BROADCAST_ROWS:
        looked_up = F.broadcast(looked_up)
    on = reduce(Column.__and__, (F.expr(f"({e}) <=> {names[c]}") for c, e in expressions.items()))
    return filtered.join(looked_up, on, "left_anti" if are_not else "left_semi")


def _bounded(rows: DataFrame, keys: Frame, column: str, expression: str) -> str:
    """Return a condition on a plain column, which lets Iceberg skip files, or an empty text."""
    parsed = _parsed(expression)
    kinds = types_of(rows)
    if not isinstance(parsed, exp.Column) or parsed.table or parsed.name not in kinds or column not in keys.bounds:
        return ""
    parsed.type = exp.DataType.build(kinds[parsed.name], dialect=DIALECT)
    return keys.condition([parsed], [column])


def timestamp_of_day(rows: DataFrame, expression: str) -> str | None:
    """Return the timestamp column whose day an expression computes; None for other expressions."""
    parsed = _parsed(expression)
    is_date = isinstance(parsed, exp.Cast) and parsed.to.is_type(exp.DataType.Type.DATE)
    is_to_date = isinstance(parsed, exp.TsOrDsToDate) and not parsed.args.get("format")
    if parsed is None or not (is_date or is_to_date):
        return None
    inner, kinds = parsed.this, types_of(rows)
    plain = isinstance(inner, exp.Column) and not inner.table and len([*parsed.find_all(exp.Column)]) == 1
    return quote(inner.name) if plain and kinds.get(inner.name) == "timestamp" else None


def _parsed(expression: str) -> exp.Expr | None:
    try:
        return sqlglot.parse_one(expression, dialect=DIALECT)
    except SqlglotError:
        return None


def rows_at(lake: LakeBase, name: TableId, snapshot: int | None) -> DataFrame:
    """Return the rows of a table at a snapshot, with the columns that it had then; None: no rows.

    Iceberg binds conditions over a past snapshot to the current columns: a condition on a column that was renamed since
    fails, and one on a name that belongs to another column since skips the wrong files. Spark does not push conditions
    on such columns down, since they are no plain columns here.
    """
    rows = lake.rows_at(name, snapshot)
    if snapshot is None:
        return rows
    table = lake.table(name)
    then, now = (
        {f.name: index_by_name(Schema(f)) for f in schema.fields}
        for schema in (schema_at(table, snapshot), table.schema())
    )
    if all(now.get(name) == fields for name, fields in then.items()):
        return rows
    quoted = {name: quote(name) for name in then}
    return rows.selectExpr(
        *(c if now.get(name) == then[name] else f"element_at(array({c}), 1) AS {c}" for name, c in quoted.items())
    )


def replaced_columns(table: Table, window: Window) -> list[str]:
    """Return the columns whose names belonged to other columns at the start of a window (dropped and added again, or
    swapped): their values have changed in rows that have not.
    """
    if window.start is None or window.head.snapshot is None:
        return []
    then, now = (schema_at(table, s) for s in (window.start, window.head.snapshot))
    return sorted(t.name for t in reused_names(then, now))
