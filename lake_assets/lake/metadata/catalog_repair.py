"""Repair catalogs that name an old version of a table's metadata.

A catalog restored from a backup names versions from before the backup: some have been deleted since, so their tables
cannot be read; others exist, so their tables are in an old state. A truncated or deleted file looks the same. All
versions are in a table's metadata folder, and each lists its predecessors.
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
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.metadata.metadata_commits import Metadata, point_at
from lake_assets.lake.metadata.metadata_json import decode
from lake_assets.lake.metadata.metadata_versions import version_of, versions
from lake_assets.lake.names import TableId

State = Literal["current", "behind", "unreadable", "diverged", "lost"]
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Examined:
    """A table, the metadata file that the catalog names, and the newest one that may replace it.

    Attributes:
        state: `current`: there is no newer version. `behind`: a newer version follows the named one. `unreadable`: the
            named file is missing or broken, and another version can be read. `diverged`: both the named version and
            another one have successors. `lost`: no version can be read.
        named: the file that the catalog names.
        newest: the version to use; None if there is none, or the user has to choose.
        why: description of the problem.
    """

    table: TableId
    state: State
    named: str
    newest: str | None = None
    why: str = ""

    @property
    def can_be_repaired(self) -> bool:
        """Whether the catalog can be pointed at `newest` without a choice of the user."""
        return self.newest is not None and self.state in ("behind", "unreadable")


def examine(lake: LakeBase, tables: Sequence[TableId] | None = None) -> list[Examined]:
    """Compare the catalog with the existing metadata files, without changing anything.

    Args:
        lake: the lake.
        tables: the tables; None: all of the catalog except ICDC tables.

    Raises:
        RepairError: it is not an SQL catalog, so only its server can change it.
    """
    named = _named(_sql_catalog(lake))
    wanted = named if tables is None else {t: named[t] for t in tables if t in named}
    return [_examined(lake, t, *at) for t, at in sorted(wanted.items()) if tables or t.namespace != ("icdc",)]


def repair(lake: LakeBase, examined: Examined, to: str | None = None) -> None:
    """Point the catalog at a table's newest metadata file.

    Args:
        lake: the lake.
        examined: the table.
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
        raise RepairError(f"{path} is no metadata file that can be read")
    before = _read(io, examined.named)
    if before is not None and before["table-uuid"] != metadata["table-uuid"]:
        raise RepairError(f"{path} belongs to another table than {examined.table}: it has another table-uuid")
    if not point_at(catalog, examined.table.parts, examined.named, path):
        raise RepairError(f"{examined.table} was changed by somebody else meanwhile: look at it again")


def forget(lake: LakeBase, examined: Examined) -> None:
    """Remove an unreadable table from the catalog; its files stay.

    Raises:
        RepairError: it, or another version of it, can be read.
    """
    if examined.state != "lost":
        raise RepairError(
            f"{examined.table} is {examined.state}: only a table none of whose versions can be read is forgotten"
        )
    lake.catalog.drop_table(examined.table.parts)


def _sql_catalog(lake: LakeBase) -> CachingSqlCatalog:
    catalog = lake.catalog
    if not isinstance(catalog, CachingSqlCatalog):
        raise RepairError(
            f"the catalog is a {type(catalog).__name__}: which metadata file is a table's only its server can change. "
            "Register the newest one there (register_table)"
        )
    return catalog


def _named(catalog: CachingSqlCatalog) -> dict[TableId, tuple[str, str | None]]:
    """Return all tables of the catalog with their metadata files, each with the one before it."""
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
    here = _read(io, named)
    number = version_of(named)
    if here is not None:
        newer = [v.location for v in versions(io, named) if v.number > number]
        others = [(p, m) for p in newer if (m := _read(io, p)) and m["table-uuid"] == here["table-uuid"]]
        follows = next((p for p, m in others if _follows(m, here, named)), None)
        if follows:
            ahead = version_of(follows) - number
            return Examined(table, "behind", named, follows, f"{ahead} versions were written after the named one")
        if others:
            why = f"{others[0][0]} is newer, and does not follow the version that the catalog names"
            return Examined(table, "diverged", named, why=why)
        return Examined(table, "current", named)
    gone = "is gone" if not io.new_input(named).exists() else "cannot be read"
    others = (v.location for v in versions(io, named))
    found = [(p, m) for p in others if p != named and (m := _read(io, p))]
    uuids = {m["table-uuid"] for _, m in found}
    # A table created again in its old folder shares it with versions of the old table.
    known = {named, previous}
    naming = {m["table-uuid"] for p, m in found if p in known or known & _log(m)}
    if not found:
        return Examined(table, "lost", named, why=f"{named} {gone}, and so is every other version")
    if len(naming or uuids) > 1:
        why = f"{named} {gone}, and its folder holds versions of {len(uuids)} tables"
        return Examined(table, "diverged", named, why=why)
    newest, _ = next((p, m) for p, m in found if m["table-uuid"] in (naming or uuids))
    back = number - version_of(newest)
    older = f"; the newest that can be read is {back} versions older, and what they brought is lost" if back > 0 else ""
    return Examined(table, "unreadable", named, newest, f"the file that the catalog names {gone}{older}")


def _follows(metadata: Metadata, before: Metadata, named: str) -> bool:
    """Whether a version is a direct or indirect successor of the file `named`."""
    if named in _log(metadata):
        return True
    # Tables name some tens of the versions before them only; what these held is there for longer.
    head = before.get("current-snapshot-id")
    if head in (None, -1):
        return metadata["last-sequence-number"] > 0 or metadata.get("format-version") == 1
    return any(s["snapshot-id"] == head for s in metadata.get("snapshots", ()))


def _log(metadata: Metadata) -> set[str]:
    return {entry["metadata-file"] for entry in metadata.get("metadata-log", ())}


def _read(io: FileIO, path: str) -> Metadata | None:
    """Read a metadata file; None if it is missing or truncated."""
    try:
        with io.new_input(path).open() as file:
            metadata = decode(file.read())
        return metadata if metadata["table-uuid"] and metadata["location"] else None
    except _UNREADABLE:
        return None
