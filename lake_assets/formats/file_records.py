"""Rows of CSV and Parquet files as records: one JSON object a row, read in batches so that memory stays flat.

CSV: the first line names the columns; an empty field is null, a quoted empty one is an empty text. Parquet: values with
the file's types, so that nothing has to be guessed: decimals and moments as text, binary as base64.
"""

from __future__ import annotations

import base64
import csv
import errno
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from pydantic import ByteSize

from lake_assets.errors import (
    InputTooLargeError,
    LandingFolderError,
    MalformedRecordError,
    TruncatedInputError,
    UnsupportedEventError,
)
from lake_assets.formats.csv_rows import RowFilter
from lake_assets.formats.flat_rows import ROW, TEXT, TYPES
from lake_assets.formats.format_base import DEPTH

BLOCK = 8 << 20
# Arrow counts the bytes of a block in 32 bits.
LONGEST_ROW = 1 << 30
ROWS_A_BATCH = 10_000
# How the problems begin of records that are kept in part.
TOO_LARGE = "larger than "
NO_VALUE = "no value that can be read: "
NOT_UTF8 = "not UTF-8"
KEPT_IN_PART = (TOO_LARGE, NO_VALUE, NOT_UTF8)
# Characters of a record that is too large.
KEPT = 1_000
# A line after a file's last one: in a row of its own, unless a quote is open.
_END = "\0end"


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
            raise _file_too_large(self.file, self.limit)
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


def _file_too_large(file: Path, limit: int) -> InputTooLargeError:
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


def reader_of(file: Path) -> Callable[[Path, Limits], Iterator[Record]] | None:
    """What reads a file that is no JSON lines: by its name (.csv, .csv.gz, .parquet)."""
    suffix = Path(file.stem if is_compressed(file) else file.name).suffix.lower()
    return {".csv": csv_records, ".parquet": parquet_records}.get(suffix)


def csv_records(file: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Record]:
    """The rows of a CSV file (gzip if it is named .gz) with the line on which each begins: the header is line 1.

    A row with more or fewer fields than there are columns is a record with a problem, and so is one that is too large.
    Blank lines are left out.

    Raises:
        InputTooLargeError: the file is larger than allowed.
        MalformedRecordError: no header line, a name is there twice, no UTF-8.
        TruncatedInputError: the compressed stream is cut or damaged, or a quote is never closed.
    """
    line = count = 0
    try:
        try:
            for record in _csv_rows(file, limits):
                line, count = record.number, count + 1
                yield record
        except pa.ArrowInvalid:
            # Perhaps a row is larger than a block. Larger blocks take much memory, and few files need them.
            for record in islice(_csv_rows(file, limits, min(max(limits.record, BLOCK), LONGEST_ROW)), count, None):
                line = record.number
                yield record
    except (EOFError, zlib.error) as e:
        raise TruncatedInputError(f"{file}, after line {line}: the compressed stream is cut or damaged ({e})") from e
    except (pa.ArrowInvalid, gzip.BadGzipFile, UnicodeDecodeError) as e:
        raise MalformedRecordError(f"{file}, after line {line}: no CSV with one header line ({e})") from e


def _csv_rows(file: Path, limits: Limits, longest: int | None = None) -> Iterator[Record]:
    """The rows; `longest`: bytes of the longest one that is read, where there may be some that Arrow stops at."""
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
    # Arrow numbers the rows that do not fit only where it reads with one thread.
    read = pa_csv.ReadOptions(block_size=longest + 1 if longest else BLOCK, use_threads=False)
    with opened(file, limits) as stream:
        rows = RowFilter(stream, longest, KEPT) if longest else None
        lines, left_out = (rows.lines(), rows.left_out) if rows else (_first_lines(file, limits), ())

        def unfit() -> Iterator[Record]:
            nonlocal row
            while True:
                if left_out and left_out[0].after == row:
                    long = left_out.popleft()
                    yield Record(long.line, long.text, too_large(limits))
                elif misfits and misfits[0].number == row + 1:
                    misfit, row = misfits.popleft(), row + 1
                    problem = f"a row of {misfit.actual_columns} fields, where the header has {len(names)}"
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
            for _ in lines:  # to the end, for what is wrong there
                pass


def _first_lines(file: Path, limits: Limits) -> Iterator[int]:
    """The line on which each row begins, the header first.

    Arrow does not tell it: quoted values hold line breaks, and blank lines are no rows. Nor does it tell that a quoted
    value continues to the end of the file.

    Raises:
        TruncatedInputError: a quote is never closed.
    """
    csv.field_size_limit(sys.maxsize)  # as Arrow, which has none
    with io.TextIOWrapper(opened(file, limits), encoding="utf-8", errors="replace", newline="") as stream:
        rows, end, begins = csv.reader(chain(stream, [_END])), 0, 1
        for fields in rows:
            if fields == [_END]:
                return
            if fields:
                yield (begins := end + 1)
            end = rows.line_num
    raise _never_closed(file, begins)


def _never_closed(file: Path, line: int) -> TruncatedInputError:
    return TruncatedInputError(
        f"{file}: a quote in the row that begins on line {line} is never closed, so the row continues to the end of "
        "the file. Nothing of it was taken in: close the quote, or deliver the whole file"
    )


def _header(file: Path, limits: Limits, longest: int | None) -> list[str]:
    with opened(file, limits) as stream:
        # Rows that do not fit are no matter here: their number is told when they are read.
        parse = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
        source = io.BufferedReader(RowFilter(stream, BLOCK, KEPT)) if longest else stream
        read = pa_csv.ReadOptions(block_size=BLOCK + 1)
        names: list[str] = pa_csv.open_csv(source, read_options=read, parse_options=parse).schema.names
    _check_names(file, names)
    return names


def parquet_records(file: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Record]:
    """The rows of a Parquet file with their numbers from 1.

    Raises:
        InputTooLargeError: the file is larger than allowed.
        MalformedRecordError: the file is no Parquet file, or is cut (its footer is missing), or a name is there twice.
        UnsupportedEventError: a column's type has no counterpart.
    """
    number = 0
    try:
        with open_regular(file) as raw, pa_parquet.ParquetFile(raw) as parquet:
            metadata = parquet.metadata
            if sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) > limits.file:
                raise _file_too_large(file, limits.file)
            fields: list[pa.Field] = list(parquet.schema_arrow)
            _check_names(file, [f.name for f in fields])
            types = orjson.dumps({f.name: _type_of(file, f) for f in fields}).decode()
            for batch in parquet.iter_batches(batch_size=ROWS_A_BATCH):
                for values, problem in _rows(_micros(batch)):
                    number += 1
                    yield Record(number, f"{{{json.dumps(TYPES)}:{types},{json.dumps(ROW)}:{values}}}", problem)
    except MemoryError as e:
        raise InputTooLargeError(
            f"{file}, after row {number}: its rows take more memory than there is. Nothing of the file was taken in: "
            "split it, or write smaller values"
        ) from e
    except (pa.ArrowException, OSError, ValueError) as e:  # a name that is no UTF-8 is a ValueError
        raise MalformedRecordError(f"{file}, after row {number}: no whole Parquet file ({e})") from e


def _type_of(file: Path, field: pa.Field) -> str:
    try:
        return spark_type(field.type)
    except UnsupportedEventError as e:
        raise UnsupportedEventError(f"{file}, column {field.name}: {e}") from e


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str | None]]:
    """Each row as JSON, with what is wrong with it: values that Python or JSON cannot hold."""
    try:
        rows = [_json(row) for row in _python_rows(batch)]
    except _NO_VALUES:
        for i in range(batch.num_rows):
            yield _row(batch.slice(i, 1))
    else:
        yield from ((row, None) for row in rows)


def _row(one: pa.RecordBatch) -> tuple[str, str | None]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, column in zip(one.schema.names, one.columns, strict=True):
        try:
            values[name] = orjson.Fragment(_json(column[0].as_py()))
        except _NO_VALUES as e:
            problems.append(f"{name} ({type(e).__name__}: {e})")
    return orjson.dumps(values).decode(), NO_VALUE + ", ".join(problems) if problems else None


# What Arrow and orjson raise for values that Python or JSON cannot hold: texts that are no UTF-8, dates and moments out
# of Python's range, unknown time zones.
_NO_VALUES = (ValueError, OverflowError, LookupError, TypeError)


def _json(value: Any) -> str:
    return orjson.dumps(_plain(value), option=orjson.OPT_NON_STR_KEYS).decode()


def _check_names(file: Path, names: list[str]) -> None:
    """Raise MalformedRecordError where two columns have one name: only one of them would be taken in."""
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise MalformedRecordError(f"{file}: two columns have one name: {', '.join(map(repr, twice))}")


def spark_type(kind: pa.DataType) -> str:
    """The Spark SQL type of an Arrow type; nested types other than lists become JSON text.

    Raises:
        UnsupportedEventError: unsigned 64-bit integers and decimals of more than 38 digits hold too much.
    """
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_decimal(kind):
        if kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return f"decimal({kind.precision},{kind.scale})"
        raise UnsupportedEventError(f"{kind}: Spark's decimals have 38 digits")
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = spark_type(kind.value_type)
        return f"array<{inner}>" if "<" not in inner else "string"
    if pa.types.is_uint64(kind):
        return "decimal(20,0)"
    for test, name in _TYPES:
        if test(kind):
            return name
    return "string"


_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda t: pa.types.is_int8(t) or pa.types.is_int16(t) or pa.types.is_int32(t), "int"),
    (lambda t: pa.types.is_uint8(t) or pa.types.is_uint16(t), "int"),
    (pa.types.is_integer, "bigint"),
    (lambda t: pa.types.is_float16(t) or pa.types.is_float32(t), "float"),
    (pa.types.is_floating, "double"),
    (pa.types.is_date, "date"),
    (pa.types.is_duration, "bigint"),
    (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t), "binary"),
)


def _micros(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Moments in microseconds, as Spark and Iceberg keep them: Python has no finer ones."""
    for i, field in enumerate(batch.schema):
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = batch.column(i).cast(pa.timestamp("us", kind.tz), safe=False)
            batch = batch.set_column(i, field.name, column)
        if pa.types.is_time64(kind) and kind.unit == "ns":
            batch = batch.set_column(i, field.name, batch.column(i).cast(pa.time64("us"), safe=False))
    return batch


def _python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except _NO_VALUES:
        # Python has neither years beyond 9999 nor all time zones: as text, a value does not fit its type and is told.
        for i, field in enumerate(batch.schema):
            text = _as_text(field.type)
            if text != field.type:
                batch = batch.set_column(i, field.name, batch.column(i).cast(text))
        return batch.to_pylist()


def _as_text(kind: pa.DataType) -> pa.DataType:
    """A type with text where it has dates and moments."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_as_text(kind.value_type))
    return pa.string() if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {k: _plain(v) for k, v in value.items()}
        case list() | tuple():  # an entry of a map is a tuple
            return [_plain(v) for v in value]
        case timedelta():
            return value // timedelta(microseconds=1)
        case float():
            return value if value - value == 0 else {value: "Infinity", -value: "-Infinity"}.get(float("inf"), "NaN")
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat(" ")
        case time():
            return value.isoformat("microseconds")
        case date():
            return value.isoformat()
        case _:
            return value
