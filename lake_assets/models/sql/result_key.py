"""Which output columns tell the rows of a result apart, and whether an order does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.query_tree import Aggregate, Filter, Node, Project, Tree
from lake_assets.models.operators.unique_columns import unique
from lake_assets.models.sql.compiler import compiled
from lake_assets.models.sql.scopes import Uncompilable


def top_operator(tree: Tree) -> Node:
    """The topmost operator that is no projection and no filter."""
    node = tree.root
    while isinstance(node, Project | Filter):
        node = node.input
    return node


def is_ordered(
    query: exp.Query,
    schemas: Mapping[TableId, Mapping[str, str]],
    keys: Callable[[TableId], Sequence[Sequence[str]]],
    is_top: bool,
) -> bool:
    """Whether ORDER BY tells all rows of a query apart (or those alone that are alike in everything)."""
    order = query.args.get("order")
    if order is None:
        return False
    names = {s.alias_or_name.lower(): s.unalias().sql(DIALECT) for s in query.selects}
    ordered = {o.this.sql(DIALECT) for o in order.expressions}
    ordered |= {
        names[n] for o in order.expressions if isinstance(o.this, exp.Column) and (n := o.this.name.lower()) in names
    }
    by_output = {n for n, e in names.items() if e in ordered}
    if set(names) <= by_output:
        return True
    if not is_top:
        return False
    bare = query.copy()
    for part in ("limit", "offset", "order"):
        bare.set(part, None)
    try:
        tree = compiled(bare, schemas, keys)
    except Uncompilable:
        return False
    have = {c for o, c in tree.outputs.items() if o.lower() in by_output}
    return any(k <= have for k in unique(tree.root))


def result_key(tree: Tree | None, declared: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
    """The columns that tell the rows of the result apart, and how they were found."""
    if declared:
        return tuple(declared), "declared"
    if tree is None:
        return (), "none: the query is computed as a whole"
    back = {c: o for o, c in reversed(list(tree.outputs.items()))}
    for key in unique(tree.root):
        if key and key <= set(back):
            place = {o: i for i, o in enumerate(tree.outputs)}
            names = sorted((back[c] for c in key), key=place.__getitem__)
            top = top_operator(tree)
            how = "what it groups by" if isinstance(top, Aggregate) else "the query tells rows apart by it"
            return tuple(names), how
    if frozenset() in unique(tree.root):
        return (), "none is needed: there is one row"
    return (), "none was found: rows that are alike are counted"
