"""Types of the columns that a function returns, as a table stores them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from lake_assets.lake import quote
from lake_assets.lake.column_spelling import clashes

_UNSTORABLE = (NullType, VariantType, DayTimeIntervalType, YearMonthIntervalType, CalendarIntervalType)


def as_stored(rows: DataFrame) -> DataFrame:
    """Cast columns to the types that Iceberg has for them: it has no SMALLINT, for example."""
    fields = rows.schema.fields
    stored = [_stored(f.dataType) for f in fields]
    # Columns of one name are refused later, with a reason.
    if clashes(rows.columns) or stored == [f.dataType for f in fields]:
        return rows
    return rows.select(*(F.col(quote(f.name)).cast(kind).alias(f.name) for f, kind in zip(fields, stored, strict=True)))


def is_storable(kind: DataType) -> bool:
    """Whether a table can have a column of a type."""
    match kind:
        case ArrayType():
            return is_storable(kind.elementType)
        case MapType():
            return is_storable(kind.keyType) and is_storable(kind.valueType)
        case StructType():
            return all(is_storable(f.dataType) for f in kind.fields)
        case _:
            return not isinstance(kind, _UNSTORABLE)


def _stored(kind: DataType) -> DataType:
    match kind:
        case ByteType() | ShortType():
            return IntegerType()
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(_stored(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_stored(kind.keyType), _stored(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(f.name, _stored(f.dataType), f.nullable, f.metadata) for f in kind.fields])
        case _:
            return kind
