"""Rows of Parquet files as records.

Each record has the file's types, so none has to be guessed. Decimals and times are text, binary values base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from lake_assets.errors import InputTooLargeError, MalformedRecordError, UnsupportedEventError
from lake_assets.formats.files.limited_files import (
    DEFAULT_LIMITS,
    NO_VALUE,
    Limits,
    Record,
    check_column_names,
    file_too_large,
)
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.formats.flat_rows import ROW, TYPES
from lake_assets.lake import thresholds


def parquet_records(file: RecordFile, limits: Limits = DEFAULT_LIMITS) -> Iterator[Record]:
    """Yield the rows of a Parquet file with their numbers from 1.

    Raises:
        InputTooLargeError: the file is larger than allowed.
        MalformedRecordError: it is not a Parquet file, is truncated (has no footer), or has a duplicate column name.
        UnsupportedEventError: a column's type has no counterpart.
    """
    number = 0
    try:
        with file.open() as raw, pa_parquet.ParquetFile(raw) as parquet:
            metadata = parquet.metadata
            if sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) > limits.file:
                raise file_too_large(file, limits.file)
            fields: list[pa.Field] = list(parquet.schema_arrow)
            check_column_names(file, [f.name for f in fields])
            types = orjson.dumps({f.name: _type_of(file, f) for f in fields}).decode()
            for batch in parquet.iter_batches(batch_size=thresholds.PARQUET_ROWS_A_BATCH):
                for values, problem in _rows(_micros(batch)):
                    number += 1
                    yield Record(number, f"{{{json.dumps(TYPES)}:{types},{json.dumps(ROW)}:{values}}}", problem)
    except MemoryError as e:
        raise InputTooLargeError(
            f"{file}, after row {number}: its rows need more memory than available. No row of the file was landed: "
            "split it, or write smaller values"
        ) from e
    except (pa.ArrowException, OSError, ValueError) as e:  # a name that is not UTF-8 is a ValueError
        raise MalformedRecordError(f"{file}, after row {number}: not a complete Parquet file ({e})") from e


def _type_of(file: RecordFile, field: pa.Field) -> str:
    try:
        return spark_type(field.type)
    except UnsupportedEventError as e:
        raise UnsupportedEventError(f"{file}, column {field.name}: {e}") from e


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str | None]]:
    """Yield each row as JSON, with its problem: values that Python or JSON cannot represent."""
    try:
        rows = [json_text(row) for row in _python_rows(batch)]
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
            values[name] = orjson.Fragment(json_text(column[0].as_py()))
        except _NO_VALUES as e:
            problems.append(f"{name} ({type(e).__name__}: {e})")
    return orjson.dumps(values).decode(), NO_VALUE + ", ".join(problems) if problems else None


# Errors of Arrow and orjson for values that Python or JSON cannot represent: texts that are not UTF-8, dates and times
# out of Python's range, unknown time zones.
_NO_VALUES = (ValueError, OverflowError, LookupError, TypeError)


def json_text(value: Any) -> str:
    """Return a value, or a row, as JSON: decimals and times as text, binary values in base64."""
    return orjson.dumps(_plain(value), option=orjson.OPT_NON_STR_KEYS).decode()


def spark_type(kind: pa.DataType) -> str:
    """Return the Spark SQL type of an Arrow type; nested types other than lists become JSON text.

    Raises:
        UnsupportedEventError: a decimal has more than 38 digits.
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
    """Convert nanoseconds to microseconds, the resolution of Spark, Iceberg and Python; finer ones to text."""
    for i, field in enumerate(batch.schema):
        kind, column = field.type, batch.column(i)
        if (pa.types.is_timestamp(kind) or pa.types.is_time64(kind)) and kind.unit == "ns":
            micros = column.cast(
                pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.time64("us"), safe=False
            )
            is_exact = micros.cast(kind).equals(column)
            batch = batch.set_column(i, field.name, micros if is_exact else column.cast(pa.string()))
    return batch


def _python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except _NO_VALUES:
        # Python lacks years beyond 9999 and some time zones. As text, such values are rejected later, with a reason.
        for i, field in enumerate(batch.schema):
            text = _as_text(field.type)
            if text != field.type:
                batch = batch.set_column(i, field.name, batch.column(i).cast(text))
        return batch.to_pylist()


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Replace dates and timestamps in a type with text."""
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
