"""Create and alter the tables that steps write, through Spark (PyIceberg cannot write format version 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, PrimitiveType
from pyspark.sql import DataFrame

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import TableClaimedError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermarks
from lake_assets.lake.names import literal
from lake_assets.tables.commits import committing
from lake_assets.tables.schema_changes import Change, Columns
from lake_assets.tables.spark_frames import temp_view

KEY_PROPERTY = "lake-assets.key"
# The declared key, of several, that a staging table uses.
KEY_SET_PROPERTY = "lake-assets.key-set"
# Suffix of a column while it is renamed to a name that differs only in case.
_RENAMING = "__renaming"

# Row lineage (version 3) makes the changes of a table cheap to find; deletion vectors make small ones cheap to write.
DEFAULT_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
    # Batches are small: a shuffle in front of the write costs more than it saves.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    # Every batch adds manifests, and planning a scan opens all of them. Few are merged at a time, into small ones:
    # a capture reads the merged manifest again.
    "commit.manifest.min-count-to-merge": "8",
    "commit.manifest.target-size-bytes": str(1 << 20),
    **VERSIONS,
}


def create(
    lake: LakeBase,
    table: TableId,
    columns: Columns,
    *,
    pipeline: str,
    key: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    partitioned_by: str = "",
) -> None:
    """Create the table unless it exists.

    Raises:
        TableClaimedError: the table belongs to another pipeline.
    """
    if lake.exists(table):
        check_owner(lake, table, pipeline)
        return
    lake.ensure_namespace(table.namespace)
    body = ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())
    definition = _definition(lake.location_of(table), pipeline, key, properties, partitioned_by)
    lake.spark().sql(f"CREATE TABLE IF NOT EXISTS {lake.sql_name(table)} ({body}) {definition}")
    check_owner(lake, table, pipeline)


def create_with(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    marks: Watermarks,
    *,
    pipeline: str,
    key: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    partitioned_by: str = "",
) -> None:
    """Create a table from its first rows, in one commit with `marks`: it is never visible without them.

    Raises:
        ConcurrentWriteError: another run created the table first.
    """
    lake.ensure_namespace(table.namespace)
    definition = _definition(lake.location_of(table), pipeline, key, properties, partitioned_by)
    with temp_view(by_key(rows, key)) as view, committing(lake.spark(), table, marks):
        lake.spark().sql(f"CREATE TABLE {lake.sql_name(table)} {definition} AS SELECT * FROM {view}")


def by_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Sort the rows of each task by the key, since a new table has no sort order yet."""
    return rows.sortWithinPartitions(*map(quote, key)) if key else rows


def _definition(
    location: str | None, pipeline: str, key: Sequence[str], properties: Mapping[str, str] | None, partitioned_by: str
) -> str:
    """Return SQL of a table's format, location, partitioning and properties."""
    all_properties = {
        **DEFAULT_PROPERTIES,
        PIPELINE_PROPERTY: pipeline,
        KEY_PROPERTY: json.dumps(list(key)),
        **(properties or {}),
    }
    assignments = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in all_properties.items())
    partitioning = f"PARTITIONED BY ({partitioned_by}) " if partitioned_by else ""
    place = f"LOCATION {literal(location)} " if location else ""
    return f"USING iceberg {partitioning}{place}TBLPROPERTIES ({assignments})"


def set_properties(lake: LakeBase, table: TableId, properties: Mapping[str, str]) -> None:
    """Set properties of a table, except for those that already have the value."""
    existing = lake.table(table).properties
    if changed := {k: v for k, v in properties.items() if existing.get(k) != v}:
        assignments = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in changed.items())
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ({assignments})")


def check_owner(lake: LakeBase, table: TableId, pipeline: str) -> None:
    """Raise TableClaimedError if a table was not created by this pipeline."""
    check_owner_in(lake.table(table), table, pipeline)


def check_owner_in(loaded: Table, table: TableId, pipeline: str) -> None:
    """Like `check_owner`, for a loaded table."""
    owner = loaded.properties.get(PIPELINE_PROPERTY)
    if owner != pipeline:
        by = f"belongs to pipeline {owner!r}" if owner else "was not created by a pipeline"
        raise TableClaimedError(
            f"{table} {by}, and pipeline {pipeline!r} declares it too: rename it in one of them, or drop the table to "
            "have it created again"
        )


def columns_of(lake: LakeBase, table: TableId) -> dict[str, str]:
    """Return the table's columns with their Spark SQL types."""
    loaded = lake.table(table)
    if len(types := types_in(loaded)) == len(loaded.schema().fields):
        return types
    return {f.name: f.dataType.simpleString() for f in lake.spark().table(lake.sql_name(table)).schema.fields}


def types_in(table: Table) -> dict[str, str]:
    """Return Spark SQL types of a loaded table's columns, except for types that only Spark can name."""
    types = {f.name: _in_spark(f.field_type) for f in table.schema().fields}
    return {name: kind for name, kind in types.items() if kind is not None}


def _in_spark(kind: IcebergType) -> str | None:
    """Return the Spark name of a type without a query to Spark; None: unknown, only Spark can name it."""
    match kind:
        case ListType():
            element = _in_spark(kind.element_type)
            return element and f"array<{element}>"
        case PrimitiveType():
            try:
                return spark_type(kind).lower()
            except UnsupportedCaptureError:
                return None
        case _:
            return None


def key_of(lake: LakeBase, table: TableId) -> tuple[str, ...]:
    """Return the key that the table was created with."""
    return key_in(lake.table(table))


def key_in(table: Table) -> tuple[str, ...]:
    """Return the key that a loaded table was created with."""
    return tuple(json.loads(table.properties.get(KEY_PROPERTY, "[]")))


def key_set_of(table: Table, keys: Sequence[tuple[str, ...]], rename: Mapping[str, str]) -> tuple[str, ...]:
    """Return the declared key that a staging table uses; empty: it has the columns of none.

    A table keeps its key even if it later gets all columns of an earlier declared key: existing rows have no values in
    them. If its key is no longer declared, it is the first declared key whose columns all exist.

    Args:
        table: the loaded staging table.
        keys: the declared keys.
        rename: source names to names in the lake.
    """
    stored = tuple(json.loads(table.properties.get(KEY_SET_PROPERTY, "[]")))
    if stored in keys:
        return stored
    existing = {rename.get(f.name, f.name) for f in table.schema().fields}
    return next((k for k in keys if existing.issuperset(k)), ())


def finish_renames(lake: LakeBase, table: TableId) -> None:
    """Complete column renames of a killed step."""
    for field in lake.table(table).schema().fields:
        if field.name.endswith(_RENAMING):
            alter(lake, table, Change("rename", field.name.removesuffix(_RENAMING), "", was=field.name))


def alter(lake: LakeBase, table: TableId, change: Change) -> None:
    """Apply one change that does not convert stored values."""
    name, column = lake.sql_name(table), quote(change.column)
    match change.kind:
        case "add":
            sql = f"ALTER TABLE {name} ADD COLUMN {column} {change.type}"
        case "widen":
            sql = f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {change.type}"
        case "rename" if change.was and change.was.lower() == change.column.lower():
            # Spark regards the new name as already used, by the column itself.
            between = quote(change.column + _RENAMING)
            lake.spark().sql(f"ALTER TABLE {name} RENAME COLUMN {quote(change.was)} TO {between}")
            sql = f"ALTER TABLE {name} RENAME COLUMN {between} TO {column}"
        case "rename":
            sql = f"ALTER TABLE {name} RENAME COLUMN {quote(change.was or '')} TO {column}"
        case "replace" | "fold":
            raise ValueError("the caller has to convert the values of a replaced column")
    lake.spark().sql(sql)
