"""Bytes of files, within limits of size."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ByteSize

from lake_assets.errors import InputTooLargeError, MalformedRecordError
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.formats.format_base import DEPTH

# Prefixes of the problems of records of which only a part is kept.
TOO_LARGE = "larger than "
NO_VALUE = "no value that can be read: "
NOT_UTF8 = "not UTF-8"
KEPT_IN_PART = (TOO_LARGE, NO_VALUE, NOT_UTF8)
# Characters to keep of a record that is too large.
KEPT = 1_000


@dataclass(frozen=True)
class Limits:
    """Limits on incoming files and records.

    Attributes:
        record: most bytes in a record; larger records are rejected.
        file: most bytes in a file, uncompressed; a larger file is an error.
        depth: deepest nesting of a record; deeper records are rejected.
    """

    record: int = 64 << 20
    file: int = 64 << 30
    depth: int = DEPTH


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        number: number of the line on which it begins, or of the row in a Parquet file, from 1.
        text: the record as received; rows as JSON.
        problem: why it is rejected; None if no problem is known so far.
    """

    number: int
    text: str
    problem: str | None = None


DEFAULT_LIMITS = Limits()


class _LimitedStream(io.RawIOBase):
    """The bytes of a file, uncompressed, up to a limit."""

    def __init__(self, file: RecordFile, limit: int) -> None:
        self.file, self.limit, self.count = file, limit, 0
        self.raw = raw = file.open()
        self.source: Any = gzip.GzipFile(fileobj=raw) if file.is_compressed else raw

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See `io.RawIOBase`.

        Raises:
            InputTooLargeError: the file exceeds the limit.
        """
        count: int = self.source.readinto(buffer) or 0
        self.count += count
        if self.count > self.limit:
            raise file_too_large(self.file, self.limit)
        return count

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self.source.close()
        self.raw.close()
        super().close()


def opened(file: RecordFile, limits: Limits) -> io.BufferedReader:
    """Open a file for reading, uncompressed if it is named .gz.

    Raises:
        InputTooLargeError: raised while reading, once the limit is exceeded.
    """
    return io.BufferedReader(_LimitedStream(file, limits.file), 1 << 20)


def file_too_large(file: RecordFile, limit: int) -> InputTooLargeError:
    """Return the error for a file with more than `limit` bytes."""
    return InputTooLargeError(
        f"{file} has more than {readable_size(limit)}, so no record of it was landed: split it, or declare a larger "
        "`max_file` for the stream"
    )


def readable_size(size: int) -> str:
    """Return a number of bytes in the notation that `ByteSize` parses, for people."""
    return ByteSize(size).human_readable(separator=" ")


def too_large(limits: Limits) -> str:
    """Return the problem of a record that is larger than allowed."""
    return f"{TOO_LARGE}{readable_size(limits.record)} (`max_record`), and only its beginning is kept"


def check_column_names(file: RecordFile, names: list[str]) -> None:
    """Raise MalformedRecordError if two columns have the same name, since only one of them could be read."""
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise MalformedRecordError(f"{file}: two columns have one name: {', '.join(map(repr, twice))}")
