"""Window functions of a changed row: those over a fixed number of rows, and those from the start of a partition.

Frames of a fixed number of rows: Spark computes each frame of a partition from all of its rows. Here, the rows of a
partition are numbered in the order of the window, and only the affected ones are joined with the rows of their frames.

Frames from the start of a partition, or over all of it: a changed row affects all rows after it. Both results of each
row, at the start and at the end of a step, are computed in one pass over the partition, and only rows whose results
differ are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.lake import quote
from lake_assets.models.operators.both_ends import AT_END, AT_START, row_key
from lake_assets.models.operators.operator_types import is_plain
from lake_assets.models.operators.query_tree import Window, column, text
from lake_assets.models.operators.stability import depends_on_order
from lake_assets.models.operators.unique_columns import identifies_rows
from lake_assets.tables.writing.row_differences import SIGN

# Reserved names: of partition and order, of a row's number and frame, and of the first and last affected number.
_AT, _FIRST, _LAST, _KIND, _ROW, _HERE, _BLOCK = "__at", "__first", "__last", "__kind", "__row", "__here", "__block"
_SIDES = (AT_START, AT_END)
# Of the numbered rows of one side, those that a change affects.
_AFFECTED = f"{_AT} BETWEEN {_FIRST} AND {_LAST}"
# A changed value comes before and after the rows with this value.
_BEFORE, _OF_TABLE, _AFTER = 0, 1, 2


@dataclass(frozen=True)
class RowFrames:
    """Frames of a window operator.

    Attributes:
        ends: first and last row of each function's frame, relative to the current row.
        back, forward: how many rows before and after the current row the frames reach.
    """

    node: Window
    order: tuple[exp.Ordered, ...]
    ends: tuple[tuple[int, int], ...]

    @property
    def back(self) -> int:
        """See the class."""
        return max(0, *(-first for first, _ in self.ends))

    @property
    def forward(self) -> int:
        """See the class."""
        return max(0, *(last for _, last in self.ends))

    def numbered(self, rows: str, changed: str) -> str:
        """Return SQL of the affected rows and the rows of their frames, with their numbers at the start and at the end.

        From a partition's first to its last changed value, all rows are affected, besides `forward` rows before and
        `back` rows after. At the start and at the end of a step, these are the same unchanged rows.

        Args:
            rows: SQL of the input's rows of the changed partitions, with `AT_START` and `AT_END`.
            changed: a view of changed values, as `__k0`, ...: of the partition, then of the order.
        """
        by = [f"__p{i}" for i in range(len(self.node.partition))]
        order = [f"__o{i}" for i in range(len(self.order))]
        expressions = [*self.node.partition, *(o.this for o in self.order)]
        named = ", ".join(f"{text(e)} AS {n}" for e, n in zip(expressions, [*by, *order], strict=True))
        values = ", ".join(f"__k{i} AS {n}" for i, n in enumerate([*by, *order]))
        nulls = ", ".join(f"NULL AS {quote(c)}" for c in self.node.input.columns)
        own = ", ".join(map(quote, self.node.input.columns))
        ordered = ", ".join(_ordered_by(o, n) for o, n in zip(self.order, order, strict=True))
        partition = f"PARTITION BY {', '.join(by)}"
        marked = (
            f"SELECT {own}, {AT_START}, {AT_END}, {named}, {_OF_TABLE} AS {_KIND} FROM ({rows}) UNION ALL "
            f"SELECT {nulls}, false, false, {values}, explode(array({_BEFORE}, {_AFTER})) AS {_KIND} FROM {changed}"
        )
        until = f"{partition} ORDER BY {ordered}, {_KIND} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        numbers = ", ".join(f"count_if({side}) OVER ({until}) AS {side}{_AT}" for side in _SIDES)
        first, last = (f"min(IF({_KIND} = {_BEFORE}, %s, NULL))", f"max(IF({_KIND} = {_AFTER}, %s, NULL))")
        limits = ", ".join(
            f"{first % f'{side}{_AT}'} OVER ({partition}) - {self.forward - 1} AS {side}{_FIRST}, "
            f"{last % f'{side}{_AT}'} OVER ({partition}) + {self.back} AS {side}{_LAST}"
            for side in _SIDES
        )
        kept = ", ".join([own, *by, *(f"{side}{name}" for side in _SIDES for name in ("", _AT, _FIRST, _LAST))])
        return (
            f"SELECT {kept} FROM (SELECT *, {limits} FROM (SELECT *, {numbers} FROM ({marked}))) "
            f"WHERE {' OR '.join(f'({self._is_read(side)})' for side in _SIDES)}"
        )

    def _is_read(self, side: str) -> str:
        """Return a SQL condition: a numbered row is affected, or in the frame of an affected row, on one side."""
        within = f"{side}{_AT} BETWEEN {side}{_FIRST} - {self.back} AND {side}{_LAST} + {self.forward}"
        return f"{side} AND {within}"

    def counts(self) -> list[str]:
        """Return SQL of four aggregates over the numbered rows: the rows, and those affected, at the start; and the
        same at the end."""
        return [
            f"count_if({condition})"
            for side in _SIDES
            for condition in (self._is_read(side), f"{side} AND {side}{_AT} BETWEEN {side}{_FIRST} AND {side}{_LAST}")
        ]

    def at(self, side: str, numbered: str) -> str:
        """Return SQL of the rows on one side, from a view of the result of `numbered`."""
        own = ", ".join([*map(quote, self.node.input.columns), *(f"__p{i}" for i in range(len(self.node.partition)))])
        numbers = ", ".join(f"{side}{name} AS {name}" for name in (_AT, _FIRST, _LAST))
        return f"(SELECT {own}, {numbers} FROM {numbered} WHERE {self._is_read(side)})"

    def evaluated(self, numbered: str, rows: int, affected: int) -> str:
        """Return SQL of the affected rows with their window functions."""
        # Spark computes `lag` from one row, and an aggregate from all rows of a frame, for each of the rows.
        lengths = (1 if isinstance(w.this, exp.Lag | exp.Lead) else last - first + 1
                   for (_, w), (first, last) in zip(self.node.items, self.ends, strict=True))  # fmt: skip
        if 2 * affected * (self.back + self.forward + 1) < rows * max(lengths):
            return self._joined(numbered)
        functions = ", ".join(f"{text(w)} AS {quote(n)}" for n, w in self.node.items)
        listed = ", ".join(quote(c) for c in self.node.columns)
        return f"SELECT {listed} FROM (SELECT *, {functions} FROM {numbered}) WHERE {_AFFECTED}"

    def _joined(self, numbered: str) -> str:
        """Return SQL that joins affected rows with the rows of their frames, which lie in few blocks of numbers."""
        by = [f"__p{i}" for i in range(len(self.node.partition))]
        own = ", ".join(map(quote, self.node.input.columns))
        size = self.back + self.forward + 1
        blocks = f"sequence(({_AT} - {self.back}) DIV {size}, ({_AT} + {self.forward}) DIV {size})"
        affected = (
            f"SELECT struct({own}) AS {_ROW}, {', '.join(f'{p} AS __of{p}' for p in by)}, {_AT} AS {_HERE}, "
            f"explode({blocks}) AS {_BLOCK}_read FROM {numbered} WHERE {_AFFECTED}"
        )
        read = f"SELECT *, {_AT} DIV {size} AS {_BLOCK} FROM {numbered}"
        same = " AND ".join(f"__of{p} <=> {p}" for p in by)
        on = f"{same} AND {_BLOCK}_read = {_BLOCK} AND {_AT} BETWEEN {_HERE} - {self.back} AND {_HERE} + {self.forward}"
        items = zip(self.node.items, self.ends, strict=True)
        functions = ", ".join(f"{_over(w, *ends)} AS {quote(n)}" for (n, w), ends in items)
        groups = ", ".join([*(f"__of{p}" for p in by), _HERE])
        listed = f"first({_ROW}) AS {_ROW}, {functions}"
        joined = f"SELECT {listed} FROM ({affected}) LEFT JOIN ({read}) ON {on} GROUP BY {groups}"
        fields = ", ".join(f"{_ROW}.{quote(c)} AS {quote(c)}" for c in self.node.input.columns)
        names = ", ".join(quote(n) for n, _ in self.node.items)
        return f"SELECT {fields}, {names} FROM ({joined})"


def row_frames(node: Window) -> RowFrames | None:
    """Return the frames of a window operator; None if a change may affect rows at any distance.

    All functions need the same partition and the same order, which identifies rows, and frames of a fixed number of
    rows; and none may depend on the order of the rows in its frame.
    """
    windows = [w for _, w in node.items]
    partition = {text(p) for p in node.partition}
    orders = {text(w.args["order"]) if w.args.get("order") else "" for w in windows}
    if not partition or len(orders) != 1 or "" in orders:
        return None
    if any({text(p) for p in w.args.get("partition_by") or []} != partition for w in windows):
        return None
    ends = [_ends(w, node) for w in windows]
    order = tuple(windows[0].args["order"].expressions)
    columns = {e.name for e in (*node.partition, *(o.this for o in order)) if isinstance(e, exp.Column)}
    known = tuple(e for e in ends if e)
    if len(known) < len(ends) or not identifies_rows(node.input, columns):
        return None
    return RowFrames(node, order, known)


def _ends(window: exp.Expr, node: Window) -> tuple[int, int] | None:
    """Return the first and last row of a frame, relative to the current row; None if it has no fixed number of rows, or
    the function depends on their order."""
    call, spec = window.this, window.args.get("spec")
    if isinstance(call, exp.Lag | exp.Lead) and spec is None and call.args.get("default") is None:
        offset = call.args.get("offset")
        rows = 1 if offset is None else _whole(offset)
        if rows is None:
            return None
        return (-rows, -rows) if isinstance(call, exp.Lag) else (rows, rows)
    if spec is None or str(spec.args.get("kind")).upper() != "ROWS" or isinstance(call, exp.Filter):
        return None
    first, last = (_end(spec.args.get(end), str(spec.args.get(f"{end}_side"))) for end in ("start", "end"))
    if first is None or last is None or depends_on_order(call, node.input):
        return None
    return first, last


def _end(end: exp.Expr | str | None, side: str) -> int | None:
    if end is None or str(end).upper() == "CURRENT ROW":
        return 0
    rows = _whole(end) if isinstance(end, exp.Expr) else None
    return rows if rows is None or side.upper() == "FOLLOWING" else -rows


def _whole(literal: exp.Expr) -> int | None:
    return int(literal.name) if isinstance(literal, exp.Literal) and literal.is_int else None


def _ordered_by(ordered: exp.Ordered, name: str) -> str:
    copy = ordered.copy()
    copy.set("this", exp.column(name))
    return text(copy)


def _over(window: exp.Expr, first: int, last: int) -> str:
    """Return a window function as an aggregate over the rows of its frame."""
    call = window.this
    within = f"FILTER (WHERE {_AT} BETWEEN {_HERE} + {first} AND {_HERE} + {last})"
    called = f"first({text(call.this)})" if isinstance(call, exp.Lag | exp.Lead) else text(call)
    return f"{called} {within}"


_FRAMES = {("UNBOUNDED", "CURRENT ROW"), ("UNBOUNDED", "UNBOUNDED"), ("CURRENT ROW", "UNBOUNDED")}


@dataclass(frozen=True)
class RunningWindows:
    """Functions of a window operator.

    Attributes:
        functions: for each function, by name, its SQL over the rows of the start, and over those of the end.
    """

    node: Window
    functions: Mapping[str, tuple[str, str]]

    def differing(self, rows: str) -> str:
        """Return SQL of the rows whose results differ, with both results.

        Args:
            rows: SQL of the input's rows of the changed partitions, with `AT_START` and `AT_END`.
        """
        results = ", ".join(
            f"{start} AS __start{i}, {end} AS __end{i}" for i, (start, end) in enumerate(self.functions.values())
        )
        same = " AND ".join(f"__start{i} <=> __end{i}" for i in range(len(self.functions)))
        return f"SELECT * FROM (SELECT *, {results} FROM ({rows})) WHERE NOT ({AT_START} AND {AT_END} AND {same})"

    def change(self, differing: str) -> str:
        """Return SQL of the operator's changed rows with `SIGN`, from a view of the result of `differing`."""
        own = ", ".join(map(quote, self.node.input.columns))
        start, end = (
            ", ".join(f"__{side}{i} AS {quote(n)}" for i, n in enumerate(self.functions)) for side in ("start", "end")
        )
        return (
            f"SELECT {own}, {start}, CAST(-1 AS INT) AS {SIGN} FROM {differing} WHERE {AT_START} "
            f"UNION ALL SELECT {own}, {end}, CAST(1 AS INT) FROM {differing} WHERE {AT_END}"
        )


def running_windows(node: Window) -> RunningWindows | None:
    """Return the functions of a window operator; None if they cannot be computed in one pass.

    All functions need the same partition, and rows need a key (see `row_key`).
    """
    partition = {text(p) for p in node.partition}
    if not partition or not row_key(node.input):
        return None
    functions: dict[str, tuple[str, str]] = {}
    for name, window in node.items:
        calls = [_among(window, node, side) for side in (AT_START, AT_END)]
        if {text(p) for p in window.args.get("partition_by") or []} != partition or None in calls:
            return None
        functions[name] = str(calls[0]), str(calls[1])
    return RunningWindows(node, functions)


def _among(window: exp.Expr, node: Window, side: str) -> str | None:
    """Return SQL of a function over the rows of one side alone, beside rows of the other; None if there is none."""
    call, spec = window.this, window.args.get("spec")
    order = [o.this for o in window.args["order"].expressions] if window.args.get("order") else []
    names = {e.name for e in (*node.partition, *order) if isinstance(e, exp.Column)}
    is_total = bool(order) and identifies_rows(node.input, names)
    copy = window.copy()
    if isinstance(call, exp.RowNumber):
        copy.set("this", exp.CountIf(this=column(side)))
        return f"CAST({text(copy)} AS INT)" if is_total and spec is None else None
    if spec is not None:
        is_by_rows = str(spec.args.get("kind")).upper() == "ROWS"
        frame = tuple(str(spec.args.get(end) or "CURRENT ROW").upper() for end in ("start", "end"))
        if frame not in _FRAMES or spec.args.get("exclude") or (is_by_rows and not is_total):
            return None
    if depends_on_order(call, node.input):
        return None
    of: exp.Expr | None = call.this
    match call:
        case exp.Count() if not call.expressions and not isinstance(of, exp.Distinct):
            is_of_rows = isinstance(of, exp.Star | exp.Literal)
            among = exp.CountIf(this=column(side)) if is_of_rows else exp.Count(this=_if(side, of))
        case exp.CountIf():
            among = exp.CountIf(this=exp.and_(column(side), of))
        case exp.Sum() | exp.Avg() if not isinstance(of, exp.Distinct):
            among = type(call)(this=_if(side, of))
        # Zeros of both signs are equal, but different values.
        case exp.Min() | exp.Max() if not call.expressions and isinstance(of, exp.Column) and is_plain(node.input, of):
            among = type(call)(this=_if(side, of))
        case _:
            return None
    copy.set("this", among)
    return text(copy)


def _if(side: str, value: exp.Expr | None) -> exp.If:
    assert value is not None
    return exp.If(this=column(side), true=value.copy(), false=exp.Null())
