"""Audits as they are declared: what has to hold of a table before a batch is published.

Evaluated in `audit_evaluation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lake_assets.lake import TableId

if TYPE_CHECKING:
    from lake_assets.tables.specs import Limit

Severity = Literal["error", "warn"]
# Stands for the audited table in the SQL of an audit.
PLACEHOLDER = "{table}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One thing that has to hold of a table.

    Attributes:
        name: tells the audits of a table apart.
        severity: of `error`, nothing is published that does not pass; of `warn`, it is told of.
    """

    name: str
    severity: Severity = "error"

    @property
    def is_blocking(self) -> bool:
        """Whether what does not pass stays unpublished."""
        return self.severity == "error"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the table that have to be there."""
        return ()

    @property
    def reads(self) -> tuple[TableId, ...]:
        """Other tables of the lake that it looks at."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Unique(Audit):
    """No two rows have the same values in some columns; rows with a null among them are left out, as SQL has it.

    Attributes:
        of: the columns; empty: what tells the table's rows apart.
    """

    of: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class NotNull(Audit):
    """Every row has a value in a column."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return (self.column,)


@dataclass(frozen=True, kw_only=True)
class AcceptedValues(Audit):
    """The values of a column are some of these, or null."""

    column: str
    values: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return (self.column,)


@dataclass(frozen=True, kw_only=True)
class Relationship(Audit):
    """Every value of a column, but null, is one of another table's column.

    Attributes:
        table: the other one, or the table itself.
        other: its column.
    """

    column: str
    table: TableId
    other: str

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Audit`."""
        return (self.column,)

    @property
    def reads(self) -> tuple[TableId, ...]:
        """See `Audit`."""
        return (self.table,)


@dataclass(frozen=True, kw_only=True)
class RowCountChange(Audit):
    """A batch makes a table that holds rows no more than so many longer or shorter.

    Attributes:
        limit: a number of rows, or a share of those that were there.
    """

    limit: Limit


@dataclass(frozen=True, kw_only=True)
class Assertion(Audit):
    """A SELECT that returns the rows which violate it, over `PLACEHOLDER` and other tables."""

    sql: str
    tables: tuple[TableId, ...] = ()

    @property
    def reads(self) -> tuple[TableId, ...]:
        """See `Audit`."""
        return self.tables


@dataclass(frozen=True, kw_only=True)
class EqualsQuery:
    """A model's table equals its query computed afresh: checked by itself at times, not with each batch.

    Attributes:
        sample: the share of the keys that is compared.
        schedule: when, as cron has it (UTC).
    """

    name: str
    severity: Severity = "error"
    sample: float = 1.0
    schedule: str = "0 3 * * *"
