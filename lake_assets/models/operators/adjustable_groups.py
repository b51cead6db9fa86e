"""Maintain groups by adding inserted rows and subtracting deleted rows.

The new counts, and sums of whole numbers and decimals, of a group follow from its stored row and the change. If they do
not (a sum that becomes 0 may be the sum of no values, which is null), the group is recomputed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.errors import Refused
from lake_assets.lake import quote
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.operator_types import TypeOf
from lake_assets.models.operators.query_tree import Aggregate, Project, Tree, refs, substitute, text, users_text
from lake_assets.models.operators.stability import Doubt, doubt, state, worst
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Update
from lake_assets.tables.writing.row_differences import FOUND, SIGN

# The text of the error of a MERGE that would adjust a group in doubt.
IN_DOUBT = "lake_assets: a group has to be recomputed"
RECOMPUTE = "__recompute"
_EXACT = ("tinyint", "smallint", "int", "bigint", "decimal")
_DOUBLE_EXACT = {"tinyint": 53 - 7, "smallint": 53 - 15, "int": 53 - 31}


@dataclass(frozen=True)
class Call:
    """One aggregate of the result.

    Attributes:
        kind: `count`, `sum` or `avg`.
        of: the expression that is counted or summed; None to count rows.
        condition: the condition of FILTER.
        type: Spark's type of `of`.
    """

    output: str
    kind: str
    of: exp.Expr | None
    condition: exp.Expr | None
    type: str = ""

    @property
    def same_rows(self) -> tuple[str, str]:
        """Equal for two aggregates over the same values."""
        return (text(self.of) if self.of is not None else "", text(self.condition) if self.condition else "")


@dataclass(frozen=True)
class Retraction:
    """How the groups of a result are adjusted.

    Attributes:
        keys: the result's column for each key of the operator.
        derived: other columns of the result, as expressions over the operator's columns.
        outputs: the result's column for each column of the operator.
    """

    aggregate: Aggregate
    keys: Mapping[str, str]
    calls: tuple[Call, ...]
    derived: Mapping[str, exp.Expr]
    outputs: Mapping[str, str]

    def change(self, delta: str) -> str:
        """Return SQL with one row per group: inserted less deleted rows and values."""
        items = [f"{text(e)} AS {quote(self.keys[n])}" for n, e in self.aggregate.keys]
        items += [f"sum(CAST({SIGN} AS BIGINT)) AS __n", f"count_if({SIGN} < 0) AS __gone"]
        for i, call in enumerate(self.calls):
            has_value = _and(f"{text(call.of)} IS NOT NULL" if call.of is not None else "", _filter(call))
            items.append(f"sum(IF({has_value}, CAST({SIGN} AS BIGINT), 0L)) AS __n{i}")
            items.append(f"count_if({_and(has_value, f'{SIGN} < 0')}) AS __gone{i}")
            if call.kind == "sum" and call.of is not None:
                value = text(call.of)
                value = f"CAST({value} AS DECIMAL(20,0))" if "int" in call.type else value
                items.append(f"try_sum(IF({has_value}, IF({SIGN} > 0, {value}, -({value})), NULL)) AS __s{i}")
        by = ", ".join(text(e) for _, e in self.aggregate.keys)
        # Without keys there is one group even if no row changed.
        grouped = f"SELECT {', '.join(items)} FROM ({delta})" + (f" GROUP BY {by}" if by else " HAVING count(*) > 0")
        is_changed = " OR ".join(["__n <> 0", *map(self._is_changed, range(len(self.calls)))])
        return f"SELECT * FROM ({grouped}) WHERE {is_changed}"

    def _is_changed(self, i: int) -> str:
        """Return a SQL condition over the rows of `change`: the group has other values to aggregate."""
        is_summed = self.calls[i].kind == "sum" and self.calls[i].of is not None
        return f"__n{i} <> 0" + (f" OR (__gone{i} > 0 AND NOT (__s{i} <=> 0))" if is_summed else "")

    def result(self, change: str, table: str, types: Mapping[str, str], hint: str = "") -> str:
        """Return SQL with one row per group: its new row (`FOUND` is null if the group vanishes), and whether it must
        be recomputed.

        Args:
            change: a view of the rows of `change`.
            table: the stored result, or the part of it with these groups.
        """
        keys = list(self.keys.values())
        same = " AND ".join(f"d.{quote(k)} <=> t.{quote(k)}" for k in keys) or "true"
        inner = ["d.*", "t.__there", *(f"t.{quote(c.output)} AS __old{i}" for i, c in enumerate(self.calls))]
        old = f"(SELECT *, true AS __there FROM {table})"
        joined = f"SELECT {hint} {', '.join(inner)} FROM {change} d LEFT JOIN {old} t ON {same}"
        counted = ", ".join(f"{self._new(i, types)} AS __new{i}" for i in range(len(self.calls)))
        counted = f"SELECT *, {counted} FROM ({joined})" if self.calls else joined
        exists, doubts = self._exists()
        doubt = " OR ".join(f"coalesce({d}, true)" for d in doubts)
        by = {n: quote(k) for n, k in self.keys.items()}
        by |= {n: f"__new{self._place(o)}" for n, o in self.outputs.items() if n not in self.keys}
        rest = [
            f"{_replace_columns(e, by)} AS {quote(o)}" if o in self.derived else f"__new{self._place(o)} AS {quote(o)}"
            for o, e in ((o, self.derived.get(o, exp.Null())) for o in types if o not in keys)
        ]
        listed = ", ".join([*(quote(k) for k in keys), *rest])
        return f"SELECT {listed}, IF({exists}, true, NULL) AS {FOUND}, ({doubt}) AS {RECOMPUTE} FROM ({counted})"

    def clauses(self, types: Mapping[str, str]) -> list[Clause]:
        """Return the clauses of a MERGE of the rows `s` of `change` into the table `t`, which adjust its groups.

        The MERGE fails with `IN_DOUBT` if a group has to be recomputed. It needs at least one aggregate. It writes as
        many rows as `change` has, unless the table holds several rows of a group.
        """
        stored = {f"__old{i}": f"t.{quote(c.output)}" for i, c in enumerate(self.calls)} | {"__there": "true"}
        none = {f"__old{i}": f"CAST(NULL AS {types[c.output]})" for i, c in enumerate(self.calls)}
        none |= {"__there": "CAST(NULL AS BOOLEAN)"}
        doubt, exists, values = self._values(types, stored)
        new_doubt, is_new, new_values = self._values(types, none)
        first = self.calls[0].output
        fails = f"CAST(raise_error('{IN_DOUBT}') AS {types[first]})"
        inserted = {k: f"s.{quote(k)}" for k in self.keys.values()} | new_values
        inserted = {c: inserted[c] for c in types}
        return [
            Update(f"({doubt})", {first: fails}),
            Delete(f"NOT coalesce({exists}, false)"),
            Update(values=values),
            Insert(f"({new_doubt})", inserted | {first: fails}),
            Insert(is_new, inserted),
        ]

    def _values(self, types: Mapping[str, str], at: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
        """Return SQL, with the names of old values replaced: whether a group is in doubt, whether it exists, and its
        values by column that is no key."""
        at = {**at, **{f"__new{i}": f"({_named(self._new(i, types), at)})" for i in range(len(self.calls))}}
        exists, doubts = self._exists()
        by = {n: f"s.{quote(k)}" for n, k in self.keys.items()}
        by |= {n: at[f"__new{self._place(o)}"] for n, o in self.outputs.items() if n not in self.keys}
        values = {
            o: _replace_columns(self.derived[o], by) if o in self.derived else at[f"__new{self._place(o)}"]
            for o in types
            if o not in self.keys.values()
        }
        return " OR ".join(f"coalesce({_named(d, at)}, true)" for d in doubts), _named(exists, at), values

    @property
    def is_counted(self) -> bool:
        """Whether groups that lose rows are rarely in doubt: their rows are counted, and the values of each sum."""
        has_rows = any(c.kind == "count" and c.same_rows == ("", "") for c in self.calls)
        return has_rows and all(c.kind != "sum" or self._counted(i) is not None for i, c in enumerate(self.calls))

    def _place(self, output: str) -> int:
        return next(i for i, c in enumerate(self.calls) if c.output == output)

    def _new(self, i: int, types: Mapping[str, str]) -> str:
        call = self.calls[i]
        match call.kind:
            case "count":
                return f"(coalesce(__old{i}, 0L) + __n{i})"
            case "sum":
                kind = types[call.output]
                wide = _summand_type(kind)
                sum_ = f"try_add(try_cast(__old{i} AS {wide}), try_cast(__s{i} AS {wide}))"
                # Without old values, the new sum is that of the change; without new values, it is null.
                first = f"IF(__n{i} > 0, __s{i}, NULL)"
                empty = f"__gone{i} > 0 AND {self._count(i)} = 0" if self._counted(i) is not None else "false"
                is_unchanged = f"__n{i} = 0 AND __gone{i} = 0"
                new_sum = (
                    f"CASE WHEN __old{i} IS NULL THEN {first} WHEN {is_unchanged} THEN __old{i} WHEN {empty} THEN NULL "
                    f"ELSE {sum_} END"
                )
                return f"try_cast({new_sum} AS {kind})"
            case _:
                total, count = (self._other(i, kind) for kind in ("sum", "count"))
                n = f"(coalesce(__old{count}, 0L) + __n{count})"
                return f"IF({n} = 0, NULL, CAST({self._new(total, types)} AS DOUBLE) / {n})"

    def _counted(self, i: int) -> int | None:
        """Return the position of the aggregate that counts the values of a sum."""
        return next(
            (j for j, c in enumerate(self.calls) if c.kind == "count" and c.same_rows == self.calls[i].same_rows), None
        )

    def _count(self, i: int) -> str:
        return f"(coalesce(__old{self._counted(i)}, 0L) + __n{i})"

    def _other(self, i: int, kind: str) -> int:
        same = self.calls[i].same_rows
        return next(j for j, c in enumerate(self.calls) if c.kind == kind and c.same_rows == same)

    def _doubt(self, i: int) -> str:
        """Return a SQL condition: the new value does not follow from the old value and the change."""
        call = self.calls[i]
        match call.kind:
            case "count":
                return f"__new{i} < 0"
            case "sum":
                # Either all old values may have been deleted, or the sum is out of range.
                lost = f"__there AND __old{i} IS NULL AND (__n{i} <> 0 OR __gone{i} > 0)"
                large = f"__new{i} IS NULL AND NOT (__old{i} IS NULL AND __n{i} = 0)"
                if self._counted(i) is not None:
                    return f"(coalesce({lost}, false) OR ({large} AND {self._count(i)} <> 0))"
                return f"(coalesce({lost}, false) OR {large} OR coalesce(__gone{i} > 0 AND __new{i} = 0, false))"
            case _:
                # A sum of doubles is exact while no partial sum can reach 2^53.
                most = 1 << _DOUBLE_EXACT[call.type]
                return f"(coalesce(__old{self._other(i, 'count')}, 0L) + abs(__n{i}) + __gone{i} > {most}L)"

    def _exists(self) -> tuple[str, list[str]]:
        """Return SQL conditions: the group has rows; and all reasons for which it has to be recomputed."""
        exists, unsure = "true", "false"
        rows = next((i for i, c in enumerate(self.calls) if c.kind == "count" and c.same_rows == ("", "")), None)
        if self.aggregate.keys and rows is not None:
            exists, unsure = f"__new{rows} > 0", "__there IS NULL AND __n < 0"
        elif self.aggregate.keys:
            signs = [f"coalesce(__new{i} <> 0, false)" for i, c in enumerate(self.calls) if c.kind in ("count", "sum")]
            sure = " OR ".join(["__gone = 0", *signs])
            exists, unsure = "IF(__there, true, __n > 0)", f"IF(__there, NOT ({sure}), __n < 0)"
        return exists, [unsure, *map(self._doubt, range(len(self.calls)))]


def retraction(tree: Tree, key: Collection[str], type_of: TypeOf) -> Retraction | Refused:
    """Return how the groups of a result are adjusted by changes alone; or a refusal, if they cannot be.

    Args:
        key: output columns that identify a row.
        type_of: returns Spark's type of an expression over an operator's rows; empty if unknown.
    """
    items: dict[str, exp.Expr] = {o: exp.column(n, quoted=True) for o, n in tree.outputs.items()}
    node = tree.root
    while isinstance(node, Project):
        by = dict(node.items)
        items = {o: substitute(e, by) for o, e in items.items()}
        node = node.input
    if not isinstance(node, Aggregate) or node.vanishes:
        return Refused("its topmost operator is not a GROUP BY")
    if in_doubt := _in_doubt(node):
        return Refused(f"{in_doubt.why}, so deleted rows cannot be subtracted")
    outputs: dict[str, str] = {}
    for output, e in items.items():
        if isinstance(e, exp.Column):
            outputs.setdefault(e.name, output)
    keys: dict[str, str] = {}
    for name, e in node.keys:
        if name not in outputs:
            return Refused(f"its result lacks {users_text(node, e)}, which it groups by")
        keys[name] = outputs[name]
    calls: list[Call] = []
    for name, e in node.calls:
        as_written = users_text(node, e)
        if name not in outputs:
            return Refused(f"its result lacks {as_written} itself, from which the next value would be computed")
        call = _call(outputs[name], e, lambda value: type_of(value, node.input), as_written)
        if isinstance(call, Refused):
            return call
        calls.append(call)
    for call in calls:
        if call.kind == "avg":
            kinds = {c.kind for c in calls if c.same_rows == call.same_rows}
            if not {"sum", "count"} <= kinds:
                of = users_text(node, call.of) if call.of is not None else "its rows"
                return Refused(f"an average needs the sum and the count, and its result lacks one of them for {of}")
    if set(key) != set(keys.values()):
        return Refused(f"the declared key {list(key)} differs from its GROUP BY columns")
    used = {n for n, _ in (*node.keys, *node.calls)}
    derived = {o: e for o, e in items.items() if o not in outputs.values()}
    assert all(refs(e) <= used for e in derived.values())
    return Retraction(node, keys, tuple(calls), derived, outputs)


def _in_doubt(node: Aggregate) -> Doubt | None:
    """Return the doubt about the grouped rows, as far as keys and aggregates read them."""
    below = state(node.input)
    return worst(below.rows, *(doubt(e, below.columns) for _, e in (*node.keys, *node.calls)))


def _call(output: str, e: exp.Expr, type_of: Callable[[exp.Expr], str], name: str) -> Call | Refused:
    """Return an aggregate that can be adjusted by changes; or a refusal, with `name` as its name."""
    condition = None
    call = e
    if isinstance(call, exp.Filter):
        condition, call = call.expression.this, call.this
    inside = call.this
    if isinstance(inside, exp.Distinct) or (isinstance(call, exp.Count) and call.expressions):
        return Refused(f"{name} cannot be computed from the change alone")
    match call:
        case exp.CountIf():
            both = exp.and_(inside, condition) if condition is not None else inside
            return Call(output, "count", None, both)
        case exp.Count():
            return Call(output, "count", None if isinstance(inside, exp.Star | exp.Literal) else inside, condition)
        case exp.Sum() | exp.Avg():
            kind = type_of(inside).split("(")[0]
            if kind in ("float", "double"):
                return Refused(f"{name} adds floating-point numbers, whose sum depends on their order")
            if isinstance(call, exp.Avg) and kind not in _DOUBLE_EXACT:
                return Refused(f"{name} is rounded on the way, so it is recomputed")
            if kind not in _EXACT:
                return Refused(f"{name} is over {kind or 'a type that is unknown before it runs'}")
            return Call(output, "sum" if isinstance(call, exp.Sum) else "avg", inside, condition, kind)
        case _:
            return Refused(f"{name} cannot be computed from the change alone")


def _filter(call: Call) -> str:
    return f"coalesce({text(call.condition)}, false)" if call.condition is not None else ""


def _and(*parts: str) -> str:
    return " AND ".join(f"({p})" for p in parts if p) or "true"


def _summand_type(kind: str) -> str:
    """Return the type in which two numbers of a sum's type are added exactly, or not at all.

    Spark would round the sum of two DECIMAL(38,10) to nine digits after the point, as it may have 39 digits.
    """
    if kind == "bigint":
        return "DECIMAL(38,0)"
    precision, _, scale = kind.removeprefix("decimal(").removesuffix(")").partition(",")
    return f"DECIMAL({min(int(precision), 37)},{scale})"


def _named(sql: str, names: Mapping[str, str]) -> str:
    """Return SQL of this module, which has no texts of users, with other SQL for its names; by default, of `s`."""
    return re.sub(r"(?<![.`])\b__(?:old|new|there|gone|n|s)\d*\b", lambda m: names.get(m[0], f"s.{m[0]}"), sql)


def _replace_columns(e: exp.Expr, by: Mapping[str, str]) -> str:
    def replaced(node: exp.Expr) -> exp.Expr:
        return exp.maybe_parse(by[node.name], dialect=DIALECT) if isinstance(node, exp.Column) else node

    return text(e.copy().transform(replaced))
