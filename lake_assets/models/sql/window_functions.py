"""Window functions of one SELECT, as operators."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.query_tree import Item, Node, Window, column, refs
from lake_assets.models.sql.scopes import Uncompilable


def windowed(
    node: Node, items: list[Item], qualify: exp.Expr | None, name: Callable[[str], str]
) -> tuple[Node, list[Item], exp.Expr | None]:
    """Return the rows with the window functions of a SELECT, and its list and QUALIFY over them.

    Raises:
        Uncompilable: a window function reads columns that are not grouped by.
    """
    parts = [*(e for _, e in items), *([qualify] if qualify is not None else [])]
    windows = [w for p in parts for w in p.find_all(exp.Window) if not w.find_ancestor(exp.Window)]
    if not windows:
        return node, items, qualify
    named: dict[str, Item] = {}
    for w in windows:
        named.setdefault(w.sql(DIALECT), (name("over"), w.copy()))
    if missing := {n for _, w in named.values() for n in refs(w)} - set(node.columns):
        raise Uncompilable(f"a window function over {', '.join(sorted(missing))}, which is not grouped by")
    sets = [{p.sql(DIALECT): p for p in w.args.get("partition_by") or []} for _, w in named.values()]
    common = tuple(p for text, p in sets[0].items() if all(text in s for s in sets))
    if common:
        node = Window(node, tuple(named.values()), common)
    else:
        # One operator after another, each for one set of keys.
        by_keys: dict[frozenset[str], tuple[tuple[exp.Expr, ...], list[Item]]] = {}
        for item, keys in zip(named.values(), sets, strict=True):
            by_keys.setdefault(frozenset(keys), (tuple(keys.values()), []))[1].append(item)
        for partition, items_of in by_keys.values():
            node = Window(node, tuple(items_of), partition)

    def replaced(expression: exp.Expr) -> exp.Expr:
        def replace_part(part: exp.Expr) -> exp.Expr:
            return column(named[part.sql(DIALECT)][0]) if isinstance(part, exp.Window) else part

        return expression.copy().transform(replace_part)

    return node, [(n, replaced(e)) for n, e in items], replaced(qualify) if qualify is not None else None
