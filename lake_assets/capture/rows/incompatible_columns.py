"""Columns whose stored values cannot be read as their type at the window's end.

`REPLACE TABLE` keeps the field id of a column with the same name, even if its type changes. Older files are read with
the type for which they were written, and cast.

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


def incompatible_columns(old: Schema, schema: Schema) -> dict[int, NestedField]:
    """Top-level fields of `old` that a reader with `schema` would misread, by field id."""
    old_fields = {f.field_id: f for f in old.fields}
    incompatible: dict[int, NestedField] = {}
    for f in schema.fields:
        old_field = old_fields.get(f.field_id)
        if old_field is not None and not reads_as(old_field.field_type, f.field_type):
            incompatible[f.field_id] = old_field
    return incompatible


def reads_as(stored: IcebergType, kind: IcebergType) -> bool:
    """Whether every reader reads values of type `stored` as `kind`: the types are equal, or promotion is allowed."""
    match stored, kind:
        case StructType(), StructType():
            stored_types = {f.field_id: f.field_type for f in stored.fields}
            return all(
                reads_as(stored_types[f.field_id], f.field_type) for f in kind.fields if f.field_id in stored_types
            )
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
