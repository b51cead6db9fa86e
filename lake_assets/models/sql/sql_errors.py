"""Errors in a model's SQL, with their line in the YAML or in the SQL file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.names import nearest
from lake_assets.lake.sql_text import DIALECT


@dataclass(frozen=True)
class Origin:
    """Place of a model's SQL.

    Attributes:
        file: the YAML file, or the SQL file that it names.
        first: the line in the file of the SQL's first line, from 1.
        line_by_line: whether each line of the SQL is a line of the file; false for text that YAML folds or quotes.
    """

    file: str
    first: int = 1
    line_by_line: bool = True

    def at(self, line: int | None) -> str:
        """Return file and line of a line of the SQL (from 1; None for the SQL as a whole)."""
        return f"{self.file}, line {self.first + ((line or 1) - 1 if self.line_by_line else 0)}"


def located(error: ModelError, origin: Origin | None) -> ModelError:
    """Return the error with file and line in front of each problem."""
    if origin is None or error.is_located:
        return error
    problems = error.problems or ((None, str(error)),)
    texts = [
        text if origin.line_by_line or line is None or not error.problems else f"line {line} of its SQL: {text}"
        for line, text in problems
    ]
    prefix = f"model {error.model}: " if error.model else ""
    messages = [f"{origin.at(line)}: {prefix}{text}" for (line, _), text in zip(problems, texts, strict=True)]
    return ModelError("\n".join(messages), model=error.model, problems=error.problems, is_located=True)


def model_error(model: str, problems: Iterable[tuple[int | None, str]]) -> ModelError:
    """Return all problems of a model's SQL as one error.

    Args:
        problems: line in the SQL (None if unknown) and text of each problem.
    """
    all_problems = tuple(problems)
    messages = [f"model {model}: {f'line {line} of its SQL: ' if line else ''}{text}" for line, text in all_problems]
    return ModelError("\n".join(messages), model=model, problems=all_problems)


def line_of(node: exp.Expr) -> int | None:
    """Return the line of the first name in a part of a parsed query; None if unknown."""
    lines = (i.meta_get("line") for i in node.find_all(exp.Identifier, bfs=False))
    return min((int(line) for line in lines if line), default=None)


def column_problems(query: exp.Query, schemas: Mapping[TableId, Iterable[str]]) -> list[tuple[int | None, str]]:
    """Return a problem for each column of a query that none of its sources has, or several have."""
    nested: dict[str, Any] = {}
    for table, columns in schemas.items():
        nested.setdefault(table.namespace[0], {})[table.name] = dict.fromkeys(columns, "string")
    try:
        partly = qualify(
            query.copy(),
            schema=nested,
            dialect=DIALECT,
            validate_qualify_columns=False,
            allow_partial_qualification=True,
        )
        problems = {(line, text): None for scope in traverse_scope(partly) for line, text in _of_scope(scope, schemas)}
    except SqlglotError as e:
        return [(_line_in(query, str(e)), str(e).splitlines()[0])]
    return sorted(problems, key=lambda p: (p[0] or 0, p[1]))


def quoted_columns(sql: str, schemas: Mapping[TableId, Iterable[str]]) -> list[tuple[int, str]]:
    """Return a warning for each text in double quotes that is also the name of a column, with its line.

    Other dialects quote names so; in Spark's, it is a text, and the query is valid with another meaning.
    """
    holders = {caseless(c): (c, table) for table, columns in schemas.items() for c in columns}
    texts = [t for t in sqlglot.tokenize(sql, dialect=DIALECT) if t.token_type == TokenType.STRING]
    return [
        (t.line, f'"{t.text}" is a text in Spark\'s SQL, not column {column} of {table}: write `{column}` for the '
         f"column, '{t.text}' for the text")
        for t in texts
        if sql[t.start] == '"' and caseless(t.text) in holders
        for column, table in [holders[caseless(t.text)]]
    ]  # fmt: skip


def _line_in(query: exp.Query, message: str) -> int | None:
    """Return the line of the name at the end of a message of sqlglot; None if unknown."""
    name = message.splitlines()[0].rsplit(": ", 1)[-1].strip("`'\" ").lower()
    lines = (i.meta_get("line") for i in query.find_all(exp.Identifier, bfs=False) if i.name.lower() == name)
    return next((int(line) for line in lines if line), None)


def _of_scope(scope: Scope, schemas: Mapping[TableId, Iterable[str]]) -> Iterator[tuple[int | None, str]]:
    visible: dict[str, object] = {}
    current: Scope | None = scope
    while current is not None:
        visible = {**current.sources, **visible}
        current = current.parent
    columns_of = {name: _columns(source, schemas) for name, source in visible.items()}
    for column in scope.columns:
        line = column.this.meta_get("line")
        name = column.name
        if column.table:
            if column.table not in visible:
                yield line, f"{column.table}.{name}: no table or alias {column.table} is visible here"
            elif (columns := columns_of[column.table]) is not None and name.lower() not in columns:
                table = _named(column.table, visible[column.table])
                yield line, f"no column {name} in {table}{nearest(name, columns.values())}: it has {_listed(columns)}"
            continue
        holders = [n for n, columns in columns_of.items() if n in scope.sources and columns and name.lower() in columns]
        if len(holders) > 1:
            yield line, f"column {name} is ambiguous: {' and '.join(holders)} have one; write {holders[0]}.{name}"
        elif not holders and None not in columns_of.values():
            available = "; ".join(
                f"{_named(n, visible[n])} has {_listed(columns or {})}" for n, columns in columns_of.items()
            )
            near = nearest(name, (c for columns in columns_of.values() for c in (columns or {}).values()))
            yield line, f"no column {name}{near}: {available}"


def _columns(source: object, schemas: Mapping[TableId, Iterable[str]]) -> Mapping[str, str] | None:
    """Return columns by their name in lower case; None if unknown."""
    if isinstance(source, exp.Table):
        columns = schemas.get(TableId((source.db,), source.name)) if source.db else None
        return None if columns is None else {c.lower(): c for c in columns}
    if isinstance(source, Scope) and isinstance(source.expression, exp.Query):
        selected = source.expression.selects
        return (
            None if any(s.is_star for s in selected) else {s.alias_or_name.lower(): s.alias_or_name for s in selected}
        )
    return None


def _named(name: str, source: object) -> str:
    return f"{source.db}.{source.name}" if isinstance(source, exp.Table) else name


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(columns.values()) or "no columns"
