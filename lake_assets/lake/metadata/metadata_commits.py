"""Metadata-only commits without Spark, if the catalog allows it.

In Spark, each such commit is a statement to plan, and a small step needs several. PyIceberg cannot write metadata of
format version 3. A commit without data does not need PyIceberg's model: this module changes the JSON of the table's
metadata file, and points a SQL catalog at the new file if the table has not changed meanwhile. A REST catalog is sent
the difference.

Source: https://iceberg.apache.org/spec/#table-metadata-fields
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Identifier
from sqlalchemy import Update, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import CatalogUnavailableError
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.lake.metadata import rest_commits
from lake_assets.lake.metadata.metadata_versions import version_of
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.metadata_json import decode

log = logging.getLogger(__name__)
Metadata = dict[str, Any]

_retried = retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    stop=stop_after_attempt(10),
    reraise=True,
)


class MovedError(Exception):
    """A ref no longer points at the expected snapshot."""


def can_commit(catalog: Catalog) -> bool:
    """Whether metadata can be committed without Spark."""
    return isinstance(catalog, CachingSqlCatalog | RestCatalog)


def can_rewrite(catalog: Catalog) -> bool:
    """Whether every field of the metadata can be changed; a server changes only some."""
    return isinstance(catalog, CachingSqlCatalog)


def changes_together(catalog: Catalog) -> bool:
    """Whether the catalog changes several tables in one commit; see `commit_together`."""
    return not isinstance(catalog, RestCatalog) or rest_commits.has_transactions(catalog)


@_retried
def commit(table: Table, change: Callable[[Metadata], Metadata | None]) -> None:
    """Change a table's metadata, on top of other writers' commits.

    Args:
        table: the loaded table, possibly outdated.
        change: called with the current metadata; returns a changed copy, or None if nothing has to be done.

    Raises:
        MovedError: the table is missing or was replaced; `change` raises it too.
        CommitFailedException: every attempt lost a race, or the result of the commit is unknown.
        CorruptMetadataError: the table's metadata cannot be read.
    """
    catalog = table.catalog
    assert isinstance(catalog, CachingSqlCatalog | RestCatalog)
    loaded = _load(catalog, table.name())
    try:
        metadata = read_metadata(loaded)
    except FileNotFoundError as e:
        # Tables keep only some dozens of versions: this one was replaced and deleted meanwhile.
        raise CommitFailedException(f"{loaded.metadata_location} is gone") from e
    if metadata["table-uuid"] != str(table.metadata.table_uuid):
        raise MovedError(f"{'.'.join(table.name())} was dropped and created again")
    changed = change(metadata)
    if changed is None:
        return
    if isinstance(catalog, RestCatalog):
        rest_commits.commit(catalog, [rest_commits.Change(loaded.name(), metadata, changed)])
        return
    changed = successor_of(changed, loaded.metadata_location, now_ms())
    path = _write_next(loaded, changed)
    if not point_at(catalog, loaded.name(), loaded.metadata_location, path):
        _delete(loaded, path)
        raise CommitFailedException(f"{'.'.join(loaded.name())} has been updated by another process")
    # Another catalog may name an earlier version of another program's table.
    is_own = PIPELINE_PROPERTY in loaded.properties
    if is_own and loaded.properties.get("write.metadata.delete-after-commit.enabled", "").lower() == "true":
        listed = {entry["metadata-file"] for entry in changed["metadata-log"]}
        for entry in metadata.get("metadata-log", ()):
            if entry["metadata-file"] not in listed:
                _delete(loaded, entry["metadata-file"])


@dataclass(frozen=True)
class TableChange:
    """The next metadata of a loaded table, for a commit of several tables."""

    table: Table
    metadata: Metadata


class PartlyCommittedError(CommitFailedException):
    """Of several tables, which the catalog cannot change in one commit, some are changed and some are not."""


def commit_together(changes: Sequence[TableChange]) -> None:
    """Change the metadata of several tables in one commit: a transaction of the SQL catalog's database, or of a server.

    Tables of a server without transactions are changed one after the other.

    Raises:
        CommitFailedException: a table has been updated since it was loaded, and no table is changed; or the result of
            the commit is unknown.
        PartlyCommittedError: some tables were changed before one had been updated.
    """
    catalog = changes[0].table.catalog
    if isinstance(catalog, RestCatalog):
        sent = [rest_commits.Change(c.table.name(), read_metadata(c.table), c.metadata) for c in changes]
        if changes_together(catalog):
            rest_commits.commit(catalog, sent)
        else:
            _commit_one_by_one(catalog, sent)
        return
    assert isinstance(catalog, CachingSqlCatalog)
    paths: list[str] = []
    try:
        for change in changes:
            metadata = successor_of(change.metadata, change.table.metadata_location, now_ms())
            paths.append(_write_next(change.table, metadata))
    except BaseException:
        _delete_all(changes, paths)
        raise
    # After an interrupt, the catalog may name the files: they stay.
    is_done = _point_all_at(catalog, changes, paths)
    if not is_done:
        _delete_all(changes, paths)
        raise CommitFailedException(
            f"one of {', '.join('.'.join(c.table.name()) for c in changes)} has been updated by another process"
        )


def _commit_one_by_one(catalog: RestCatalog, changes: Sequence[rest_commits.Change]) -> None:
    for done, change in enumerate(changes):
        try:
            rest_commits.commit(catalog, [change])
        except CommitFailedException as e:
            if done:
                raise PartlyCommittedError(str(e)) from e
            raise


def _write_next(table: Table, metadata: Metadata) -> str:
    """Write the next metadata file of a loaded table; return its location."""
    properties = metadata.get("properties", {})
    path = load_location_provider(metadata["location"], properties).new_table_metadata_file_location(
        version_of(table.metadata_location) + 1
    )
    with table.io.new_output(path).create() as file:
        file.write(json.dumps(metadata, separators=(",", ":")).encode())
    return path


def _point_all_at(catalog: CachingSqlCatalog, changes: Sequence[TableChange], paths: Sequence[str]) -> bool:
    """Point the catalog at all new files, or at none; return whether it did."""
    # In one order for all writers, so that two of them cannot wait for each other.
    ordered = sorted(zip(changes, paths, strict=True), key=lambda pair: pair[0].table.name())
    try:
        with Session(catalog.engine) as session:
            for change, path in ordered:
                row = _pointing(catalog, change.table.name(), change.table.metadata_location, path)
                if session.execute(row).rowcount != 1:  # type: ignore[attr-defined]
                    session.rollback()
                    return False
            session.commit()
        return True
    except (SQLAlchemyError, CatalogUnavailableError) as e:
        change, path = ordered[0]
        if _is_named(catalog, change.table.name(), path):
            return True
        raise CommitFailedException(f"the catalog failed while several tables were updated: {e}") from e


def _delete_all(changes: Sequence[TableChange], paths: Sequence[str]) -> None:
    for change, path in zip(changes, paths, strict=False):
        _delete(change.table, path)


def read_metadata(table: Table) -> Metadata:
    """Read the JSON of a loaded table's metadata file."""
    return read_metadata_at(table.io, table.metadata_location)


def read_metadata_at(io: FileIO, location: str) -> Metadata:
    """Read the JSON of a metadata file.

    Raises:
        FileNotFoundError: it is gone.
        ValueError, EOFError: it is truncated.
    """
    with io.new_input(location).open() as file:
        return decode(file.read())


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return int(time.time() * 1000)


def successor_of(metadata: Metadata, location: str, now: int) -> Metadata:
    """Return the metadata as successor of the file `location`, written at `now` (milliseconds since 1970)."""
    # Iceberg does not read metadata whose timestamps go back, and the clocks of writers differ.
    log_times = (entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ()))
    properties = metadata.get("properties", {})
    limit = max(1, int(properties.get("write.metadata.previous-versions-max", 100)))
    previous = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": location}
    if PIPELINE_PROPERTY not in properties:
        # Its owner's next commit shortens the log of its versions, and deletes what it leaves out.
        limit = len(metadata.get("metadata-log", ())) + 1
    return {
        **metadata,
        "last-updated-ms": max(now, metadata["last-updated-ms"], *log_times),
        "metadata-log": [*metadata.get("metadata-log", ()), previous][-limit:],
    }


def point_at(catalog: CachingSqlCatalog, table: Identifier, expected: str, path: str) -> bool:
    """Point the catalog at the metadata file `path` if it still names the file `expected`; return whether it did.

    Raises:
        CommitFailedException: the result of the commit is unknown.
    """
    try:
        with Session(catalog.engine) as session:
            updated = session.execute(_pointing(catalog, table, expected, path)).rowcount  # type: ignore[attr-defined]
            session.commit()
        return updated == 1
    except (SQLAlchemyError, CatalogUnavailableError) as e:
        # If the catalog shows the new file, the update succeeded. If not, it may still succeed, so the file stays.
        if _is_named(catalog, table, path):
            return True
        raise CommitFailedException(f"{'.'.join(table)}: the catalog failed while it was updated: {e}") from e


def _pointing(catalog: CachingSqlCatalog, table: Identifier, expected: str, path: str) -> Update:
    """Return the statement that points the catalog at `path` if it still names `expected`."""
    *namespace, name = table
    return (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(tuple(namespace)),
            IcebergTables.table_name == name,
            IcebergTables.metadata_location == expected,
        )
        .values(metadata_location=path, previous_metadata_location=expected)
    )


def _is_named(catalog: Catalog, table: Identifier, path: str) -> bool:
    """Whether the catalog names a metadata file as a table's current one, or that one lists it as a predecessor."""
    loaded = _load(catalog, table)
    return path == loaded.metadata_location or path in {e.metadata_file for e in loaded.metadata.metadata_log}


def _load(catalog: Catalog, table: Identifier) -> Table:
    try:
        return catalog.load_table(table)
    except NoSuchTableError as e:
        raise MovedError(f"{'.'.join(table)} was dropped or renamed") from e


def _delete(table: Table, path: str) -> None:
    try:
        table.io.delete(path)
    except OSError as e:
        log.debug("metadata file %s could not be deleted: %s", path, e)
