"""Branches and tags of tables: commits of metadata alone, made beside Spark where the catalog lets us.

Through Spark each is a statement to be planned, and a small step makes some of them. PyIceberg does not commit to
format version 3, since its model of the metadata cannot be written. A commit that only names snapshots needs no model:
the table's metadata file is taken as it is, its references are changed, and the catalog follows if the table has not
moved.

Source: https://iceberg.apache.org/spec/#table-metadata-fields
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import CorruptMetadataError
from lake_assets.lake.catalog import KnowingCatalog
from lake_assets.lake.metadata_json import decode

log = logging.getLogger(__name__)
DAY_MS = 24 * 60 * 60 * 1000
Refs = dict[str, dict[str, Any]]

_retried = retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    stop=stop_after_attempt(10),
    reraise=True,
)


class MovedError(Exception):
    """A branch is not where it has to be."""


def can_commit(catalog: Catalog) -> bool:
    """Whether references are changed here; else Spark has to."""
    return isinstance(catalog, KnowingCatalog)


def create_branch(table: Table, branch: str, snapshot: int, days: int) -> None:
    """Make a branch at a snapshot, which upkeep drops after so many days.

    Raises:
        MovedError: the table does not have the snapshot any more.
    """
    _commit(table, lambda refs: refs.update({branch: _ref("branch", snapshot, days)}), snapshot)


def set_tag(table: Table, tag: str, snapshot: int, days: int) -> None:
    """Make a tag of a snapshot, or move it there.

    Raises:
        MovedError: the table does not have the snapshot any more.
    """
    _commit(table, lambda refs: refs.update({tag: _ref("tag", snapshot, days)}), snapshot)


def publish(table: Table, branch: str, base: int) -> None:
    """Move main to where a branch is, and drop the branch, in one commit.

    Args:
        table: the table.
        branch: made at `base`.
        base: the snapshot that main has to be at.

    Raises:
        MovedError: main is elsewhere, or the branch is gone.
    """

    def change(refs: Refs) -> None:
        main = refs.get("main")
        if main is None or main["snapshot-id"] != base:
            raise MovedError(f"main is at {main and main['snapshot-id']}, and {branch} began at {base}")
        if branch not in refs:
            raise MovedError(f"the branch {branch} is gone")
        refs["main"] = {**main, "snapshot-id": refs.pop(branch)["snapshot-id"]}

    _commit(table, change)


def drop(table: Table, name: str) -> None:
    """Drop a branch or tag, if it is there."""
    _commit(table, lambda refs: refs.pop(name, None))


def _ref(kind: str, snapshot: int, days: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot, "type": kind, "max-ref-age-ms": days * DAY_MS}


@_retried
def _commit(table: Table, change: Callable[[Refs], object], needed: int | None = None) -> None:
    """Change a table's references; another writer's commits between are kept.

    Args:
        table: as it was loaded at some time.
        change: of the references as they are now; raises where they are not as they have to be.
        needed: a snapshot that has to be there.

    Raises:
        MovedError: see there, or the snapshot is gone.
        CommitFailedException: others were quicker again and again, or the catalog does not say what it did.
        CorruptMetadataError: the table's metadata is gone.
    """
    catalog = table.catalog
    assert isinstance(catalog, KnowingCatalog)
    now = _load(catalog, table)
    try:
        metadata = _read(now)
    except FileNotFoundError as e:
        # Tables keep some tens of versions only: this one may have been left behind meanwhile.
        if _load(catalog, table).metadata_location == now.metadata_location:
            raise CorruptMetadataError(f"{'.'.join(now.name())}: its metadata file {e} is gone") from e
        raise CommitFailedException(f"{now.metadata_location} is gone") from e
    if metadata["table-uuid"] != str(table.metadata.table_uuid):
        raise MovedError(f"{'.'.join(table.name())} was dropped and made again")
    if needed is not None and all(s["snapshot-id"] != needed for s in metadata.get("snapshots", ())):
        raise MovedError(f"{'.'.join(table.name())} has no snapshot {needed} any more")
    before = refs_of(metadata)
    refs = {name: dict(ref) for name, ref in before.items()}
    change(refs)
    if refs == before:
        return
    changed = with_refs(metadata, refs, now.metadata_location, int(time.time() * 1000))
    number = now.metadata_location.rsplit("/", 1)[-1].split("-", 1)[0]
    version = int(number) + 1 if number.isdecimal() else 0
    path = load_location_provider(changed["location"], now.properties).new_table_metadata_file_location(version)
    with now.io.new_output(path).create() as file:
        file.write(json.dumps(changed, separators=(",", ":")).encode())
    if not _follow(catalog, now, path):
        _delete(now, path)
        raise CommitFailedException(f"{'.'.join(now.name())} has been updated by another process")
    if now.properties.get("write.metadata.delete-after-commit.enabled", "").lower() == "true":
        kept = {entry["metadata-file"] for entry in changed["metadata-log"]}
        for entry in metadata.get("metadata-log", ()):
            if entry["metadata-file"] not in kept:
                _delete(now, entry["metadata-file"])


def refs_of(metadata: Mapping[str, Any]) -> Refs:
    """All references; metadata from before there were any names main's snapshot alone."""
    current = metadata.get("current-snapshot-id", -1)
    found = metadata.get("refs") or {}
    if "main" not in found and current not in (None, -1):
        return {**found, "main": {"snapshot-id": current, "type": "branch"}}
    return found


def with_refs(metadata: dict[str, Any], refs: Refs, location: str, now: int) -> dict[str, Any]:
    """A table's metadata with other references.

    Args:
        metadata: as it is, from the file `location`.
        refs: all of them as they are to be.
        location: of the metadata's file.
        now: milliseconds since 1970.
    """
    # Iceberg does not read metadata whose times go back, and clocks of writers differ.
    log_times = (entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ()))
    now = max(now, metadata["last-updated-ms"], *log_times)
    most = max(1, int(metadata.get("properties", {}).get("write.metadata.previous-versions-max", 100)))
    former = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": location}
    changed = {
        **metadata,
        "refs": refs,
        "last-updated-ms": now,
        "metadata-log": [*metadata.get("metadata-log", ()), former][-most:],
    }
    main = refs.get("main", {}).get("snapshot-id")
    if main is not None and main != metadata.get("current-snapshot-id"):
        entry = {"timestamp-ms": now, "snapshot-id": main}
        changed |= {"current-snapshot-id": main, "snapshot-log": [*metadata.get("snapshot-log", ()), entry]}
    return changed


def _load(catalog: Catalog, table: Table) -> Table:
    try:
        return catalog.load_table(table.name())
    except NoSuchTableError as e:
        raise MovedError(f"{'.'.join(table.name())} was dropped or renamed") from e


def _read(table: Table) -> dict[str, Any]:
    with table.io.new_input(table.metadata_location).open() as file:
        content = file.read()
    return decode(content)


def _follow(catalog: KnowingCatalog, table: Table, path: str) -> bool:
    """Whether the catalog has taken over the new metadata: only if the table is still where it was read."""
    *namespace, name = table.name()
    row = (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(tuple(namespace)),
            IcebergTables.table_name == name,
            IcebergTables.metadata_location == table.metadata_location,
        )
        .values(metadata_location=path, previous_metadata_location=table.metadata_location)
    )
    try:
        with Session(catalog.engine) as session:
            done = session.execute(row).rowcount  # type: ignore[attr-defined]
            session.commit()
        return done == 1
    except SQLAlchemyError as e:
        # Whether it was done is only known where it can be seen. Else it may be done yet: the file stays.
        seen = _load(catalog, table)
        logged = {entry.metadata_file for entry in seen.metadata.metadata_log}
        if path == seen.metadata_location or path in logged:
            return True
        raise CommitFailedException(f"{'.'.join(table.name())}: the catalog failed while it was updated: {e}") from e


def _delete(table: Table, path: str) -> None:
    try:
        table.io.delete(path)
    except OSError as e:
        log.debug("metadata file %s stays behind: %s", path, e)
