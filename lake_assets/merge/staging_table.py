"""Staging tables: made, and made to follow what the stream says of their columns and key."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import DefinitionChangedError
from lake_assets.events.model import ARRIVED_AT, OP, TECHNICAL, TRUNCATE
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.names import literal
from lake_assets.lake.watermark import Marks
from lake_assets.merge.commit import committing
from lake_assets.merge.event_rows import BAD
from lake_assets.merge.parsing import Parsed
from lake_assets.merge.schema import Change, evolve, former_name, formers, is_former
from lake_assets.merge.specs import StagingSpec
from lake_assets.merge.tables import KEY_PROPERTY, KEY_SET_PROPERTY, alter, columns_of, create, key_of
from lake_assets.merge.views import temp_view

# The declared key by which updates are parted into a delete and an insert.
PARTED_PROPERTY = "lake-assets.parted-by"
# Tells one rebuild of a staging table from another: what is made of its events is made again.
REBUILT_PROPERTY = "lake-assets.rebuilt"
SOURCE_TABLE_PROPERTY = "lake-assets.source-table"


def prepare(lake: LakeBase, spec: StagingSpec, rows: DataFrame, parsed: Parsed, *, anew: bool = False) -> list[Change]:
    """Make the table, or let its columns follow. Killed in between, the next run goes on from where the table is.

    Args:
        lake: the lake.
        spec: the table.
        rows: its events, perhaps with what is wrong with them.
        parsed: what is known of them.
        anew: whether they are all that there are.
    """
    key = parsed.key
    key_set = {KEY_SET_PROPERTY: json.dumps(parsed.key_set)} if parsed.key_set else {}
    parted = {PARTED_PROPERTY: json.dumps(parted_by(spec, parsed))}
    wanted = {f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name != BAD}
    # Killed in between, the table is there without the order: nothing but the order of rows in files depends on it.
    is_new = not lake.exists(spec.table)
    create(lake, spec.table, wanted, pipeline=spec.pipeline, key=key,
           properties={SOURCE_TABLE_PROPERTY: str(spec.source_table), **key_set, **parted,
                       **spec.properties},
           partitioned_by=f"days({ARRIVED_AT})")  # fmt: skip
    if is_new and key:
        _sort_by(lake, spec.table, key)
    for name, value in key_set.items():
        if lake.table(spec.table).properties.get(name) != value:
            set_property(lake, spec.table, name, value)
    had = tuple(spec.rename.get(k, k) for k in key_of(lake, spec.table))
    if key and not had:
        # Inserts may say none, and a source table may be given one: what is below is made again with it.
        set_property(lake, spec.table, KEY_PROPERTY, json.dumps(key))
        _sort_by(lake, spec.table, key)
    elif not anew and had != key and (key or rows.where(F.col(OP) != TRUNCATE).limit(1).count()):
        raise DefinitionChangedError(
            f"{spec.table}: the stream's key was {list(had)} and is {list(key)} now. Drop {spec.table} and the "
            f"tables below "
            "it and run again to rebuild them from the raw table"
        )
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


def replace_table(lake: LakeBase, spec: StagingSpec, rows: DataFrame, parsed: Parsed, marks: Marks) -> None:
    """Replace the table by these events, with their columns and key, in one commit.

    What is made of the table notices by `REBUILT_PROPERTY`, which the same commit sets: events that were staged before
    may be gone, and a window of new events does not tell that.

    Args:
        lake: the lake.
        spec: the table.
        rows: all of its events.
        parsed: what is known of them.
        marks: the watermarks that the commit carries.
    """
    properties = {
        KEY_PROPERTY: json.dumps(list(parsed.key)),
        KEY_SET_PROPERTY: json.dumps(list(parsed.key_set)),
        PARTED_PROPERTY: json.dumps(parted_by(spec, parsed)),
        REBUILT_PROPERTY: uuid.uuid4().hex,
        **spec.properties,
    }
    said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    with temp_view(rows) as view, committing(lake.spark(), spec.table, marks):
        lake.spark().sql(
            f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg "
            f"PARTITIONED BY (days({ARRIVED_AT})) TBLPROPERTIES ({said}) AS SELECT * FROM {view}"
        )
    if parsed.key:
        _sort_by(lake, spec.table, parsed.key)


def set_property(lake: LakeBase, table: TableId, name: str, value: str) -> None:
    """Set one property of a table."""
    said = f"{literal(name)} = {literal(value)}"
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} SET TBLPROPERTIES ({said})")


def _sort_by(lake: LakeBase, table: TableId, key: tuple[str, ...]) -> None:
    # All of a key's events are looked up where some come late.
    by = ", ".join(quote(k) for k in key)
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} WRITE LOCALLY ORDERED BY {by}")


def parted_by(spec: StagingSpec, parsed: Parsed) -> list[str]:
    """The declared key that updates are parted by."""
    return list(parsed.key_set if spec.keys else spec.key)


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
