"""Columns that identify the rows of an operator."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.operator_types import certain_type, kind
from lake_assets.models.operators.query_tree import equals, refs


def unique(node: op.Node) -> list[frozenset[str]]:
    """Return sets of columns that each identify the operator's rows (compared null-safely), smallest set first."""
    return sorted(dict.fromkeys(_unique(node)), key=lambda k: (len(k), sorted(k)))


def _unique(node: op.Node) -> list[frozenset[str]]:
    match node:
        case op.Scan():
            return [k for k in node.keys if k <= set(node.columns)]
        case op.Unit():
            return [frozenset()]
        case op.Filter() | op.Window():
            return _unique(node.input)
        case op.Project():
            plain = {e.name: n for n, e in reversed(node.items) if isinstance(e, exp.Column)}
            return [frozenset(plain[c] for c in k) for k in _unique(node.input) if k <= set(plain)]
        case op.Aggregate():
            return [frozenset(n for n, _ in node.keys)]
        case op.Distinct():
            return [*_unique(node.input), frozenset(node.columns)]
        case op.SetOp():
            return [*([] if node.all else [frozenset(node.columns)]), *_unique(node.left)]
        case op.SideJoin() if node.kind != "left":
            return _unique(node.left)
        case op.SideJoin():
            return _joined(_unique(node.left), node.left, node.right, node.on, outer=True)
        case op.InnerJoin():
            keys, first = _unique(node.inputs[0]), node.inputs[0]
            for n, right in enumerate(node.inputs[1:], start=2):
                keys = _joined(keys, first, right, node.on, outer=False)
                first = op.InnerJoin(node.inputs[:n], node.on)
            return keys
        case _:
            return []


def _joined(
    keys: list[frozenset[str]], left: op.Node, right: op.Node, on: tuple[exp.Expr, ...], *, outer: bool
) -> list[frozenset[str]]:
    pairs = [
        (x.name, y.name)
        for x, y in equals(on, left.columns, right.columns)
        if isinstance(x, exp.Column)
        and isinstance(y, exp.Column)
        and _are_alike(certain_type(left, x), certain_type(right, y))
    ]
    right_keys = _unique(right)
    if any(k <= {y for _, y in pairs} for k in right_keys):
        return keys
    unique_sets: list[frozenset[str]] = []
    if not outer and any(k <= {x for x, _ in pairs} for k in keys):
        unique_sets += right_keys
    # One of several equal columns is enough.
    same = {} if outer else {y: x for x, y in pairs}
    return unique_sets + [k | frozenset(same.get(c, c) for c in t) for k in keys for t in right_keys]


def _are_alike(type_: str, other_type: str) -> bool:
    """Whether equal values of two types are the same value. They are not for text and numbers: '01' = 1 and '1' = 1."""
    return bool(type_ and other_type) and kind(type_) == kind(other_type)


def identifies_rows(node: op.Node, columns: Iterable[str]) -> bool:
    """Whether rows of an operator that agree in these columns agree in all columns."""
    return set(node.columns) <= dependent_columns(node, set(columns))


def dependent_columns(node: op.Node, have: set[str]) -> set[str]:
    """Return the columns that are functionally dependent on the columns `have`."""
    if any(k <= have for k in unique(node)):
        return set(node.columns)
    match node:
        case op.Filter() | op.Distinct() | op.Window() | op.Generate():
            return have | dependent_columns(node.input, have & set(node.input.columns))
        case op.Project():
            plain = {e.name for n, e in node.items if n in have and isinstance(e, exp.Column)}
            below = dependent_columns(node.input, plain)
            return have | {n for n, e in node.items if refs(e) <= below}
        case op.InnerJoin():
            return _through_equalities(node, have, node.inputs)
        case op.SideJoin():
            left = have | dependent_columns(node.left, have & set(node.left.columns))
            return _through_equalities(node, left, (node.right,)) if node.kind == "left" else left
        case _:
            return have


def _through_equalities(node: op.InnerJoin | op.SideJoin, have: set[str], inputs: Iterable[op.Node]) -> set[str]:
    """Return the columns that depend on `have` by the equalities of a join and the keys of some of its inputs."""
    columns, size = set(have), -1
    while size < len(columns):
        size = len(columns)
        for side in inputs:
            others = set(node.columns) - set(side.columns)
            pairs = equals(node.on, others, side.columns)
            same = {y.name for x, y in pairs if refs(x) <= columns and isinstance(y, exp.Column)}
            columns |= dependent_columns(side, (columns & set(side.columns)) | same)
    return columns
