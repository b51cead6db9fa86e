"""How each operator is maintained, and when a change touches all of its rows."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.models.operators.query_tree import (
    Aggregate,
    Distinct,
    Filter,
    FullJoin,
    Generate,
    InnerJoin,
    Node,
    Project,
    Scan,
    SetOp,
    SideJoin,
    UnionAll,
    Window,
    equals,
    scans,
    users_text,
)
from lake_assets.models.operators.unique_columns import unique

_NAMES = {
    "left": "LEFT JOIN",
    "semi": "SEMI JOIN (EXISTS, IN)",
    "anti": "ANTI JOIN (NOT EXISTS)",
    "null_anti": "NOT IN",
}


def is_by_key(node: Node) -> bool:
    """Whether a change of its inputs makes it look at other rows of the same keys."""
    return isinstance(node, Aggregate | Window | Distinct | SetOp | SideJoin | FullJoin)


def describe(node: Node) -> str:
    """The operator in a few words."""
    match node:
        case Scan():
            return f"{node.table}" + (f" {node.alias}" if node.alias and node.alias != node.table.name else "")
        case Filter():
            return f"filter {users_text(node, node.condition)}"
        case Project():
            return "columns"
        case Generate():
            return f"LATERAL VIEW {users_text(node, node.call)}"
        case Aggregate():
            return (
                f"GROUP BY {', '.join(users_text(node, e) for _, e in node.keys)}" if node.keys else "total of all rows"
            )
        case Window():
            by = ", ".join(users_text(node, p) for p in node.partition)
            return f"window functions PARTITION BY {by}" if by else "window functions without PARTITION BY"
        case Distinct():
            return "DISTINCT"
        case InnerJoin():
            return f"INNER JOIN {_on(node)}"
        case SideJoin():
            return f"{_NAMES[node.kind]} {_on(node)}"
        case FullJoin():
            return f"FULL JOIN {_on(node)}"
        case UnionAll():
            return "UNION ALL"
        case SetOp():
            return f"{node.kind}{' ALL' if node.all else ''}"


def maintained(node: Node) -> str:
    """How an operator's change is found."""
    match node:
        case Scan():
            return "its changed rows, as they were and as they are"
        case Filter() | Project() | Generate() | UnionAll():
            return "applied to the changed rows"
        case InnerJoin():
            return "changed rows of each input, joined with the others (before it: as they were, after it: as they are)"
        case SideJoin():
            if not equals(node.on, node.left.columns, node.right.columns):
                return "changed rows of the left side by themselves; without an equality, one of the right touches all"
            return "changed rows of the left side by themselves; of the right one, by the keys of ON"
        case FullJoin():
            pairs = equals(node.on, node.left.columns, node.right.columns)
            return "by the keys of ON" if pairs else "no equality in ON: any change touches all"
        case Aggregate() if not node.keys:
            return "one row, at the start and at the end"
        case Window() if not node.partition:
            return "any change touches all"
        case Aggregate():
            return "the groups of changed rows, at the start and at the end"
        case Window():
            return "the partitions of changed rows, at the start and at the end"
        case Distinct() | SetOp():
            return "rows like the changed ones, at the start and at the end"


def everything(node: Node, changed: Collection[TableId], *, each: bool = False) -> str:
    """Why a change of some tables touches all rows of the result; empty: it does not.

    Args:
        node: the topmost operator.
        changed: the tables that changed.
        each: whether it has to be so for each of the tables alone.
    """
    if each:
        reasons = [everything(node, {t}) for t in changed]
        return reasons[0] if reasons and all(reasons) else ""
    for below in node.inputs:
        if why := everything(below, changed):
            return why
    match node:
        case Window() if not node.partition and _reads(node.input, changed):
            return f"{describe(node)}: any change touches all rows"
        case SideJoin() if _reads(node.right, changed):
            if not equals(node.on, node.left.columns, node.right.columns) and node.on:
                return f"{describe(node)}: without an equality, any change of the right side touches all rows"
        case FullJoin() if _reads(node, changed) and not equals(node.on, node.left.columns, node.right.columns):
            return f"{describe(node)}: without an equality, any change touches all rows"
        case InnerJoin():
            for side in node.inputs:
                others = [c for i in node.inputs if i is not side for c in i.columns]
                if frozenset() in unique(side) and _reads(side, changed) and not equals(node.on, side.columns, others):
                    return "each row is compared with a total of all rows, which any change moves"
        case _:
            pass
    return ""


def passed_on(node: Node, name: str) -> tuple[TableId, str] | None:
    """The column of a table that a column of an operator is, as it is; None: it is made of something."""
    match node:
        case Scan():
            return node.table, node.fields[name]
        case Filter():
            return passed_on(node.input, name)
        case Project():
            made = dict(node.items)[name]
            return passed_on(node.input, made.name) if isinstance(made, exp.Column) else None
        case InnerJoin():
            return next(passed_on(i, name) for i in node.inputs if name in i.columns)
        case _:
            return None


def is_linear(node: Node) -> bool:
    """Whether an operator's change is made of single rows all the way down: nothing is grouped or looked at by key."""
    return not is_by_key(node) and all(is_linear(i) for i in node.inputs)


def _reads(node: Node, tables: Collection[TableId]) -> bool:
    return any(s.table in tables for s in scans(node))


def _on(node: InnerJoin | SideJoin | FullJoin) -> str:
    return "ON " + " AND ".join(users_text(node, c) for c in node.on) if node.on else "(each with each)"
