"""Create staging tables, and evolve their columns and key with the stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError, TableClaimedError
from lake_assets.formats.event_model import ARRIVED_AT, OP, POSITION, TECHNICAL, TRUNCATE
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.records.record_plans import key_changed
from lake_assets.ingest.staging.due_records import properties_of
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.names import nearest
from lake_assets.tables.schema_changes import Change, evolve, former_name, formers, is_former
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import (
    alter,
    columns_of,
    create,
    definition_of,
    finish_renames,
    key_in,
    replace_table,
    sort_files,
)
from lake_assets.tables.writing.table_state import KEY_PROPERTY

SOURCE_TABLE_PROPERTY = "lake-assets.source-table"
PARTITIONED_BY = f"days({ARRIVED_AT})"


def source_of(table: Table) -> str | None:
    """Return the source table whose events a staging table holds."""
    return table.properties.get(SOURCE_TABLE_PROPERTY)


def check_source(spec: StagingSpec, table: Table | None) -> None:
    """Raise TableClaimedError if a source table's name in the lake belongs to something else."""
    advice = f"Declare another `name` for {spec.source_table}, or `exclude` it from the stream"
    if spec.refused:
        raise TableClaimedError(f"no table is created for {spec.source_table} of {spec.raw}: {spec.refused}. {advice}")
    if table is None or source_of(table) in (None, str(spec.source_table)):
        return
    raise TableClaimedError(
        f"{spec.table} holds the events of {source_of(table)}, and {spec.source_table} is declared for it. {advice}. "
        f"To use {spec.table} for {spec.source_table} instead, drop it and the tables downstream"
    )


@dataclass(frozen=True)
class Prepared:
    """A staging table that can take a batch.

    Attributes:
        commit: the commit of the batch to the table as it is now, with the properties of its declaration.
        types: its columns with their types.
        changes: the changes of its columns.
    """

    commit: Commit
    types: Mapping[str, str]
    changes: tuple[Change, ...]


def prepare(commit: Commit, spec: StagingSpec, rows: DataFrame, parsed: Parsed) -> Prepared:
    """Create the table, or evolve its columns for new events; the rows may have the column `BAD`.

    After a kill in between, the next run continues from the state of the table.

    Raises:
        ConcurrentWriteError: another run has changed or created the table meanwhile.
        DefinitionChangedError: the key of the events has changed, and none is declared.
        SchemaConflictError: a column cannot be widened to its new type.
    """
    lake, before, key, columns = commit.lake, commit.base, parsed.key, columns_in(rows)
    settings = {**properties_of(spec, parsed.key_set), **({KEY_PROPERTY: json.dumps(key)} if key else {})}
    if before is None:
        # After a kill in between, the table lacks its sort order, which only affects the order of rows in files.
        create(lake, spec.table, columns, pipeline=spec.pipeline, key=key,
               properties={SOURCE_TABLE_PROPERTY: str(spec.source_table), **settings, **spec.properties},
               partitioned_by=PARTITIONED_BY)  # fmt: skip
    else:
        commit.check_unchanged()
        if not key:
            _check_keyless(spec, rows, key_in(before))
    if key and (before is None or not key_in(before)):
        # The first events with a key: tables downstream are rebuilt with it.
        sort_files(lake, spec.table, key)
    changes = rename_columns(lake, spec)
    existing = columns_of(lake, spec.table)
    current = {c: t for c, t in existing.items() if not is_former(c, existing)}
    more = evolve(str(spec.table), current, columns, spec.rename)
    for change in more:
        if change.kind == "replace":
            # Staging is never rewritten: earlier values stay in a renamed column with their type.
            old = former_name(change.column, change.was or "")
            alter(lake, spec.table, Change("rename", old, change.was or "", was=change.column))
            alter(lake, spec.table, Change("add", change.column, change.type))
        elif change.kind != "fold":
            alter(lake, spec.table, change)
    commit = replace(commit.after_own_changes(), settings={**settings, **commit.settings})
    return Prepared(commit, columns_of(lake, spec.table), (*changes, *more))


def rename_columns(lake: LakeBase, spec: StagingSpec) -> list[Change]:
    """Give columns their declared names; columns of which the table has both names stay."""
    finish_renames(lake, spec.table)
    columns = columns_of(lake, spec.table)
    changes = evolve(str(spec.table), columns, {}, spec.rename)
    for change in (renames := [c for c in changes if c.kind == "rename"]):
        old = change.was or ""
        # The values under earlier types first: the column itself tells a killed step that there is more to do.
        for former in formers(old, columns):
            renamed = change.column + former.removeprefix(old)
            alter(lake, spec.table, Change("rename", renamed, columns[former], was=former))
        alter(lake, spec.table, change)
    return renames


def make(commit: Commit, spec: StagingSpec, rows: DataFrame, parsed: Parsed) -> None:
    """Create the table from its first events, in one commit with the watermarks and properties.

    Raises:
        ConcurrentWriteError: another run has created it meanwhile.
        KeyMissingError: the records have no column of the declared key.
    """
    check_key(spec, parsed.key, rows.columns)
    source = {SOURCE_TABLE_PROPERTY: str(spec.source_table)}
    own = {**source, **properties_of(spec, parsed.key_set), **spec.properties}
    definition = definition_of(spec.pipeline, parsed.key, own)
    replace_table(commit, rows, definition, sort_by=parsed.key, partitioned_by=PARTITIONED_BY)


def check_key(spec: StagingSpec, key: Sequence[str], columns: Sequence[str]) -> None:
    """Raise KeyMissingError if the records of a table do not have the columns of its key."""
    if missing := [k for k in key if k not in columns]:
        own = [c for c in columns if c not in TECHNICAL and c != BAD]
        raise KeyMissingError(
            f"{spec.table}: no column {', '.join(missing)}{nearest(missing[0], own)} in the records of "
            f"{spec.source_table}, which have {', '.join(own)}: correct its `key` in the pipeline"
        )


def columns_in(rows: DataFrame) -> dict[str, str]:
    """Return name and type of the columns of a table of these events."""
    return {f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name != BAD}


def _check_keyless(spec: StagingSpec, rows: DataFrame, had: tuple[str, ...]) -> None:
    """Raise DefinitionChangedError if events no longer have a key, and none is declared."""
    if spec.key or spec.keys or spec.by_row or not had:
        return
    # Truncates never have a key.
    first = rows.where(F.col(OP) != TRUNCATE).agg(F.min(POSITION)).collect()[0][0]
    if first is not None:
        raise key_changed(str(spec.table), f"the events' key was {', '.join(had)}, and now they have none", first)


def projection(lake: LakeBase, table: TableId, rename: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return type and SQL of each source column of a staging table; the SQL includes values under earlier types and
    names."""
    columns = columns_of(lake, table)
    names = [c for c in columns if c not in TECHNICAL and not is_former(c, columns)]
    names = [c for c in names if rename.get(c) not in names]
    result: dict[str, tuple[str, str]] = {}
    for name in names:
        aliases = [name, *(old for old, new in rename.items() if new == name and old in columns)]
        others = [c for a in aliases for c in (a, *formers(a, columns)) if c != name]
        casts = [f"CAST({quote(c)} AS {columns[name]})" for c in others]
        sql = f"coalesce({', '.join([quote(name), *casts])})" if casts else quote(name)
        result[name] = (columns[name], sql)
    return result
