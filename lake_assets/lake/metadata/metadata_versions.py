"""The metadata files of a table, one per version, and their retention.

Iceberg keeps a fixed number of versions, which small batches use up within minutes: a catalog restored from a backup of
an hour ago would name deleted files. Here the newest versions are kept, and for a week the last version of each hour.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lake_assets.lake import thresholds
from lake_assets.lake.metadata.file_deletion import delete_file

_PROPERTY = "lake-assets.metadata-versions"
# Properties of the tables created here: `delete_old_versions` deletes their versions instead of Iceberg.
PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": str(thresholds.METADATA_VERSIONS),
    _PROPERTY: "hourly",
}
DAYS = 7
# Seconds during which another process may still read a version that the catalog named.
_IN_USE_SECONDS = 600


@dataclass(frozen=True, order=True)
class Version:
    """A metadata file: its number (-1 if its name has none), time (seconds since 1970) and location."""

    number: int
    written_at: float
    location: str


def version_of(location: str) -> int:
    """Return the number at the start of a metadata file's name; -1 if it has none."""
    number = location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdecimal() else -1


def versions(io: FileIO, location: str) -> list[Version]:
    """Return the metadata files in the same folder as `location`, newest first."""
    file_io = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, netloc, path = PyArrowFileIO.parse_location(location, io.properties)
    folder, prefix = path.rsplit("/", 1)[0], location[: len(location) - len(path)]
    listed = file_io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(folder, allow_not_found=True))
    all_versions = [
        Version(version_of(info.path), (info.mtime_ns or 0) / 1e9, prefix + info.path)
        for info in listed
        if info.type == FileType.File and info.path.endswith((".metadata.json", ".metadata.json.gz"))
    ]
    return sorted(all_versions, reverse=True)


def is_due(table: Table) -> bool:
    """Whether it is time to call `delete_old_versions` for a table: after some of its commits."""
    place = version_of(table.metadata_location) % thresholds.CLEANUP_EVERY_VERSIONS
    return table.properties.get(_PROPERTY) == "hourly" and place < thresholds.CLEANUP_VERSIONS


def delete_old_versions(table: Table, now: float | None = None) -> list[str]:
    """Delete old metadata files of a table; return their locations.

    The versions in the table's metadata log stay, and for a week also the last version of each hour.

    Args:
        now: seconds since 1970; default: the clock.
    """
    now = time.time() if now is None else now
    current = version_of(table.metadata_location)
    listed = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    hours: set[int] = set()
    deleted: list[str] = []
    for version in versions(table.io, table.metadata_location):
        # A version with the same or a higher number may be about to become the next one.
        if version.location in listed or version.number >= current or now - version.written_at < _IN_USE_SECONDS:
            continue
        hour = int(version.written_at // 3600)
        if hour not in hours and now - version.written_at < DAYS * 24 * 3600:
            hours.add(hour)
            continue
        with contextlib.suppress(FileNotFoundError):
            delete_file(table.io, version.location)
        deleted.append(version.location)
    return deleted
