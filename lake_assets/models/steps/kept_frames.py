"""Intermediate rows that are computed once, counted and bounded, so that joins with them read little."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from sqlglot import exp

from lake_assets.lake import quote
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.names import literal
from lake_assets.models.operators.query_tree import text
from lake_assets.tables.spark_frames import checkpoint, over, temp_view

SIGN = "__sign"
MAX_LITERALS = 1_000
# A broadcast table of so many rows takes some tens of megabytes.
MAX_BROADCAST = 500_000
# To group so many rows takes one core no longer than a shuffle takes two.
ONE_PIECE = 100_000

_T = exp.DataType.Type
# Where both sides of a comparison are of one of these kinds, it orders and compares as Spark's min and max do.
_KINDS: dict[str, set[Any]] = {
    **{k: set(exp.DataType.INTEGER_TYPES) for k in ("tinyint", "smallint", "int", "bigint")},
    "string": set(exp.DataType.TEXT_TYPES),
    "date": {_T.DATE},
    "decimal": {_T.DECIMAL},
    "timestamp": {_T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPLTZ},
    "timestamp_ntz": {_T.TIMESTAMPNTZ},
}

# The least value of the types whose values leave Spark as whole numbers (a timestamp as its microseconds).
_LEAST = {
    "tinyint": -(1 << 7),
    "smallint": -(1 << 15),
    "int": -(1 << 31),
    "bigint": -(1 << 63),
    "timestamp": -(1 << 63),
}


@dataclass(frozen=True)
class Bounds:
    """Bounds or values of one column, as text, with the type to cast to."""

    type: str
    low: str | None
    high: str | None
    held: int
    """How many are not null."""
    within: tuple[int, int] | None = None
    """Between which whole numbers those values lie that were in the table before, as its files say."""

    def around(self) -> tuple[str, str] | None:
        """Return rounded bounds of all values; None if all are null.

        Numbers are rounded away from each other, by less than a sixteenth of what lies between them: Spark compiles
        them into what it runs, so that a step whose rows lie where those of the last one did is compiled already. But
        not to beyond the files that they were in, which hardly move either: what is looked up lies in files of its
        own, often cut at the same values, and the next one would be read for nothing.
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
    """Rows held in memory under the name of a view.

    Attributes:
        view: its name in SQL.
        rows: number of rows.
        bounds: by column, if its type supports range conditions.
        frame: the rows.
        exact: whether the rows that are looked up must be these and no others.
    """

    view: str
    rows: int
    bounds: Mapping[str, Bounds]
    frame: DataFrame
    exact: bool = True

    @property
    def hint(self) -> str:
        """Return the hint to broadcast these rows."""
        return "/*+ BROADCAST(looked_up) */" if self.rows <= MAX_BROADCAST else ""

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
            # Without nulls on this side both mean the same, and the plain one is quicker.
            same = "=" if bounds and bounds.held == self.rows else "<=>"
            on.append(f"looked_up.{quote(n)} {same} ({text(e)})")
        return f"LEFT SEMI JOIN {self.view} looked_up ON {' AND '.join(on)}"

    def _of(self, e: exp.Expr, name: str) -> str:
        bounds = self.bounds.get(name)
        if bounds is None or not _is_comparable(e, bounds):
            return ""
        at = text(e)
        null = f"{at} IS NULL" if bounds.held < self.rows else ""
        if (around := bounds.around()) is None:
            return null
        said = f"{at} BETWEEN {bounds.sql(around[0])} AND {bounds.sql(around[1])}"
        if self.rows <= MAX_LITERALS:
            said = f"{at} IN ({', '.join(bounds.sql(v) for v in self._values[name])})"
        return f"({null} OR {said})" if null else said

    def _listed(self, e: exp.Expr, name: str) -> bool:
        bounds = self.bounds.get(name)
        return bounds is not None and self.rows <= MAX_LITERALS and _is_comparable(e, bounds)

    @cached_value
    def _values(self) -> dict[str, list[str]]:
        """Return the distinct values of each column, for few rows."""
        columns = list(self.bounds)
        found = self.frame.select(*(F.expr(_leave(quote(c), self.bounds[c].type)).alias(c) for c in columns)).collect()
        return {c: list(dict.fromkeys(r[i] for r in found if r[i] is not None)) for i, c in enumerate(columns)}

    def loosely(self) -> Frame:
        """The same for looking up where a join comes later anyway."""
        return replace(self, exact=False)

    def by_place(self, columns: Sequence[str]) -> Frame:
        """The same by some columns, which are called `__k0` and so on: what is looked up may have columns so named."""
        names = {c: f"__k{i}" for i, c in enumerate(columns)}
        listed = ", ".join(f"{quote(c)} AS {n}" for c, n in names.items())
        bounds = {n: self.bounds[c] for c, n in names.items() if c in self.bounds}
        frame = self.frame.select(*(F.col(quote(c)).alias(n) for c, n in names.items()))
        return Frame(f"(SELECT {listed} FROM {self.view})", self.rows, bounds, frame)

    def renamed(self, names: Mapping[str, str]) -> Frame:
        """With bounds under other names: of those rows or some of them, not exactly these."""
        return _Renamed(self.view, self.rows, {n: self.bounds[c] for n, c in names.items() if c in self.bounds},
                        self.frame, exact=False, of=names)  # fmt: skip


@dataclass(frozen=True)
class _Renamed(Frame):
    of: Mapping[str, str] | None = None

    @cached_value
    def _values(self) -> dict[str, list[str]]:
        found = Frame(self.view, self.rows, {(self.of or {})[n]: b for n, b in self.bounds.items()}, self.frame)
        return {n: found._values[c] for n, c in (self.of or {}).items() if n in self.bounds}


def _is_comparable(e: exp.Expr, bounds: Bounds) -> bool:
    kind = bounds.type.split("(")[0]
    return isinstance(e, exp.Column) and e.type is not None and e.type.this in _KINDS.get(kind, set())


def _leave(value: str, kind: str) -> str:
    """Return SQL that converts a value to the text in which it leaves Spark."""
    return f"CAST(unix_micros({value}) AS STRING)" if kind == "timestamp" else f"CAST({value} AS STRING)"


class Frames:
    """Creates frames, which are released when the scope closes.

    Args:
        spark: the session.
        scope: views and kept rows live until it is closed.
        run: runs SQL, over frames by name (`spark_frames.over`); raises a named error where Spark does not accept it.
    """

    def __init__(
        self, spark: SparkSession, scope: contextlib.ExitStack, run: Callable[..., DataFrame] | None = None
    ) -> None:
        self.spark, self._scope = spark, scope
        self.sql: Callable[..., DataFrame] = run or (lambda sql, frames=None: over(spark, sql, frames or {}))

    def view(self, rows: DataFrame) -> str:
        """Register rows under a name."""
        return self._scope.enter_context(temp_view(rows))

    def kept(self, rows: DataFrame | str) -> DataFrame:
        """Compute rows now and keep them.

        Checkpointed, not cached: with a cache, each view that is dropped later has Spark compare its plan with all
        that is cached.
        """
        return checkpoint(self.sql(rows) if isinstance(rows, str) else rows)

    def looked_at(
        self, rows: DataFrame | str, *looks: str, frames: Mapping[str, DataFrame] | None = None
    ) -> tuple[DataFrame, list[Any]]:
        """Compute rows, made of `frames` where they are SQL, and keep them; with some aggregates (SQL) of them."""
        frame = self.sql(rows, frames) if isinstance(rows, str) else rows
        kept, found = _observed(frame, [F.expr(f"{e} AS look{i}") for i, e in enumerate(looks)])
        return kept, [found[f"look{i}"] for i in range(len(looks))]

    def in_one_piece(self, rows: DataFrame) -> DataFrame:
        """Compute rows now, as one partition if they are few, so that grouping them needs no shuffle."""
        kept, (count,) = self.looked_at(rows, "count(*)")
        return kept.coalesce(1) if count <= ONE_PIECE else kept

    def measured(
        self,
        rows: DataFrame | str,
        types: Mapping[str, str] | None = None,
        within: Mapping[str, tuple[int, int]] | None = None,
    ) -> Frame:
        """Compute rows, and find their number and bounds.

        Args:
            rows: the rows.
            types: of their columns but `SIGN`, as simple strings, where they are known.
            within: see `Bounds`, by column, where it is known.
        """
        frame = self.sql(rows) if isinstance(rows, str) else rows
        kinds = types or {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name != SIGN}
        bounded = [(c, k) for c, k in kinds.items() if k.split("(")[0] in _KINDS]
        looks = [
            F.expr(f"{e} AS {what}{i}")
            for i, (c, k) in enumerate(bounded)
            for what, e in (
                ("low", _leave(f"min({quote(c)})", k)),
                ("high", _leave(f"max({quote(c)})", k)),
                ("held", f"count({quote(c)})"),
            )
        ]
        kept, row = _observed(frame, [F.expr("count(*) AS n"), *looks])
        bounds = {
            c: Bounds(k, row[f"low{i}"], row[f"high{i}"], row[f"held{i}"], (within or {}).get(c))
            for i, (c, k) in enumerate(bounded)
        }
        return Frame(self.view(kept), row["n"], bounds, kept)


def _observed(frame: DataFrame, looks: Sequence[Column]) -> tuple[DataFrame, Mapping[str, Any]]:
    """Compute and keep rows, and aggregates of them, in one job if possible."""
    if isinstance(frame, ClassicDataFrame):
        seen = Observation()
        kept = checkpoint(frame.observe(seen, *looks))
        if found := seen.get:
            return kept, found
    else:
        # Connect tells observations of what it collects, and of nothing else: the look itself computes the rows.
        kept = checkpoint(frame, eager=False)
    return kept, kept.agg(*looks).collect()[0].asDict()
