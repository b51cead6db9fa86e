"""How each operator is maintained, and when a change affects all rows of a result."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.lake import TableId
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import equals, scans, users_text
from lake_assets.models.operators.unique_columns import unique
from lake_assets.models.operators.window_frames import row_frames, running_windows

_NAMES = {
    "left": "LEFT JOIN",
    "semi": "SEMI JOIN (EXISTS, IN)",
    "anti": "ANTI JOIN (NOT EXISTS)",
    "null_anti": "NOT IN",
}


def is_by_key(node: op.Node) -> bool:
    """Whether the operator combines rows, so that a change requires other rows of the same keys."""
    return isinstance(node, op.Aggregate | op.Window | op.Distinct | op.SetOp | op.SideJoin | op.FullJoin)


def describe(node: op.Node) -> str:
    """Return the operator in a few words."""
    match node:
        case op.Scan():
            return f"{node.table}" + (f" {node.alias}" if node.alias and node.alias != node.table.name else "")
        case op.Unit():
            return "constant row"
        case op.Filter():
            return f"filter {users_text(node, node.condition)}"
        case op.Project():
            return "columns"
        case op.Generate():
            return f"LATERAL VIEW {users_text(node, node.call)}"
        case op.Aggregate():
            return (
                f"GROUP BY {', '.join(users_text(node, e) for _, e in node.keys)}" if node.keys else "total of all rows"
            )
        case op.Window():
            by = ", ".join(users_text(node, p) for p in node.partition)
            return f"window functions PARTITION BY {by}" if by else "window functions without PARTITION BY"
        case op.Distinct():
            return "DISTINCT"
        case op.InnerJoin():
            return f"INNER JOIN {_on(node)}"
        case op.SideJoin():
            return f"{_NAMES[node.kind]} {_on(node)}"
        case op.FullJoin():
            return f"FULL JOIN {_on(node)}"
        case op.UnionAll():
            return "UNION ALL"
        case op.SetOp():
            return f"{node.kind}{' ALL' if node.all else ''}"


def maintained(node: op.Node) -> str:
    """Return how the change of an operator is computed, for people."""
    match node:
        case op.Scan():
            return "its changed rows, before and after the change"
        case op.Unit():
            return "never changes"
        case op.Filter() | op.Project() | op.Generate() | op.UnionAll():
            return "applied to the changed rows"
        case op.InnerJoin():
            return "changed rows of each input, joined with inputs on its left before, on its right after the change"
        case op.SideJoin():
            if equals(node.on, node.left.columns, node.right.columns):
                return "changed rows of the left side; changed rows of the right side by the keys of ON"
            if node.kind == "null_anti":
                return "changed rows of the left side; without an equality, a changed row of the right side affects all"
            return "changed rows of the left side; of changed rows of the right side, the rows of the left that match"
        case op.FullJoin():
            pairs = equals(node.on, node.left.columns, node.right.columns)
            return "by the keys of ON" if pairs else "no equality in ON: any change affects all rows"
        case op.Aggregate() if not node.keys:
            return "one row, at the start and at the end"
        case op.Window() if not node.partition:
            return "any change affects all rows"
        case op.Aggregate():
            return "the groups of changed rows, at the start and at the end"
        case op.Window() if frames := row_frames(node):
            return (
                f"from {frames.forward} rows before the first to {frames.back} rows after the last changed row of a "
                "partition, at the start and at the end"
            )
        case op.Window() if running_windows(node):
            return "the partitions of changed rows, read once: the rows whose results differ"
        case op.Window():
            return "the partitions of changed rows, at the start and at the end"
        case op.Distinct() | op.SetOp():
            return "rows equal to the changed ones, at the start and at the end"


def reason_all_rows_change(node: op.Node, changed: Collection[TableId], *, each: bool = False) -> str:
    """Return why a change of some tables affects all rows of the result; empty if it does not.

    Args:
        each: whether a change of each single table must affect all rows.
    """
    if each:
        reasons = [reason_all_rows_change(node, {t}) for t in changed]
        return reasons[0] if reasons and all(reasons) else ""
    for below in node.inputs:
        if why := reason_all_rows_change(below, changed):
            return why
    match node:
        case op.Window() if not node.partition and _reads(node.input, changed):
            return f"{describe(node)}: any change affects all rows"
        case op.SideJoin() if _reads(node.right, changed):
            has_pairs = equals(node.on, node.left.columns, node.right.columns)
            if node.on and node.kind == "null_anti" and not has_pairs:
                return f"{describe(node)}: without an equality, any change of the right side affects all rows"
        case op.FullJoin() if _reads(node, changed) and not equals(node.on, node.left.columns, node.right.columns):
            return f"{describe(node)}: without an equality, any change affects all rows"
        case op.InnerJoin():
            for side in node.inputs:
                others = [c for i in node.inputs if i is not side for c in i.columns]
                if frozenset() in unique(side) and _reads(side, changed) and not equals(node.on, side.columns, others):
                    return "each row is compared with a total of all rows, which any change may alter"
        case _:
            pass
    return ""


def is_linear(node: op.Node) -> bool:
    """Whether an operator and all below it process single rows, without any lookup by key."""
    return not is_by_key(node) and all(is_linear(i) for i in node.inputs)


def _reads(node: op.Node, tables: Collection[TableId]) -> bool:
    return any(s.table in tables for s in scans(node))


def _on(node: op.InnerJoin | op.SideJoin | op.FullJoin) -> str:
    return "ON " + " AND ".join(users_text(node, c) for c in node.on) if node.on else "(each with each)"
