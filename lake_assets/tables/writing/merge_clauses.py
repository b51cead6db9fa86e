"""The clauses of a MERGE of rows `s` into a table `t`, as values: for Spark's SQL, or to carry them out by position."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lake_assets.lake import quote

FLOATING = ("float", "double")
_STORED = re.compile(r"\bt\.(`(?:[^`]|``)+`)")
_PLAIN = re.compile(r"s\.(`(?:[^`]|``)+`)")


@dataclass(frozen=True)
class Match:
    """When a row `s` of the source and a stored row `t` are the same row: if they agree in the columns of a key.

    Attributes:
        key: the columns.
        nulls_match: whether null equals null.
    """

    key: Sequence[str]
    nulls_match: bool = True

    @property
    def sql(self) -> str:
        """The condition in SQL."""
        return " AND ".join(f"t.{quote(k)} {'<=>' if self.nulls_match else '='} s.{quote(k)}" for k in self.key)


@dataclass(frozen=True)
class Clause(ABC):
    """What happens to some rows; of the clauses that apply to a row, the first one counts.

    Columns are written as `t.`name`` and `s.`name``, with backticks.

    Attributes:
        when: SQL of a condition; empty: none.
        values: SQL by column that is written.
    """

    when: str = ""
    values: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_matched(self) -> bool:
        """Whether it applies to stored rows, and not to rows that the table does not have."""
        return not isinstance(self, Insert)

    @property
    def condition(self) -> str:
        """SQL of the whole condition; empty: none."""
        return self.when

    @property
    def stored_columns(self) -> set[str]:
        """The columns of `t` that condition and values read."""
        return stored_columns(self.condition, *self.values.values())

    @property
    def sql(self) -> str:
        """The clause in Spark's SQL."""
        begin = f"WHEN {'' if self.is_matched else 'NOT '}MATCHED"
        return f"{begin}{f' AND {self.condition}' if self.condition else ''} THEN {self._action}"

    @property
    @abstractmethod
    def _action(self) -> str:
        """What it does, in SQL."""


@dataclass(frozen=True)
class Delete(Clause):
    """Delete stored rows."""

    @property
    def _action(self) -> str:
        return "DELETE"


@dataclass(frozen=True)
class Update(Clause):
    """Set columns of stored rows; the others keep their values.

    Attributes:
        compared: Spark's types of the columns, if only rows are written that differ in one of them: so a feed of the
            table has only real changes.
    """

    compared: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def condition(self) -> str:
        """SQL of the whole condition; empty: none."""
        differs = " OR ".join(f"NOT ({same(f't.{quote(c)}', self.values[c], k)})" for c, k in self.compared.items())
        return " AND ".join(part for part in (self.when, f"({differs})" if differs else "") if part)

    @property
    def _action(self) -> str:
        return f"UPDATE SET {', '.join(f't.{quote(c)} = {v}' for c, v in self.values.items())}"


@dataclass(frozen=True)
class Insert(Clause):
    """Insert rows, with values for all columns."""

    @property
    def _action(self) -> str:
        return f"INSERT ({', '.join(map(quote, self.values))}) VALUES ({', '.join(self.values.values())})"


def insert(columns: Sequence[str], when: str = "") -> Insert:
    """Return the clause that inserts the columns of the source."""
    return Insert(when, source_values(columns))


def source_values(columns: Sequence[str]) -> dict[str, str]:
    """Return SQL of the source's values by column."""
    return {c: f"s.{quote(c)}" for c in columns}


def same(one: str, other: str, kind: str) -> str:
    """Return SQL of a condition: two values of a type are the same. Zeros of both signs are not, two NaN are."""
    if kind in FLOATING:
        return f"CAST({one} AS STRING) <=> CAST({other} AS STRING)"
    return f"{one} <=> {other}"


def stored_columns(*texts: str) -> set[str]:
    """Return the columns of `t` that SQL reads."""
    return {unquoted(c) for text in texts for c in _STORED.findall(text)}


def plain_column(value: str) -> str | None:
    """Return the column of the source that an SQL value is; None if it is anything else."""
    return unquoted(match[1]) if (match := _PLAIN.fullmatch(value)) else None


def unquoted(name: str) -> str:
    """Return a name without its backticks."""
    return name[1:-1].replace("``", "`")
