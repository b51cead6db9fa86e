"""Call the function of a Python model over fixed snapshots: its arguments, its rows, the affected values and ranges."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import Capture, capture
from lake_assets.errors import LakeError, ModelError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.foreign_errors import first_line
from lake_assets.models.operators.kept_frames import Bounds, Frame, Frames
from lake_assets.models.python.model_inputs import Affected, Changes, Lookup, Span, rows_at
from lake_assets.models.python.python_model import Function, place_of, where_is
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.python.result_writes import DELETED, as_stored, check_range
from lake_assets.models.sql.sql_errors import located
from lake_assets.tables.pending_windows import Window, head_of


class FunctionCall:
    """One call of a model's function over fixed snapshots.

    Attributes:
        captures: the change of each source.
        frames: rows that are materialized during the step.
        frame: the affected values, once `find_affected` has run.
        span: their range, for `replace-ranges`.
    """

    def __init__(
        self,
        lake: LakeBase,
        spec: PythonModelSpec,
        windows: Mapping[TableId, Window],
        pinned: Mapping[TableId, int | None],
        scope: contextlib.ExitStack,
        function: Function | None = None,
    ) -> None:
        self._lake, self._spec, self._windows, self._pinned, self._scope = lake, spec, windows, pinned, scope
        self._function = function or spec.model.function
        self.captures: dict[TableId, Capture] = {
            s: scope.enter_context(capture(lake, s, w.start, w.end)) for s, w in windows.items()
        }
        self.frames = Frames(lake.spark(), scope)
        self.frame: Frame | None = None
        self.span: Span | None = None

    def from_the_beginning(self) -> FunctionCall:
        """Return the call over all rows of the inputs at the same snapshots."""
        windows = {s: replace(w, mark=None) for s, w in self._windows.items()}
        return FunctionCall(self._lake, self._spec, windows, self._pinned, self._scope, self._function)

    def rows(self) -> DataFrame:
        """Call the function.

        Raises:
            ModelError: it fails, or does not return a DataFrame; the message says where.
        """
        name, where = self._function.__name__, where_is(self._function)
        origin = getattr(self._function, "origin", None)
        try:
            arguments = {n: self._argument(n, kind) for n, kind in self._spec.model.parameters.items()}
            rows: object = self._function(**arguments)
        except ModelError as e:
            raise located(e, origin) if origin else ModelError(f"{where}: model {self._spec.table}: {e}") from e
        except LakeError:
            raise
        except PySparkException as e:
            why = f"Spark does not accept {name}: {first_line(e)}{self._line(e)}"
            raise ModelError(f"{where}: model {self._spec.table}: {why}") from e
        except (Exception, SystemExit) as e:
            why = f"{name} raised {type(e).__name__}: {first_line(e)}{self._line(e)}"
            raise ModelError(f"{where}: model {self._spec.table}: {why}") from e
        if not isinstance(rows, DataFrame):  # pyright: ignore[reportUnnecessaryIsInstance] (users' code)
            raise ModelError(
                f"{where}: model {self._spec.table}: {name} returned {type(rows).__name__}: return a DataFrame of Spark"
            )
        return as_stored(rows)

    def _line(self, error: BaseException) -> str:
        """Return the last line of the function's file that an error went through; empty if there is none."""
        place, frames = place_of(self._function), traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if place and frame.f_code.co_filename == place[0]]
        return f" (line {lines[-1]})" if lines else ""

    def check_replaced(self, types: Mapping[str, str]) -> None:
        """Raise ModelError for a replaced column's expression that Spark does not accept as the value of one row."""
        model = self._spec.model
        for parameter, table in self._spec.inputs.items():
            rows = self._at(table)
            none = rows.limit(0).selectExpr("1 AS __lake_one")
            for column in (c for c in model.replace if c in types):
                value = F.expr(f"CAST({model.expression(column, parameter)} AS {types[column]}) IS NULL")
                try:
                    # In the condition of a join, aggregates, windows and random values are errors.
                    rows.join(none, value, "left_semi").schema  # noqa: B018
                except PySparkException as e:
                    raise self._not_accepted(table, e) from e

    def _not_accepted(self, table: TableId, error: PySparkException) -> ModelError:
        return ModelError(
            f"{self._spec.model.where}: model {self._spec.table}: `replace` over {table}: {first_line(error)}"
        )

    def find_affected(self, types: Mapping[str, str]) -> None:
        """Find the values of the replaced columns over all changed rows, before and after the change.

        Raises:
            ModelError: the table, whose rows are kept, has no such columns, or no ranges of them.
        """
        model, spark = self._spec.model, self._lake.spark()
        if missing := [c for c in model.replace if c not in types]:
            raise ModelError(
                f"{model.where}: model {model.table}: `replace` names {', '.join(missing)}, and the table has "
                f"{', '.join(types)}. Its rows are not computed again: {model.past}. Name columns that it has, or "
                "declare `on_query_change: rebuild` if the inputs tell all rows"
            )
        if model.write == "replace-ranges":
            check_range(self._spec, types)
        parts: list[DataFrame] = []
        for parameter, table in self._spec.inputs.items():
            if self.captures[table].is_empty:
                continue
            values = [f"CAST({model.expression(c, parameter)} AS {types[c]}) AS {quote(c)}" for c in model.replace]
            try:
                parts.append(self.captures[table].signed(spark).selectExpr(*values))
            except PySparkException as e:
                raise self._not_accepted(table, e) from e
        all_values = parts[0]
        for part in parts[1:]:
            all_values = all_values.unionByName(part)
        self.frame = self.frames.measure(all_values.distinct(), {c: types[c] for c in model.replace})
        if model.write == "replace-ranges":
            self.span = span_of(self._spec, self.frame)

    def _argument(self, parameter: str, kind: type) -> Changes | Lookup | Affected:
        if kind is Affected:
            return self._affected()
        table = self._spec.names[parameter]
        if kind is Lookup:
            return Lookup(table, self._pinned[table], self._at(table))
        model = self._spec.model
        expressions = {c: e for c in model.replace if (e := model.expression(c, parameter))}
        window, captured, spark = self._windows[table], self.captures[table], self._lake.spark()
        return Changes(table, window, captured, spark, self._at(table), self._affected, expressions)

    def _affected(self) -> Affected:
        model = self._spec.model
        if not model.replace:
            raise ModelError(
                f"only `replace-keys` and `replace-ranges` have affected rows, and its `write` is {model.write}: "
                "declare one of them, or read the changed rows (`rows`; in SQL: `changes`)"
            )
        return Affected(self.frame.frame if self.frame else None, self.frame, self.span)

    def _at(self, table: TableId) -> DataFrame:
        return rows_at(self._lake, table, self._pinned[table])


def expected_rows(
    lake: LakeBase, spec: PythonModelSpec, pinned: Mapping[TableId, int | None], scope: contextlib.ExitStack
) -> DataFrame:
    """Return the rows that the table should have: of `full`, or of the function over everything.

    Args:
        pinned: by input and lookup, the snapshot to read.
        scope: the rows can be read until it is closed.

    Raises:
        ModelError: the function fails; the message says where.
    """
    windows = {}
    for source in spec.sources:
        loaded = lake.table(source)
        windows[source] = Window(source, None, replace(head_of(loaded), snapshot=pinned[source]))
    rows = FunctionCall(lake, spec, windows, pinned, scope, spec.model.full).rows()
    if spec.model.write != "merge" or DELETED not in rows.columns:
        return rows
    return rows.where(f"NOT coalesce({DELETED}, false)").drop(DELETED)


_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal")


def span_of(spec: PythonModelSpec, frame: Frame) -> Span:
    """Return the range that a step replaces, and the range that is read for it."""
    (column,) = spec.model.replace
    bounds = frame.bounds[column]
    nulls = bounds.non_null < frame.rows
    if spec.model.cumulative and nulls:
        # Rows without a value come before all others.
        return Span(None, None, None, None, True, "NULL or any value")
    if bounds.low is None or bounds.high is None:
        return Span("NULL", None, None, None, nulls, "NULL", empty=True)
    text = _range_text(spec, bounds) + (", or NULL" if nulls else "")
    first = _shifted(bounds, bounds.low, -spec.forward)
    if spec.model.cumulative:
        return Span(first, None, None, None, True, text)
    last = _shifted(bounds, bounds.high, spec.back)
    read = (
        _shifted(bounds, bounds.low, -spec.forward, -spec.back),
        _shifted(bounds, bounds.high, spec.back, spec.forward),
    )
    return Span(first, last, *read, nulls, text)


def _shifted(bounds: Bounds, value: str, *by: float) -> str:
    """Return SQL of an end, moved by seconds, or by units of a number."""
    end, by = bounds.sql(value), tuple(b for b in by if b)
    if not by:
        return end
    kind = bounds.type.split("(")[0]
    if kind == "date":
        days = sum(math.floor(b / _DAY) if b < 0 else math.ceil(b / _DAY) for b in by)
        return f"date_add({end}, {days})"
    if kind.startswith("timestamp"):
        return f"({end} + INTERVAL '{sum(by)}' SECOND)"
    assert kind in _NUMBERS, kind
    # Computed here: in Spark, the sum could exceed the type.
    with localcontext(prec=100):
        return f"{sum((Decimal(str(b)) for b in by), Decimal(value)):f}BD"


def _range_text(spec: PythonModelSpec, bounds: Bounds) -> str:
    """Return the changed range and what is replaced around it, for people."""
    low, high = bounds.low, bounds.high
    if bounds.type == "timestamp":
        low, high = (_instant(int(end or 0)) for end in (low, high))
    if spec.model.cumulative:
        return f"{low} or later"
    reach = [f"{getattr(spec.model, name)} {word}" for name, word in (("forward", "before"), ("back", "after"))
             if getattr(spec, name)]  # fmt: skip
    return f"from {low} to {high}{''.join(f', or up to {r}' for r in reach)}"


def _instant(micros: int) -> str:
    """Return a timestamp for people; Python's end in the year 9999, Spark's do not."""
    try:
        return str(_EPOCH + timedelta(microseconds=micros))
    except OverflowError:
        return f"{micros / 1e6:.0f} s after 1970"
