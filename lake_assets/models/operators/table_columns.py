"""The columns of tables that a query reads, and those that a column of an operator is computed from."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.lake import TableId
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import definitions, expressions, refs, walk, with_inputs


def narrowed(tree: op.Tree) -> op.Tree:
    """Return the tree, reading only the columns of tables that it uses."""
    used = set(tree.outputs.values()) | {n for node in walk(tree.root) for e in expressions(node) for n in refs(e)}

    def narrow(node: op.Node) -> op.Node:
        if not isinstance(node, op.Scan):
            return with_inputs(node, [narrow(i) for i in node.inputs])
        used_fields = {n: c for n, c in node.fields.items() if n in used}
        first = dict(list(node.fields.items())[:1])
        return replace(node, fields=used_fields or first)

    return op.Tree(narrow(tree.root), tree.outputs)


def origins(node: op.Node, name: str) -> dict[tuple[TableId, str], None]:
    """Return the columns of tables that a column of an operator is computed from."""
    if isinstance(node, op.Scan):
        return {(node.table, node.fields[name]): None} if name in node.fields else {}
    return {o: None for below, e in definitions(node, name) for r in sorted(refs(e)) for o in origins(below, r)}
