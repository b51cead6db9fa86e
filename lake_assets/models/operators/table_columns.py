"""The columns of tables that a query reads, and those that a column of an operator is computed from."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.lake import TableId
from lake_assets.models.operators.query_tree import (
    Aggregate,
    FullJoin,
    Generate,
    InnerJoin,
    Node,
    Project,
    Scan,
    SetOp,
    SideJoin,
    Tree,
    UnionAll,
    Unit,
    Window,
    expressions,
    refs,
    walk,
)


def narrowed(tree: Tree) -> Tree:
    """Return the tree, reading only the columns of tables that it uses."""
    used = set(tree.outputs.values()) | {n for node in walk(tree.root) for e in expressions(node) for n in refs(e)}

    def narrow(node: Node) -> Node:
        match node:
            case Scan():
                used_fields = {n: c for n, c in node.fields.items() if n in used}
                first = dict(list(node.fields.items())[:1])
                return replace(node, fields=used_fields or first)
            case Unit():
                return node
            case InnerJoin() | UnionAll():
                return replace(node, inputs=tuple(map(narrow, node.inputs)))
            case SideJoin() | FullJoin() | SetOp():
                return replace(node, left=narrow(node.left), right=narrow(node.right))
            case _:
                return replace(node, input=narrow(node.input))

    return Tree(narrow(tree.root), tree.outputs)


def origins(node: Node, name: str) -> dict[tuple[TableId, str], None]:
    """Return the columns of tables that a column of an operator is computed from."""
    match node:
        case Scan():
            return {(node.table, node.fields[name]): None} if name in node.fields else {}
        case Unit():
            return {}
        case Project() | Aggregate() | Window():
            expressions_by_name = (
                dict(node.items) if not isinstance(node, Aggregate) else dict((*node.keys, *node.calls))
            )
            of = refs(expressions_by_name[name]) if name in expressions_by_name else {name}
            return {o: None for r in sorted(of) for o in origins(node.input, r)}
        case Generate() if name in node.generated:
            return {o: None for r in sorted(refs(node.call)) for o in origins(node.input, r)}
        case _:
            return {o: None for i in node.inputs if name in i.columns for o in origins(i, name)}
