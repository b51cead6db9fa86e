"""The kinds of audits: conditions that a table has to meet before a batch is published.

`audit_evaluation` evaluates them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import literal, quote

if TYPE_CHECKING:
    from lake_assets.tables.specs import Limit

Severity = Literal["error", "warn"]
# Stands for the audited table in the SQL of an audit.
PLACEHOLDER = "{table}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One condition that a table must meet.

    Attributes:
        name: unique name among the audits of a table.
        severity: `error`: a batch that fails is not published; `warn`: it is published and reported.
    """

    name: str
    severity: Severity = "error"

    @property
    def is_blocking(self) -> bool:
        """Whether a batch that fails is not published."""
        return self.severity == "error"

    @property
    def description(self) -> str:
        """The condition as a sentence, in Markdown."""
        return self.name

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that the audit needs."""
        return ()

    def spelled_as(self, columns: Iterable[str]) -> Self:
        """Return the audit with its columns spelled as a table with these columns spells them."""
        del columns
        return self

    @property
    def reads(self) -> tuple[TableId, ...]:
        """The other tables of the lake that the audit reads."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Unique(Audit):
    """No two rows have the same values in some columns; rows with a null among them are ignored, as in SQL.

    Attributes:
        of: the columns; empty: the table's key.
    """

    of: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"No two rows share {', '.join(self.of) or 'the key'}."

    def spelled_as(self, columns: Iterable[str]) -> Self:
        """See `Audit`."""
        existing = list(columns)
        return replace(self, of=tuple(spelled(c, existing) for c in self.of))

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class OneColumnAudit(Audit):
    """A condition on one column."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return (self.column,)

    def spelled_as(self, columns: Iterable[str]) -> Self:
        """See `Audit`."""
        return replace(self, column=spelled(self.column, columns))


@dataclass(frozen=True, kw_only=True)
class ColumnAudit(OneColumnAudit, ABC):
    """A condition on one column that each row meets or violates by itself."""

    @abstractmethod
    def violation(self, kind: str) -> str:
        """Return SQL of a condition, never null: a row violates the audit of its column, which has this SQL type."""


@dataclass(frozen=True, kw_only=True)
class NotNull(ColumnAudit):
    """Every row has a value in a column."""

    def violation(self, kind: str) -> str:
        """See `ColumnAudit`."""
        del kind
        return f"{quote(self.column)} IS NULL"

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"Every row has a value in {self.column}."


@dataclass(frozen=True, kw_only=True)
class AcceptedValues(ColumnAudit):
    """Every value of a column is one of the accepted values, or null."""

    values: tuple[str, ...]

    def violation(self, kind: str) -> str:
        """See `ColumnAudit`."""
        values = ", ".join(f"CAST({literal(v)} AS {kind})" for v in self.values)
        return f"{quote(self.column)} IS NOT NULL AND {quote(self.column)} NOT IN ({values})"

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"{self.column} is one of {', '.join(self.values)}, or null."


@dataclass(frozen=True, kw_only=True)
class Relationship(OneColumnAudit):
    """Every non-null value of a column exists in a column of another table.

    Attributes:
        table: the other table, or the audited table itself.
        other: the column of that table.
    """

    table: TableId
    other: str

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"Every non-null {self.column} exists in {self.table}.{self.other}."

    @property
    def reads(self) -> tuple[TableId, ...]:
        """See `Audit`."""
        return (self.table,)


@dataclass(frozen=True, kw_only=True)
class RowCountChange(Audit):
    """A batch changes the row count of a non-empty table by no more than a limit.

    Attributes:
        limit: a number of rows, or a share of the rows before the batch.
    """

    limit: Limit

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"A batch changes the number of rows by no more than {self.limit}."


@dataclass(frozen=True, kw_only=True)
class Assertion(Audit):
    """A SELECT of the violating rows, over `PLACEHOLDER` and other tables."""

    sql: str
    tables: tuple[TableId, ...] = ()

    @property
    def description(self) -> str:
        """See `Audit`."""
        return f"This query returns no row:\n\n```sql\n{self.sql.strip()}\n```"

    @property
    def reads(self) -> tuple[TableId, ...]:
        """See `Audit`."""
        return self.tables


@dataclass(frozen=True, kw_only=True)
class EqualsQuery:
    """A model's table equals its recomputed query: checked on a schedule, not with each batch.

    Attributes:
        sample: the share of the keys to compare.
        schedule: a cron expression (UTC).
    """

    name: str
    severity: Severity = "error"
    sample: float = 1.0
    schedule: str = "0 3 * * *"
