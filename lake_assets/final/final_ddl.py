"""Create a final table, and evolve its columns with the columns of staging."""

from __future__ import annotations

import json

from lake_assets.final.added_columns import FROM, TO
from lake_assets.final.declaration import DECLARATION_PROPERTY
from lake_assets.final.modes.adjacent_versions import merge_equal_versions
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
    for change in (c for c in changes if c.kind not in ("replace", "fold")):
        alter(lake, spec.table, change)
    if rewrites := [c for c in changes if c.kind in ("replace", "fold")]:
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


def _rewrite(target: Target, changes: list[Change]) -> None:
    """Convert stored values by replacing the table in one commit that keeps the watermarks.

    Needed if Iceberg cannot promote a type (the scale of a decimal). Readers see the old table or the new one.
    """
    lake, table = target.lake, target.spec.table
    by_column = {c.column: c for c in changes}
    folded = {c.was for c in changes if c.kind == "fold"}
    # Rows and watermarks come from one snapshot: a concurrent commit is replaced together with its watermarks.
    # The snapshot is read with the columns of its own schema.
    current = lake.table(table)
    snapshot, marks, name = current.current_snapshot(), read_marks(current), lake.sql_name(table)
    version = f"VERSION AS OF {snapshot.snapshot_id}" if snapshot else ""
    schema = current.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else current.schema()
    names = {f.field_id: f.name for f in schema.fields}
    types = columns_of(lake, table)

    def stored(column: str) -> str:
        old = names.get(current.schema().find_field(column).field_id)
        return quote(old) if old else "NULL"

    selected: list[str] = []
    for column, kind in types.items():
        change = by_column.get(column)
        if column in folded:
            continue
        folds = change is not None and change.kind == "fold"
        source = f"coalesce({stored(column)}, {stored(change.was or '')})" if change and folds else stored(column)
        selected.append(f"CAST({source} AS {change.type if change else kind}) AS {quote(column)}")
    rows = f"SELECT {', '.join(selected)} FROM {name} {version}"
    if folded and target.mode == "scd2":
        remaining = [c for c in types if c not in folded]
        rows = merge_equal_versions(rows, target.key, remaining, target.tracked, FROM, TO)
    with committing(lake.spark(), table, marks):
        lake.spark().sql(f"CREATE OR REPLACE TABLE {name} USING iceberg {partitioned_by(target)} AS {rows}")
    sort_files(target)
