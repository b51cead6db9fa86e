"""Create and alter the tables that steps write, through Spark (PyIceberg cannot write format version 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, PrimitiveType
from pyspark.sql import DataFrame

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import TableClaimedError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId, quote, thresholds
from lake_assets.lake.metadata import metadata_commits
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import literal
from lake_assets.tables.schema_changes import Change, Columns
from lake_assets.tables.spark_frames import temp_view
from lake_assets.tables.writing.publication import Commit, assignments, committing
from lake_assets.tables.writing.races import lost
from lake_assets.tables.writing.table_state import KEY_PROPERTY, KEY_SET_PROPERTY, PAST_PROPERTY

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
    "commit.manifest.min-count-to-merge": str(thresholds.MERGED_MANIFESTS),
    "commit.manifest.target-size-bytes": str(thresholds.MERGED_MANIFEST_BYTES),
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
    if not lake.exists(table):
        lake.ensure_namespace(table.namespace)
        body = ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())
        definition = _definition(lake.location_of(table), definition_of(pipeline, key, properties), partitioned_by)
        lake.spark().sql(f"CREATE TABLE IF NOT EXISTS {lake.sql_name(table)} ({body}) {definition}")
    check_owner_in(lake.table(table), table, pipeline)


def replace_table(
    commit: Commit,
    rows: DataFrame,
    properties: Mapping[str, str],
    *,
    sort_by: Sequence[str] = (),
    partitioned_by: str = "",
) -> None:
    """Create a table of its first rows, or replace it by rows, in one commit: it is never visible without them.

    Args:
        commit: what is committed with the rows.
        rows: all rows of the table.
        properties: its properties; a replaced table keeps the others that it has.
        sort_by: the columns by which files are sorted.
        partitioned_by: SQL of its partition fields.

    Raises:
        ConcurrentWriteError: another run has changed the table, or created it first. Replacing that one would take the
            history from whatever has read it.
        AuditFailedError: a blocking audit fails; the table is unchanged.
    """
    lake, table = commit.lake, commit.table
    lake.ensure_namespace(table.namespace)
    if commit.base is not None:
        commit.check_unchanged()
    if commit.gate and commit.gate.is_blocking:
        rows = commit.gate.audit_rows(rows)
    create, place = ("CREATE", lake.location_of(table)) if commit.base is None else ("CREATE OR REPLACE", None)
    definition = _definition(place, {**properties, **commit.settings}, partitioned_by)
    # A new table has no sort order yet.
    rows = rows.sortWithinPartitions(*map(quote, sort_by)) if sort_by else rows
    with temp_view(rows) as view, committing(lake.spark(), table, commit.snapshot_properties):
        lake.spark().sql(f"{create} TABLE {commit.name} {definition} AS SELECT * FROM {view}")
    sort_files(lake, table, sort_by)


def definition_of(pipeline: str, key: Sequence[str], properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of a new table."""
    return {
        **DEFAULT_PROPERTIES,
        PIPELINE_PROPERTY: pipeline,
        KEY_PROPERTY: json.dumps(list(key)),
        PAST_PROPERTY: "",
        **(properties or {}),
    }


def sort_files(lake: LakeBase, table: TableId, columns: Sequence[str]) -> None:
    """Make writers sort the rows within a file.

    If a step is killed before this call, no later step repeats it: only the order of rows within files depends on it.
    """
    if columns:
        by = ", ".join(map(quote, columns))
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} WRITE LOCALLY ORDERED BY {by}")


def _definition(location: str | None, properties: Mapping[str, str], partitioned_by: str) -> str:
    """Return SQL of a table's format, location, partitioning and properties."""
    partitioning = f"PARTITIONED BY ({partitioned_by}) " if partitioned_by else ""
    place = f"LOCATION {literal(location)} " if location else ""
    settings = f"TBLPROPERTIES ({assignments(properties)})" if properties else ""
    return f"USING iceberg {partitioning}{place}{settings}"


def set_properties(lake: LakeBase, table: TableId, properties: Mapping[str, str]) -> None:
    """Set properties of a table that its rows do not depend on, except for those that already have the value.

    Raises:
        ConcurrentWriteError: every attempt lost a race to another writer.
    """
    loaded = lake.table(table)
    changed = {k: v for k, v in properties.items() if loaded.properties.get(k) != v}
    if not changed:
        return
    if not metadata_commits.can_commit(lake.catalog):
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ({assignments(changed)})")
        return
    try:
        metadata_commits.commit(loaded, lambda m: {**m, "properties": {**m.get("properties", {}), **changed}})
    except (metadata_commits.MovedError, CommitFailedException) as e:
        raise lost(table, e) from e


def check_owner_in(loaded: Table, table: TableId, pipeline: str) -> None:
    """Raise TableClaimedError if a loaded table was not created by this pipeline."""
    owner = loaded.properties.get(PIPELINE_PROPERTY)
    if owner != pipeline:
        by = f"belongs to pipeline {owner!r}" if owner else "was not created by a pipeline"
        raise TableClaimedError(
            f"{table} {by}, and pipeline {pipeline!r} declares it too: rename it in one pipeline, or drop the table to "
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


def key_in(table: Table) -> tuple[str, ...]:
    """Return the key that a loaded table was created with."""
    return tuple(json.loads(table.properties.get(KEY_PROPERTY, "[]")))


def key_set_of(table: Table, keys: Sequence[tuple[str, ...]], rename: Mapping[str, str]) -> tuple[str, ...]:
    """Return the declared key that a staging table uses, by names in the lake; empty: it has the columns of none.

    A table keeps its key even if it later gets all columns of an earlier declared key: existing rows have no values in
    them. If its key is no longer declared, it is the first declared key whose columns all exist.
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
