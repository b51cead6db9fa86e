"""SQL over changes: a SELECT with templates such as `{{ changes('raw.playback') }}`, as the function of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from lake_assets.capture.rows.changed_rows import CHANGE
from lake_assets.errors import CorruptMetadataError, LakeError, MissingDataFileError, ModelError
from lake_assets.lake import TableId
from lake_assets.lake.foreign_errors import first_line, first_line_and_place
from lake_assets.lake.names import literal, nearest
from lake_assets.lake.sql_text import not_repeatable
from lake_assets.models.python.model_inputs import Changes, Lookup
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.models.sql.query_text import text_over
from lake_assets.models.sql.sql_errors import Origin
from lake_assets.tables.spark_frames import new_name, over

# In the rendered SQL, the rows that a template names are tables of this layer.
_LAYER = "__lake_rows"
# The functions of templates, each with an example of its arguments.
_EXAMPLES = {
    "changes": "'layer.name'",
    "feed": "'layer.name', 'id'",
    "keys": "'layer.name', 'id'",
    "affected": "'layer.name'",
    "low": "'layer.name', 'day'",
    "high": "'layer.name', 'day'",
}
FUNCTIONS = tuple(_EXAMPLES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SqlTemplate:
    """A SELECT with templates; calling it with the inputs gives its rows.

    `changes(table)` are inserted and updated rows, `feed(table)` all changes with `_change_type`, `keys(table,
    expression, ...)` the distinct values of expressions over changed rows, `affected(table)` the rows of the whole
    table that belong to the affected keys or range, `low(table, column)` and `high(table, column)` the bounds of the
    changed range. A plain table name stands for all rows of the table.
    """

    name: str
    text: str
    origin: Origin | None = None

    @property
    def __name__(self) -> str:
        return "its SQL"

    def tables(self) -> tuple[tuple[TableId, ...], tuple[TableId, ...]]:
        """Return the tables whose changes it reads, and the others.

        Raises:
            ModelError: a template or the SQL is malformed; the message says where.
        """
        changed: dict[TableId, None] = {}

        def recorded(kind: str, table: TableId, *_: str) -> str:
            changed[table] = None
            return "NULL" if kind in ("low", "high") else f"{_LAYER}.v0"

        sql = self._rendered(recorded)
        named = [
            t for t in sources_of(self.name, parse(self.name, sql, is_maintained=False)) if t.namespace != (_LAYER,)
        ]
        if not changed:
            raise self._error(
                "it reads no changes: write {{ changes('layer.name') }} for the table whose changes it applies, or "
                "leave `write` out to have the result of the query maintained"
            )
        return tuple(changed), tuple(t for t in named if t not in changed)

    @cached_property
    def past(self) -> str:
        """What its rows show that is gone when it runs again, as a clause; empty: nothing.

        Over everything, a feed has each row as an insert: rows that show how they were changed are other rows then.

        Raises:
            ModelError: a template or the SQL is malformed; the message says where.
        """
        read: list[str] = []

        def recorded(kind: str, table: TableId, *_: str) -> str:
            read.append(kind)
            return "NULL" if kind in ("low", "high") else f"{_LAYER}.v0"

        tree = parse(self.name, self._rendered(recorded), is_maintained=False)
        shown = (s for s in tree.selects if s.alias_or_name.lower() != "_deleted")
        if "feed" in read and any(s.is_star or any(_is_change_type(c) for c in s.find_all(exp.Column)) for s in shown):
            return "shows how rows were changed"
        call = not_repeatable(tree)
        return f"calls {call}" if call else ""

    def __call__(self, **inputs: Changes | Lookup) -> DataFrame:
        """Return the rows of the SELECT over the inputs, by the names of their tables."""
        frames: dict[str, DataFrame] = {}
        of = {str(i.name): i for i in inputs.values()}

        def view(rows: DataFrame) -> str:
            frames[name := new_name()] = rows
            return name

        def value(kind: str, table: TableId, *arguments: str) -> str:
            changes = of.get(str(table))
            if not isinstance(changes, Changes):
                raise ModelError(_under_condition(table))
            if kind in ("low", "high"):
                (column,) = arguments
                return _typed(sql_value(getattr(changes, kind)(column)), changes.table, column)
            rows = {
                "changes": lambda: changes.rows,
                "feed": lambda: changes.feed(arguments or None),
                "keys": lambda: changes.keys(*arguments),
                "affected": changes.affected,
            }[kind]()
            return f"{_LAYER}.{view(rows)}"

        def rows_of(table: TableId) -> str:
            if table.namespace == (_LAYER,):
                return table.name
            if str(table) not in of:
                raise self._error(_under_condition(table), self.line_of(table))
            return view(of[str(table)].table)

        sql = self._rendered(value)
        spark = next(iter(inputs.values())).table.sparkSession
        text = text_over(parse(self.name, sql, is_maintained=False), sql, rows_of)
        try:
            return over(spark, text, frames)
        except PySparkException as e:
            text, line = first_line_and_place(e)
            # Templates of several lines, such as loops, move the lines.
            if sql.count("\n") != self.text.count("\n"):
                text, line = first_line(e), None
            raise self._error(f"Spark does not accept it: {text}", line) from e

    def line_of(self, table: TableId) -> int | None:
        """Return the first line that names a table; None if unknown."""
        lines = self.text.lower().splitlines()
        return next((n for n, line in enumerate(lines, 1) if str(table).lower() in line), None)

    def _rendered(self, value: Callable[..., str]) -> str:
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)

        def function(kind: str) -> Callable[..., str]:
            def call(*texts: Any, **named: Any) -> str:
                example = f"write {kind}({_EXAMPLES[kind]})"
                if wrong := [a for a in (*texts, *named.values()) if not isinstance(a, str)]:
                    raise ModelError(f"{kind}() takes texts, and {wrong[0]!r} is not a text: {example}")
                if named or not texts:
                    raise ModelError(f"{kind}() takes the name of a table first, and no named arguments: {example}")
                table, *arguments = texts
                if kind in ("low", "high") and len(arguments) != 1:
                    raise ModelError(f"{kind}({table!r}, ...) takes one column")
                if kind == "keys" and not arguments:
                    raise ModelError(f"keys({table!r}) takes at least one column or expression")
                if kind in ("changes", "affected") and arguments:
                    raise ModelError(f"{kind}({table!r}) takes only a table")
                return value(kind, TableId.parse(table), *arguments)

            return call

        try:
            return environment.from_string(self.text).render({n: function(n) for n in FUNCTIONS})
        except TemplateSyntaxError as e:
            raise self._error(f"its template is malformed: {e.message}", e.lineno) from e
        except UndefinedError as e:
            unknown = str(e.message).split("'")[1] if "'" in str(e.message) else ""
            hint = f"{nearest(unknown, FUNCTIONS)}: a template has {', '.join(FUNCTIONS)}, and names in quotes"
            raise self._error(f"its template: {e.message}{hint}", _line(e)) from e
        except (MissingDataFileError, CorruptMetadataError):
            raise  # nothing is wrong with the template
        except LakeError as e:
            raise self._error(f"its template: {e}", _line(e)) from e
        except PySparkException as e:
            raise self._error(f"its template: Spark does not accept it: {first_line_and_place(e)[0]}", _line(e)) from e
        except Exception as e:
            # A template can compute: it may divide by zero, or ask for what its sandbox forbids.
            raise self._error(f"its template: {type(e).__name__}: {e}", _line(e)) from e

    def _error(self, what: str, line: int | None = None) -> ModelError:
        return ModelError(f"model {self.name}: {what}", problems=((line, what),), model=self.name)


def sql_value(value: Any) -> str:
    """Return the SQL literal of a value from column metadata."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L" if abs(value) > 2**31 - 1 else str(value)
        case Decimal():
            return f"{value:f}BD"
        case float():
            return f"{value!r}D" if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
        case datetime() if value.tzinfo is not None:
            return f"timestamp_micros({(value - _EPOCH) // timedelta(microseconds=1)})"
        case datetime():
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case bytes():
            return f"X'{value.hex()}'"
        case str() | UUID():
            return literal(str(value))
        case _:
            raise ModelError(f"a value of type {type(value).__name__} cannot be written into SQL")


def _under_condition(table: TableId) -> str:
    return f"{table} is named only under a condition: name it outside of conditions as well"


def _typed(literal: str, table: DataFrame, column: str) -> str:
    """Return a literal with the type of a column: the type of 5 or NULL alone depends on the value.

    A column of the result that has other types in each step would rebuild its table.
    """
    kind = next((f.dataType.simpleString() for f in table.schema.fields if f.name == column), None)
    return f"CAST({literal} AS {kind})" if kind else literal


def _is_change_type(column: exp.Column) -> bool:
    return column.name.lower() == CHANGE


def _line(error: BaseException) -> int | None:
    """Return the line of a template in which an error arose."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<template>":
            line = at.tb_lineno
        at = at.tb_next
    return line


def tables_of(template: SqlTemplate) -> Mapping[str, tuple[type[Changes] | type[Lookup], TableId]]:
    """Return the inputs of a template by parameter name: `Changes`, and other tables as lookups."""
    changed, others = template.tables()
    return {str(t): (Changes, t) for t in changed} | {str(t): (Lookup, t) for t in others}
