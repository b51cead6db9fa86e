"""The rows of a capture of few files, read with Arrow in this process: a query in Spark would take longer to plan."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
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
)

from lake_assets.capture.changed_files import Part
from lake_assets.capture.files.manifests import Entry
from lake_assets.capture.files.parquet_columns import ParquetColumns, names_by_id
from lake_assets.errors import LakeError, Refused
from lake_assets.lake import thresholds

# Types whose values Arrow hands to Spark as they are.
_SIMPLE = (
    BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType, DateType, TimestampType, TimestamptzType,
    StringType, BinaryType,
)  # fmt: skip


def added_rows(source: Table, schema: Schema, parts: Sequence[Part]) -> pa.Table | Refused:
    """Return all rows of captured files, if all of them were added; a refusal if there are many files, or Spark has to
    read.

    Args:
        source: the table.
        schema: its schema at the end of the window.
        parts: the files.
    """
    if any(p.plan.before.data or p.plan.after.deletes for p in parts):
        return Refused("rows were deleted or updated")
    files = [e for p in parts for e in p.plan.after.data]
    if len(files) > thresholds.LOCAL_FILES:
        return Refused("many files were added")
    if other := next((f.name for f in schema.fields if not is_handed_on(f.field_type)), ""):
        return Refused(f"Arrow does not hand columns like {other} to Spark as they are")
    columns, read, left = ParquetColumns.of(schema), list[pa.Table](), thresholds.LOCAL_BYTES
    for e in files:
        try:
            rows = _rows(source, e, columns, left)
        except (OSError, LakeError, pa.ArrowException) as error:
            # Spark says which file is missing or broken.
            return Refused(f"{type(error).__name__}: {error}")
        if isinstance(rows, Refused):
            return rows
        left -= rows.nbytes
        read.append(rows)
    empty = pa.schema([columns.types.field(f.name) for f in schema.fields]).empty_table()
    return pa.concat_tables([empty, *read]) if read else empty


def is_handed_on(kind: IcebergType) -> bool:
    """Whether values of a type are the same in Arrow and in Spark."""
    match kind:
        case StructType():
            return all(is_handed_on(f.field_type) for f in kind.fields)
        case ListType():
            return is_handed_on(kind.element_type)
        case MapType():
            return is_handed_on(kind.key_type) and is_handed_on(kind.value_type)
        case _:
            return isinstance(kind, _SIMPLE)


def _rows(source: Table, file: Entry, columns: ParquetColumns, most: int) -> pa.Table | Refused:
    """Return all rows of a file of at most `most` bytes, uncompressed."""
    if file.file["file_format"].upper() != "PARQUET":
        return Refused("a data file is no Parquet file")
    with source.io.new_input(file.path).open() as opened, pq.ParquetFile(opened) as parquet:
        groups, names = range(parquet.num_row_groups), names_by_id(parquet)
        if not names:
            return Refused("a data file has no field ids")
        if any(
            isinstance(f.transform, IdentityTransform) and f.source_id not in names
            for f in source.specs()[file.spec_id].fields
        ):
            return Refused("a column is in the partitions alone")
        if sum(parquet.metadata.row_group(g).total_byte_size for g in groups) > most:
            return Refused("many bytes were added")
        every = [f.name for f in columns.schema.fields]
        parts = [columns.read(parquet, group, names, every) for group in groups]
    if refused := next((p for p in parts if isinstance(p, Refused)), None):
        return refused
    return pa.concat_tables([p for p in parts if isinstance(p, pa.Table)]) if parts else columns.types.empty_table()
