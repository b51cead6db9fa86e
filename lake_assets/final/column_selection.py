"""The columns of a final table: staging columns that are selected, renamed, cast or used in expressions.

They are declared like the list of a SELECT: `id`, `full_name AS name`, `CAST(born AS DATE) AS born`,
`* EXCEPT (photo)`. A column that is also named beside a star keeps its position in the star. Every value depends on
one row only, so it changes only when an event of its row arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from sqlglot import exp

from lake_assets.errors import PipelineError
from lake_assets.lake.column_spelling import caseless, clashes, spelled
from lake_assets.lake.spark_functions import is_aggregate, is_generator
from lake_assets.lake.sql_syntax import SqlSyntaxError, parse_statements
from lake_assets.lake.sql_text import DIALECT, changed, misread, not_repeatable

_OF_MANY_ROWS = (exp.AggFunc, exp.Window, exp.Subquery, exp.Select, exp.Exists, exp.UDTF)


@dataclass(frozen=True)
class Star:
    """All columns of the source, except `but`."""

    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnExpression:
    """A column of the table.

    Attributes:
        name: its name in the table.
        value: an expression over the columns of the source.
    """

    name: str
    value: exp.Expr

    @property
    def roots(self) -> tuple[str, ...]:
        """The source columns that the value references, each once, spelled as in the value."""
        return tuple(dict.fromkeys(_root(c).name for c in self.value.find_all(exp.Column)))

    @property
    def is_plain(self) -> bool:
        """Whether the value is a source column without any change, perhaps under another name."""
        return isinstance(self.value, exp.Column) and not self.value.args.get("table")


@dataclass(frozen=True)
class Item(ColumnExpression):
    """A column of the table, with the names of the source columns that its value is computed from."""

    sources: tuple[str, ...]

    def sql(self, named: Callable[[str], str]) -> str:
        """Return Spark SQL of the value, with each source column `c` renamed to `named(c)`."""
        tree = self.value.copy()
        for column in list(tree.find_all(exp.Column)):
            root = _root(column)
            root.replace(exp.to_identifier(named(spelled(root.name, self.sources)), quoted=True))
        return tree.sql(DIALECT)


def _root(column: exp.Column) -> exp.Identifier:
    """Return the column name without struct fields: `a` of `a.b.c`."""
    root = column.parts[0]
    assert isinstance(root, exp.Identifier)
    return root


def read_columns(texts: Sequence[str]) -> tuple[Star | ColumnExpression, ...]:
    """Parse the declared columns.

    Raises:
        PipelineError: a column is not an expression over one row, has no name, or is not deterministic; or two columns
            have the same name.
    """
    columns = tuple(chain.from_iterable(_read(text) for text in texts))
    if duplicates := clashes(c.name for c in columns if isinstance(c, ColumnExpression)):
        names = ", ".join(caseless(same[0]) for same in duplicates)
        raise PipelineError(f"`columns` has {names} twice: give one of them another name")
    if sum(isinstance(c, Star) for c in columns) > 1:
        raise PipelineError("`columns` has more than one star")
    return columns


def _read(text: str) -> list[Star | ColumnExpression]:
    try:
        statements = parse_statements(f"SELECT {text}")
    except SqlSyntaxError as e:
        raise PipelineError(f"`columns`: {text!r} is not valid SQL: {e.text}") from e
    query = statements[0] if len(statements) == 1 else None
    if not isinstance(query, exp.Select) or {k for k, v in query.args.items() if v} - {"expressions", "kind"}:
        raise PipelineError(f"`columns`: {text!r} is more than a list of columns: filters and joins belong in a model")
    if other := misread(text):
        raise PipelineError(f"`columns`: {text!r} has {other}")
    columns = [_one(e, text) for e in query.expressions]
    if other := changed(f"SELECT {text}", query):
        raise PipelineError(
            f"`columns`: {text!r} would reach Spark in a different form ({other}): write it in another way"
        )
    return columns


def _one(expression: exp.Expr, text: str) -> Star | ColumnExpression:
    if isinstance(expression, exp.Star):
        if expression.args.get("replace") or expression.args.get("rename"):
            raise PipelineError(f"`columns`: {text!r}: name the changed columns beside the star instead")
        return Star(tuple(e.name for e in expression.args.get("except_") or ()))
    value = expression.this if isinstance(expression, exp.Alias) else expression
    if isinstance(value, exp.Column) and isinstance(value.this, exp.Star):
        raise PipelineError(f"`columns`: {text!r}: write * for all columns")
    if bad := next((n for n in expression.walk() if _is_of_many_rows(n)), None):
        raise PipelineError(
            f"`columns`: {text!r}: {bad.sql(DIALECT)} does not depend on one row alone: write a model for it instead"
        )
    if changing := not_repeatable(value):
        raise PipelineError(
            f"`columns`: {text!r}: {changing} is not deterministic: take the value from a column instead"
        )
    name = expression.alias_or_name
    if not name or not (isinstance(expression, exp.Alias) or isinstance(value, exp.Column)):
        raise PipelineError(f"`columns`: {text!r} needs a name: write {text} AS ...")
    return ColumnExpression(name, value)


def _is_of_many_rows(node: exp.Expr) -> bool:
    return isinstance(node, _OF_MANY_ROWS) or is_aggregate(node) or is_generator(node)


def select(table: str, declared: Sequence[Star | ColumnExpression], columns: Sequence[str]) -> dict[str, Item]:
    """Return the columns of a table by name, in their order; nothing `declared`: all columns of the source.

    Raises:
        PipelineError: a declared column references a column that the source does not have.
    """
    has = f"the source has {', '.join(columns)}"
    named = {spelled(c.name, columns): c for c in declared if isinstance(c, ColumnExpression)}
    items: dict[str, Item] = {}
    for item in declared or (Star(),):
        if isinstance(item, Star):
            but = {c: spelled(c, columns) for c in item.but}
            if missing := [c for c, column in but.items() if column not in columns]:
                raise PipelineError(f"{table}: `columns` leaves out {', '.join(missing)}, and {has}")
            for c in columns:
                if c in named:
                    items[named[c].name] = _item(table, named[c], columns, has)
                elif c not in but.values():
                    items[c] = Item(c, exp.column(exp.to_identifier(c, quoted=True)), (c,))
            continue
        items[item.name] = _item(table, item, columns, has)
    return items


def _item(table: str, computed: ColumnExpression, columns: Sequence[str], has: str) -> Item:
    sources = {r: spelled(r, columns) for r in computed.roots}
    if missing := [r for r, source in sources.items() if source not in columns]:
        raise PipelineError(
            f"{table}: `columns` computes {computed.name} from {', '.join(missing)}, and {has}. (A column is "
            "known only once an event has contained it)"
        )
    return Item(computed.name, computed.value, tuple(dict.fromkeys(sources.values())))


def normalized(declared: Sequence[Star | ColumnExpression]) -> list[str]:
    """Return the declaration as text, the same for two declarations that differ only in layout."""
    return [
        f"* EXCEPT ({', '.join(sorted(i.but))})" if isinstance(i, Star) and i.but
        else "*" if isinstance(i, Star)
        else f"{i.value.sql(DIALECT, comments=False)} AS {i.name}"
        for i in declared
    ]  # fmt: skip
