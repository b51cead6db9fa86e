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
# Writers truncate the bounds of these types to a prefix (16 by default), and round the upper bound up.
TRUNCATED = (StringType, BinaryType)
NANOS = (TimestampNanoType, TimestamptzNanoType)
ZONED = (TimestamptzType, TimestamptzNanoType)
TIMESTAMPS = (TimestampType, TimestamptzType, *NANOS)


def bound(kind: IcebergType, raw: bytes | None, *, upper: bool) -> Any:
    """Return a bound of a column; None if it is missing, or Python cannot represent it."""
    if raw is None or not isinstance(kind, PrimitiveType):
        return None
    if isinstance(kind, (IntegerType, LongType, DateType, TimeType, *TIMESTAMPS)):
        # Four bytes instead of eight: written before the column was widened (possibly from date to timestamp).
        days = isinstance(kind, TIMESTAMPS) and len(raw) == 4
        n = int.from_bytes(raw, "little", signed=True)
        return _from_day(kind, n) if days else from_int(kind, n, upper=upper)
    if not isinstance(kind, (BooleanType, FloatType, DoubleType, DecimalType, UUIDType, FixedType, *TRUNCATED)):
        return None
    try:
        value: Any = from_bytes(kind, raw)
    except UnicodeDecodeError:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None  # not a bound: readers ignore it too
    return UUID(bytes=raw) if isinstance(kind, UUIDType) else value


def from_int(kind: IcebergType, n: int, *, upper: bool) -> Any:
    """Convert `n` as stored in a column of `kind` to its value; None before year 1 and after 9999."""
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
    """Return the hull of the source values in a partition; None if unbounded on that side.

    Args:
        value: the partition value as stored in Avro; not null.
    """
    if isinstance(field.transform, IdentityTransform):
        same = _identity(kind, value)
        return same, same
    # Iceberg up to 0.10 and some versions of DuckDB rounded times before 1970 up, so values may be one unit lower.
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
        # Python cannot represent nanoseconds exactly: use the column's bounds instead.
        return None if isinstance(kind, NANOS) and value % 1000 else from_int(kind, value, upper=False)
    return value


def _month(n: int) -> timedelta | None:
    """Return the time from 1970-01-01 to the start of the month `n` months later; None out of Python's range."""
    year = 1970 + n // 12
    return timedelta(days=(date(year, n % 12 + 1, 1) - date(1970, 1, 1)).days) if 1 <= year <= 9999 else None


def _at(kind: IcebergType, since: timedelta) -> Any:
    if isinstance(kind, DateType):
        return from_int(kind, since.days, upper=False)
    micros = since // timedelta(microseconds=1)
    return from_int(kind, micros * 1000 if isinstance(kind, NANOS) else micros, upper=False)


def _from_day(kind: IcebergType, days: int) -> Any:
    return _at(kind, timedelta(days=days)) if abs(days) < 10**8 else None
