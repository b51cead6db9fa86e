"""Making and altering the tables that steps write, through Spark (PyIceberg does not write format version 3)."""

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
# Which of several declared keys a staging table has.
KEY_SET_PROPERTY = "lake-assets.key-set"
# What a column is called between two names that differ in case only.
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
    """Make the table unless it is there.

    Raises:
        TableClaimedError: it belongs to another pipeline.
    """
    if lake.exists(table):
        check_owner(lake, table, pipeline)
        return
    lake.ensure_namespace(table.namespace)
    body = ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())
    said = _definition(lake.location_of(table), pipeline, key, properties, partitioned_by)
    lake.spark().sql(f"CREATE TABLE IF NOT EXISTS {lake.sql_name(table)} ({body}) {said}")
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
    """Make a table of its first rows, in one commit that carries `marks`: nobody sees it without them.

    Raises:
        ConcurrentWriteError: another run has made it meanwhile.
    """
    lake.ensure_namespace(table.namespace)
    said = _definition(lake.location_of(table), pipeline, key, properties, partitioned_by)
    with temp_view(by_key(rows, key)) as view, committing(lake.spark(), table, marks):
        lake.spark().sql(f"CREATE TABLE {lake.sql_name(table)} {said} AS SELECT * FROM {view}")


def by_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Sort the rows of each task by the key: a table that is made of rows has no order of its own yet."""
    return rows.sortWithinPartitions(*map(quote, key)) if key else rows


def _definition(
    location: str | None, pipeline: str, key: Sequence[str], properties: Mapping[str, str] | None, partitioned_by: str
) -> str:
    """SQL of a table's format, place, partitioning and properties."""
    all_properties = {
        **DEFAULT_PROPERTIES,
        PIPELINE_PROPERTY: pipeline,
        KEY_PROPERTY: json.dumps(list(key)),
        **(properties or {}),
    }
    said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in all_properties.items())
    partitioning = f"PARTITIONED BY ({partitioned_by}) " if partitioned_by else ""
    place = f"LOCATION {literal(location)} " if location else ""
    return f"USING iceberg {partitioning}{place}TBLPROPERTIES ({said})"


def set_properties(lake: LakeBase, table: TableId, wanted: Mapping[str, str]) -> None:
    """Set those properties of a table that have another value."""
    there = lake.table(table).properties
    if changed := {k: v for k, v in wanted.items() if there.get(k) != v}:
        said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in changed.items())
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ({said})")


def check_owner(lake: LakeBase, table: TableId, pipeline: str) -> None:
    """Raise TableClaimedError where a table was not made by this pipeline."""
    check_owner_in(lake.table(table), table, pipeline)


def check_owner_in(loaded: Table, table: TableId, pipeline: str) -> None:
    """`check_owner` of a loaded table."""
    owner = loaded.properties.get(PIPELINE_PROPERTY)
    if owner != pipeline:
        by = f"belongs to pipeline {owner!r}" if owner else "was not made by a pipeline"
        raise TableClaimedError(
            f"{table} {by}, and pipeline {pipeline!r} declares it too: rename it in one of them, or drop the table if "
            "it is to be made again"
        )


def columns_of(lake: LakeBase, table: TableId) -> dict[str, str]:
    """The table's columns with their Spark SQL types."""
    loaded = lake.table(table)
    if len(told := types_in(loaded)) == len(loaded.schema().fields):
        return told
    return {f.name: f.dataType.simpleString() for f in lake.spark().table(lake.sql_name(table)).schema.fields}


def types_in(table: Table) -> dict[str, str]:
    """Spark SQL types of a loaded table's columns, without those whose type only Spark can name."""
    found = {f.name: _in_spark(f.field_type) for f in table.schema().fields}
    return {name: kind for name, kind in found.items() if kind is not None}


def _in_spark(kind: IcebergType) -> str | None:
    """What Spark calls a type, without asking it: each question is a query to be analysed. None: Spark has to say."""
    match kind:
        case ListType():
            of = _in_spark(kind.element_type)
            return of and f"array<{of}>"
        case PrimitiveType():
            try:
                return spark_type(kind).lower()
            except UnsupportedCaptureError:
                return None
        case _:
            return None


def key_of(lake: LakeBase, table: TableId) -> tuple[str, ...]:
    """The key that the table was made with."""
    return key_in(lake.table(table))


def key_in(table: Table) -> tuple[str, ...]:
    """The key that a loaded table was made with."""
    return tuple(json.loads(table.properties.get(KEY_PROPERTY, "[]")))


def key_set_of(table: Table, keys: Sequence[tuple[str, ...]], rename: Mapping[str, str]) -> tuple[str, ...]:
    """Which of several declared keys a staging table has; empty: none of them fits.

    The one that was taken stays, also where columns come later that an earlier one is made of: rows from before have no
    values there. Where it is no longer declared, the first whose columns are all there.

    Args:
        table: the loaded staging table.
        keys: those that are declared.
        rename: source names to names in the lake.
    """
    taken = tuple(json.loads(table.properties.get(KEY_SET_PROPERTY, "[]")))
    if taken in keys:
        return taken
    there = {rename.get(f.name, f.name) for f in table.schema().fields}
    return next((k for k in keys if there.issuperset(k)), ())


def finish_renames(lake: LakeBase, table: TableId) -> None:
    """Give columns the names that a step which was killed in between was to give them."""
    for field in lake.table(table).schema().fields:
        if field.name.endswith(_RENAMING):
            alter(lake, table, Change("rename", field.name.removesuffix(_RENAMING), "", was=field.name))


def alter(lake: LakeBase, table: TableId, change: Change) -> None:
    """Apply one change that needs no other values than the stored ones."""
    name, column = lake.sql_name(table), quote(change.column)
    match change.kind:
        case "add":
            sql = f"ALTER TABLE {name} ADD COLUMN {column} {change.type}"
        case "widen":
            sql = f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {change.type}"
        case "rename" if change.was and change.was.lower() == change.column.lower():
            # To Spark, the new name is taken: by the column itself.
            between = quote(change.column + _RENAMING)
            lake.spark().sql(f"ALTER TABLE {name} RENAME COLUMN {quote(change.was)} TO {between}")
            sql = f"ALTER TABLE {name} RENAME COLUMN {between} TO {column}"
        case "rename":
            sql = f"ALTER TABLE {name} RENAME COLUMN {quote(change.was or '')} TO {column}"
        case "replace" | "fold":
            raise ValueError("a replaced column needs its values converted: that is the caller's to do")
    lake.spark().sql(sql)
