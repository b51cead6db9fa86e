"""Write the files of a commit by position: new rows as Parquet, deletion vectors as Puffin; and describe them as JSON.

Iceberg reads the descriptions (`ContentFileParser`): so this process needs none of its objects before it commits.

Source: https://iceberg.apache.org/spec/#content-file-data-and-delete-serialization
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_json
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DecimalType, DoubleType, FloatType, LongType, NestedField, PrimitiveType, UUIDType
from pyroaring import BitMap64

from lake_assets.capture.files.deletion_vectors import Puffin
from lake_assets.capture.files.manifests import Entry
from lake_assets.errors import Refused
from lake_assets.tables.writing.key_lookup import pc
from lake_assets.tables.writing.stored_rows import ROW_ID, ROW_ID_FIELD, VERSION, VERSION_FIELD, StoredFile

log = logging.getLogger(__name__)
_ZSTD_LEVEL = 3
# PyIceberg's conversions of dates and times after the year 9999, of texts that are no UTF-8, and the like.
_NO_PYTHON_VALUE = (ValueError, ArithmeticError)


@dataclass(frozen=True)
class Part:
    """Rows of one partition, with the table's columns; and with those of row lineage, unless rows are only added.

    Attributes:
        rows: the rows.
        partition: the partition as JSON values.
    """

    rows: pa.Table
    partition: Sequence[Any]

    @classmethod
    def all_of(cls, table: Table, rows: pa.Table, key: Sequence[str]) -> list[Part] | Refused:
        """Return rows by partition; a refusal if Python cannot represent a partition value.

        They are in the table's order; if it has none, in that of a key: such files compress well.
        """
        rows = rows.take(_order(table, rows, key))
        try:
            return [cls(part, partition) for partition, part in _partitions(table, rows)]
        except _NO_PYTHON_VALUE as e:
            return Refused(f"a partition value is not computed here: {e}")


@dataclass(frozen=True)
class Deleted:
    """The deleted positions of one data file, with those that were deleted before.

    Attributes:
        file: the file.
        positions: the positions.
        partition: the file's partition as JSON values.
    """

    file: StoredFile
    positions: BitMap64
    partition: Sequence[Any]

    @classmethod
    def of(cls, table: Table, file: StoredFile, positions: BitMap64) -> Deleted | Refused:
        """Return positions of a file; a refusal if Python cannot represent a value of its partition."""
        try:
            return cls(file, positions, _stored_partition(file.entry, table))
        except _NO_PYTHON_VALUE as e:
            return Refused(f"a partition value is not described here: {e}")


@dataclass
class NewFiles:
    """The files that one commit adds, and the vectors that it replaces, as JSON of Iceberg's.

    Attributes:
        table: the loaded table.
    """

    table: Table
    data: list[str] = field(default_factory=list)
    """Descriptions of the data files."""
    vectors: list[str] = field(default_factory=list)
    """Descriptions of the new deletion vectors."""
    replaced: list[str] = field(default_factory=list)
    """Descriptions of the deletion vectors that new ones replace."""
    _paths: list[str] = field(default_factory=list)

    def add_rows(self, part: Part) -> None:
        """Write the rows of one partition to a file."""
        rows, partition, table = part.rows, part.partition, self.table
        schema = _with_lineage(table.schema()) if ROW_ID in rows.column_names else table.schema()
        path, arrow = self._new_path(".parquet"), schema_to_pyarrow(schema)
        sink = pa.BufferOutputStream()
        paths, unbounded = parquet_path_to_id_mapping(schema), _with_nan(rows)
        # PyArrow's types say that it is a boolean only.
        bounded: Any = [p for p, id_ in paths.items() if schema.find_column_name(id_) not in unbounded]
        pq.write_table(
            rows.select(arrow.names).cast(arrow),
            sink,
            # Bounds leave NaN out, which to Spark and DuckDB is the largest number: readers would skip it.
            write_statistics=bounded,
            compression=_codec(table),
            # Iceberg's; PyArrow's own is 1.
            compression_level=_ZSTD_LEVEL if _codec(table) == "zstd" else None,
            store_schema=False,
            store_decimal_as_integer=True,
            # One row group: PyIceberg takes the bounds of some for those of all if others have none, as of long texts.
            row_group_size=rows.num_rows,
        )
        content = sink.getvalue()
        size = self._write(path, content)
        none = {f"write.metadata.metrics.column.{c}": "none" for c in unbounded}
        statistics = _statistics(content, schema, {**table.properties, **none})
        self.data.append(json.dumps(_described(table, path, size, rows.num_rows, partition, statistics)))

    def add_vectors(self, deleted: Sequence[Deleted]) -> None:
        """Write the deletion vectors of data files, each with all of its deleted positions, to one file."""
        if not deleted:
            return
        path = self._new_path("-deletes.puffin")
        puffin = Puffin(path)
        written = [(d, *puffin.write(d.file.entry.path, d.positions)) for d in deleted]
        size = self._write(path, puffin.content())
        for d, offset, length, count in written:
            self.vectors.append(_Vector(path, size, offset, length, count).described(d))
            if (old := d.file.vector) is not None:
                file = old.file
                of = _Vector(
                    old.path, file["file_size_in_bytes"], old.offset, file["content_size_in_bytes"], old.records
                )
                self.replaced.append(of.described(d))

    def delete_all(self) -> None:
        """Delete the written files; what cannot be deleted is logged."""
        for path in self._paths:
            try:
                self.table.io.delete(path)
            except FileNotFoundError:
                continue  # it was not written after all
            except OSError as e:
                log.warning("%s belongs to no snapshot, and could not be deleted: %s", path, e)

    def _new_path(self, suffix: str) -> str:
        path = self.table.location_provider().new_data_location(f"00000-{uuid.uuid4()}{suffix}")
        self._paths.append(path)
        return path

    def _write(self, path: str, content: bytes | pa.Buffer) -> int:
        with self.table.io.new_output(path).create() as out:
            out.write(content)
        return len(content)


@dataclass(frozen=True)
class _Vector:
    """A deletion vector in a Puffin file."""

    path: str
    size: int
    offset: int
    length: int
    records: int

    def described(self, of: Deleted) -> str:
        """Return its description; it has the partition of its data file."""
        described = {
            "spec-id": of.file.entry.spec_id,
            "content": "position-deletes",
            "file-path": self.path,
            "file-format": "puffin",
            "partition": of.partition,
            "record-count": self.records,
            "file-size-in-bytes": self.size,
            "referenced-data-file": of.file.entry.path,
            "content-offset": self.offset,
            "content-size-in-bytes": self.length,
        }
        return json.dumps(described)


def _described(
    table: Table, path: str, size: int, rows: int, partition: Sequence[Any], statistics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the description of a data file."""
    return {
        "spec-id": table.spec().spec_id,
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "partition": partition,
        "record-count": rows,
        "file-size-in-bytes": size,
        "column-sizes": _pairs(statistics["column_sizes"]),
        "value-counts": _pairs(statistics["value_counts"]),
        "null-value-counts": _pairs(statistics["null_value_counts"]),
        "lower-bounds": _pairs(statistics["lower_bounds"], bytes.hex),
        "upper-bounds": _pairs(statistics["upper_bounds"], bytes.hex),
        "split-offsets": statistics["split_offsets"],
    }


def _with_nan(rows: pa.Table) -> set[str]:
    """Return the columns that hold a NaN."""
    floating = [f.name for f in rows.schema if pa.types.is_floating(f.type)]
    return {name for name in floating if pc.any(pc.is_nan(rows[name])).as_py()}


def _statistics(content: pa.Buffer, schema: Schema, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the statistics of a Parquet file; without bounds, if Python cannot represent one of them."""
    metadata, paths = pq.read_metadata(pa.BufferReader(content)), parquet_path_to_id_mapping(schema)

    def statistics(settings: Mapping[str, str]) -> dict[str, Any]:
        plan = compute_statistics_plan(schema, dict(settings))
        return data_file_statistics_from_parquet_metadata(metadata, plan, paths).to_serialized_dict()

    try:
        return statistics(properties)
    except _NO_PYTHON_VALUE as e:  # or a setting that Spark does not mind
        log.debug("a file without bounds: %s", e)
        return statistics({"write.metadata.metrics.default": "counts"})


def refused_partitioning(table: Table) -> str:
    """Return why files of a table cannot be described; empty: they can."""
    schema = table.schema()
    columns = {f.field_id for f in schema.fields}
    for spec in table.specs().values():
        for f in spec.fields:
            if f.source_id not in columns and f.source_id in schema.field_ids:
                return f"the table was partitioned by a field within a column ({f.name})"
            if f.source_id not in columns:
                return f"the table was partitioned by a dropped column ({f.name})"
            kind = schema.find_field(f.source_id).field_type
            if not isinstance(f.transform, _TRANSFORMS) or isinstance(kind, FloatType | DoubleType):
                return f"the table is partitioned by {f.transform} of {kind}"
    return ""


_TRANSFORMS = (
    IdentityTransform, YearTransform, MonthTransform, DayTransform, HourTransform, BucketTransform, TruncateTransform,
    VoidTransform,
)  # fmt: skip


def _stored_partition(entry: Entry, table: Table) -> list[Any]:
    """Return the partition of a file as JSON values."""
    fields = table.specs()[entry.spec_id].fields
    return [
        _as_json(table.schema(), f, _decoded(table.schema(), f, v))
        for f, v in zip(fields, entry.partition, strict=True)
    ]


def _decoded(schema: Schema, field: PartitionField, value: Any) -> Any:
    """Return a partition value as Python value, or as number of its unit since 1970."""
    kind = _result_type(schema, field)
    return from_bytes(kind, value) if isinstance(kind, DecimalType | UUIDType) and isinstance(value, bytes) else value


def _as_json(schema: Schema, field: PartitionField, value: Any) -> Any:
    return None if value is None else to_json(_result_type(schema, field), value)


def _result_type(schema: Schema, field: PartitionField) -> Any:
    kind = field.transform.result_type(schema.find_field(field.source_id).field_type)
    assert isinstance(kind, PrimitiveType)
    return kind


def _partitions(table: Table, rows: pa.Table) -> Iterable[tuple[list[Any], pa.Table]]:
    """Yield rows by partition, with the partition as JSON values."""
    fields, schema = table.spec().fields, table.schema()
    if not fields:
        yield [], rows
        return
    groups: dict[tuple[Any, ...], list[int]] = {}
    values = [_partition_values(schema, f, rows) for f in fields]
    for n, partition in enumerate(zip(*values, strict=True)):
        groups.setdefault(partition, []).append(n)
    for partition, at in groups.items():
        described = [_as_json(schema, f, v) for f, v in zip(fields, partition, strict=True)]
        yield described, rows if len(groups) == 1 else rows.take(pa.array(at))


def _partition_values(schema: Schema, field: PartitionField, rows: pa.Table) -> list[Any]:
    """Return the value of a partition field for each row; each distinct value is transformed once."""
    source = schema.find_field(field.source_id)
    transform: Callable[[Any], Any] = field.transform.transform(source.field_type)
    column = rows[source.name]
    if pa.types.is_temporal(column.type):
        # PyIceberg's transforms take days and microseconds since 1970.
        unit = pa.int32() if pa.types.is_date(column.type) else pa.int64()
        column = column.cast(unit)
    encoded = pa.concat_arrays(column.chunks).dictionary_encode(null_encoding="encode")
    distinct = [None if v is None else transform(v) for v in encoded.dictionary.to_pylist()]
    return [distinct[i] for i in encoded.indices.to_pylist()]


def _order(table: Table, rows: pa.Table, key: Sequence[str]) -> Any:
    """Return the order of rows in a file: by the table's sort order, as far as it names columns, or by a key."""
    columns, keys = {f.field_id: f.name for f in table.schema().fields}, list[tuple[str, str]]()
    for f in table.sort_order().fields:
        if not isinstance(f.transform, IdentityTransform) or f.source_id not in columns:
            break
        keys.append((columns[f.source_id], "ascending" if f.direction.value == "asc" else "descending"))
    return pc.sort_indices(rows, sort_keys=keys or [(k, "ascending") for k in key])


def _codec(table: Table) -> str:
    codec = table.properties.get("write.parquet.compression-codec", "zstd").lower()
    return codec if codec in ("snappy", "gzip", "brotli", "lz4") else "none" if codec == "uncompressed" else "zstd"


def _with_lineage(schema: Schema) -> Schema:
    row_id, version = (
        NestedField(id_, name, LongType(), required=False)
        for id_, name in ((ROW_ID_FIELD, ROW_ID), (VERSION_FIELD, VERSION))
    )
    return Schema(*schema.fields, row_id, version, schema_id=schema.schema_id)


def _pairs(values: Mapping[int, Any], encode: Callable[[Any], Any] = lambda v: v) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": [encode(v) for v in values.values()]}
