"""Creating a final table, and letting its columns follow those of staging."""

from __future__ import annotations

import json

from lake_assets.final.added_columns import FROM, TO
from lake_assets.final.declaration import DECLARATION_PROPERTY
from lake_assets.final.modes.adjacent_versions import joined
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
    """Make the table, or let its columns follow those of the staging table."""
    lake, spec, wanted = target.lake, target.spec, target.wanted
    if target.is_new:
        return []
    said = {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties}
    found = lake.find(spec.table)
    if found is not None:
        check_owner_in(found, spec.table, spec.pipeline)
    else:
        create(lake, spec.table, wanted, pipeline=spec.pipeline, key=target.key, properties=said,
               partitioned_by=", ".join(p.sql for p in spec.partition_by))  # fmt: skip
        sort_files(target)
    finish_renames(lake, spec.table)
    changes = evolve(str(spec.table), columns_of(lake, spec.table), wanted, spec.rename)
    for change in (c for c in changes if c.kind not in ("replace", "fold")):
        alter(lake, spec.table, change)
    if rewrites := [c for c in changes if c.kind in ("replace", "fold")]:
        _rewrite(target, rewrites)
    return changes


def partitioned_by(target: Target) -> str:
    """The clause that partitions the table; empty: it is not partitioned."""
    by = ", ".join(p.sql for p in target.spec.partition_by)
    return f"PARTITIONED BY ({by})" if by else ""


def sort_files(target: Target) -> None:
    """Let writers sort the rows of a file. Killed before this, the next step does not make up for it: nothing but
    the order of rows in files depends on it."""
    if target.spec.sort_by:
        by = ", ".join(quote(c) for c in target.spec.sort_by)
        target.lake.spark().sql(f"ALTER TABLE {target.lake.sql_name(target.spec.table)} WRITE LOCALLY ORDERED BY {by}")


def _rewrite(target: Target, changes: list[Change]) -> None:
    """Convert stored values: the table is replaced in one commit, watermarks carried along.

    Needed where Iceberg cannot promote a type (a decimal's scale); readers see the old table or the new one.
    """
    lake, table = target.lake, target.spec.table
    by_column = {c.column: c for c in changes}
    folded = {c.was for c in changes if c.kind == "fold"}
    # Rows and watermarks of one snapshot: whoever commits meanwhile is replaced together with what it recorded.
    # Such a snapshot is read with the columns that it had then.
    current = lake.table(table)
    snapshot, marks, name = current.current_snapshot(), read_marks(current), lake.sql_name(table)
    at = f"VERSION AS OF {snapshot.snapshot_id}" if snapshot else ""
    then = current.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else current.schema()
    names = {f.field_id: f.name for f in then.fields}
    types = columns_of(lake, table)

    def stored(column: str) -> str:
        was = names.get(current.schema().find_field(column).field_id)
        return quote(was) if was else "NULL"

    selected: list[str] = []
    for column, kind in types.items():
        change = by_column.get(column)
        if column in folded:
            continue
        folds = change is not None and change.kind == "fold"
        source = f"coalesce({stored(column)}, {stored(change.was or '')})" if change and folds else stored(column)
        selected.append(f"CAST({source} AS {change.type if change else kind}) AS {quote(column)}")
    rows = f"SELECT {', '.join(selected)} FROM {name} {at}"
    if folded and target.mode == "scd2":
        left = [c for c in types if c not in folded]
        rows = joined(rows, target.key, left, target.tracked, FROM, TO)
    with committing(lake.spark(), table, marks):
        lake.spark().sql(f"CREATE OR REPLACE TABLE {name} USING iceberg {partitioned_by(target)} AS {rows}")
    sort_files(target)
