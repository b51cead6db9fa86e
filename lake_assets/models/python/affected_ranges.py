"""The range of values that a step of `replace-ranges` replaces, and the range that is read for it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext

from lake_assets.errors import ModelError
from lake_assets.models.operators.kept_frames import Bounds, Frame
from lake_assets.models.python.model_inputs import Span
from lake_assets.models.python.python_model_spec import PythonModelSpec

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal")


def span_of(spec: PythonModelSpec, frame: Frame) -> Span:
    """Return the range that a step replaces, and the range that is read for it.

    Raises:
        ModelError: the column's values have no range.
    """
    (column,) = spec.model.replace
    bounds = frame.bounds.get(column)
    if bounds is None:
        raise ModelError(
            f"{spec.model.where}: model {spec.table}: `replace: {column}` has a type without an order. "
            "Choose a number, date, time or text column, or write `replace-keys`"
        )
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
    if kind not in _NUMBERS:
        raise ModelError(f"`back` and `forward` are for dates, times and numbers, not for {bounds.type}")
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
