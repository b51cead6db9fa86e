"""Create a final table, and evolve its columns with the columns of staging."""

from __future__ import annotations

import json
from dataclasses import replace

from pyiceberg.table import Table

from lake_assets.final.target import Target
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.tables.schema_changes import Change, evolve
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import alter, columns_of, create, finish_renames, replace_table, sort_files
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY


def prepare_table(target: Target, commit: Commit) -> tuple[list[Change], Commit]:
    """Create the table, or evolve its columns with the staging table.

    Returns:
        The column changes, and the commit to the table with them.

    Raises:
        ConcurrentWriteError: another run has changed or created it meanwhile.
    """
    lake, spec, expected = target.lake, target.spec, target.all_types
    if target.is_new:
        return [], commit
    if commit.base is None:
        properties = {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties}
        create(lake, spec.table, expected, pipeline=spec.pipeline, key=target.key, properties=properties,
               partitioned_by=spec.partitioned_by)  # fmt: skip
        sort_files(lake, spec.table, spec.sort_by)
    else:
        # Columns of another declaration, by which another run has replaced the table, are none of this step's.
        commit.check_unchanged()
    finish_renames(lake, spec.table)
    changes = evolve(str(spec.table), columns_of(lake, spec.table), expected, spec.rename)
    for change in (c for c in changes if c.kind != "replace"):
        alter(lake, spec.table, change)
    commit = commit.after_own_changes()
    if rewrites := [c for c in changes if c.kind == "replace"]:
        _rewrite(target, rewrites, commit.existing)
        commit = replace(commit, base=lake.table(spec.table))
    return changes, commit


def columns_to_unite(target: Target) -> list[str]:
    """Return the declared renames of which the table has both columns, as text.

    Of a stored row with a value in the old column and none in the new one, it is unknown whether it has not changed
    since the rename or was set to null: only its events tell.
    """
    lake, spec = target.lake, target.spec
    changes = evolve(str(spec.table), columns_of(lake, spec.table), target.all_types, spec.rename)
    return [f"{c.was} and {c.column}" for c in changes if c.kind == "fold"]


def _rewrite(target: Target, changes: list[Change], current: Table) -> None:
    """Convert stored values by replacing the table in one commit that keeps the watermarks.

    Needed if Iceberg cannot promote a type (the scale of a decimal). Readers see the old table or the new one.
    """
    lake, table, spec = target.lake, target.spec.table, target.spec
    new_types = {c.column: c.type for c in changes}
    # The snapshot is read with the columns of its own schema.
    snapshot, name = current.current_snapshot(), lake.sql_name(table)
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
    rows = lake.spark().sql(f"SELECT {', '.join(selected)} FROM {name} {version}")
    commit = Commit(lake, table, current, read_marks(current))
    replace_table(commit, rows, {}, sort_by=spec.sort_by, partitioned_by=spec.partitioned_by)
