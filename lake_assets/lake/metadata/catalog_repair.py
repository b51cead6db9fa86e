"""Repair catalogs that name an old version of a table's metadata.

A catalog restored from a backup names versions from before the backup. If such a version was deleted since, its table
cannot be read; otherwise the table is in an old state. A truncated or deleted file has the same effect. A table's
metadata folder holds all existing versions, and each lists its predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.io import FileIO
from sqlalchemy import select
from sqlalchemy.orm import Session

from lake_assets.errors import RepairError
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.lake.counts import plural
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.metadata.metadata_commits import Metadata, point_at, read_metadata_at
from lake_assets.lake.metadata.metadata_versions import version_of, versions
from lake_assets.lake.names import CAPTURES, TableId

State = Literal["current", "behind", "unreadable", "diverged", "lost"]
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Examined:
    """A table, the metadata file that the catalog names, and the newest one that may replace it.

    Attributes:
        state: `current`: no newer version exists. `behind`: a newer version follows the named one. `unreadable`: the
            named file is missing or broken, and another version can be read. `diverged`: both the named version and
            another one have successors. `lost`: no version can be read.
        named: the file that the catalog names.
        newest: the version to use; None if no version is better, or the user has to choose.
        why: description of the problem.
    """

    table: TableId
    state: State
    named: str
    newest: str | None = None
    why: str = ""

    @property
    def can_be_repaired(self) -> bool:
        """Whether the catalog can be pointed at `newest` without asking the user."""
        return self.newest is not None and self.state in ("behind", "unreadable")


def examine(lake: LakeBase, tables: Sequence[TableId] | None = None) -> list[Examined]:
    """Compare the catalog with the existing metadata files, without changing anything.

    Args:
        tables: the tables; None: all tables of the catalog except ICDC tables.

    Raises:
        RepairError: it is not a SQL catalog, so only its server can change it.
    """
    by_table = _tables_of(_sql_catalog(lake))
    selected = by_table if tables is None else {t: by_table[t] for t in tables if t in by_table}
    return [_examined(lake, t, *files) for t, files in sorted(selected.items()) if tables or t.namespace != (CAPTURES,)]


def repair(lake: LakeBase, examined: Examined, to: str | None = None) -> None:
    """Point the catalog at a table's newest metadata file.

    Args:
        to: another metadata file of the table.

    Raises:
        RepairError: the file does not exist or belongs to another table, or the table has changed meanwhile.
    """
    catalog, path = _sql_catalog(lake), to or examined.newest
    if path is None:
        raise RepairError(f"{examined.table} cannot be repaired: {examined.why}")
    io = catalog.files_at(path)
    metadata = _read(io, path)
    if metadata is None:
        raise RepairError(f"{path} is not a readable metadata file")
    before = _read(io, examined.named)
    if before is not None and before["table-uuid"] != metadata["table-uuid"]:
        raise RepairError(f"{path} belongs to another table than {examined.table}: their table-uuids differ")
    if not point_at(catalog, examined.table.parts, examined.named, path):
        raise RepairError(f"{examined.table} was changed by another process meanwhile: run `lake-assets repair` again")


def forget(lake: LakeBase, examined: Examined) -> None:
    """Remove an unreadable table from the catalog; its files stay.

    Raises:
        RepairError: one of its versions can be read.
    """
    if examined.state != "lost":
        raise RepairError(
            f"{examined.table} is {examined.state}: only a table without a readable version can be forgotten"
        )
    lake.catalog.drop_table(examined.table.parts)


def _sql_catalog(lake: LakeBase) -> CachingSqlCatalog:
    catalog = lake.catalog
    if not isinstance(catalog, CachingSqlCatalog):
        raise RepairError(
            f"the catalog is a {type(catalog).__name__}: only its server can change the metadata file of a "
            "table. Register the newest one there (register_table)"
        )
    return catalog


def _tables_of(catalog: CachingSqlCatalog) -> dict[TableId, tuple[str, str | None]]:
    """Return all tables of the catalog with their current and previous metadata file."""
    rows = select(IcebergTables).where(IcebergTables.catalog_name == catalog.name)
    with Session(catalog.engine) as session:
        return {
            TableId.parse((*Catalog.identifier_to_tuple(row.table_namespace), row.table_name)): (
                row.metadata_location,
                row.previous_metadata_location,
            )
            for row in session.scalars(rows)
            if row.metadata_location
        }


def _examined(lake: LakeBase, table: TableId, named: str, previous: str | None) -> Examined:
    io = _sql_catalog(lake).files_at(named)
    current = _read(io, named)
    number = version_of(named)
    if current is not None:
        newer = [v.location for v in versions(io, named) if v.number > number]
        candidates = [(p, m) for p in newer if (m := _read(io, p)) and m["table-uuid"] == current["table-uuid"]]
        follows = next((p for p, m in candidates if _follows(m, current, named)), None)
        if follows:
            ahead = version_of(follows) - number
            return Examined(
                table,
                "behind",
                named,
                follows,
                f"{ahead} version{'s were' if ahead > 1 else ' was'} written after the named one",
            )
        if candidates:
            reason = f"{candidates[0][0]} is newer, but does not follow the version that the catalog names"
            return Examined(table, "diverged", named, why=reason)
        return Examined(table, "current", named)
    problem = "is gone" if not io.new_input(named).exists() else "cannot be read"
    candidates = (v.location for v in versions(io, named))
    readable = [(p, m) for p in candidates if p != named and (m := _read(io, p))]
    uuids = {m["table-uuid"] for _, m in readable}
    # A table created again in its old folder shares it with versions of the old table.
    files = {named, previous}
    naming_uuids = {m["table-uuid"] for p, m in readable if p in files or files & _log(m)}
    if not readable:
        return Examined(table, "lost", named, why=f"{named} {problem}, and so is every other version")
    if len(naming_uuids or uuids) > 1:
        reason = f"{named} {problem}, and its folder holds versions of {len(uuids)} tables"
        return Examined(table, "diverged", named, why=reason)
    newest, _ = next((p, m) for p, m in readable if m["table-uuid"] in (naming_uuids or uuids))
    back = number - version_of(newest)
    distance = plural(back, "version")
    older = f"; the newest readable one is {distance} older, and later changes are lost" if back > 0 else ""
    return Examined(table, "unreadable", named, newest, f"the file that the catalog names {problem}{older}")


def _follows(metadata: Metadata, named_metadata: Metadata, named: str) -> bool:
    """Whether a version is a direct or indirect successor of the file `named`."""
    if named in _log(metadata):
        return True
    # The metadata log holds only the last few dozen versions; snapshots are kept longer.
    head = named_metadata.get("current-snapshot-id")
    if head in (None, -1):
        return metadata["last-sequence-number"] > 0 or metadata.get("format-version") == 1
    return any(s["snapshot-id"] == head for s in metadata.get("snapshots", ()))


def _log(metadata: Metadata) -> set[str]:
    return {entry["metadata-file"] for entry in metadata.get("metadata-log", ())}


def _read(io: FileIO, path: str) -> Metadata | None:
    """Read a metadata file; None if it is missing or truncated."""
    try:
        metadata = read_metadata_at(io, path)
        return metadata if metadata["table-uuid"] and metadata["location"] else None
    except _UNREADABLE:
        return None
