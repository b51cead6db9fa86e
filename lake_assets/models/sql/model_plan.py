"""Plan a SQL model: its sources, its key, and its cheapest exact strategy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SchemaError, SqlglotError, TokenError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.lake.sql_text import DIALECT, changed, misread, not_repeatable
from lake_assets.models.operators.maintenance import describe, everything, is_by_key
from lake_assets.models.operators.operator_types import known, mixed
from lake_assets.models.operators.query_tree import Aggregate, Tree, walk
from lake_assets.models.operators.row_identity import Identity, identity
from lake_assets.models.operators.stability import Doubt
from lake_assets.models.sql.compiler import compiled
from lake_assets.models.sql.result_key import is_ordered, result_key, top_operator
from lake_assets.models.sql.scopes import Uncompilable
from lake_assets.models.sql.sql_errors import column_problems, line_of, model_error, open_quote
from lake_assets.models.sql.sql_functions import warnings, wide_generator
from lake_assets.models.sql.sql_rewrite import (
    as_a_whole,
    named_windows_inlined,
    semi_joins_as_exists,
    time_windows_called,
)
from lake_assets.models.sql.using_joins import using_as_on
from lake_assets.models.steps.retract import Retraction, retraction

Strategy = Literal["retract", "keys", "ranges", "full"]


@dataclass(frozen=True)
class ModelPlan:
    """The plan of a model.

    Attributes:
        query: the parsed SELECT.
        sources: every table it reads, each once.
        key: output columns that identify a row; empty if there are none.
        strategy: the cheapest exact strategy for a change of any source.
        why: the reason for that strategy.
        key_why: the origin of the key, or why there is none.
        tree: its operators; None if the query can only be computed as a whole.
        retraction: how its groups are adjusted by inserted and deleted rows; None if they are not.
        warnings: values that may differ when computed again.
        as_written: whether sqlglot's rendering means something else, so Spark needs the original text.
    """

    query: exp.Query
    sources: tuple[TableId, ...]
    key: tuple[str, ...]
    strategy: Strategy
    why: str
    key_why: str = ""
    tree: Tree | None = None
    retraction: Retraction | None = None
    warnings: tuple[str, ...] = ()
    as_written: bool = False


def parse(name: str, sql: str, *, is_maintained: bool = True) -> exp.Query:
    """Parse the query of a model.

    Args:
        name: the model.
        sql: its text.
        is_maintained: whether its result has to be the same whenever it is computed.

    Raises:
        ModelError: it is not a single SELECT; names the line.
    """
    try:
        statements = sqlglot.parse(sql, dialect=DIALECT)
    except ParseError as e:
        at = e.errors[0] if e.errors else {}
        raise model_error(name, [(at.get("line"), str(at.get("description", e)))]) from e
    except TokenError as e:
        raise model_error(name, [(open_quote(sql), "a quote or comment that begins here is not closed")]) from e
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        # sqlglot's own, as of `map(a)`, to which it looks for a second argument.
        raise ModelError(f"model {name}: its SQL cannot be read: is a call short of arguments? ({e})") from e
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise ModelError(
            f"model {name}: expected one SELECT, found {len(statements)} statements or another kind of one"
        )
    query = statements[0]
    if other := misread(sql):
        raise ModelError(f"model {name}: its SQL has {other}")
    if is_maintained and (changing := not_repeatable(query)):
        raise ModelError(
            f"model {name}: {changing} gives another value each time, so that no incremental result could equal a full "
            "one: take the value from a column instead"
        )
    return query


def fingerprint(query: exp.Query, sql: str = "") -> str:
    """Return a fingerprint that is equal for two texts that differ only in comments or layout.

    Args:
        query: as `parse` gives it.
        sql: its text. What sqlglot writes otherwise tells too little of it: two queries may be written alike.
    """
    said = query.sql(DIALECT, comments=False, normalize=True)
    if sql and changed(sql, query):
        said += " ".join(t.text for t in sqlglot.tokenize(sql, dialect=DIALECT))
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def sources_of(name: str, query: exp.Query) -> tuple[TableId, ...]:
    """Return the tables that a query reads, without its own CTEs.

    Raises:
        ModelError: a table is named without its layer, with a catalog, or as of a version.
    """
    ctes = {c.alias.lower() for c in query.find_all(exp.CTE)}
    found: dict[TableId, None] = {}
    wrong: list[tuple[int | None, str]] = []
    for table in query.find_all(exp.Table, bfs=False):
        if (not table.db and table.name.lower() in ctes) or table.find_ancestor(exp.Hint):
            continue
        said = table.sql(DIALECT)
        if not table.db and not isinstance(table.this, exp.Identifier):
            text = f"{said} makes rows of none: write LATERAL VIEW or explode over a table's rows"
        elif not table.db:
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


def looked_up(name: str, query: exp.Query, schemas: Mapping[TableId, Mapping[str, str]]) -> tuple[exp.Query, str]:
    """Qualify each column with its table, and expand stars and references to output columns.

    Args:
        name: the model's table, for messages.
        query: as `parse` gives it.
        schemas: Spark SQL types by column, of each of its sources.

    Returns:
        The query, and why its rows differ (see `semi_joins_as_exists`); empty if they do not.

    Raises:
        ModelError: it names columns that its sources do not have.
    """
    nested: dict[str, Any] = {}
    for table in schemas:
        nested.setdefault(table.namespace[0], {})[table.name] = dict(schemas[table])
    try:
        plain, by_name = using_as_on(
            named_windows_inlined(time_windows_called(query.copy())), {t: list(c) for t, c in schemas.items()}
        )
        plain, unlike = semi_joins_as_exists(plain)
        unlike = by_name or unlike
        qualified = qualify(plain, schema=nested, dialect=DIALECT, validate_qualify_columns=True)
        qualified = annotate_types(qualified, schema=nested, dialect=DIALECT)
    except (OptimizeError, SchemaError, SqlglotError) as e:
        known = "; ".join(f"{t} has {', '.join(schemas[t])}" for t in schemas)
        found = column_problems(query, schemas)
        raise model_error(name, found or [(None, f"{str(e).splitlines()[0]}. {known}")]) from e
    _as_written(query, qualified, schemas)
    return qualified, unlike


def plan(
    name: str,
    sql: str,
    schemas: Mapping[TableId, Mapping[str, str]],
    key: Sequence[str] | None = None,
    keys: Callable[[TableId], Sequence[Sequence[str]]] = lambda _: (),
    time: str = "",
) -> ModelPlan:
    """Check a model against its sources' columns and choose its strategy.

    Args:
        name: the model's table, for messages.
        sql: one SELECT in Spark's SQL.
        schemas: Spark SQL types by column, by source.
        key: output columns that identify a row; empty or None: derived from the query.
        keys: by source, sets of columns that certainly identify its rows.
        time: the output column for recomputation in ranges, if declared.

    Raises:
        ModelError: the SQL is wrong, or names columns that its sources do not have.
    """
    query = parse(name, sql)
    sources = sources_of(name, query)
    if wide := wide_generator(query):
        raise ModelError(
            f"model {name}: {wide.sql(DIALECT)} gives several columns in a list of SELECT: write it behind FROM, as "
            f"LATERAL VIEW {(wide.this if isinstance(wide, exp.Aliases) else wide).sql(DIALECT)} t AS a, b"
        )
    qualified, unlike = looked_up(name, query, {t: schemas[t] for t in sources})
    check_outputs(name, [c.alias_or_name for c in qualified.selects], key or (), time)
    tree, obstacle = _compiled(name, sql, query, qualified, schemas, keys)
    if unlike:
        if query.find(exp.Qualify):
            raise ModelError(f"model {name}: {unlike} and QUALIFY: write QUALIFY as the WHERE around a subquery")
        tree, obstacle = None, unlike
    found, key_why = result_key(tree, key)
    whole = ModelPlan(qualified, sources, found, "full", obstacle, key_why, tree, None, tuple(warnings(query)))
    if tree is None:
        return replace(whole, as_written=bool(unlike or changed(sql, query)))
    strategy, why, retracted = _strategy(tree, sources, found, time)
    return replace(whole, strategy=strategy, why=why, retraction=retracted)


def _strategy(
    tree: Tree, sources: Sequence[TableId], key: Sequence[str], time: str
) -> tuple[Strategy, str, Retraction | None]:
    """The cheapest strategy that is exact for a tree of operators, the reason, and how its groups are kept up to date.

    Args:
        tree: of the query.
        sources: every table it reads.
        key: of its result.
        time: the output column by whose ranges it is declared to be recomputed; empty: it is not.
    """
    why = mixed(tree.root, lambda e, node: known(node, e))
    by = identity(tree, key)
    if time:
        why = f"declared: a row is computed of rows whose {time} is near its own"
        if broken := rows_depend(time, by):
            return "full", broken, None
        return "ranges", why, None
    if why := why or everything(tree.root, set(sources), each=True):
        return "full", why, None
    retracted, reason = retraction(tree, annotated)
    if retracted and set(key) != set(retracted.keys.values()):
        retracted, reason = None, f"the declared key {list(key)} is not what it groups by"
    if isinstance(by, Doubt) and not retracted:
        return "full", by.no_identity, None
    by_key = [n for n in walk(tree.root) if is_by_key(n) and not (retracted and n is retracted.aggregate)]
    if not by_key:
        what = (
            "groups are kept up to date by adding what came and taking away what went"
            if retracted
            else ("rows come and go with the changed rows of its tables")
        )
        return "retract", what, retracted
    why = f"{describe(by_key[0])}: a change touches the keys of its rows only"
    if reason and isinstance(top_operator(tree), Aggregate):
        why += f"; {reason}"
    if isinstance(by, Identity):
        why += f"; {by.why}"
    return "keys", why, retracted


def output_columns(name: str, sql: str) -> list[str]:
    """Return the output columns of a model as far as its text alone tells: none where a star or a call has no name.

    Raises:
        ModelError: see `parse`.
    """
    selects = parse(name, sql).selects
    return [] if any(s.is_star or not s.alias_or_name for s in selects) else [s.alias_or_name for s in selects]


def check_outputs(name: str, outputs: Sequence[str], key: Sequence[str], time: str) -> None:
    """Raise ModelError where output columns share a name, or a key or range column is not among them.

    Args:
        name: the model's table, for messages.
        outputs: the output columns; none: they are not known, and nothing is checked.
        key, time: as declared.
    """
    if len({o.lower() for o in outputs}) < len(outputs):
        raise ModelError(f"model {name}: two output columns share a name: {', '.join(outputs)}")
    for what, declared in (("key", list(key)), ("range column", [time] if time else [])):
        if outputs and (missing := [k for k in declared if k not in outputs]):
            near = nearest(missing[0], outputs)
            there = ", ".join(outputs)
            raise ModelError(f"model {name}: {what} {', '.join(missing)} is no output column{near}; there are {there}")


def rows_depend(column: str, by: Identity | Doubt | None) -> str:
    """Return why rows with some values of a column cannot be computed without the others; empty: they can."""
    if isinstance(by, Doubt):
        return by.no_identity
    if by is None or by.is_rounded or (by.kind == "group" and column in by.columns):
        return ""
    return f"{by.doubt.why}, and rows of several {column} depend on each other"


def annotated(expression: exp.Expr) -> str:
    """Spark's type of an expression as far as the query alone tells; empty: it does not."""
    if expression.type is None or expression.find(exp.Div, exp.Anonymous, exp.Mod, exp.IntDiv):
        return ""
    return expression.type.sql(DIALECT).lower().replace("integer", "int")


def _compiled(
    name: str,
    sql: str,
    query: exp.Query,
    qualified: exp.Query,
    schemas: Mapping[TableId, Mapping[str, str]],
    keys: Callable[[TableId], Sequence[Sequence[str]]],
) -> tuple[Tree | None, str]:
    """The operators, or why there are none.

    Raises:
        ModelError: which rows LIMIT takes is not told by its order.
    """
    limited = [q for q in qualified.find_all(exp.Query) if q.args.get("limit") or q.args.get("offset")]
    for q in limited:
        if isinstance(q.parent, exp.Exists) and not q.args.get("offset"):
            continue
        if not is_ordered(q, schemas, keys, q is qualified):
            raise ModelError(
                f"model {name}: LIMIT takes the first rows of an order in which several rows may be the same: which of "
                "them are taken can differ from time to time. Add columns to ORDER BY until it tells all rows apart"
            )
    if other := changed(sql, query):
        if query.find(exp.Qualify):
            raise ModelError(
                f"model {name}: {other} and QUALIFY: the one cannot be rewritten, and the other has to be: "
                "write QUALIFY as the WHERE around a subquery"
            )
        return None, f"{other} cannot be taken out of the query as it is written there"
    if whole := as_a_whole(query):
        return None, f"it has {whole}"
    try:
        return compiled(qualified, schemas, keys), ""
    except Uncompilable as e:
        return None, f"it has {e}" if not str(e).startswith("it ") else str(e)


def _as_written(query: exp.Query, qualified: exp.Query, schemas: Mapping[TableId, Mapping[str, str]]) -> None:
    """Give the output columns their names back as they were written: to be looked up, they were all made lower case."""
    written = [s.alias_or_name for s in query.selects]
    if any(s.is_star for s in query.selects):
        written += [column for columns in schemas.values() for column in columns]
    names = {name.lower(): name for name in reversed(written)}
    for select in qualified.selects:
        if isinstance(select, exp.Alias) and (name := names.get(select.alias)):
            select.set("alias", exp.to_identifier(name, quoted=True))
