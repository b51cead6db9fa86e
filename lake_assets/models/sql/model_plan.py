"""Plan a SQL model: its sources, its key, and its cheapest exact strategy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, SchemaError, SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from lake_assets.errors import ModelError, Refused
from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import clashes
from lake_assets.lake.names import nearest
from lake_assets.lake.sql_syntax import SqlSyntaxError, parse_statements
from lake_assets.lake.sql_text import DIALECT, changed, misread, not_repeatable
from lake_assets.models.operators.adjustable_groups import Retraction, retraction
from lake_assets.models.operators.maintenance import describe, is_by_key, reason_all_rows_change
from lake_assets.models.operators.operator_types import certain_type, mixed_types_reason
from lake_assets.models.operators.query_tree import Aggregate, InnerJoin, Tree, top_operator, walk
from lake_assets.models.operators.row_identity import Identity, identity
from lake_assets.models.operators.stability import Doubt, are_windows_certain
from lake_assets.models.sql.compiler import compiled
from lake_assets.models.sql.constant_rows import generated_rows, table_functions_as_queries
from lake_assets.models.sql.result_key import is_ordered, result_key
from lake_assets.models.sql.scopes import Uncompilable
from lake_assets.models.sql.sql_errors import column_problems, line_of, model_error
from lake_assets.models.sql.sql_functions import warnings, wide_generator
from lake_assets.models.sql.sql_rewrite import named_windows_inlined, semi_joins_as_exists, whole_query_reason
from lake_assets.models.sql.time_windows import time_windows_called
from lake_assets.models.sql.using_joins import using_as_on

Strategy = Literal["retract", "keys", "ranges", "full"]


@dataclass(frozen=True)
class ModelPlan:
    """The plan of a model.

    Attributes:
        parsed: the SELECT as it is written.
        query: the SELECT with qualified names.
        sources: every table it reads, each once.
        key: output columns that identify a row; empty without a key.
        strategy: the cheapest exact strategy for a change of any source.
        key_why: the origin of the key, or the reason for having none.
        tree: the query's operators; None if the query can only be computed as a whole.
        retraction: how its groups are adjusted by inserted and deleted rows; None if they are not.
        warnings: values that may differ when computed again.
        as_written: whether sqlglot's rendering has another meaning, so that Spark needs the original text.
    """

    parsed: exp.Query
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

    @property
    def operators(self) -> int:
        """Number of operators that join, sort or group rows, without a GROUP BY to whose groups changes are added."""
        if self.tree is None:
            return 0
        combining = [n for n in walk(self.tree.root) if is_by_key(n) or isinstance(n, InnerJoin)]
        return len(combining) - (1 if self.retraction and isinstance(combining[0], Aggregate) else 0)


# What a query begins with.
_QUERY_WORDS = ("SELECT", "WITH")


def parse(name: str, sql: str, *, is_maintained: bool = True) -> exp.Query:
    """Parse the query of a model.

    Args:
        is_maintained: whether its result has to be the same whenever it is computed.

    Raises:
        ModelError: it is not a single SELECT; the message names the line.
    """
    try:
        statements = parse_statements(sql)
    except SqlSyntaxError as e:
        what = f"{e.text}{nearest(_first_word(sql), _QUERY_WORDS) if _first_word(sql) not in _QUERY_WORDS else ''}"
        if is_maintained and "{{" in sql:
            what = f"{what}: templates are for models that declare how their rows are applied, with `write`"
        raise model_error(name, [(e.line, what)]) from e
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise ModelError(f"model {name}: expected one SELECT, found {_other_than_select(sql, statements)}")
    query = statements[0]
    if other := misread(sql):
        raise ModelError(f"model {name}: its SQL has {other}")
    if is_maintained and (changing := not_repeatable(query)):
        raise ModelError(
            f"model {name}: {changing} gives another value each time, so an incremental result cannot equal a full "
            "one: read the value from a column instead"
        )
    return query


def _other_than_select(sql: str, statements: Sequence[exp.Expr | None]) -> str:
    """Describe the statements of a model that are not one SELECT, and what to write."""
    if len(statements) > 1:
        return f"{len(statements)} statements: keep one, and make each other SELECT a model of its own"
    if not statements or statements[0] is None:
        return "no statement: write the SELECT that gives the table's rows"
    word = _first_word(sql)
    return f"{word}{nearest(word, _QUERY_WORDS)}: write the SELECT alone, since a step creates and writes the table"


def _first_word(sql: str) -> str:
    """Return the first word of a statement in upper case, without comments before it; empty if there is none."""
    try:
        return next((t.text.upper() for t in sqlglot.tokenize(sql, dialect=DIALECT)), "")
    except SqlglotError:
        return ""


def fingerprint(query: exp.Query, sql: str = "") -> str:
    """Return a fingerprint of a query, equal for two texts that differ only in comments or layout.

    Args:
        sql: its text. It is part of the fingerprint if sqlglot changes the query's meaning: sqlglot may write two such
            queries alike.
    """
    text = query.sql(DIALECT, comments=False, normalize=True)
    if sql and changed(sql, query):
        text += " ".join(t.text for t in sqlglot.tokenize(sql, dialect=DIALECT))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sources_of(name: str, query: exp.Query, catalog: str = "") -> tuple[TableId, ...]:
    """Return the tables that a query reads, apart from its own CTEs.

    Args:
        query: the result of `parse`, in which the lake's own catalog is not named (see `without_catalog`).
        catalog: the name of the lake's catalog, for messages; empty if unknown.

    Raises:
        ModelError: a table is named without its layer, with a catalog, or as of a version.
    """
    ctes = {c.alias.lower() for c in query.find_all(exp.CTE)}
    sources: dict[TableId, None] = {}
    problems: list[tuple[int | None, str]] = []
    for table in query.find_all(exp.Table, bfs=False):
        if (not table.db and table.name.lower() in ctes) or table.find_ancestor(exp.Hint):
            continue
        table_text = table.sql(DIALECT)
        if not table.db and generated_rows(table) is not None:
            continue
        if not table.db and not isinstance(table.this, exp.Identifier):
            text = (
                f"{table_text} generates rows without a table: write range(n), explode(...) or posexplode(...) of "
                "constants, or LATERAL VIEW over a table's rows"
            )
        elif not table.db:
            text = f"table {table.name} is named without its layer: write for example final.{table.name}"
        elif table.catalog:
            own = f" (its catalog is {catalog})" if catalog else ""
            text = f"{table_text} names a catalog: write layer.table, a table of this lake{own}"
        elif table.args.get("version") or table.args.get("when"):
            text = f"{table_text} names a version: the snapshots that a model reads follow from what it has absorbed"
        else:
            sources[TableId((table.db,), table.name)] = None
            continue
        problems.append((line_of(table), text))
    if problems:
        raise model_error(name, problems)
    return tuple(sources)


def qualified_query(name: str, query: exp.Query, schemas: Mapping[TableId, Mapping[str, str]]) -> tuple[exp.Query, str]:
    """Qualify each column with its table, and expand stars and references to output columns.

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
            named_windows_inlined(time_windows_called(table_functions_as_queries(query.copy()))),
            {t: list(c) for t, c in schemas.items()},
        )
        plain, difference = semi_joins_as_exists(plain)
        difference = by_name or difference
        qualified = qualify(plain, schema=nested, dialect=DIALECT, validate_qualify_columns=True)
        qualified = annotate_types(qualified, schema=nested, dialect=DIALECT)
    except (OptimizeError, SchemaError, SqlglotError) as e:
        available = "; ".join(f"{t} has {', '.join(schemas[t])}" for t in schemas)
        problems = column_problems(query, schemas)
        raise model_error(name, problems or [(None, f"{str(e).splitlines()[0]}. {available}")]) from e
    _restore_case(query, qualified, schemas)
    return qualified, difference


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
            f"model {name}: {wide.sql(DIALECT)} returns several columns in a list of SELECT: write it after FROM, as "
            f"LATERAL VIEW {(wide.this if isinstance(wide, exp.Aliases) else wide).sql(DIALECT)} t AS a, b"
        )
    qualified, difference = qualified_query(name, query, {t: schemas[t] for t in sources})
    check_outputs(name, [c.alias_or_name for c in qualified.selects], key or (), time)
    tree, obstacle = _compiled(name, sql, query, qualified, schemas, keys)
    if difference:
        if query.find(exp.Qualify):
            raise ModelError(f"model {name}: {difference} and QUALIFY: rewrite QUALIFY as the WHERE around a subquery")
        tree, obstacle = None, difference
    result_columns, key_why = result_key(tree, key)
    certain = tree is not None and are_windows_certain(tree.root)
    notes = tuple(warnings(query, are_windows_certain=certain))
    full_plan = ModelPlan(query, qualified, sources, result_columns, "full", obstacle, key_why, tree, None, notes)
    if tree is None:
        return replace(full_plan, as_written=bool(difference or changed(sql, query)))
    return _with_strategy(full_plan, tree, time)


def _with_strategy(plan: ModelPlan, tree: Tree, time: str) -> ModelPlan:
    """Return a plan with the cheapest exact strategy for its operators.

    Args:
        time: the output column by whose ranges it is recomputed; empty if none is declared.
    """
    key = plan.key
    why = mixed_types_reason(tree.root, lambda e, node: certain_type(node, e))
    row_identity = identity(tree, key)
    if time:
        if why := reason_rows_depend(time, row_identity):
            return replace(plan, why=why)
        why = f"declared: a row is computed from rows whose {time} is near its own"
        return replace(plan, strategy="ranges", why=why)
    if why := why or reason_all_rows_change(tree.root, set(plan.sources), each=True):
        return replace(plan, why=why)
    how = retraction(tree, key, lambda e, _: annotated(e))
    retracted = None if isinstance(how, Refused) else how
    if isinstance(row_identity, Doubt) and not retracted:
        return replace(plan, why=row_identity.no_identity)
    key_operators = [n for n in walk(tree.root) if is_by_key(n) and not (retracted and n is retracted.aggregate)]
    if not key_operators:
        what = (
            "groups are adjusted by adding inserted and subtracting deleted rows"
            if retracted
            else "rows are inserted and deleted along with the changed rows of its tables"
        )
        return replace(plan, strategy="retract", why=what, retraction=retracted)
    why = f"{describe(key_operators[0])}: a change only affects the keys of its rows"
    if isinstance(how, Refused) and isinstance(top_operator(tree.root), Aggregate):
        why += f"; {how.reason}"
    if isinstance(row_identity, Identity):
        why += f"; {row_identity.why}"
    return replace(plan, strategy="keys", why=why, retraction=retracted)


def output_columns(name: str, sql: str) -> list[str]:
    """Return the output columns of a model from its text alone; none if it has a star or an unnamed expression.

    Raises:
        ModelError: see `parse`.
    """
    return outputs_of(parse(name, sql))


def outputs_of(query: exp.Query) -> list[str]:
    """Like `output_columns`, for a parsed model."""
    selects = query.selects
    return [] if any(s.is_star or not s.alias_or_name for s in selects) else [s.alias_or_name for s in selects]


def check_outputs(name: str, outputs: Sequence[str], key: Sequence[str], time: str) -> None:
    """Raise ModelError if output columns share a name, or a key or range column is missing.

    Args:
        outputs: the output columns; if empty, they are unknown, and keys are not checked.
        key, time: the declared key and range column.
    """
    if clashes(outputs):
        raise ModelError(f"model {name}: two output columns share a name: {', '.join(outputs)}")
    for what, declared in (("key", list(key)), ("range column", [time] if time else [])):
        if outputs and (missing := [k for k in declared if k not in outputs]):
            near = nearest(missing[0], outputs)
            available = ", ".join(outputs)
            raise ModelError(
                f"model {name}: {what} {', '.join(missing)} is not an output column{near}; the output columns are "
                f"{available}"
            )


def reason_rows_depend(column: str, by: Identity | Doubt | None) -> str:
    """Return why rows with some values of a column cannot be computed without the others; empty if they can."""
    if isinstance(by, Doubt):
        return by.no_identity
    if by is None or by.is_rounded or (by.kind == "group" and column in by.columns):
        return ""
    return f"{by.doubt.why}, and rows of several {column} depend on each other"


def annotated(expression: exp.Expr) -> str:
    """Return Spark's type of an expression from the query alone; empty if it is not certain."""
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
    """Return the operators, or None and the reason.

    Raises:
        ModelError: the order of a LIMIT does not determine its rows.
    """
    limited = [q for q in qualified.find_all(exp.Query) if q.args.get("limit") or q.args.get("offset")]
    for q in limited:
        if isinstance(q.parent, exp.Exists) and not q.args.get("offset"):
            continue
        if not is_ordered(q, schemas, keys, q is qualified):
            raise ModelError(
                f"model {name}: LIMIT takes the first rows of an order in which rows may tie, so each run could "
                "take other rows. Add columns to ORDER BY until it identifies each row"
            )
    if other := changed(sql, query):
        if query.find(exp.Qualify):
            raise ModelError(
                f"model {name}: {other} and QUALIFY cannot be combined: write QUALIFY as the WHERE around a subquery"
            )
        return None, f"{other} cannot be translated exactly as written"
    if whole := whole_query_reason(query):
        return None, f"it has {whole}"
    try:
        return compiled(qualified, schemas, keys), ""
    except Uncompilable as e:
        return None, f"it has {e}" if not str(e).startswith("it ") else str(e)


def _restore_case(query: exp.Query, qualified: exp.Query, schemas: Mapping[TableId, Mapping[str, str]]) -> None:
    """Restore the original case of the output columns' names, which name resolution changes to lower case."""
    original_names = [s.alias_or_name for s in query.selects]
    if any(s.is_star for s in query.selects):
        original_names += [column for columns in schemas.values() for column in columns]
    names = {name.lower(): name for name in reversed(original_names)}
    for select in qualified.selects:
        if isinstance(select, exp.Alias) and (name := names.get(select.alias)):
            select.set("alias", exp.to_identifier(name, quoted=True))
