"""Rows without the values of sensitive columns, as frames; and tables that are made of rows with such values."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata import table_properties
from lake_assets.lake.names import is_of_changes
from lake_assets.lake.redaction import HIDDEN
from lake_assets.lake.sensitive_values import PROPERTY, SensitiveColumns

# The columns of Debezium's envelope that hold a row.
_ROWS = ("before", "after", "key")


def without_values(rows: DataFrame, hidden: SensitiveColumns) -> DataFrame:
    """Return rows with their sensitive values replaced, also within Debezium's envelope; nulls stay."""
    if not hidden:
        return rows
    return rows.select(*(_column(f, hidden).alias(f.name) for f in rows.schema.fields))


def _column(field: T.StructField, hidden: SensitiveColumns) -> Column:
    value = F.col(quote(field.name))
    if field.name in _ROWS and isinstance(field.dataType, T.StructType):
        inner = [_hidden(value.getField(f.name), f.name, hidden).alias(f.name) for f in field.dataType.fields]
        return F.when(value.isNotNull(), F.struct(*inner))
    return _hidden(value, field.name, hidden)


def _hidden(value: Column, name: str, hidden: SensitiveColumns) -> Column:
    is_hidden = hidden.covers(name) and not is_of_changes(name)
    return F.when(value.isNotNull(), F.lit(HIDDEN)) if is_hidden else value


def hand_on(lake: LakeBase, table: TableId, hidden: SensitiveColumns) -> None:
    """Let a table that was made of rows of another one have its sensitive columns."""
    made = lake.table(table)
    if made.properties.get(PROPERTY, "") != hidden.to_property():
        table_properties.put(made, {PROPERTY: hidden.to_property()})
