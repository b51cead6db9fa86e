"""What arrives: files of a landing folder, and the records in them."""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import orjson

from lake_assets.errors import InputError, LandingFolderError, TruncatedInputError
from lake_assets.formats.files.file_records import reader_of
from lake_assets.formats.files.file_streams import (
    DEFAULT_LIMITS,
    KEPT,
    NOT_UTF8,
    Limits,
    Record,
    is_compressed,
    opened,
    too_large,
)
from lake_assets.formats.format_base import is_too_deep
from lake_assets.tables.specs import BatchSize

# What files that are no UTF-8 begin with.
_BEGINS = {
    b"\x1f\x8b": ". It begins like a gzip stream: give it a name that ends in .gz",
    b"\xff\xfe": ". It begins like UTF-16: write UTF-8",
    b"\xfe\xff": ". It begins like UTF-16: write UTF-8",
}
_LEFT = "Nothing of it was taken in; files before it were. Deliver the whole file (write elsewhere, then rename)"


def listing(folder: Path) -> list[Path]:
    """The landing folder's files in the order of their names; hidden and unfinished ones (`.`, `_`, `.tmp`) left out.

    A folder that does not exist yet holds nothing: whoever fills it makes it.

    Raises:
        LandingFolderError: it is a file, or cannot be read.
    """
    # A link to a file is listed, so that reading it says that links are not followed.
    # The listing says what is a file: with 100,000 of them, asking for each takes longer than everything else.
    try:
        with os.scandir(folder) as entries:
            names = [
                e.name for e in entries if e.name[0] not in "._" and not e.name.endswith(_UNFINISHED) and _is_file(e)
            ]
    except FileNotFoundError:
        return []
    except OSError as e:
        reason = "it is a file" if isinstance(e, NotADirectoryError) else e.strerror
        raise LandingFolderError(
            f"the landing folder {folder} cannot be read: {reason}. Name a folder in the stream's `landing`, and let "
            "this user read it"
        ) from e
    return [folder / name for name in sorted(names)]


_UNFINISHED = (".tmp", ".part")


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        # A link in a circle, or into a folder that this user cannot enter, leads to no file.
        if entry.is_symlink():
            return False
        raise


def name_of(file: Path) -> str:
    """A file's name as it stands in tables: a byte of it that is no UTF-8 as `/xff`, which no other name has."""
    name = file.name
    if name.isascii():
        return name
    return "".join(f"/x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c for c in name)


def records_of(file: Path, limits: Limits) -> Iterator[Record]:
    """The records of a file: lines, or rows of CSV and Parquet.

    Raises:
        TruncatedInputError, MalformedRecordError, InputTooLargeError: the file as a whole cannot be read.
    """
    reader = reader_of(file)
    if reader is None:
        return lines(file, limits)
    return (_within(record, limits) for record in reader(file, limits))


def lines(file: Path, limits: Limits) -> Iterator[Record]:
    """The lines of a file (gzip if it is named .gz) with their numbers from 1, blank ones left out.

    Raises:
        TruncatedInputError: the file ends in the middle of a record (or of its compressed stream).
        InputTooLargeError: the file is larger than allowed.
    """
    number, begins = 0, b""
    if is_compressed(file) and not file.stat().st_size:
        raise TruncatedInputError(f"{file}, after line 0: an empty file is no gzip stream. {_LEFT}")
    try:
        with opened(file, limits) as stream:
            # In pieces: a line may be larger than the memory.
            while raw := stream.readline(limits.record + 2):
                number += 1
                begins = begins or raw[:2]
                text = raw.removesuffix(b"\n").removesuffix(b"\r")
                record = as_record(number, text, limits)
                if not raw.endswith(b"\n"):
                    if len(text) > limits.record:
                        _skip_line(stream)
                    elif record.text and (record.problem or not _is_json(record.text)):
                        raise TruncatedInputError(
                            f"{file}, line {number}: the file ends in the middle of a record ({record.text[-60:]!r}). "
                            f"{_LEFT}{_BEGINS.get(begins, '')}"
                        )
                if record.text.strip():
                    yield record
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise TruncatedInputError(
            f"{file}, after line {number}: the compressed stream is cut or damaged ({e}). {_LEFT}"
        ) from e


def _skip_line(stream: IO[bytes]) -> None:
    while (raw := stream.readline(1 << 20)) and not raw.endswith(b"\n"):
        pass


def _within(record: Record, limits: Limits) -> Record:
    # Four bytes are the most that a character takes.
    if len(record.text) * 4 <= limits.record or len(record.text.encode()) <= limits.record:
        return record
    return Record(record.number, record.text[:KEPT], too_large(limits))


def as_record(number: int, raw: bytes, limits: Limits) -> Record:
    """Bytes as a record; what is no UTF-8 is kept in escapes."""
    if len(raw) > limits.record:
        return Record(number, raw[:KEPT].decode("utf-8", "backslashreplace"), too_large(limits))
    try:
        return Record(number, raw.decode("utf-8"))
    except UnicodeDecodeError as e:
        return Record(number, raw.decode("utf-8", "backslashreplace"), f"{NOT_UTF8} ({e})")


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as e:
        # Complete, but deeper than is followed: a reject, not a cut file.
        return text[-1:] in "}]" and is_too_deep(e)
    return True


def is_due(
    files: Sequence[Path],
    batch: BatchSize,
    bytes_a_record: float | None,
    now: float | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> bool:
    """Whether new files are to be taken in: the oldest has waited long enough, or together they are enough.

    Args:
        files: the new ones.
        batch: what is enough, and how long less than that waits.
        bytes_a_record: from files that were taken in before; None: there is none, so that records are counted.
        now: seconds since 1970.
        limits: what is read of them, where records are counted.
    """
    if not files or not batch.wait or batch.is_full(len(files), 0):
        return bool(files)
    stats = [f.stat() for f in files]
    age = (time.time() if now is None else now) - min(s.st_mtime for s in stats)
    # A file from the future is one of a clock that was set back.
    if age >= batch.wait or age < 0:
        return True
    if batch.rows is None:
        return False
    if bytes_a_record:
        return sum(s.st_size for s in stats) / bytes_a_record >= batch.rows
    return _holds(files, batch.rows, limits)


def _holds(files: Sequence[Path], rows: int, limits: Limits) -> bool:
    count = 0
    for file in files:
        try:
            for _ in records_of(file, limits):
                count += 1
                if count >= rows:
                    return True
        except InputError:
            return True  # for the landing to say
    return False
