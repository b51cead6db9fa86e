"""Build inner joins and filters, pushed down as far as possible."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from lake_assets.models.operators.query_tree import Filter, InnerJoin, Node, refs
from lake_assets.models.sql.scopes import Uncompilable


def joined(left: Node, right: Node, on: Sequence[exp.Expr]) -> Node:
    """Return an inner join, merged with inner joins among its inputs."""
    inputs = tuple(i for side in (left, right) for i in (side.inputs if isinstance(side, InnerJoin) else (side,)))
    below = tuple(c for side in (left, right) if isinstance(side, InnerJoin) for c in side.on)
    return filtered(InnerJoin(inputs, below), on)


def filtered(node: Node, conditions: Sequence[exp.Expr]) -> Node:
    """Return a filter, pushed down into the inputs of an inner join where possible."""
    if not conditions:
        return node
    if isinstance(node, InnerJoin):
        on = list(node.on)
        inputs = list(node.inputs)
        above: list[exp.Expr] = []
        for condition in conditions:
            used = refs(condition)
            position = next((i for i, n in enumerate(inputs) if used and used <= set(n.columns)), None)
            if position is not None:
                inputs[position] = filtered(inputs[position], [condition])
            elif used:
                on.append(condition)
            else:
                above.append(condition)
        node = InnerJoin(tuple(inputs), tuple(on))
        return Filter(node, exp.and_(*above)) if above else node
    if missing := {n for c in conditions for n in refs(c)} - set(node.columns):
        raise Uncompilable(f"a condition over {', '.join(sorted(missing))}, which its tables do not have")
    return Filter(node, exp.and_(*conditions, copy=True))
