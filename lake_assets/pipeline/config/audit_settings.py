"""Audits in a pipeline's YAML: each list item has one kind."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from sqlglot import exp

from lake_assets.errors import PipelineError
from lake_assets.lake import TableId
from lake_assets.lake.setting_values import share_of
from lake_assets.lake.sql_syntax import SqlSyntaxError, parse_statements
from lake_assets.lake.sql_text import DIALECT
from lake_assets.pipeline.config.setting_types import (
    ColumnName,
    Columns,
    OrText,
    Strict,
    as_value_errors,
    checked,
    combination,
)
from lake_assets.pipeline.config.upkeep_settings import UPKEEP_CHECK
from lake_assets.tables.audits.audit_kinds import (
    PLACEHOLDER,
    AcceptedValues,
    Assertion,
    Audit,
    EqualsQuery,
    NotNull,
    Relationship,
    RowCountChange,
    Unique,
)
from lake_assets.tables.specs import Limit

# Stands for the audited table where the SQL of an audit is parsed.
AUDITED = TableId(("__audited",), "__table")
# A table may grow to more than twice its size.
_MOST = math.inf
_ALONE = ("unique", "equals_query")


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | dt.date) else value


Value = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]

Others = Annotated[dict[ColumnName, str], checked(lambda others: [_column_of(text) for text in others.values()])]
"""By column, a column of another table: `layer.table.column`."""


class Comparison(Strict):
    """How a model's table is compared with its query."""

    sample: Annotated[str | float, AfterValidator(share_of)] = Field(
        default=1.0, description="share of the keys to compare: 1% or 0.01; default: all"
    )
    schedule: str = Field(default="0 3 * * *", description="cron expression, in UTC; default: every night at 3")

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        if len(value.split()) != 5:
            raise ValueError(f"{value!r} is not a cron expression: write minute, hour, day, month and day of the week")
        return value


class AuditOfTable(Strict):
    """A condition that a table must meet; each item has exactly one kind."""

    unique: Columns | None = Field(
        default=None, description="columns whose values no two rows share; rows with nulls are ignored; empty: the key"
    )
    not_null: Columns | None = Field(default=None, description="columns without nulls")
    accepted_values: dict[ColumnName, list[Value]] | None = Field(
        default=None, description="allowed values by column; nulls are always allowed"
    )
    relationships: Others | None = Field(
        default=None, description="by column, the layer.table.column in which each value must exist"
    )
    row_count_change: Annotated[str | int, checked(lambda limit: Limit.parse(limit, _MOST))] | None = Field(
        default=None, description="largest change of the row count by a batch: a number of rows (100) or a share (20%)"
    )
    sql: Annotated[str, checked(lambda sql: tables_of(parse_assertion(sql)))] | None = Field(
        default=None, description="a SELECT of the failing rows; {table} stands for the audited table"
    )
    name: str | None = Field(
        default=None, description="name of the audit; default: derived from its kind", pattern=r"^[A-Za-z0-9_]+$"
    )
    severity: Literal["error", "warn"] = Field(
        default="error", description="error: a batch that fails is not published; warn: it is published and reported"
    )

    @property
    def kinds(self) -> list[str]:
        """The declared kinds."""
        return [k for k in _kinds(type(self)) if getattr(self, k) is not None]

    @combination
    def _one_kind(self) -> Iterator[str]:
        if len(self.kinds) != 1:
            listed = ", ".join(_kinds(type(self)))
            yield f"an audit has one kind ({listed}), and this one has {len(self.kinds)}"
            return
        kind = self.kinds[0]
        if getattr(self, kind) in ([], {}) and kind not in _ALONE:
            yield f"`{kind}` names no column"
        if empty := [c for c, values in (self.accepted_values or {}).items() if not values]:
            yield f"`accepted_values` of {', '.join(empty)}: list at least one"
        if self.sql is not None and self.name is None:
            yield "an audit in `sql` needs a `name`: reports of failures show it"
        if self.name == UPKEEP_CHECK:
            yield f"`name: {UPKEEP_CHECK}` is the name of the check that does upkeep: choose another"


class AuditOfModel(AuditOfTable):
    """A condition that a model's table must meet."""

    equals_query: Comparison | None = Field(
        default=None, description="the table equals its query, recomputed on a schedule"
    )


def _kinds(of: type[AuditOfTable]) -> list[str]:
    return [name for name in of.model_fields if name not in ("name", "severity")]


def _alone(value: object) -> object:
    """Read a kind without settings: `unique` for `unique: []`."""
    if isinstance(value, str):
        if value not in _ALONE:
            raise ValueError(f"{value!r} is incomplete: write for example `not_null: email`")
        return {value: {} if value == "equals_query" else []}
    return value


Audits = list[Annotated[AuditOfTable, BeforeValidator(_alone), OrText()]]
ModelAudits = list[Annotated[AuditOfModel, BeforeValidator(_alone), OrText()]]


def _column_of(text: str) -> tuple[TableId, str]:
    """Split `final.cities.id` into table and column."""
    with as_value_errors():
        path = TableId.parse(text)
    if len(path.namespace) < 2:
        raise ValueError(f"{text!r} is not a column of a table: write layer.table.column, such as final.cities.id")
    return TableId(path.namespace[:-1], path.namespace[-1]), path.name


def read_audits(table: TableId, declared: Sequence[AuditOfTable]) -> tuple[Audit, ...]:
    """Return the audits of a table that are evaluated with each batch.

    Raises:
        PipelineError: two audits have one name, or SQL reads the published table instead of `{table}`.
    """
    audits = tuple(a for one in declared for a in _read(one))
    names = [a.name for a in (*audits, *read_comparisons(declared))]
    if duplicates := sorted({n for n in names if names.count(n) > 1}):
        raise PipelineError(f"{table}: two audits are called {', '.join(duplicates)}: give one of them another `name`")
    if own := [a.name for a in audits if isinstance(a, Assertion) and table in a.tables]:
        raise PipelineError(
            f"{table}: audit {', '.join(own)} would check the rows already published, not the new ones: write "
            f"{PLACEHOLDER} instead of {table}"
        )
    return audits


def read_comparisons(declared: Sequence[AuditOfTable]) -> tuple[EqualsQuery, ...]:
    """Return the audits of a model that run on a schedule."""
    return tuple(
        EqualsQuery(
            name=one.name or "equals_query",
            severity=one.severity,
            sample=float(one.equals_query.sample),
            schedule=one.equals_query.schedule,
        )
        for one in declared
        if isinstance(one, AuditOfModel) and one.equals_query is not None
    )


def _read(one: AuditOfTable) -> Iterator[Audit]:
    common: dict[str, Any] = {"severity": one.severity}

    def named(kind: str, *columns: str, alone: bool = True) -> str:
        """Return the declared name; for several audits in one item, with the column."""
        if one.name and alone:
            return one.name
        plain = "_".join(columns)
        return "_".join(filter(None, [one.name or kind, re.sub(r"[^A-Za-z0-9_]", "_", plain)]))

    if one.unique is not None:
        yield Unique(name=named("unique", *one.unique), of=tuple(one.unique), **common)
    for column in one.not_null or ():
        yield NotNull(name=named("not_null", column, alone=len(one.not_null or ()) == 1), column=column, **common)
    for column, values in (one.accepted_values or {}).items():
        name = named("accepted_values", column, alone=len(one.accepted_values or ()) == 1)
        yield AcceptedValues(name=name, column=column, values=tuple(values), **common)
    for column, text in (one.relationships or {}).items():
        table, other = _column_of(text)
        name = named("relationships", column, alone=len(one.relationships or ()) == 1)
        yield Relationship(name=name, column=column, table=table, other=other, **common)
    if one.row_count_change is not None:
        yield RowCountChange(name=named("row_count_change"), limit=Limit.parse(one.row_count_change, _MOST), **common)
    if one.sql is not None:
        yield Assertion(name=named("sql"), sql=one.sql, tables=tables_of(parse_assertion(one.sql)), **common)


def parse_assertion(sql: str) -> exp.Query:
    """Parse the SELECT of an audit, with `AUDITED` for the audited table.

    Raises:
        PipelineError: the text is not a single SELECT, or does not read the audited table.
    """
    if PLACEHOLDER not in sql:
        raise PipelineError(f"the SQL of an audit has to contain {PLACEHOLDER}, which stands for the audited table")
    try:
        statements = parse_statements(sql.replace(PLACEHOLDER, ".".join(AUDITED.parts)))
    except SqlSyntaxError as e:
        text = e.text.replace(".".join(AUDITED.parts), PLACEHOLDER)
        raise PipelineError(f"line {e.line or 1} of its SQL: {text}") from e
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise PipelineError("the SQL of an audit has to be one SELECT, which returns the failing rows")
    return statements[0]


def tables_of(query: exp.Query) -> tuple[TableId, ...]:
    """Return the other tables that the SELECT of an audit reads.

    Raises:
        PipelineError: a table is named without its layer, or with a catalog.
    """
    ctes = {c.alias.lower() for c in query.find_all(exp.CTE)}
    tables: dict[TableId, None] = {}
    for table in query.find_all(exp.Table):
        if (not table.db and table.name.lower() in ctes) or table.find_ancestor(exp.Hint):
            continue
        if not table.db or table.catalog:
            raise PipelineError(
                f"the SQL of an audit names table {table.sql(DIALECT)}: write layer.table, such as final.users, "
                f"or {PLACEHOLDER}"
            )
        tables[TableId((table.db,), table.name)] = None
    tables.pop(AUDITED, None)
    return tuple(tables)
