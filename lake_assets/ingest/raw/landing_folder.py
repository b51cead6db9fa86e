"""Records of the files of a landing folder, and whether these are enough to land."""

from __future__ import annotations

import codecs
import gzip
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

import orjson

from lake_assets.errors import InputError, MalformedRecordError, TruncatedInputError
from lake_assets.formats.files.file_records import reader_of
from lake_assets.formats.files.limited_files import (
    KEPT,
    NOT_UTF8,
    Limits,
    Record,
    opened,
    too_large,
)
from lake_assets.formats.files.record_files import LocalFile, RecordFile
from lake_assets.formats.format_base import is_too_deep
from lake_assets.lake import thresholds
from lake_assets.tables.specs import BatchSize

# What ZIP archives begin with.
_ZIP = b"PK\x03\x04"
# First bytes of files that are not UTF-8.
_HINTS = {
    b"\x1f\x8b": ". It starts like a gzip stream: give it a name that ends in .gz",
    b"\xff\xfe": ". It starts like UTF-16: write UTF-8",
    b"\xfe\xff": ". It starts like UTF-16: write UTF-8",
}
_NOT_LANDED = "Nothing of it was landed; files before it were. Deliver the whole file (write elsewhere, then rename)"


def records_of(file: RecordFile, limits: Limits) -> Iterator[Record]:
    """Yield the records of a file: lines, or rows of CSV and Parquet.

    Raises:
        TruncatedInputError, MalformedRecordError, InputTooLargeError: the file as a whole cannot be read.
    """
    file = file.fetched()
    reader = reader_of(file)
    if reader is None:
        return lines(file, limits)
    return (_within(record, limits) for record in reader(file, limits))


def fetched_ahead(files: Sequence[RecordFile]) -> Iterator[Callable[[], RecordFile]]:
    """Yield for each file, in their order, a function that returns it fetched, or raises what that raised.

    Objects of a store are fetched several at once: each takes as long as a request, however small it is.
    """
    if all(isinstance(f, LocalFile) for f in files):
        yield from (f.fetched for f in files)
        return
    with ThreadPoolExecutor(thresholds.OBJECTS_AT_ONCE) as pool:
        waiting: deque[Future[RecordFile]] = deque()
        try:
            for file in files:
                waiting.append(pool.submit(file.fetched))
                if len(waiting) >= thresholds.OBJECTS_AT_ONCE:
                    yield waiting.popleft().result
            while waiting:
                yield waiting.popleft().result
        finally:
            for future in waiting:
                future.cancel()


def lines(file: RecordFile, limits: Limits) -> Iterator[Record]:
    """Yield the lines of a file (gzip if named .gz), numbered from 1, without blank ones and a byte order mark.

    Raises:
        MalformedRecordError: the file is UTF-16.
        TruncatedInputError: the file ends in the middle of a record (or of its compressed stream).
        InputTooLargeError: the file is larger than allowed.
    """
    number, first_bytes = 0, b""
    if file.is_compressed and not file.size:
        raise TruncatedInputError(f"{file}, after line 0: an empty file is not a gzip stream. {_NOT_LANDED}")
    try:
        with opened(file, limits) as stream:
            # With a limit: a line may be larger than the memory.
            while raw := stream.readline(limits.record + 2):
                number += 1
                if number == 1:
                    if raw.startswith(_ZIP):
                        raise MalformedRecordError(
                            f"{file} is a ZIP archive, as files of Excel are: nothing of it was landed. Deliver JSON "
                            "lines, .csv or .parquet instead"
                        )
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


def is_due(files: Sequence[RecordFile], batch: BatchSize, bytes_a_record: float | None, limits: Limits) -> bool:
    """Whether to land new files: the oldest has waited long enough, or together they fill a batch.

    `bytes_a_record` is the average of the files landed before; None if there are none, so that records are counted.
    """
    if not files or not batch.wait or batch.is_full(len(files), 0):
        return bool(files)
    times = [f.modified for f in files]
    age = time.time() - min(t or 0.0 for t in times)
    # A file is dated in the future if the clock was set back.
    if age >= batch.wait or age < 0:
        return True
    if batch.rows is None:
        return False
    if bytes_a_record:
        return sum(f.size for f in files) / bytes_a_record >= batch.rows
    return _holds(files, batch.rows, limits)


def _holds(files: Sequence[RecordFile], rows: int, limits: Limits) -> bool:
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
