"""Output columns, or an order, that identify the rows of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import top_operator
from lake_assets.models.operators.unique_columns import unique
from lake_assets.models.sql.compiler import compiled
from lake_assets.models.sql.scopes import Uncompilable


def is_ordered(
    query: exp.Query,
    schemas: Mapping[TableId, Mapping[str, str]],
    keys: Callable[[TableId], Sequence[Sequence[str]]],
    is_top: bool,
) -> bool:
    """Whether ORDER BY is total: only rows that are equal in all columns may tie."""
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


def result_key(tree: op.Tree | None, declared: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
    """Return the columns that identify a row of the result, and their origin; or none, and the reason."""
    if declared:
        return tuple(declared), "declared"
    if tree is None:
        return (), "none: the query is computed as a whole"
    back = {c: o for o, c in reversed(list(tree.outputs.items()))}
    for key in unique(tree.root):
        if key and key <= set(back):
            positions = {o: i for i, o in enumerate(tree.outputs)}
            names = sorted((back[c] for c in key), key=positions.__getitem__)
            top = top_operator(tree.root)
            origin = "the columns of GROUP BY" if isinstance(top, op.Aggregate) else "derived from the query"
            return tuple(names), origin
    if frozenset() in unique(tree.root):
        return (), "none: there is only one row"
    return (), "none: equal rows are counted"
