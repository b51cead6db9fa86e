"""Reading a SQL model: its sources, its key, and the cheapest strategy that is exact for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SchemaError, SqlglotError, TokenError
from sqlglot.optimizer.qualify import qualify

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.sql import DIALECT, not_repeatable
from lake_assets.models.errors_at import column_problems, line_of, model_error, open_quote


@dataclass(frozen=True)
class ModelPlan:
    """How a model is computed.

    Attributes:
        query: the parsed SELECT.
        sources: every table it reads, each once.
        key: output columns that identify a row; empty where there is none.
        strategy: `keys` recomputes the groups that a change touches, `full` everything.
        why: the reason for that strategy.
    """

    query: exp.Query
    sources: tuple[TableId, ...]
    key: tuple[str, ...]
    strategy: Literal["keys", "full"]
    why: str


def parse(name: str, sql: str) -> exp.Query:
    """The query of a model.

    Raises:
        ModelError: it is no single SELECT; says where in the text.
    """
    try:
        statements = sqlglot.parse(sql, dialect=DIALECT)
    except ParseError as e:
        at = e.errors[0] if e.errors else {}
        raise model_error(name, [(at.get("line"), str(at.get("description", e)))]) from e
    except TokenError as e:
        raise model_error(name, [(open_quote(sql), "a quote or comment that begins here is not closed")]) from e
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise ModelError(
            f"model {name}: expected one SELECT, found {len(statements)} statements or another kind of one"
        )
    query = statements[0]
    if changing := not_repeatable(query):
        raise ModelError(
            f"model {name}: {changing} gives another value each time, so that no incremental result could equal a full "
            "one: take the value from a column instead"
        )
    return query


def fingerprint(query: exp.Query) -> str:
    """The same for two texts of a query that differ in comments or layout only."""
    return hashlib.sha256(query.sql(DIALECT, comments=False, normalize=True).encode()).hexdigest()[:32]


def sources_of(name: str, query: exp.Query) -> tuple[TableId, ...]:
    """The tables that a query reads, without its own CTEs.

    Raises:
        ModelError: a table is named without its layer, with a catalog, or as of a version.
    """
    ctes = {c.alias for c in query.find_all(exp.CTE)}
    found: dict[TableId, None] = {}
    wrong: list[tuple[int | None, str]] = []
    for table in query.find_all(exp.Table, bfs=False):
        if not table.db and table.name in ctes:
            continue
        said = table.sql(DIALECT)
        if not table.db:
            text = f"table {table.name} is named without its layer: write for example final.{table.name}"
        elif table.catalog:
            text = f"{said} names a catalog: write layer.table, of the lake's own"
        elif table.args.get("version") or table.args.get("when"):
            text = f"{said}: which snapshots a model reads is decided by what it has absorbed"
        else:
            found[TableId((table.db,), table.name)] = None
            continue
        wrong.append((line_of(table), text))
    if wrong:
        raise model_error(name, wrong)
    return tuple(found)


def plan(name: str, sql: str, schemas: Mapping[TableId, Mapping[str, str]], key: Sequence[str] = ()) -> ModelPlan:
    """Check a model against its sources' columns and choose its strategy.

    Args:
        name: the model's table, for messages.
        sql: one SELECT in Spark's SQL.
        schemas: Spark SQL types by column, by source.
        key: output columns that identify a row; default: the grouping columns where the query has them.

    Raises:
        ModelError: the SQL is wrong, or names what its sources do not have.
    """
    query = parse(name, sql)
    sources = sources_of(name, query)
    nested: dict[str, Any] = {}
    for table in sources:
        nested.setdefault(table.namespace[0], {})[table.name] = dict(schemas[table])
    try:
        qualified = qualify(query.copy(), schema=nested, dialect=DIALECT, validate_qualify_columns=True)
    except (OptimizeError, SchemaError, SqlglotError) as e:
        known = "; ".join(f"{t} has {', '.join(schemas[t])}" for t in sources)
        found = column_problems(query, {t: schemas[t] for t in sources})
        raise model_error(name, found or [(None, f"{str(e).splitlines()[0]}. {known}")]) from e
    _as_written(query, qualified, {table: schemas[table] for table in sources})
    outputs = [c.alias_or_name for c in qualified.selects]  # type: ignore[union-attr]
    if len({o.lower() for o in outputs}) < len(outputs):
        raise ModelError(f"model {name}: two output columns share a name: {', '.join(outputs)}")
    if missing := [k for k in key if k not in outputs]:
        raise ModelError(f"model {name}: key {', '.join(missing)} is no output column; there are {', '.join(outputs)}")
    grouping, obstacle = _grouping(qualified)
    if obstacle:
        return ModelPlan(qualified, sources, tuple(key), "full", obstacle)
    if key and set(key) != set(grouping):
        why = f"the key {list(key)} is not what the query groups by ({', '.join(grouping)})"
        return ModelPlan(qualified, sources, tuple(key), "full", why)
    why = f"inner joins grouped by {', '.join(grouping)}: a change touches the groups of its rows only"
    return ModelPlan(qualified, sources, tuple(grouping), "keys", why)


def _as_written(query: exp.Query, qualified: exp.Query, schemas: Mapping[TableId, Mapping[str, str]]) -> None:
    """Give the output columns their names back as they were written: to be looked up, they were all made lower case."""
    written = [s.alias_or_name for s in query.selects]
    if any(s.is_star for s in query.selects):
        written += [column for columns in schemas.values() for column in columns]
    names = {name.lower(): name for name in reversed(written)}
    for select in qualified.selects:
        if isinstance(select, exp.Alias) and (name := names.get(select.alias)):
            select.set("alias", exp.to_identifier(name, quoted=True))


def _grouping(query: exp.Query) -> tuple[list[str], str]:
    """Output names of the grouping columns, or why the groups that a change touches cannot be told."""
    if not isinstance(query, exp.Select):
        return [], "not a single SELECT"
    # EXISTS holds its SELECT without a Subquery around it.
    nested = query.find(exp.Subquery) or any(s is not query for s in query.find_all(exp.Query))
    if query.args.get("with_") or query.args.get("with") or nested:
        return [], "it has subqueries or CTEs"
    if query.find(exp.Pivot):
        return [], "it has PIVOT"
    group = query.args.get("group")
    if not group or not group.expressions:
        return [], "it does not group rows by columns"
    if any(group.args.get(kind) for kind in ("cube", "rollup", "grouping_sets", "all", "totals")):
        return [], "it groups by more than columns"
    if any(
        query.args.get(kind)
        for kind in ("distinct", "limit", "offset", "order", "sort", "laterals", "qualify", "windows")
    ):
        return [], "it has DISTINCT, LIMIT, ORDER BY, QUALIFY or LATERAL"
    if query.find(exp.Window):
        return [], "it has window functions"
    for join in query.args.get("joins") or []:
        if (
            join.side
            or (join.kind and join.kind.upper() not in ("INNER", "CROSS"))
            or not isinstance(join.this, exp.Table)
        ):
            return [], "it has joins other than inner ones of tables"
    if not isinstance((query.args.get("from_") or query.args["from"]).this, exp.Table):
        return [], "it selects from something else than a table"
    names = []
    for expression in group.expressions:
        name = next((s.alias_or_name for s in query.selects if s.unalias() == expression), None)
        if name is None:
            return [], f"it groups by {expression.sql(DIALECT)}, which it does not select"
        names.append(name)
    return names, ""


def replace_tables(query: exp.Query, view_of: Callable[[int, TableId], str]) -> exp.Query:
    """The query over views: `view_of` gets the place of each table in the text and its name."""
    query = query.copy()
    for place, table in enumerate(t for t in query.find_all(exp.Table) if t.db):
        view = exp.to_table(view_of(place, TableId((table.db,), table.name)), dialect=DIALECT)
        table.replace(exp.alias_(view, table.alias_or_name, table=True, quoted=True))
    return query


def places(query: exp.Query) -> list[TableId]:
    """The tables of a query in the order in which `replace_tables` counts them."""
    return [TableId((t.db,), t.name) for t in query.find_all(exp.Table) if t.db]


def key_query(query: exp.Query, key: Sequence[str]) -> exp.Query:
    """The rows' keys before they are grouped: FROM, JOIN and WHERE of a grouped query."""
    assert isinstance(query, exp.Select)
    core = query.copy()
    core.set("expressions", [s for s in core.selects if s.alias_or_name in key])
    for part in ("group", "having"):
        core.set(part, None)
    return core.distinct()
