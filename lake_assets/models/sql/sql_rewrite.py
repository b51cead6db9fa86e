"""Rewrites of a query before its names are resolved, and calls that must not be rewritten."""

from __future__ import annotations

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.sql.sql_functions import collation


def named_windows_inlined(query: exp.Query) -> exp.Query:
    """Replace `OVER w` by the definition of `w` in the WINDOW clause, in place."""
    for select in query.find_all(exp.Select):
        named = {w.name.lower(): w for w in select.args.get("windows") or []}
        if not named:
            continue
        for window in [w for w in select.find_all(exp.Window) if w.find_ancestor(exp.Select) is select]:
            definition = named.get(window.alias.lower()) if window.alias else None
            if definition is None or window in named.values():
                continue
            seen: set[str] = set()
            while definition is not None and definition.name.lower() not in seen:
                seen.add(definition.name.lower())
                for part in ("partition_by", "order", "spec"):
                    value = definition.args.get(part)
                    if value and not window.args.get(part):
                        window.set(part, [v.copy() for v in value] if isinstance(value, list) else value.copy())
                definition = named.get(definition.alias.lower()) if definition.alias else None
            window.set("alias", None)
        select.set("windows", None)
    return query


def whole_query_reason(query: exp.Query) -> str:
    """Return the first call that is only correct in the whole query, with the reason; empty without such a call.

    Parts of the query have other column names, so calls that name fields after their columns would name them
    differently. Texts that are equal under a collation may differ: a recomputed part of the result may show another one
    than the rest.
    """
    if (collated := collation(query)) is not None:
        return f"{collated.sql(DIALECT)}: texts that it compares as equal may stand for each other"
    for call in query.find_all(exp.Struct, exp.ArraysZip):
        if isinstance(call, exp.ArraysZip):
            return f"{call.sql(DIALECT)}: it names fields by its columns"
        fields = [e.name for e in call.expressions if isinstance(e, exp.PropertyEQ | exp.Column)]
        if wrong := [n for n in fields if n != n.lower()]:
            return f"a field called {wrong[0]}: names within a query are in lower case"
    return ""


def semi_joins_as_exists(query: exp.Query) -> tuple[exp.Query, str]:
    """Rewrite LEFT SEMI and LEFT ANTI joins as conditions: sqlglot resolves the names in their ON on the left side
    only.

    Returns:
        The query with the same output columns, and why its rows differ; empty if they do not.
    """
    obstacle = ""
    for select in list(query.find_all(exp.Select)):
        joins = select.args.get("joins") or []
        kinds = [j.kind.upper() for j in joins]
        if not {"SEMI", "ANTI"} & set(kinds):
            continue
        first = min(i for i, k in enumerate(kinds) if k in ("SEMI", "ANTI"))
        if any(j.side.upper() in ("RIGHT", "FULL") for j in joins[first:]):
            # A condition would remove rows that such a join adds.
            obstacle = (
                "it has a RIGHT or FULL JOIN after a SEMI or ANTI JOIN (put the SEMI or ANTI JOIN into a subquery)"
            )
        for join in [j for j, k in zip(joins, kinds, strict=True) if k in ("SEMI", "ANTI")]:
            if join.args.get("using"):
                obstacle = f"it has {join.kind.upper()} JOIN ... USING (write ON)"
            inner = exp.select(exp.Literal.number(1)).from_(join.this.copy())
            if on := join.args.get("on"):
                inner = inner.where(on.copy(), copy=False)
            exists: exp.Expr = exp.Exists(this=inner)
            select.where(exp.Not(this=exists) if join.kind.upper() == "ANTI" else exists, copy=False)
        select.set("joins", [j for j, k in zip(joins, kinds, strict=True) if k not in ("SEMI", "ANTI")])
    return query, obstacle


def qualify_as_where(query: exp.Query) -> exp.Query:
    """Rewrite QUALIFY, which Spark does not parse, as the WHERE around a subquery.

    sqlglot does this itself for Spark, but mistakes `t.x` in a window for the output column `x`, whatever `t` is.

    Args:
        query: a query in which QUALIFY names no output columns (`qualified_query` ensures this).
    """
    query = query.copy()
    # Inner queries first: outer ones contain the rewritten inner ones.
    for select in reversed(list(query.find_all(exp.Select))):
        if select.args.get("qualify"):
            outer = _qualify_as_outer_where(select)
            if select is query:
                return outer
            select.replace(outer)
    return query


def _qualify_as_outer_where(select: exp.Select) -> exp.Select:
    """Return a SELECT over the given one that applies its QUALIFY as a WHERE."""
    inner = select.copy()
    qualify, with_ = inner.args["qualify"].pop(), inner.args.get("with_")
    order, limit, offset, distinct = (inner.args.get(part) for part in ("order", "limit", "offset", "distinct"))
    for part in ("with_", "order", "limit", "offset", "distinct"):
        inner.set(part, None)
    for n, item in enumerate(inner.selects):
        if not item.alias_or_name:
            item.replace(exp.alias_(item.copy(), f"_c{n}"))
    hidden: dict[str, exp.Expr] = {"__kept": qualify.this.copy()}
    for n, by in enumerate(order.expressions if order else []):
        if not (isinstance(by.this, exp.Column) and not by.this.table) and not isinstance(by.this, exp.Literal):
            hidden[f"__by{n}"] = by.this.copy()
            by.set("this", exp.column(f"__by{n}", quoted=True))
    if inner.is_star:
        outputs: list[exp.Expr] = [exp.Star(except_=[exp.to_identifier(h, quoted=True) for h in hidden])]
    else:
        outputs = [exp.column(s.alias_or_name, quoted=True) for s in inner.selects]
    for name, value in hidden.items():
        inner = inner.select(exp.alias_(value, name, quoted=True), copy=False)
    outer = exp.select(*outputs).from_(inner.subquery("__qualified")).where(exp.column("__kept", quoted=True))
    parts = {"with_": with_, "order": order, "limit": limit, "offset": offset, "distinct": distinct}
    for part, value in parts.items():
        if value is not None:
            outer.set(part, value)
    return outer


def is_text(query: exp.Query) -> bool:
    """Whether the query's text stays valid for Spark if its tables are renamed.

    It does not with QUALIFY, or with columns that are qualified by the layer of their table.
    """
    tables = {(t.db.lower(), t.name.lower()) for t in query.find_all(exp.Table) if t.db}
    named = {(c.db.lower(), c.table.lower()) for c in query.find_all(exp.Column)}
    return not query.find(exp.Qualify) and not named & tables
