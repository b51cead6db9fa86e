"""Subqueries beside aggregates and in HAVING, as subqueries of a SELECT over the groups."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.sql.sql_functions import aggregates, replaceable_text

# No table of a query can have this alias.
_GROUPS = "groups of the query"
_BELOW = ("from_", "joins", "laterals", "where", "group")


def over_groups(select: exp.Select) -> exp.Select | None:
    """Rewrite `SELECT k, f(sum(v), (SELECT ...)) FROM t GROUP BY k HAVING c` as a SELECT over the groups:
    `SELECT k, f(s, (SELECT ...)) FROM (SELECT k, sum(v) AS s FROM t GROUP BY k) WHERE c`.

    Args:
        select: a qualified SELECT, whose outputs have names; it is not changed.

    Returns:
        The new SELECT; None if it has no such subqueries, or groups in another way.
    """
    group, having = select.args.get("group"), select.args.get("having")
    parts = [*select.selects, *(p.this for k in ("having", "qualify") if (p := select.args.get(k)))]
    calls = {c.sql(DIALECT): c for p in parts for c in aggregates(p)}
    if not (group or having or calls) or not any(map(_has_subquery, parts)):
        return None
    keys = {e.sql(DIALECT): e for e in group.expressions} if group else {}
    columns = {**keys, **calls}
    if not columns or (group and _is_special(group)):
        return None
    named: dict[str, str] = {}
    for text, e in columns.items():
        name = e.name if isinstance(e, exp.Column) else e.key
        named[text] = name if name not in named.values() else f"{name} {len(named)}"
    inner = exp.Select(expressions=[exp.alias_(e.copy(), named[t], quoted=True) for t, e in columns.items()])
    for part in _BELOW:
        if (value := select.args.get(part)) is not None:
            inner.set(part, [v.copy() for v in value] if isinstance(value, list) else value.copy())
    outer = select.copy()
    for clause in (*outer.selects, *(p for k in ("having", "qualify") if (p := outer.args.get(k)))):
        _replace(clause, named, outer)
    condition = outer.args.get("having")
    for part in (*_BELOW, "having"):
        outer.set(part, None)
    outer.set("from_", exp.From(this=exp.Subquery(this=inner, alias=exp.TableAlias(this=_quoted(_GROUPS)))))
    if condition is not None:
        outer.set("where", exp.Where(this=condition.this))
    return outer


def _replace(part: exp.Expr, named: Mapping[str, str], select: exp.Select) -> None:
    """Replace keys and aggregates by columns of the groups, in place, also where a subquery reads a key."""
    text = replaceable_text(part)
    if text in named and not _is_of_subquery(part, select):
        new = exp.column(_quoted(named[text]), table=_quoted(_GROUPS))
        new.type = part.type
        part.replace(new)
        return
    for child in list(part.iter_expressions()):
        _replace(child, named, select)


def _is_of_subquery(part: exp.Expr, select: exp.Select) -> bool:
    """Whether an expression within a subquery is one over the subquery's own tables."""
    tables = {c.table.lower() for c in part.find_all(exp.Column)}
    query = part.find_ancestor(exp.Query)
    is_nested = query is not select
    while query is not None and query is not select:
        if tables & {s.alias_or_name.lower() for s in query.find_all(exp.Table, exp.Subquery)}:
            return True
        query = query.find_ancestor(exp.Query)
    return is_nested and not isinstance(part, exp.Column)


def _is_special(group: exp.Expr) -> bool:
    """Whether a GROUP BY has more than plain keys."""
    is_window = (c.name.lower() in ("window", "session_window") for c in group.find_all(exp.Anonymous))
    return (
        any(group.args.get(k) for k in ("all", "rollup", "cube", "grouping_sets", "totals"))
        or group.find(exp.Rollup, exp.Cube, exp.GroupingSets, exp.Query) is not None
        or any(is_window)
    )


def _has_subquery(part: exp.Expr) -> bool:
    """Whether an expression has a subquery outside of aggregates."""
    within = {id(q) for c in aggregates(part) for q in c.find_all(exp.Query)}
    return any(id(q) not in within for q in part.find_all(exp.Query))


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)
