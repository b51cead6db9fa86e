"""Read columns of Parquet data files with Arrow, by field id: as a table's schema names and types them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from lake_assets.errors import Refused

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class ParquetColumns:
    """The columns of a schema, to be read from data files that may have been written with other ones.

    Attributes:
        schema: the schema.
        types: its Arrow fields.
    """

    schema: Schema
    types: pa.Schema

    @classmethod
    def of(cls, schema: Schema) -> ParquetColumns:
        """Return the columns of a schema."""
        return cls(schema, schema_to_pyarrow(schema))

    def read(
        self, parquet: pq.ParquetFile, group: int, names: Mapping[int, str], columns: Sequence[str]
    ) -> pa.Table | Refused:
        """Return columns of a row group; those that are younger than the file are null.

        Args:
            parquet: the file.
            group: the number of the row group.
            names: see `names_by_id`.
            columns: the names of the columns to read.
        """
        fields = [self.schema.find_field(c) for c in columns]
        stored = [names[f.field_id] for f in fields if f.field_id in names]
        if missing := [f for f in fields if f.field_id not in names and f.initial_default is not None]:
            return Refused(f"files lack {missing[0].name}, which has a default")
        if other := [f for f in fields if f.field_id in names and not _has_same_fields(
            parquet.schema_arrow.field(names[f.field_id]), self.types.field(f.name)
        )]:  # fmt: skip
            return Refused(f"fields within {other[0].name} were changed")
        rows = parquet.read_row_group(group, columns=stored, use_threads=False)
        count = parquet.metadata.row_group(group).num_rows
        values = [
            rows[names[f.field_id]].cast(self._type(f)) if f.field_id in names
            else pa.chunked_array([pa.nulls(count, self._type(f))])
            for f in fields
        ]  # fmt: skip
        return pa.table(values, schema=pa.schema([self.types.field(c) for c in columns]))

    def _type(self, column: NestedField) -> pa.DataType:
        return self.types.field(column.name).type


def names_by_id(parquet: pq.ParquetFile) -> dict[int, str]:
    """Return the names of a file's columns by field id; empty if it has no ids."""
    return {
        int(column.metadata[_FIELD_ID]): column.name
        for column in parquet.schema_arrow
        if column.metadata and _FIELD_ID in column.metadata
    }


def _has_same_fields(stored: pa.Field, wanted: pa.Field) -> bool:
    """Whether two columns have the same fields within them, by name and field id."""
    one, other = stored.type, wanted.type
    if not pa.types.is_nested(other):
        return True
    if one.num_fields != other.num_fields:
        return False
    pairs = [(one.field(n), other.field(n)) for n in range(other.num_fields)]
    is_struct = pa.types.is_struct(other)
    return all(
        (a.metadata or {}).get(_FIELD_ID) == (b.metadata or {}).get(_FIELD_ID)
        and (a.name == b.name or not is_struct)
        and _has_same_fields(a, b)
        for a, b in pairs
    )
