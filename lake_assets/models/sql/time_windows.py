"""`window(at, '1 day')`: the windows of time that a row belongs to, as operators over its own values.

Spark computes them below the SELECT that names them: rows without a time are dropped, and a row in several windows is
repeated. The same arithmetic is written out here; it is exact because sessions are in UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

from lake_assets.lake import thresholds
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.query_tree import Filter, Generate, Node, Project, column, refs, text
from lake_assets.models.sql.scopes import Uncompilable
from lake_assets.models.sql.sql_functions import aggregates

if TYPE_CHECKING:
    from lake_assets.models.sql.compiler import Select

_FUNCTIONS = ("window", "session_window", "window_time")
_MICROSECONDS = {
    "microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000,
    "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_PART = re.compile(r"([+-]?\d+)\s+(\w+?)s?(?:\s+|$)")
# The alias under which a SELECT's own window is known; no table of a query can have it.
_ALIAS = "window of time"


def time_windows_called(query: exp.Query) -> exp.Query:
    """Replace `window` in `window.start` by its call in `GROUP BY window(at, '1 hour')`, in place."""
    for select in query.find_all(exp.Select):
        group = select.args.get("group")
        called = {c.name.lower(): c for c in group.find_all(exp.Anonymous)} if group else {}
        for named in list(select.find_all(exp.Column)) if called else []:
            name = (named.table or named.name).lower()
            if name not in _FUNCTIONS[:2] or name not in called or named.find_ancestor(exp.Select) is not select:
                continue
            if any(t.alias_or_name.lower() == name for t in select.find_all(exp.Table, exp.Subquery)):
                continue  # a table's own column
            call: exp.Expr = called[name].copy()
            if named.table:
                call = exp.Dot(this=call, expression=named.this.copy())
            elif isinstance(named.parent, exp.Select):
                call = exp.alias_(call, named.name, quoted=True)
            named.replace(call)
    return query


def check_no_time_window(expression: exp.Expr) -> None:
    """Raise Uncompilable for a call whose rows do not follow from its own row, or in a place that is not supported."""
    for call in expression.find_all(exp.Anonymous):
        if call.name.lower() == "session_window":
            raise Uncompilable(f"{call.sql(DIALECT)}: the length of a session depends on neighboring rows")
        if call.name.lower() in _FUNCTIONS:
            raise Uncompilable(f"{call.sql(DIALECT)} in a place other than the list of SELECT, GROUP BY and HAVING")


@dataclass(frozen=True)
class _Lengths:
    """Length, slide and offset of windows, in microseconds."""

    length: int
    slide: int
    offset: int

    @property
    def windows(self) -> int:
        """The number of windows that a row may be in."""
        return -(-self.length // self.slide)


def with_time_window(select: Select, node: Node) -> tuple[Node, exp.Select]:
    """Return the rows with the start of their windows, and the SELECT over them; both unchanged without a window.

    Raises:
        Uncompilable: it names several windows, or a kind that is not supported.
    """
    calls = _calls(select.select)
    if not calls:
        return node, select.select
    if len({c.sql(DIALECT) for c in calls}) > 1:
        raise Uncompilable("several windows of time in one SELECT")
    lengths, at = _lengths(calls[0]), select.resolved(calls[0].expressions[0])
    if aggregates(at) or at.find(exp.Window) or refs(at) - set(node.columns):
        raise Uncompilable(f"{calls[0].sql(DIALECT)} over values that are computed in the same SELECT")
    if _is_beside_over(select.select):
        raise Uncompilable(f"{calls[0].sql(DIALECT)} together with a window function")
    if at.type is not None and at.type.is_type(*exp.DataType.TEXT_TYPES, exp.DataType.Type.STRUCT):
        raise Uncompilable(f"{calls[0].sql(DIALECT)} over values that are not of a type of times")
    name = select.compiler.name
    node = Filter(node, exp.Not(this=exp.Paren(this=exp.Is(this=exp.Paren(this=at.copy()), expression=exp.Null()))))
    earlier = "0L"
    if lengths.windows > 1:
        number = name("window")
        numbers = ", ".join(str(n) for n in range(lengths.windows))
        node = Generate(node, sqlglot.parse_one(f"explode(array({numbers}))", dialect=DIALECT), (number,), outer=False)
        earlier = f"CAST(`{number}` AS BIGINT) * {lengths.slide}L"
    start, moment = name("window_start"), f"({text(at)})"
    since = f"pmod(unix_micros(CAST({moment} AS TIMESTAMP)) - {lengths.offset}L, {lengths.slide}L) + {earlier}"
    begins = _parsed(f"{moment} - make_dt_interval(0, 0, 0, CAST({since} AS DECIMAL(18, 0)) / 1000000)")
    begins.type = at.type
    node = Project(node, (*((c, column(c)) for c in node.columns), (start, begins)))
    if lengths.length % lengths.slide:
        node = Filter(node, _parsed(f"{moment} < `{start}` + {_interval(lengths.length)}"))
    select.scope.columns[(_ALIAS, "start")] = column(start)
    return node, _over_start(select.select, lengths)


def _calls(select: exp.Select) -> list[exp.Anonymous]:
    """Return the calls of `window` in the list of SELECT, GROUP BY, HAVING and QUALIFY."""
    parts = [*select.selects, *(p for k in ("group", "having", "qualify") if (p := select.args.get(k)))]
    return [
        c for p in parts for c in p.find_all(exp.Anonymous)
        if c.name.lower() == "window" and c.find_ancestor(exp.Select) is select
    ]  # fmt: skip


def _is_beside_over(select: exp.Select) -> bool:
    """Whether a SELECT has window functions over rows that are not grouped.

    Which of the two Spark computes first depends on the rest of the query.
    """
    windows = (w for part in [*select.selects, select.args.get("qualify")] if part for w in part.find_all(exp.Window))
    return not select.args.get("group") and any(w.find_ancestor(exp.Select) is select for w in windows)


def _over_start(select: exp.Select, lengths: _Lengths) -> exp.Select:
    """Return a copy of a SELECT in which the window is an expression over its start."""
    copy = select.copy()
    starts = exp.column("start", table=_ALIAS, quoted=True)
    ends = exp.Paren(this=exp.Add(this=starts.copy(), expression=_parsed(_interval(lengths.length))))
    fields = {"start": starts, "end": ends}
    for call in _calls(copy):
        is_key = isinstance(call.find_ancestor(exp.Group, exp.Query), exp.Group)
        if isinstance(call.parent, exp.Dot) and (field := fields.get(call.parent.expression.name.lower())) is not None:
            call.parent.replace(field.copy())
        elif is_key:
            call.replace(starts.copy())
        else:
            struct = exp.Anonymous(
                this="named_struct",
                expressions=[
                    exp.Literal.string("start"), starts.copy(), exp.Literal.string("end"), ends.copy()
                ],
            )  # fmt: skip
            call.replace(struct)
    return copy


def _lengths(call: exp.Anonymous) -> _Lengths:
    """Return length, slide and offset of a call.

    Raises:
        Uncompilable: they are not constants of a known form.
    """
    values = [_microseconds(e) for e in call.expressions[1:]]
    if not 1 <= len(values) <= 3 or any(v is None for v in values):
        raise Uncompilable(f"{call.sql(DIALECT)}: lengths that are not written as '1 hour 30 minutes'")
    length, slide, offset = ([v or 0 for v in values] + [values[0] or 0, 0][len(values) - 1 :])[:3]
    lengths = _Lengths(length, slide, offset)
    if not 0 < slide <= length or lengths.windows > thresholds.WINDOWS_A_ROW:
        raise Uncompilable(f"{call.sql(DIALECT)}: more than {thresholds.WINDOWS_A_ROW} windows per row")
    return lengths


def _microseconds(length: exp.Expr) -> int | None:
    """Return the microseconds of a length; None unless it is a whole number or a text such as '1 hour 30 minutes'."""
    if length.is_int:
        return int(length.to_py())
    if not length.is_string:
        return None
    words = length.name.strip().lower().removeprefix("interval ").strip()
    parts = list(_PART.finditer(words))
    if not parts or "".join(m[0] for m in parts) != words or any(m[2] not in _MICROSECONDS for m in parts):
        return None
    return sum(int(m[1]) * _MICROSECONDS[m[2]] for m in parts)


def _interval(microseconds: int) -> str:
    return f"make_dt_interval(0, 0, 0, CAST({microseconds} AS DECIMAL(18, 0)) / 1000000)"


def _parsed(sql: str) -> exp.Expr:
    return exp.Paren(this=sqlglot.parse_one(sql, dialect=DIALECT))
