"""Columns whose stored values cannot be read with the type that they have at the window's end.

`REPLACE TABLE` keeps the field id of a column that keeps its name, whatever its type was. Files from before it are read
with the type that they were written for, and cast.

Source: https://iceberg.apache.org/spec/#schema-evolution ("Valid type promotions")
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestampNanoType,
    TimestampType,
    UnknownType,
)

_PROMOTIONS: dict[type[IcebergType], tuple[type[IcebergType], ...]] = {
    IntegerType: (LongType,),
    FloatType: (DoubleType,),
    DateType: (TimestampType, TimestampNanoType),
}


def incompatible_columns(former: Schema, schema: Schema) -> dict[int, NestedField]:
    """Top-level fields of `former` that a reader with `schema` would misread, by field id."""
    there = {f.field_id: f for f in former.fields}
    found: dict[int, NestedField] = {}
    for f in schema.fields:
        was = there.get(f.field_id)
        if was is not None and not reads_as(was.field_type, f.field_type):
            found[f.field_id] = was
    return found


def reads_as(stored: IcebergType, kind: IcebergType) -> bool:
    """Whether values of type `stored` are read as `kind` by every reader: same, or promoted."""
    match stored, kind:
        case StructType(), StructType():
            there = {f.field_id: f.field_type for f in stored.fields}
            return all(reads_as(there[f.field_id], f.field_type) for f in kind.fields if f.field_id in there)
        case ListType(), ListType():
            return reads_as(stored.element_type, kind.element_type)
        case MapType(), MapType():
            return reads_as(stored.key_type, kind.key_type) and reads_as(stored.value_type, kind.value_type)
        case DecimalType(), DecimalType():
            return stored.scale == kind.scale and stored.precision <= kind.precision
        case UnknownType(), _:
            return True
        case _:
            return stored == kind or isinstance(kind, _PROMOTIONS.get(type(stored), ()))
