"""Rows of CSV files as records.

The first line names the columns. An empty field is null, a quoted empty field an empty text. Arrow would stop at a row
larger than its block. Few files have one, and finding where rows begin and end takes three times as long as reading
them, so it is done once Arrow has stopped.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import IO, Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv

from lake_assets.errors import MalformedRecordError, TruncatedInputError
from lake_assets.formats.files.limited_files import (
    DEFAULT_LIMITS,
    KEPT,
    Limits,
    Record,
    check_column_names,
    opened,
    too_large,
)
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.formats.flat_rows import TEXT
from lake_assets.lake import thresholds

# Arrow counts the bytes of a block in 32 bits.
MAX_ROW_BYTES = 1 << 30
# Appended after a file's last line: parsed as a separate row, unless a quote is still open.
_END_MARK = "\0end"


def csv_records(file: RecordFile, limits: Limits = DEFAULT_LIMITS) -> Iterator[Record]:
    """Yield the rows of a CSV file (gzip if it is named .gz), each with the line on which it begins (header: 1).

    A row with more or fewer fields than the header, or larger than allowed, becomes a record with a problem. Blank
    lines are skipped.

    Raises:
        InputTooLargeError: the file is larger than allowed.
        MalformedRecordError: the file has no header line or a duplicate name, or is not UTF-8.
        TruncatedInputError: the compressed stream is truncated or damaged, or a quote is never closed.
    """
    line = count = 0
    try:
        try:
            for record in _csv_rows(file, limits):
                line, count = record.number, count + 1
                yield record
        except pa.ArrowInvalid:
            # A row may be larger than a block. Larger blocks take more memory, and few files need them.
            longest = min(max(limits.record, thresholds.CSV_BYTES_A_BLOCK), MAX_ROW_BYTES)
            for record in islice(_csv_rows(file, limits, longest), count, None):
                line = record.number
                yield record
    except (EOFError, zlib.error) as e:
        raise TruncatedInputError(f"{file}, {_after(line)}: the compressed stream is cut or damaged ({e})") from e
    except (pa.ArrowInvalid, gzip.BadGzipFile, UnicodeDecodeError) as e:
        raise MalformedRecordError(f"{file}, {_after(line)}: {_why_unreadable(e)}") from e


def _after(line: int) -> str:
    return f"after line {line}" if line else "at its beginning"


def _why_unreadable(error: Exception) -> str:
    """Return why a file is no CSV, and what to write instead."""
    text = str(error)
    if isinstance(error, gzip.BadGzipFile) and not text.startswith("Not a gzipped file"):
        return f"the compressed stream is cut or damaged ({text})"
    if isinstance(error, gzip.BadGzipFile):
        return f"its name ends in .gz, but it is not compressed ({text}): compress it, or land it as .csv"
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return f"not UTF-8 ({text}): write the file in UTF-8; perhaps it is in Latin-1 or Windows-1252"
    if text == "Empty CSV file":
        return "the file is empty: a CSV file begins with a header line"
    return f"no CSV with one header line ({text})"


def _csv_rows(file: RecordFile, limits: Limits, longest: int | None = None) -> Iterator[Record]:
    """Yield the rows. `longest`: bytes of the longest row to read, if Arrow may stop at longer ones; None: no limit."""
    row = 1  # Arrow counts the header as a row
    misfits: deque[Any] = deque()

    def skip(misfit: Any) -> str:
        misfits.append(misfit)
        return "skip"

    names = _header(file, limits, longest)
    options = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
    # Arrow reports the numbers of invalid rows only if it reads in one thread.
    read = pa_csv.ReadOptions(block_size=longest + 1 if longest else thresholds.CSV_BYTES_A_BLOCK, use_threads=False)
    with opened(file, limits) as stream:
        rows = RowFilter(stream, longest, KEPT) if longest else None
        lines, left_out = (rows.lines(), rows.left_out) if rows else (_row_lines(file, limits), ())

        def unfit() -> Iterator[Record]:
            nonlocal row
            while True:
                if left_out and left_out[0].after == row:
                    long = left_out.popleft()
                    yield Record(long.line, long.text, too_large(limits))
                elif misfits and misfits[0].number == row + 1:
                    misfit, row = misfits.popleft(), row + 1
                    problem = f"a row of {misfit.actual_columns} fields, but the header has {len(names)}"
                    yield Record(next(lines), misfit.text, problem)
                else:
                    return

        source = io.BufferedReader(rows, 1 << 20) if rows else stream
        batches = pa_csv.open_csv(source, read_options=read, parse_options=parse, convert_options=options)
        next(lines)  # the header's
        for batch in batches:
            for values in batch.to_pylist():
                yield from unfit()
                row += 1
                yield Record(next(lines), orjson.dumps({TEXT: values}).decode())
        if rows and rows.ends_in_quotes:
            raise _never_closed(file, rows.last_line)
        yield from unfit()
        if rows is None:
            for _ in lines:  # read to the end, to detect an unclosed quote
                pass


def _row_lines(file: RecordFile, limits: Limits) -> Iterator[int]:
    """Yield the line on which each row begins, the header first.

    Arrow does not report it: quoted values contain line breaks, and blank lines are no rows. Nor does it report a
    quoted value that continues to the end of the file.

    Raises:
        TruncatedInputError: a quote is never closed.
    """
    csv.field_size_limit(sys.maxsize)  # like Arrow, which has no limit
    with io.TextIOWrapper(opened(file, limits), encoding="utf-8", errors="replace", newline="") as stream:
        rows, end, begins = csv.reader(chain(stream, [_END_MARK])), 0, 1
        for fields in rows:
            if fields == [_END_MARK]:
                return
            if fields:
                yield (begins := end + 1)
            end = rows.line_num
    raise _never_closed(file, begins)


def _never_closed(file: RecordFile, line: int) -> TruncatedInputError:
    return TruncatedInputError(
        f"{file}: a quote in the row that begins on line {line} is never closed, so the row continues to the end of "
        "the file. No row of the file was landed: close the quote, or deliver the whole file"
    )


def _header(file: RecordFile, limits: Limits, longest: int | None) -> list[str]:
    with opened(file, limits) as stream:
        # Invalid rows are ignored here, and reported when they are read.
        parse = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
        source = io.BufferedReader(RowFilter(stream, thresholds.CSV_BYTES_A_BLOCK, KEPT)) if longest else stream
        read = pa_csv.ReadOptions(block_size=thresholds.CSV_BYTES_A_BLOCK + 1)
        names: list[str] = pa_csv.open_csv(source, read_options=read, parse_options=parse).schema.names
    if len(names) == 1 and (separator := next((s for s in _OTHER_SEPARATORS if s in names[0]), None)):
        raise MalformedRecordError(
            f"{file}, line 1: the header's fields are separated by {_OTHER_SEPARATORS[separator]}, so they are one "
            f"column {names[0]!r}: write the file with commas"
        )
    check_column_names(file, names)
    return names


# What other programs separate fields by.
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "`|`"}
_CHUNK = 1 << 20
# Outside quotes: the end of a row, a quote that begins a field, a comma at the end of the chunk.
_SPECIAL = re.compile(rb'[\r\n]|,(?:"|\Z)')
_BOM = b"\xef\xbb\xbf"


class LongRow(NamedTuple):
    """A row that is left out because of its size.

    Attributes:
        after: number of preceding rows that are not left out, including the header.
        line: the line on which the row begins.
        text: the beginning of the row.
    """

    after: int
    line: int
    text: str


class RowFilter(io.RawIOBase):
    """The bytes of a CSV file without the rows that are too large.

    Attributes:
        left_out: the rows left out so far, which the reader removes once reported.
        last_line: the line on which the last row read begins.
    """

    def __init__(self, source: IO[bytes], longest: int, excerpt: int) -> None:
        """
        Args:
            longest: rows of more bytes are left out.
            excerpt: bytes to keep of each row that is left out.
        """
        self.source, self.longest, self.excerpt = source, longest, excerpt
        self._lines: deque[int] = deque()
        self.left_out: deque[LongRow] = deque()
        self._ready = bytearray()
        self._row = bytearray()
        self._size = self._rows = 0
        self._line = self._begins = self.last_line = 1
        self._last = b""
        self._quoted = self._closed = False
        self._at_field = self._is_first = True

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See `io.RawIOBase`."""
        while not self._ready:
            chunk = self.source.read(_CHUNK)
            if not chunk:
                self._end_row()
                break
            self._scan(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        del self._ready[:count]
        return count

    @property
    def ends_in_quotes(self) -> bool:
        """Whether the last row read contains an unclosed quote."""
        return self._quoted

    def lines(self) -> Iterator[int]:
        """Yield the line on which each row begins that was read and not left out, the header first."""
        while True:
            yield self._lines.popleft()

    def _scan(self, chunk: bytes) -> None:
        begin = at = 0
        if self._is_first:
            self._is_first, at = False, len(_BOM) if chunk.startswith(_BOM) else 0
        while at < len(chunk):
            if self._quoted:
                quote = chunk.find(b'"', at)
                self._quoted, self._closed = quote < 0, quote >= 0
                at = quote + 1 or len(chunk)
                continue
            if (self._closed or self._at_field) and chunk[at] == 34:
                # A quote at the start of a field, or a doubled quote, which does not end the field.
                self._quoted, self._closed, self._at_field = True, False, False
                at += 1
                continue
            self._closed = self._at_field = False
            special = _SPECIAL.search(chunk, at)
            if special is None:
                break
            at = special.end()
            if special[0] == b',"':
                self._quoted = True
            else:
                self._at_field = True
                if special[0] != b",":
                    self._add(chunk[begin:at])
                    self._end_row()
                    begin = at
        self._add(chunk[begin:])

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self.longest:
            self._row += part
        else:
            self._row = (self._row + part[: self.excerpt])[: self.excerpt]
        ends = part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
        self._line += ends - (self._last == b"\r" and part[:1] == b"\n")
        self._last = part[-1:] or self._last

    def _end_row(self) -> None:
        is_blank = self._size <= 2 and not self._row.strip(b"\r\n")
        if self._size > self.longest:
            text = self._row.decode("utf-8", "backslashreplace")
            self.left_out.append(LongRow(self._rows, self._begins, text))
        else:
            self._ready += self._row
            if not is_blank:
                self._lines.append(self._begins)
                self._rows += 1
        self._row, self._size = bytearray(), 0
        self.last_line, self._begins = self._begins, self._line
