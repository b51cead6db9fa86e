"""Staging tables: made, and made to follow what the stream says of their columns and key."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import TableClaimedError
from lake_assets.formats.event_model import ARRIVED_AT, OP, POSITION, TECHNICAL, TRUNCATE
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.records.record_plans import key_changed
from lake_assets.ingest.staging.rereading import properties_of
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.lake.names import literal
from lake_assets.tables.schema_changes import Change, evolve, former_name, formers, is_former
from lake_assets.tables.table_ddl import (
    KEY_PROPERTY,
    KEY_SET_PROPERTY,
    alter,
    columns_of,
    create,
    create_with,
    finish_renames,
    key_of,
)

SOURCE_TABLE_PROPERTY = "lake-assets.source-table"
PARTITIONED_BY = f"days({ARRIVED_AT})"


def source_of(table: Table) -> str | None:
    """Return the source table whose events a staging table was made for."""
    return table.properties.get(SOURCE_TABLE_PROPERTY)


def check_source(spec: StagingSpec, table: Table | None) -> None:
    """Raise TableClaimedError where a source table's name in the lake belongs to something else.

    Args:
        spec: the staging table as it is declared.
        table: the table of that name; None: there is none.
    """
    advice = f"Declare another `name` for {spec.source_table}, or `exclude` it from the stream"
    if spec.refused:
        raise TableClaimedError(f"no table is made for {spec.source_table} of {spec.raw}: {spec.refused}. {advice}")
    if table is None or source_of(table) in (None, str(spec.source_table)):
        return
    raise TableClaimedError(
        f"{spec.table} holds the events of {source_of(table)}, and {spec.source_table} is declared for it. {advice}. "
        f"To make {spec.table} again of {spec.source_table}, drop it and the tables that are made of it"
    )


def prepare(lake: LakeBase, spec: StagingSpec, rows: DataFrame, parsed: Parsed) -> list[Change]:
    """Make the table, or let its columns follow. Killed in between, the next run goes on from where the table is.

    Args:
        lake: the lake.
        spec: the table.
        rows: its events, perhaps with what is wrong with them.
        parsed: what is known of them.

    Raises:
        DefinitionChangedError: the events say another key than those before, and none is declared.
        SchemaConflictError: a column's type cannot become what it has to be.
    """
    key, properties, wanted = parsed.key, properties_for(spec, parsed), columns_in(rows)
    # Killed in between, the table is there without the order: nothing but the order of rows in files depends on it.
    is_new = not lake.exists(spec.table)
    if not key and not is_new:
        _check_keyless(spec, rows, key_of(lake, spec.table))
    create(lake, spec.table, wanted, pipeline=spec.pipeline, key=key,
           properties={SOURCE_TABLE_PROPERTY: str(spec.source_table), **properties, **spec.properties},
           partitioned_by=PARTITIONED_BY)  # fmt: skip
    if is_new and key:
        sort_by(lake, spec.table, key)
    if key and not key_of(lake, spec.table):
        # Inserts may say none, and a source table may be given one: what is below is made again with it.
        sort_by(lake, spec.table, key)
    if key:
        properties[KEY_PROPERTY] = json.dumps(key)
    has = lake.table(spec.table).properties
    for name, value in properties.items():
        if has.get(name) != value:
            set_property(lake, spec.table, name, value)
    finish_renames(lake, spec.table)
    existing = columns_of(lake, spec.table)
    current = {c: t for c, t in existing.items() if not is_former(c, existing)}
    changes = evolve(str(spec.table), current, wanted, spec.rename)
    for change in changes:
        if change.kind == "replace":
            # Staging is history and never rewritten: earlier values stay under a name of their own, with their type.
            old = former_name(change.column, change.was or "")
            alter(lake, spec.table, Change("rename", old, change.was or "", was=change.column))
            alter(lake, spec.table, Change("add", change.column, change.type))
        elif change.kind != "fold":
            alter(lake, spec.table, change)
    return changes


def make(lake: LakeBase, spec: StagingSpec, rows: DataFrame, parsed: Parsed, marks: Watermarks) -> None:
    """Make the table of its first events.

    Args:
        lake: the lake.
        spec: the table.
        rows: its events, good ones alone.
        parsed: what is known of them.
        marks: the watermarks that the commit carries.

    Raises:
        ConcurrentWriteError: another run has made it meanwhile.
    """
    properties = {SOURCE_TABLE_PROPERTY: str(spec.source_table), **properties_for(spec, parsed), **spec.properties}
    create_with(lake, spec.table, rows, marks, pipeline=spec.pipeline, key=parsed.key, properties=properties,
                partitioned_by=PARTITIONED_BY)  # fmt: skip
    # Killed before this, the table is there without the order: nothing but the order of rows in files depends on it.
    if parsed.key:
        sort_by(lake, spec.table, parsed.key)


def properties_for(spec: StagingSpec, parsed: Parsed) -> dict[str, str]:
    """Return the properties that later steps read the table's records by."""
    key_set = {KEY_SET_PROPERTY: json.dumps(parsed.key_set)} if parsed.key_set else {}
    return {**key_set, **properties_of(spec, parsed.key_set)}


def columns_in(rows: DataFrame) -> dict[str, str]:
    """Return the columns that a table of these events has."""
    return {f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name != BAD}


def _check_keyless(spec: StagingSpec, rows: DataFrame, had: tuple[str, ...]) -> None:
    """Raise DefinitionChangedError where events about rows say no key any more, and nobody declares one."""
    if spec.key or spec.keys or spec.by_row or not had:
        return
    # A truncate says no key, whatever the table has.
    first = rows.where(F.col(OP) != TRUNCATE).agg(F.min(POSITION)).collect()[0][0]
    if first is not None:
        raise key_changed(str(spec.table), f"the events' key was {', '.join(had)}, and they say none", first)


def set_property(lake: LakeBase, table: TableId, name: str, value: str) -> None:
    """Set one property of a table."""
    said = f"{literal(name)} = {literal(value)}"
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ({said})")


def sort_by(lake: LakeBase, table: TableId, key: tuple[str, ...]) -> None:
    """Let writers sort the rows of a file by the key."""
    # All of a key's events are looked up where some come late.
    by = ", ".join(quote(k) for k in key)
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} WRITE LOCALLY ORDERED BY {by}")


def projection(lake: LakeBase, table: TableId, rename: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Type and SQL of each source column of a staging table, earlier types and names of it included."""
    columns = columns_of(lake, table)
    names = [c for c in columns if c not in TECHNICAL and not is_former(c, columns)]
    names = [c for c in names if rename.get(c) not in names]
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        aliases = [name, *(old for old, new in rename.items() if new == name and old in columns)]
        others = [c for a in aliases for c in (a, *formers(a, columns)) if c != name]
        casts = [f"CAST({quote(c)} AS {columns[name]})" for c in others]
        sql = f"coalesce({', '.join([quote(name), *casts])})" if casts else quote(name)
        found[name] = (columns[name], sql)
    return found
