"""Intermediate rows, computed once with their count and bounds, so that joins with them read little."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from lake_assets.lake import quote, thresholds
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.names import literal
from lake_assets.models.operators.query_tree import text
from lake_assets.tables.spark_frames import checkpoint, computed, over, temp_view
from lake_assets.tables.writing.row_differences import SIGN

_T = exp.DataType.Type
# If both sides of a comparison are of one of these kinds, it orders values as Spark's min and max do.
_KINDS: dict[str, set[Any]] = {
    **{k: set(exp.DataType.INTEGER_TYPES) for k in ("tinyint", "smallint", "int", "bigint")},
    "string": set(exp.DataType.TEXT_TYPES),
    "date": {_T.DATE},
    "decimal": {_T.DECIMAL},
    "timestamp": {_T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPLTZ},
    "timestamp_ntz": {_T.TIMESTAMPNTZ},
}

# The least value of each type whose values leave Spark as whole numbers (timestamps as microseconds).
_LEAST = {
    "tinyint": -(1 << 7),
    "smallint": -(1 << 15),
    "int": -(1 << 31),
    "bigint": -(1 << 63),
    "timestamp": -(1 << 63),
}


@dataclass(frozen=True)
class Bounds:
    """Bounds of one column, as text, with the type to cast to.

    Attributes:
        low, high: the least and greatest value; None if all values are null.
        non_null: number of values that are not null.
        within: for whole numbers, the bounds that file statistics give for the values before the change.
    """

    type: str
    low: str | None
    high: str | None
    non_null: int
    within: tuple[int, int] | None = None

    def around(self) -> tuple[str, str] | None:
        """Return rounded bounds of all values; None if all values are null.

        Bounds of numbers are widened by less than a sixteenth of their distance. Spark compiles literals into the code
        that it generates, so a step whose bounds round to those of the previous step reuses the compiled code. Bounds
        are not widened beyond the files that held the values: files are often split at the same values, and the next
        file would be read in vain.
        """
        if self.low is None or self.high is None:
            return None
        least = _LEAST.get(self.type)
        if least is None:
            return self.low, self.high
        low, high = int(self.low), int(self.high)
        unit = 1 << max(0, (high - low).bit_length() - 6)
        first, last = max(least, low // unit * unit), min(-least - 1, -(-high // unit) * unit)
        if self.within:
            first = max(first, self.within[0]) if self.within[0] <= low else first
            last = min(last, self.within[1]) if self.within[1] >= high else last
        return str(first), str(last)

    def sql(self, value: str) -> str:
        """Return a value as a literal."""
        if self.type == "timestamp":
            return f"timestamp_micros({int(value)}L)"
        return f"CAST({literal(value)} AS {self.type})"


@dataclass(frozen=True)
class Frame:
    """Rows in memory, registered as a view.

    Attributes:
        bounds: bounds by column, for columns whose type supports range conditions.
        exact: whether a lookup must return the matching rows and no others.
    """

    view: str
    rows: int
    bounds: Mapping[str, Bounds]
    frame: DataFrame
    exact: bool = True

    @property
    def hint(self) -> str:
        """Return the hint to broadcast these rows."""
        return "/*+ BROADCAST(looked_up) */" if self.rows <= thresholds.BROADCAST_ROWS else ""

    def condition(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """See `operator_rows.Keys`."""
        parts = [self._of(e, n) for e, n in zip(expressions, names, strict=True)]
        return " AND ".join(p for p in parts if p)

    def join(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """See `operator_rows.Keys`."""
        if not self.exact:
            return ""
        if len(names) == 1 and self._listed(expressions[0], names[0]):
            return ""
        on = []
        for e, n in zip(expressions, names, strict=True):
            bounds = self.bounds.get(n)
            # Without nulls on this side, both operators mean the same, and `=` is faster.
            same = "=" if bounds and bounds.non_null == self.rows else "<=>"
            on.append(f"looked_up.{quote(n)} {same} ({text(e)})")
        return f"LEFT SEMI JOIN {self.view} looked_up ON {' AND '.join(on)}"

    def _of(self, e: exp.Expr, name: str) -> str:
        bounds = self.bounds.get(name)
        if bounds is None or not _is_comparable(e, bounds):
            return ""
        at = text(e)
        null = f"{at} IS NULL" if bounds.non_null < self.rows else ""
        if (around := bounds.around()) is None:
            return null
        condition = f"{at} BETWEEN {bounds.sql(around[0])} AND {bounds.sql(around[1])}"
        if self.rows <= thresholds.LITERAL_KEYS:
            condition = f"{at} IN ({', '.join(bounds.sql(v) for v in self._values[name])})"
        return f"({null} OR {condition})" if null else condition

    def _listed(self, e: exp.Expr, name: str) -> bool:
        bounds = self.bounds.get(name)
        return bounds is not None and self.rows <= thresholds.LITERAL_KEYS and _is_comparable(e, bounds)

    @cached_value
    def _values(self) -> dict[str, list[str]]:
        """Return the distinct values of each column, for few rows."""
        columns = list(self.bounds)
        rows = self.frame.select(*(F.expr(_leave(quote(c), self.bounds[c].type)).alias(c) for c in columns)).collect()
        return {c: list(dict.fromkeys(r[i] for r in rows if r[i] is not None)) for i, c in enumerate(columns)}

    def inexact(self) -> Frame:
        """Return the frame for lookups that a join follows anyway, so that they may return more rows."""
        return replace(self, exact=False)

    def with_positional_names(self, columns: Sequence[str]) -> Frame:
        """Return these columns alone, renamed to `__k0`, `__k1`, ...: the looked-up rows may have columns of the same
        names."""
        names = {c: f"__k{i}" for i, c in enumerate(columns)}
        listed = ", ".join(f"{quote(c)} AS {n}" for c, n in names.items())
        bounds = {n: self.bounds[c] for c, n in names.items() if c in self.bounds}
        frame = self.frame.select(*(F.col(quote(c)).alias(n) for c, n in names.items()))
        return Frame(f"(SELECT {listed} FROM {self.view})", self.rows, bounds, frame)

    def renamed(self, names: Mapping[str, str]) -> Frame:
        """Return the frame with renamed bounds, for a subset of its rows; lookups may return more rows."""
        return _Renamed(self.view, self.rows, {n: self.bounds[c] for n, c in names.items() if c in self.bounds},
                        self.frame, exact=False, of=names)  # fmt: skip


@dataclass(frozen=True)
class _Renamed(Frame):
    of: Mapping[str, str] | None = None

    @cached_value
    def _values(self) -> dict[str, list[str]]:
        original = Frame(self.view, self.rows, {(self.of or {})[n]: b for n, b in self.bounds.items()}, self.frame)
        return {n: original._values[c] for n, c in (self.of or {}).items() if n in self.bounds}


def types_of(rows: DataFrame) -> dict[str, str]:
    """Return the columns of rows with Spark's types, as simple strings."""
    return {f.name: f.dataType.simpleString() for f in rows.schema.fields}


def has_bounds(kind: str) -> bool:
    """Whether frames have bounds of columns of a type."""
    return kind.split("(")[0] in _KINDS


def _is_comparable(e: exp.Expr, bounds: Bounds) -> bool:
    kind = bounds.type.split("(")[0]
    return isinstance(e, exp.Column) and e.type is not None and e.type.this in _KINDS.get(kind, set())


def _leave(value: str, kind: str) -> str:
    """Return SQL that converts a value to the text that is collected from Spark."""
    return f"CAST(unix_micros({value}) AS STRING)" if kind == "timestamp" else f"CAST({value} AS STRING)"


class Frames:
    """Creates frames, and releases them when the scope closes.

    Args:
        spark: the session.
        scope: views and materialized rows live until it closes.

    Attributes:
        sql: runs SQL over frames by name; a step sets a function that raises a named error if Spark does not accept it.
    """

    def __init__(self, spark: SparkSession, scope: contextlib.ExitStack) -> None:
        self.spark, self._scope = spark, scope
        self.sql: Callable[..., DataFrame] = lambda sql, frames=None: over(spark, sql, frames or {})

    def view(self, rows: DataFrame) -> str:
        """Register rows as a view, and return its name."""
        return self._scope.enter_context(temp_view(rows))

    def materialize(self, rows: DataFrame | str) -> DataFrame:
        """Compute rows now, and return the computed rows.

        They are checkpointed and not cached: whenever a view is dropped, Spark compares its plan with every cached
        plan.
        """
        return checkpoint(self.sql(rows) if isinstance(rows, str) else rows)

    def materialize_with_aggregates(
        self, rows: DataFrame | str, *aggregates: str, frames: Mapping[str, DataFrame] | None = None
    ) -> tuple[DataFrame, list[Any]]:
        """Compute rows now, and return them with the values of some aggregates over them."""
        frame = self.sql(rows, frames) if isinstance(rows, str) else rows
        return computed(frame, *aggregates)

    def in_one_piece(self, rows: DataFrame) -> DataFrame:
        """Compute rows now; few rows become one partition, so that grouping them needs no shuffle."""
        materialized, (count,) = self.materialize_with_aggregates(rows, "count(*)")
        return materialized.coalesce(1) if count <= thresholds.ONE_TASK_ROWS else materialized

    def measure(
        self,
        rows: DataFrame | str,
        types: Mapping[str, str] | None = None,
        within: Mapping[str, tuple[int, int]] | None = None,
    ) -> Frame:
        """Compute rows now, with their number and bounds.

        Args:
            types: Spark's types by column without `SIGN`, as simple strings; default: from the schema of the rows.
            within: see `Bounds`, by column.
        """
        frame = self.sql(rows) if isinstance(rows, str) else rows
        kinds = types or {c: k for c, k in types_of(frame).items() if c != SIGN}
        bounded = [(c, k) for c, k in kinds.items() if has_bounds(k)]
        aggregates = [
            e
            for c, k in bounded
            for e in (_leave(f"min({quote(c)})", k), _leave(f"max({quote(c)})", k), f"count({quote(c)})")
        ]
        materialized, (count, *found) = computed(frame, "count(*)", *aggregates)
        looks = zip(*[iter(found)] * 3, strict=True)
        bounds = {
            c: Bounds(k, low, high, held, (within or {}).get(c))
            for (c, k), (low, high, held) in zip(bounded, looks, strict=True)
        }
        return Frame(self.view(materialized), count, bounds, materialized)
