"""Create a final table, and evolve its columns with the columns of staging."""

from __future__ import annotations

import json

from lake_assets.final.declaration import DECLARATION_PROPERTY
from lake_assets.final.target import Target
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.tables.commits import committing
from lake_assets.tables.schema_changes import Change, evolve
from lake_assets.tables.table_ddl import (
    alter,
    check_owner_in,
    columns_of,
    create,
    finish_renames,
)


def prepare_table(target: Target) -> list[Change]:
    """Create the table, or evolve its columns with the staging table; return the column changes."""
    lake, spec, expected = target.lake, target.spec, target.all_types
    if target.is_new:
        return []
    properties = {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties}
    existing = lake.find(spec.table)
    if existing is not None:
        check_owner_in(existing, spec.table, spec.pipeline)
    else:
        create(lake, spec.table, expected, pipeline=spec.pipeline, key=target.key, properties=properties,
               partitioned_by=", ".join(p.sql for p in spec.partition_by))  # fmt: skip
        sort_files(target)
    finish_renames(lake, spec.table)
    changes = evolve(str(spec.table), columns_of(lake, spec.table), expected, spec.rename)
    for change in (c for c in changes if c.kind != "replace"):
        alter(lake, spec.table, change)
    if rewrites := [c for c in changes if c.kind == "replace"]:
        _rewrite(target, rewrites)
    return changes


def partitioned_by(target: Target) -> str:
    """Return the PARTITIONED BY clause; empty: the table is not partitioned."""
    by = ", ".join(p.sql for p in target.spec.partition_by)
    return f"PARTITIONED BY ({by})" if by else ""


def sort_files(target: Target) -> None:
    """Declare the sort order of rows within files.

    If a step is killed before this call, no later step repeats it: only the order of rows within files depends on it.
    """
    if target.spec.sort_by:
        by = ", ".join(quote(c) for c in target.spec.sort_by)
        target.lake.spark().sql(f"ALTER TABLE {target.lake.sql_name(target.spec.table)} WRITE LOCALLY ORDERED BY {by}")


def columns_to_unite(target: Target) -> list[str]:
    """Return the declared renames of which the table has both columns, as text.

    Of a stored row with a value in the old column and none in the new one, it is unknown whether it has not changed
    since the rename or was set to null: only its events tell.
    """
    lake, spec = target.lake, target.spec
    changes = evolve(str(spec.table), columns_of(lake, spec.table), target.all_types, spec.rename)
    return [f"{c.was} and {c.column}" for c in changes if c.kind == "fold"]


def _rewrite(target: Target, changes: list[Change]) -> None:
    """Convert stored values by replacing the table in one commit that keeps the watermarks.

    Needed if Iceberg cannot promote a type (the scale of a decimal). Readers see the old table or the new one.
    """
    lake, table = target.lake, target.spec.table
    new_types = {c.column: c.type for c in changes}
    # Rows and watermarks come from one snapshot: a concurrent commit is replaced together with its watermarks.
    # The snapshot is read with the columns of its own schema.
    current = lake.table(table)
    snapshot, marks, name = current.current_snapshot(), read_marks(current), lake.sql_name(table)
    version = f"VERSION AS OF {snapshot.snapshot_id}" if snapshot else ""
    schema = current.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else current.schema()
    names = {f.field_id: f.name for f in schema.fields}

    def stored(column: str) -> str:
        old = names.get(current.schema().find_field(column).field_id)
        return quote(old) if old else "NULL"

    selected = (
        f"CAST({stored(column)} AS {new_types.get(column, kind)}) AS {quote(column)}"
        for column, kind in columns_of(lake, table).items()
    )
    rows = f"SELECT {', '.join(selected)} FROM {name} {version}"
    with committing(lake.spark(), table, marks):
        lake.spark().sql(f"CREATE OR REPLACE TABLE {name} USING iceberg {partitioned_by(target)} AS {rows}")
    sort_files(target)
