"""The metadata files of a table: each version is one, and how long earlier ones are kept.

Iceberg keeps so many, which is a matter of minutes where batches are small: a catalog restored from a backup of an hour
ago would name files that are gone. Here the last versions are kept, and of earlier ones the last of each hour.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lake_assets.lake.metadata.file_deletion import delete_file

_PROPERTY = "lake-assets.metadata-versions"
# Of tables that are made here: Iceberg deletes none of their versions, `thin` does.
PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "50",
    _PROPERTY: "hourly",
}
DAYS = 7
# Looking for versions to delete is a listing: not with each commit.
_EVERY, _WITHIN = 40, 4
# Seconds for which somebody may be about to read a version that the catalog named a moment ago.
_BEING_READ = 600


@dataclass(frozen=True, order=True)
class Version:
    """One metadata file: its number (-1: its name has none), when it was written (seconds since 1970), and where."""

    number: int
    written: float
    location: str


def version_of(location: str) -> int:
    """The number that a metadata file's name begins with; -1: it has none."""
    number = location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdecimal() else -1


def versions(io: FileIO, location: str) -> list[Version]:
    """The metadata files beside one, the newest first."""
    files = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, netloc, path = PyArrowFileIO.parse_location(location, io.properties)
    folder, prefix = path.rsplit("/", 1)[0], location[: len(location) - len(path)]
    infos = files.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(folder, allow_not_found=True))
    found = [
        Version(version_of(i.path), (i.mtime_ns or 0) / 1e9, prefix + i.path)
        for i in infos
        if i.type == FileType.File and i.path.endswith((".metadata.json", ".metadata.json.gz"))
    ]
    return sorted(found, reverse=True)


def is_due(table: Table) -> bool:
    """Whether `thin` is to look at a table: some commits in each few dozen."""
    return table.properties.get(_PROPERTY) == "hourly" and version_of(table.metadata_location) % _EVERY < _WITHIN


def thin(table: Table, now: float | None = None) -> list[str]:
    """Delete the versions of a table that are neither among the last ones nor the last of their hour, and all that are
    older than a week; return them.

    Args:
        table: as it is.
        now: seconds since 1970.
    """
    now = time.time() if now is None else now
    current = version_of(table.metadata_location)
    kept = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    hours: set[int] = set()
    deleted: list[str] = []
    for version in versions(table.io, table.metadata_location):
        # One with the same number, or a higher one, may be about to become the next.
        if version.location in kept or version.number >= current or now - version.written < _BEING_READ:
            continue
        hour = int(version.written // 3600)
        if hour not in hours and now - version.written < DAYS * 24 * 3600:
            hours.add(hour)
            continue
        with contextlib.suppress(FileNotFoundError):
            delete_file(table.io, version.location)
        deleted.append(version.location)
    return deleted
