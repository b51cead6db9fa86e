"""Files of a landing folder, and their records."""

from __future__ import annotations

import codecs
import gzip
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import orjson

from lake_assets.errors import InputError, LandingFolderError, MalformedRecordError, TruncatedInputError
from lake_assets.formats.files.file_records import reader_of
from lake_assets.formats.files.limited_files import (
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

# First bytes of files that are not UTF-8.
_HINTS = {
    b"\x1f\x8b": ". It starts like a gzip stream: give it a name that ends in .gz",
    b"\xff\xfe": ". It starts like UTF-16: write UTF-8",
    b"\xfe\xff": ". It starts like UTF-16: write UTF-8",
}
_NOT_LANDED = "Nothing of it was landed; files before it were. Deliver the whole file (write elsewhere, then rename)"


def nothing_arrived(folder: Path, home: Path) -> tuple[Literal["waiting", "nothing"], str]:
    """Return the status of a landing from which no file has ever arrived, and what it watches.

    A relative folder is below the lake's home, and may have been meant to lie elsewhere.
    """
    where = " (a relative `landing` is below the home of the lake)" if folder.is_relative_to(home) else ""
    if not folder.exists():
        return "waiting", f"the folder {folder} does not exist yet{where}"
    return "nothing", f"no file has arrived in {folder} yet{where}"


def listing(folder: Path) -> list[Path]:
    """Return a landing folder's files by name, without hidden and unfinished ones (`.`, `_`, `.tmp`, `.part`).

    A missing folder is empty: the program that fills it creates it.

    Raises:
        LandingFolderError: the folder is a file, or cannot be read.
    """
    # Links to files are listed, so that reading them raises the error about links. scandir knows which entries are
    # files; one stat call per file would dominate with 100,000 files.
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
        # A circular link, or one into a folder without permission, does not lead to a file.
        if entry.is_symlink():
            return False
        raise


def name_of(file: Path) -> str:
    """Return a file's name as stored in tables; bytes that are not UTF-8 become `/xff`, which no other name
    contains."""
    name = file.name
    if name.isascii():
        return name
    return "".join(f"/x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c for c in name)


def records_of(file: Path, limits: Limits) -> Iterator[Record]:
    """Yield the records of a file: lines, or rows of CSV and Parquet.

    Raises:
        TruncatedInputError, MalformedRecordError, InputTooLargeError: the file as a whole cannot be read.
    """
    reader = reader_of(file)
    if reader is None:
        return lines(file, limits)
    return (_within(record, limits) for record in reader(file, limits))


def lines(file: Path, limits: Limits) -> Iterator[Record]:
    """Yield the lines of a file (gzip if named .gz), numbered from 1, without blank ones and a byte order mark.

    Raises:
        MalformedRecordError: the file is UTF-16.
        TruncatedInputError: the file ends in the middle of a record (or of its compressed stream).
        InputTooLargeError: the file is larger than allowed.
    """
    number, first_bytes = 0, b""
    if is_compressed(file) and not file.stat().st_size:
        raise TruncatedInputError(f"{file}, after line 0: an empty file is not a gzip stream. {_NOT_LANDED}")
    try:
        with opened(file, limits) as stream:
            # With a limit: a line may be larger than the memory.
            while raw := stream.readline(limits.record + 2):
                number += 1
                if number == 1:
                    first_bytes, raw = raw[:2], raw.removeprefix(codecs.BOM_UTF8)
                    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and b"\0" in raw[2:4]:
                        raise MalformedRecordError(f"{file} is no JSON in UTF-8{_HINTS[first_bytes]}. {_NOT_LANDED}")
                text = raw.removesuffix(b"\n").removesuffix(b"\r")
                record = as_record(number, text, limits)
                if not raw.endswith(b"\n"):
                    if len(text) > limits.record:
                        _skip_line(stream)
                    elif record.text and (record.problem or not _is_json(record.text)):
                        raise TruncatedInputError(
                            f"{file}, line {number}: the file ends in the middle of a record ({record.text[-60:]!r}). "
                            f"{_NOT_LANDED}{_HINTS.get(first_bytes, '')}"
                        )
                if record.text.strip():
                    yield record
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise TruncatedInputError(
            f"{file}, after line {number}: the compressed stream is cut or damaged ({e}). {_NOT_LANDED}"
        ) from e


def _skip_line(stream: IO[bytes]) -> None:
    while (raw := stream.readline(1 << 20)) and not raw.endswith(b"\n"):
        pass


def _within(record: Record, limits: Limits) -> Record:
    # A character takes at most four bytes.
    if len(record.text) * 4 <= limits.record or len(record.text.encode()) <= limits.record:
        return record
    return Record(record.number, record.text[:KEPT], too_large(limits))


def as_record(number: int, raw: bytes, limits: Limits) -> Record:
    """Decode bytes as a record; bytes that are not UTF-8 are escaped, and the record has a problem."""
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
        # Complete, but nested too deeply: a reject, not a truncated file.
        return text[-1:] in "}]" and is_too_deep(e)
    return True


def is_due(files: Sequence[Path], batch: BatchSize, bytes_a_record: float | None, limits: Limits) -> bool:
    """Whether to land new files: the oldest has waited long enough, or together they fill a batch.

    `bytes_a_record` is the average of the files landed before; None if there are none, so that records are counted.
    """
    if not files or not batch.wait or batch.is_full(len(files), 0):
        return bool(files)
    stats = [f.stat() for f in files]
    age = time.time() - min(s.st_mtime for s in stats)
    # A file is dated in the future if the clock was set back.
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
            return True  # landing raises the error
    return False
