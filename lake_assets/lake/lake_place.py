"""Whether an embedded lake is where it was made: its catalog and its tables name their files by absolute paths."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lake_assets.errors import MovedLakeError


def check_place(catalog: Path, name: str, warehouse: Path) -> None:
    """Raise MovedLakeError if the folder of a lake was moved or copied.

    A copy would be worse than unreadable: it would read the original's tables, and write into their folders. A table
    that was registered from elsewhere is no sign of it: its files have no twins in this warehouse.

    Args:
        catalog: the SQLite file.
        name: the catalog's name.
        warehouse: the folder of the lake's tables.
    """
    for named in _metadata_files(catalog, name):
        if named.is_relative_to(warehouse) or warehouse.name not in named.parts:
            continue
        # Names of metadata files are unique, so the same name at the same place below the warehouse is the same file.
        at = len(named.parts) - 1 - named.parts[::-1].index(warehouse.name)
        here, former = warehouse.joinpath(*named.parts[at + 1 :]), Path(*named.parts[: at + 1])
        if here.exists() and not (named.exists() and here.samefile(named)):
            if named.exists():
                what, remedy = "is a copy of", f"Use the original, {former.parent}"
            else:
                folder = former.parent.parent  # gone too, if what was moved is the project
                made = "" if folder.exists() else f"mkdir -p {shlex.quote(str(folder))} && "
                link = f"`{made}ln -s {shlex.quote(str(warehouse.parent))} {shlex.quote(str(former.parent))}`"
                what, remedy = "was moved from", f"Move it back, mount it there, or link to it: {link}"
            raise MovedLakeError(
                f"the lake at {warehouse.parent} {what} {former.parent}: its tables still name their files there, so "
                f"nothing was read or written. {remedy}; or let a pipeline build the tables again in an empty LAKE_HOME"
            )


def _metadata_files(catalog: Path, name: str) -> Iterator[Path]:
    """Yield the local metadata files that a SQLite catalog names; none if it has no tables yet."""
    query = "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND metadata_location LIKE 'file:%'"
    with contextlib.closing(sqlite3.connect(f"{catalog.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute(query, (name,)).fetchall()
        except sqlite3.OperationalError:  # no such table: nobody has opened the catalog before
            return
    yield from (Path("/" + location.removeprefix("file:").lstrip("/")) for (location,) in rows)
