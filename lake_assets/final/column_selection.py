"""The columns of a final table: chosen, renamed, cast and computed from those of its staging table.

They are declared as the list of a SELECT: `id`, `full_name AS name`, `CAST(born AS DATE) AS born`, `* EXCEPT (photo)`.
A column that is named beside a star stands in its place. Every value depends on one row only, so that it changes when
an event of its row comes and at no other time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from lake_assets.errors import PipelineError
from lake_assets.lake.spark_functions import is_aggregate, is_generator
from lake_assets.lake.sql_text import DIALECT, changed, misread, not_repeatable

_OF_MANY_ROWS = (exp.AggFunc, exp.Window, exp.Subquery, exp.Select, exp.Exists, exp.UDTF)


@dataclass(frozen=True)
class Star:
    """All columns of the source but some."""

    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class Computed:
    """A column of the table.

    Attributes:
        name: what it is called.
        value: its value, over the columns of the source.
    """

    name: str
    value: exp.Expr

    @property
    def roots(self) -> tuple[str, ...]:
        """The columns of the source that the value names, each once, spelled as it does."""
        return tuple(dict.fromkeys(_root(c).name for c in self.value.find_all(exp.Column)))

    @property
    def is_plain(self) -> bool:
        """Whether it is a column of the source as it is, perhaps under another name."""
        return isinstance(self.value, exp.Column) and not self.value.args.get("table")


@dataclass(frozen=True)
class Item:
    """A column of the table, and the columns of the source that it is made of.

    Attributes:
        sources: their names in the source.
        is_plain: whether it is one of them as it is.
    """

    name: str
    value: exp.Expr
    sources: tuple[str, ...]
    is_plain: bool

    def sql(self, named: Callable[[str], str]) -> str:
        """Spark SQL of the value, where the source's columns are called what `named` says."""
        by_name = {s.lower(): s for s in self.sources}
        tree = self.value.copy()
        for column in list(tree.find_all(exp.Column)):
            root = _root(column)
            root.replace(exp.to_identifier(named(by_name[root.name.lower()]), quoted=True))
        return tree.sql(DIALECT)


def _root(column: exp.Column) -> exp.Identifier:
    """The column's own name: `a` of `a.b.c`, where a struct has fields."""
    parts = column.parts
    found = parts[0]
    assert isinstance(found, exp.Identifier)
    return found


def read_columns(texts: Sequence[str]) -> tuple[Star | Computed, ...]:
    """The declared columns.

    Raises:
        PipelineError: one is no expression over one row, has no name, or gives another value each time; two have
            the same name.
    """
    found = tuple(chain.from_iterable(_read(text) for text in texts))
    names = Counter(c.name.lower() for c in found if isinstance(c, Computed))
    if twice := [name for name, count in names.items() if count > 1]:
        raise PipelineError(f"`columns` has {', '.join(twice)} twice: give one of them another name")
    if sum(isinstance(c, Star) for c in found) > 1:
        raise PipelineError("`columns` has more than one star")
    return found


def _read(text: str) -> list[Star | Computed]:
    try:
        statements = sqlglot.parse(f"SELECT {text}", dialect=DIALECT)
    except ParseError as e:
        why = e.errors[0].get("description", e) if e.errors else e
        raise PipelineError(f"`columns`: {text!r} is no SQL: {why}") from e
    query = statements[0] if len(statements) == 1 else None
    if not isinstance(query, exp.Select) or {k for k, v in query.args.items() if v} - {"expressions", "kind"}:
        raise PipelineError(
            f"`columns`: {text!r} is more than a list of columns: filters and joins belong into a model"
        )
    if other := misread(text):
        raise PipelineError(f"`columns`: {text!r} has {other}")
    found = [_one(e, text) for e in query.expressions]
    if other := changed(f"SELECT {text}", query):
        raise PipelineError(f"`columns`: {text!r} would reach Spark otherwise ({other}): write it in another way")
    return found


def _one(expression: exp.Expr, text: str) -> Star | Computed:
    if isinstance(expression, exp.Star):
        if expression.args.get("replace") or expression.args.get("rename"):
            raise PipelineError(f"`columns`: {text!r}: name the columns that are to be others beside the star instead")
        return Star(tuple(e.name for e in expression.args.get("except_") or ()))
    value = expression.this if isinstance(expression, exp.Alias) else expression
    if isinstance(value, exp.Column) and isinstance(value.this, exp.Star):
        raise PipelineError(f"`columns`: {text!r}: write * for all columns")
    if bad := next((n for n in expression.walk() if _is_of_many_rows(n)), None):
        raise PipelineError(
            f"`columns`: {text!r}: {bad.sql(DIALECT)} is not made of one row alone: write a model for it instead"
        )
    if changing := not_repeatable(value):
        raise PipelineError(
            f"`columns`: {text!r}: {changing} gives another value each time: take the value from a column instead"
        )
    name = expression.alias_or_name
    if not name or not (isinstance(expression, exp.Alias) or isinstance(value, exp.Column)):
        raise PipelineError(f"`columns`: {text!r} needs a name: write {text} AS ...")
    return Computed(name, value)


def _is_of_many_rows(node: exp.Expr) -> bool:
    return isinstance(node, _OF_MANY_ROWS) or is_aggregate(node) or is_generator(node)


def select(table: str, declared: Sequence[Star | Computed], columns: Sequence[str]) -> dict[str, Item]:
    """The columns of a table by name, in their order.

    Args:
        table: for messages.
        declared: see `read_columns`; empty: all.
        columns: those of the source.

    Raises:
        PipelineError: a declared column names one that the source does not have.
    """
    there = {c.lower(): c for c in columns}
    known = f"there are {', '.join(columns)}"
    named = {c.name.lower(): c for c in declared if isinstance(c, Computed)}
    found: dict[str, Item] = {}
    for item in declared or (Star(),):
        if isinstance(item, Star):
            if lost := [c for c in item.but if c.lower() not in there]:
                raise PipelineError(f"{table}: `columns` leaves out {', '.join(lost)}, and {known}")
            but = {c.lower() for c in item.but}
            for c in columns:
                if c.lower() not in but and c.lower() not in named:
                    found[c] = Item(c, exp.column(exp.to_identifier(c, quoted=True)), (c,), True)
                elif c.lower() in named:
                    found[named[c.lower()].name] = _item(table, named[c.lower()], there, known)
            continue
        found[item.name] = _item(table, item, there, known)
    return found


def _item(table: str, computed: Computed, there: Mapping[str, str], known: str) -> Item:
    if lost := [r for r in computed.roots if r.lower() not in there]:
        raise PipelineError(
            f"{table}: `columns` makes {computed.name} of {', '.join(lost)}, and {known}. (A column that no event has "
            "shown yet is not there either)"
        )
    sources = tuple(dict.fromkeys(there[r.lower()] for r in computed.roots))
    return Item(computed.name, computed.value, sources, computed.is_plain)


def written(declared: Sequence[Star | Computed]) -> list[str]:
    """The declaration as text: the same for two that differ in layout only."""
    return [
        f"* EXCEPT ({', '.join(sorted(i.but))})" if isinstance(i, Star) and i.but
        else "*" if isinstance(i, Star)
        else f"{i.value.sql(DIALECT, comments=False)} AS {i.name}"
        for i in declared
    ]  # fmt: skip
