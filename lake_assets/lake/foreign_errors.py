"""Errors of Spark, Iceberg and the operating system that have a name here: what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import re

from lake_assets.errors import CorruptMetadataError, LakeError, MissingDataFileError, StorageFullError

_PATH = r"(?P<path>(?:[a-z][a-z0-9+.-]*:/|/)[^\s,;'\"]+)"
_MISSING = (
    re.compile(rf"File does not exist: {_PATH}"),
    re.compile(rf"File {_PATH} does not exist"),
    re.compile(rf"Failed to open input stream for file: {_PATH}"),
    re.compile(rf"{_PATH} \(No such file or directory\)"),
)
_BROKEN = (
    re.compile(rf"Checksum error: {_PATH}"),
    re.compile(rf"Failed to (?:open|fetch) file: {_PATH}"),
    re.compile(rf"Cannot (?:read|open)[^:]*(?:manifest|metadata)[^:]*: {_PATH}", re.IGNORECASE),
    re.compile(rf"Failed to (?:read|open|parse)[^:]*(?:manifest|metadata)[^:]*: {_PATH}", re.IGNORECASE),
    re.compile(rf"{_PATH} is not a Parquet file"),
    re.compile(r"Could not read footer for file: .*?path=(?P<path>[^;\s]+)"),
)
_ADVICE = (
    "Nothing was published. Restore the file from a backup; or roll the table that it belongs to back to a snapshot "
    "without it; or `lake-assets rebuild` that table, where its sources still hold what it is made of"
)
_NO_ROOM = ("No space left on device", "There is not enough space on the disk", "Disk quota exceeded")


def as_named(error: Exception, table: str) -> LakeError | None:
    """The error as one of this package, where it is known what to do; None: it is not, or it is one already.

    Args:
        error: raised while a step was at work.
        table: what the step writes.
    """
    if isinstance(error, LakeError):
        return None
    said = str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        return _full(table, where)
    if any(sign in said for sign in _NO_ROOM):
        return _full(table, "")
    if found := _first(_MISSING, said):
        return MissingDataFileError(
            f"{table}: {found} is gone, though a table names it: it was deleted behind the table's back. {_ADVICE}"
        )
    if found := _first(_BROKEN, said):
        return CorruptMetadataError(f"{table}: {found} cannot be read: it is broken or was cut. {_ADVICE}")
    return None


def _full(table: str, where: str) -> StorageFullError:
    return StorageFullError(
        f"{table}: no space is left on the device{where}. Nothing was published, and nothing is lost: make room where "
        "the lake is and where Spark keeps temporary files (`spark.local.dir`, else /tmp), and run again"
    )


def _first(patterns: tuple[re.Pattern[str], ...], said: str) -> str | None:
    return next((m["path"] for p in patterns if (m := p.search(said))), None)
