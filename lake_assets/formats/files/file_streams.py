"""Bytes of files, within limits, and the records made of them."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ByteSize

from lake_assets.errors import (
    InputTooLargeError,
    LandingFolderError,
    MalformedRecordError,
)
from lake_assets.formats.format_base import DEPTH

# How the problems begin of records that are kept in part.
TOO_LARGE = "larger than "
NO_VALUE = "no value that can be read: "
NOT_UTF8 = "not UTF-8"
KEPT_IN_PART = (TOO_LARGE, NO_VALUE, NOT_UTF8)
# Characters of a record that is too large.
KEPT = 1_000


@dataclass(frozen=True)
class Limits:
    """What is read of what arrives.

    Attributes:
        record: bytes of the largest record that is taken in; a larger one is a reject.
        file: bytes of the largest file, uncompressed; a larger one is an error.
        depth: how deeply a record may be nested; a deeper one is a reject.
    """

    record: int = 64 << 20
    file: int = 64 << 30
    depth: int = DEPTH


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        number: of the line on which it begins, or of a Parquet file's row; from 1.
        text: as it came; a row as JSON.
        problem: why it is none; None: nothing is wrong with it so far.
    """

    number: int
    text: str
    problem: str | None = None


DEFAULT_LIMITS = Limits()


class _LimitedStream(io.RawIOBase):
    """The bytes of a file, uncompressed, up to a limit."""

    def __init__(self, file: Path, limit: int) -> None:
        self.file, self.limit, self.count = file, limit, 0
        self.raw = raw = open_regular(file)
        self.source: Any = gzip.GzipFile(fileobj=raw) if is_compressed(file) else raw

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See `io.RawIOBase`.

        Raises:
            InputTooLargeError: the limit is passed.
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


def open_regular(file: Path) -> io.FileIO:
    """The bytes of a file, which is no link: whoever may write to a landing folder must not have other files read.

    Raises:
        LandingFolderError: it is a link, or has become a pipe or a device since the folder was listed.
    """
    # A pipe that nobody writes to would be waited for.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        raw = io.FileIO(file, opener=lambda path, given: os.open(path, given | flags))
    except OSError as e:
        if e.errno != errno.ELOOP:
            raise
        raise LandingFolderError(
            f"{file} is a link, and links in landing folders are not followed: put the file itself there"
        ) from e
    if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        raw.close()
        raise LandingFolderError(f"{file} is no file any more, but a pipe or a device: remove it")
    return raw


def is_compressed(file: Path) -> bool:
    """Whether a file is a gzip stream, by its name."""
    return file.suffix.lower() == ".gz"


def opened(file: Path, limits: Limits) -> io.BufferedReader:
    """The bytes of a file, uncompressed if it is named .gz.

    Raises:
        InputTooLargeError: while they are read, as soon as there are too many.
    """
    return io.BufferedReader(_LimitedStream(file, limits.file), 1 << 20)


def file_too_large(file: Path, limit: int) -> InputTooLargeError:
    """Return the error for a file with more than `limit` bytes."""
    return InputTooLargeError(
        f"{file} holds more than {readable_size(limit)}, so nothing of it was taken in: split it, or declare a larger "
        "`max_file` for the stream"
    )


def readable_size(size: int) -> str:
    """A number of bytes for people: as `ByteSize` reads it."""
    return ByteSize(size).human_readable(separator=" ")


def too_large(limits: Limits) -> str:
    """What is wrong with a record that is larger than allowed."""
    return f"{TOO_LARGE}{readable_size(limits.record)} (`max_record`), and only its beginning is kept"


def check_column_names(file: Path, names: list[str]) -> None:
    """Raise MalformedRecordError where two columns have one name: only one of them would be taken in."""
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise MalformedRecordError(f"{file}: two columns have one name: {', '.join(map(repr, twice))}")
