"""Window functions from the start of a partition, or over all of it: sums, counts, minima and maxima, row numbers.

A changed row affects all rows after it. Both results of each row, at the start and at the end of a step, are computed
in one pass over the partition, and only rows whose results differ are passed on.
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
