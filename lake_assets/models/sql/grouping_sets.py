"""GROUP BY: the keys of a query, and its grouping sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import column
from lake_assets.models.sql.scopes import Uncompilable
from lake_assets.models.sql.sql_functions import aggregates


@dataclass(frozen=True)
class Grouping:
    """The keys of a GROUP BY.

    Attributes:
        sets: the positions in `keys` of each grouping set; None without grouping sets.
    """

    keys: tuple[exp.Expr, ...]
    sets: tuple[frozenset[int], ...] | None


def grouping(group: exp.Expr | None, items: Sequence[exp.Expr], resolved: Callable[[exp.Expr], exp.Expr]) -> Grouping:
    """Return the keys and grouping sets of a GROUP BY.

    Args:
        items: the selected expressions, for GROUP BY ALL.
        resolved: returns an expression with the tree's columns.
    """
    if group is None:
        return Grouping((), None)
    if group.args.get("totals"):
        raise Uncompilable("GROUP BY WITH TOTALS")
    if group.args.get("all"):
        return Grouping(_once([i for i in items if not aggregates(i) and not isinstance(i, exp.Literal)]), None)
    plain: list[exp.Expr] = []
    products: list[list[list[exp.Expr]]] = []
    for part in [*group.expressions, *(p for k in ("rollup", "cube", "grouping_sets") for p in _list(group, k))]:
        match part:
            case exp.Rollup() | exp.Cube():
                # WITH ROLLUP and WITH CUBE have no keys of their own.
                of = [_flat(e) for e in part.expressions] or [[e] for e in plain]
                plain = plain if part.expressions else []
                products.append(_rollup(of) if isinstance(part, exp.Rollup) else _cube(of))
            case exp.GroupingSets():
                if any(e.find(exp.Rollup, exp.Cube, exp.GroupingSets) for e in part.expressions):
                    raise Uncompilable("grouping sets within grouping sets")
                sets = [_flat(e) for e in part.expressions]
                products.append(sets)
                listed = {e.sql(DIALECT) for s in sets for e in s}
                if group.expressions and all(e.sql(DIALECT) in listed for e in plain):
                    # GROUP BY a, b GROUPING SETS (...): the list only declares the keys.
                    return _grouping(plain, [], products, resolved)
            case _:
                plain.append(part)
    return _grouping(plain, plain, products, resolved)


def _grouping(
    order: Sequence[exp.Expr],
    always: Sequence[exp.Expr],
    products: Sequence[Sequence[Sequence[exp.Expr]]],
    resolved: Callable[[exp.Expr], exp.Expr],
) -> Grouping:
    """Return a grouping.

    Args:
        order: the keys that come first.
        always: the keys that each grouping set has.
        products: lists of grouping sets, of which each combination is one.
    """
    everything = [*order, *(e for sets in products for s in sets for e in s)]
    if any(e.find(exp.Query) for e in everything):
        raise Uncompilable("GROUP BY a subquery")
    keys = _once([resolved(e) for e in everything])
    if not products:
        return Grouping(keys, None)
    positions = {k.sql(DIALECT): i for i, k in enumerate(keys)}
    grouping_sets: list[frozenset[int]] = []
    for combination in itertools.product(*products):
        set_keys = [*always, *(e for s in combination for e in s)]
        grouping_sets.append(frozenset(positions[resolved(e).sql(DIALECT)] for e in set_keys))
    if len(set(grouping_sets)) < len(grouping_sets):
        raise Uncompilable("a repeated grouping set")
    return Grouping(keys, tuple(grouping_sets))


def _once(expressions: Sequence[exp.Expr]) -> tuple[exp.Expr, ...]:
    return tuple({e.sql(DIALECT): e for e in expressions}.values())


def _list(group: exp.Expr, part: str) -> list[exp.Expr]:
    value = group.args.get(part)
    return value if isinstance(value, list) else []


def _flat(part: exp.Expr) -> list[exp.Expr]:
    if isinstance(part, exp.Tuple):
        return list(part.expressions)
    return [part.this if isinstance(part, exp.Paren) else part]


def _rollup(parts: Sequence[list[exp.Expr]]) -> list[list[exp.Expr]]:
    return [[e for p in parts[:n] for e in p] for n in range(len(parts), -1, -1)]


def _cube(parts: Sequence[list[exp.Expr]]) -> list[list[exp.Expr]]:
    chosen = (c for n in range(len(parts), -1, -1) for c in itertools.combinations(parts, n))
    return [[e for p in c for e in p] for c in chosen]


def grouping_call(call: exp.Expr, grouping: Grouping, keys: Sequence[op.Item], grouping_id: str) -> exp.Expr:
    """Return GROUPING and GROUPING_ID as expressions over the bit mask of the keys that a row is not grouped by."""
    if grouping.sets is None:
        raise Uncompilable(f"{call.sql(DIALECT)} without grouping sets")
    positions = {e.sql(DIALECT): i for i, (_, e) in enumerate(keys)}
    arguments = [call.this] if isinstance(call, exp.Grouping) and call.this is not None else list(call.expressions)
    if isinstance(call, exp.GroupingId) and not arguments:
        return column(grouping_id)
    if any(e.sql(DIALECT) not in positions for e in arguments):
        raise Uncompilable(f"{call.sql(DIALECT)} of an expression that is not grouped by")
    bits = [f"(shiftright(`{grouping_id}`, {len(keys) - 1 - positions[e.sql(DIALECT)]}) & 1)" for e in arguments]
    if isinstance(call, exp.Grouping):
        return sqlglot.parse_one(f"CAST({bits[0]} AS TINYINT)", dialect=DIALECT)
    sums = " + ".join(f"shiftleft({b}, {len(bits) - 1 - i})" for i, b in enumerate(bits))
    return sqlglot.parse_one(f"CAST({sums} AS BIGINT)", dialect=DIALECT)


def grouped(
    node: op.Node, grouping_keys: Grouping, keys: Sequence[op.Item], calls: tuple[op.Item, ...], grouping_id: str
) -> op.Node:
    """Return the aggregates of a GROUP BY: one branch of a union per grouping set."""
    if grouping_keys.sets is None:
        return op.Aggregate(node, tuple(keys), calls)
    branches: list[op.Node] = []
    for set_keys in grouping_keys.sets:
        aggregate = op.Aggregate(
            node,
            tuple((f"{n}_s", e) for i, (n, e) in enumerate(keys) if i in set_keys),
            tuple((f"{n}_s", e) for n, e in calls),
            vanishes=not set_keys,
        )
        mask = sum(1 << (len(keys) - 1 - i) for i in range(len(keys)) if i not in set_keys)
        items = (
            *((n, column(f"{n}_s") if i in set_keys else exp.Null()) for i, (n, _) in enumerate(keys)),
            *((n, column(f"{n}_s")) for n, _ in calls),
            (grouping_id, exp.cast(exp.Literal.number(mask), "bigint")),
        )
        branches.append(op.Project(aggregate, items))
    return op.UnionAll(tuple(branches))
