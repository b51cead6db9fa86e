"""Rows of CSV files as records.

The first line names the columns. An empty field is null, a quoted empty field an empty text.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv

from lake_assets.errors import MalformedRecordError, TruncatedInputError
from lake_assets.formats.files.csv_long_rows import RowFilter
from lake_assets.formats.files.limited_files import (
    DEFAULT_LIMITS,
    KEPT,
    Limits,
    Record,
    check_column_names,
    opened,
    too_large,
)
from lake_assets.formats.flat_rows import TEXT
from lake_assets.lake import thresholds

# Arrow counts the bytes of a block in 32 bits.
MAX_ROW_BYTES = 1 << 30
# Appended after a file's last line: parsed as a separate row, unless a quote is still open.
_END_MARK = "\0end"


def csv_records(file: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Record]:
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
        raise TruncatedInputError(f"{file}, after line {line}: the compressed stream is cut or damaged ({e})") from e
    except (pa.ArrowInvalid, gzip.BadGzipFile, UnicodeDecodeError) as e:
        raise MalformedRecordError(f"{file}, after line {line}: no CSV with one header line ({e})") from e


def _csv_rows(file: Path, limits: Limits, longest: int | None = None) -> Iterator[Record]:
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


def _row_lines(file: Path, limits: Limits) -> Iterator[int]:
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


def _never_closed(file: Path, line: int) -> TruncatedInputError:
    return TruncatedInputError(
        f"{file}: a quote in the row that begins on line {line} is never closed, so the row continues to the end of "
        "the file. No row of the file was landed: close the quote, or deliver the whole file"
    )


def _header(file: Path, limits: Limits, longest: int | None) -> list[str]:
    with opened(file, limits) as stream:
        # Invalid rows are ignored here, and reported when they are read.
        parse = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
        source = io.BufferedReader(RowFilter(stream, thresholds.CSV_BYTES_A_BLOCK, KEPT)) if longest else stream
        read = pa_csv.ReadOptions(block_size=thresholds.CSV_BYTES_A_BLOCK + 1)
        names: list[str] = pa_csv.open_csv(source, read_options=read, parse_options=parse).schema.names
    check_column_names(file, names)
    return names
