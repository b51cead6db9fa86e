"""Names of Iceberg's types in Spark, to create DataFrames with the schema of a table without reading it."""

from __future__ import annotations

from pyiceberg.schema import Schema
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
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UnknownType,
    UUIDType,
)

from lake_assets.errors import UnsupportedCaptureError
from lake_assets.lake import quote
from lake_assets.lake.variant import VariantType

_NAMES: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INT",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimestampType: "TIMESTAMP_NTZ",
    TimestamptzType: "TIMESTAMP",
    StringType: "STRING",
    UUIDType: "STRING",
    FixedType: "BINARY",
    BinaryType: "BINARY",
    UnknownType: "VOID",
    VariantType: "VARIANT",
}


def spark_types(schema: Schema) -> str:
    """Return the columns of `schema` as a Spark schema string."""
    return ", ".join(f"{quote(f.name)} {spark_type(f.field_type)}" for f in schema.fields)


def spark_type(kind: IcebergType) -> str:
    """Return Spark's name of an Iceberg type.

    Raises:
        UnsupportedCaptureError: Spark has no such type.
    """
    match kind:
        case StructType():
            return f"STRUCT<{', '.join(f'{quote(f.name)}: {spark_type(f.field_type)}' for f in kind.fields)}>"
        case ListType():
            return f"ARRAY<{spark_type(kind.element_type)}>"
        case MapType():
            return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.value_type)}>"
        case DecimalType():
            return f"DECIMAL({kind.precision},{kind.scale})"
        case _ if type(kind) in _NAMES:
            return _NAMES[type(kind)]
        case _:
            raise UnsupportedCaptureError(f"Spark cannot read columns of type {kind}")
