"""Column bounds and partition values as Python values.

Source: https://iceberg.apache.org/spec/, "Binary single-value serialization" and "Partition Transforms".
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (columns without a zone)
# Writers cut bounds of these to a prefix (16 by default), and round the upper one up.
CUT = (StringType, BinaryType)
NANOS = (TimestampNanoType, TimestamptzNanoType)
ZONED = (TimestamptzType, TimestamptzNanoType)
TIMESTAMPS = (TimestampType, TimestamptzType, *NANOS)


def bound(kind: IcebergType, raw: bytes | None, *, upper: bool) -> Any:
    """A bound of a column; None where there is none, or none that Python can hold."""
    if raw is None or not isinstance(kind, PrimitiveType):
        return None
    if isinstance(kind, (IntegerType, LongType, DateType, TimeType, *TIMESTAMPS)):
        # Four bytes where eight are expected were written before the column was widened (date to timestamp too).
        days = isinstance(kind, TIMESTAMPS) and len(raw) == 4
        n = int.from_bytes(raw, "little", signed=True)
        return _from_day(kind, n) if days else from_int(kind, n, upper=upper)
    if not isinstance(kind, (BooleanType, FloatType, DoubleType, DecimalType, UUIDType, FixedType, *CUT)):
        return None
    try:
        value: Any = from_bytes(kind, raw)
    except UnicodeDecodeError:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None  # says nothing: readers ignore it as well
    return UUID(bytes=raw) if isinstance(kind, UUIDType) else value


def from_int(kind: IcebergType, n: int, *, upper: bool) -> Any:
    """The value that `n` stands for in a column of `kind`; None before year 1 and after 9999."""
    try:
        if isinstance(kind, DateType):
            return date(1970, 1, 1) + timedelta(days=n)
        if isinstance(kind, TimeType):
            return (EPOCH + timedelta(microseconds=n)).time()
        if isinstance(kind, TIMESTAMPS):
            if isinstance(kind, NANOS):
                n = -(-n // 1000) if upper else n // 1000
            at = EPOCH + timedelta(microseconds=n)
            return at.replace(tzinfo=UTC) if isinstance(kind, ZONED) else at
    except OverflowError:
        return None
    return n


def of_partition(kind: IcebergType, field: PartitionField, value: Any) -> tuple[Any, Any]:
    """The hull of the source values that a partition value stands for; None: unbounded on that side.

    Args:
        kind: the source column's type.
        field: the partition field.
        value: its value as Avro stores it; not null.
    """
    if isinstance(field.transform, IdentityTransform):
        same = _identity(kind, value)
        return same, same
    # Iceberg up to 0.10, and DuckDB for a while, rounded times before 1970 up: a file may hold what is one unit lower.
    lowest = value - 1 if isinstance(value, int) and value <= 0 else value
    match field.transform:
        case DayTransform():
            first, after = timedelta(days=lowest), timedelta(days=value + 1)
        case HourTransform():
            first, after = timedelta(hours=lowest), timedelta(hours=value + 1)
        case MonthTransform():
            first, after = _month(lowest), _month(value + 1)
        case YearTransform():
            first, after = _month(12 * lowest), _month(12 * value + 12)
        case _:
            return None, None
    if first is None or after is None:
        return None, None
    last = after - (timedelta(days=1) if isinstance(kind, DateType) else timedelta(microseconds=1))
    return _at(kind, first), _at(kind, last)


def _identity(kind: IcebergType, value: Any) -> Any:
    if isinstance(kind, DecimalType) and isinstance(value, bytes):
        return from_bytes(kind, value)
    if isinstance(kind, UUIDType) and isinstance(value, bytes):
        return UUID(bytes=value)
    if isinstance(value, int) and not isinstance(value, bool):
        # A value of a type with nanoseconds has no exact Python counterpart: it is left to the bounds.
        return None if isinstance(kind, NANOS) and value % 1000 else from_int(kind, value, upper=False)
    return value


def _month(n: int) -> timedelta | None:
    """From 1970 to the first of the month `n` months later."""
    year = 1970 + n // 12
    return timedelta(days=(date(year, n % 12 + 1, 1) - date(1970, 1, 1)).days) if 1 <= year <= 9999 else None


def _at(kind: IcebergType, since: timedelta) -> Any:
    if isinstance(kind, DateType):
        return from_int(kind, since.days, upper=False)
    micros = since // timedelta(microseconds=1)
    return from_int(kind, micros * 1000 if isinstance(kind, NANOS) else micros, upper=False)


def _from_day(kind: IcebergType, days: int) -> Any:
    return _at(kind, timedelta(days=days)) if abs(days) < 10**8 else None
