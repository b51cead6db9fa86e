"""The rows of a dump as texts, with the text of their key and what they are read by, from files or from a table.

A dump is read whole or not at all: a file that is truncated, or a row that cannot be read, is an error of the dump.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from lake_assets.errors import (
    InputError,
    InputTooLargeError,
    KeyMissingError,
    MalformedRecordError,
    UnsupportedEventError,
)
from lake_assets.formats.files.limited_files import Limits, Record, check_column_names, file_too_large
from lake_assets.formats.files.parquet_files import spark_type
from lake_assets.formats.files.record_files import LocalFile
from lake_assets.formats.flat_rows import CHANGE_FEED, ROW, TEXT, TYPES
from lake_assets.formats.format_base import decode
from lake_assets.formats.types.text_types import widest
from lake_assets.lake import thresholds
from lake_assets.lake.column_spelling import by_column, caseless
from lake_assets.sources.row_texts import key_texts, longest, row_texts

_R = TypeVar("_R", bound=Mapping[str, Any])
# How the rows of a dump are read: typed (Parquet, tables), texts (CSV), or JSON lines.
Layout = Literal["typed", "texts", "json"]
ReadRecords = Callable[[Path, Limits], Iterator[Record]]
ROWS: pa.Schema = pa.schema([("key", pa.string()), ("row", pa.string())])
# Numbers that a parser of JSON may spell in another way: 1.50, 1e5, -0, and those of more digits than a double has.
_SPELLED = re.compile(r"[0-9][eE]|[0-9.]{16}|\.[0-9]*0(?![0-9])|-0(?![0-9.])")
# Columns of a change feed that a dump gets, by type, and all that it may have.
_OF_CHANGES = {"_change_type": "string", "_commit_version": "bigint", "_commit_timestamp": "timestamp"}
_AGAIN = "A dump is absorbed whole or not at all: deliver it again, under a new name or in place of this one"


@dataclass(frozen=True)
class RowFormat:
    """What the rows of a dump are read by.

    Attributes:
        types: Spark's types by column, of typed rows.
    """

    layout: Layout
    types: Mapping[str, str] = field(default_factory=dict[str, str])

    def around(self, members: str) -> tuple[str, str]:
        """Return what comes before and after the members of a row in a record, which begins with other members."""
        if self.layout == "typed":
            return f'{{"{TYPES}":{self.schema},"{ROW}":{{{members}', "}}"
        return (f'{{"{TEXT}":{{{members}', "}}") if self.layout == "texts" else ("{" + members, "}")

    @property
    def schema(self) -> str:
        """The schema of its records, as the format of change feeds gives it."""
        if self.layout == "typed":
            return orjson.dumps({**_OF_CHANGES, **self.types}).decode()
        return TEXT if self.layout == "texts" else ""


@dataclass(frozen=True)
class KeyColumns:
    """The declared key of the rows; no columns: rows have none.

    Attributes:
        columns: the key's columns, as in the lake.
        former: names in the dump by column, if they were renamed.
    """

    columns: tuple[str, ...] = ()
    former: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def within(self, names: Iterable[str]) -> list[str | None]:
        """Return the key's columns as rows with these names spell them; None: they lack it."""
        spelled = {caseless(n): n for n in names}
        return [
            next((spelled[c] for c in map(caseless, (k, *self.former.get(k, ()))) if c in spelled), None)
            for k in self.columns
        ]

    def found(self, dump: str, names: Sequence[str]) -> list[str]:
        """Return the key's columns in a dump.

        Raises:
            KeyMissingError: it lacks one of them.
        """
        within = self.within(names)
        missing = [k for k, n in zip(self.columns, within, strict=True) if n is None]
        if missing:
            raise KeyMissingError(
                f"{dump} has no column {', '.join(missing)}, which the stream's table declares as its key; it has "
                f"{', '.join(names) or 'no columns'}: correct `key`, or `rename` if the source renamed the column"
            )
        return [n for n in within if n is not None]


@dataclass(frozen=True)
class DumpRows:
    """The rows of a dump.

    Attributes:
        format: what they are read by.
        batches: yields them as Arrow batches with `key` (null without a key) and `row`; can be called once.
    """

    format: RowFormat
    batches: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of_files(cls, dump: str, files: Sequence[Path], key: KeyColumns, limits: Limits, read: ReadRecords) -> Self:
        """Return the rows of files, all of one kind; `read` yields the records of CSV and JSON lines.

        Raises:
            InputError: the files are of several kinds, or the types of a column have no common type.
        """
        kinds: set[Layout] = {_layout_of(f) for f in files}
        if len(kinds) > 1:
            names = ", ".join(f.name for f in files[:5])
            raise UnsupportedEventError(
                f"{dump} mixes kinds of files ({names}): write one kind, Parquet, CSV or JSON lines"
            )
        layout = kinds.pop() if kinds else "typed"
        if layout != "typed":
            return cls(RowFormat(layout), lambda: _of_records(dump, files, layout, key, limits, read))
        schemas = {f: _parquet_schema(f, limits) for f in files}
        types = _common_types(dump, schemas)
        return cls(RowFormat("typed", types), lambda: _of_parquet(dump, files, key, limits))

    @classmethod
    def of_table(cls, dump: str, table: Table, snapshot: int, key: KeyColumns, limits: Limits) -> Self:
        """Return the rows of a snapshot of an Iceberg table."""
        scan = table.scan(snapshot_id=snapshot)
        schema = scan.projection().as_arrow()
        _check_spelling(dump, schema.names)
        types = _checked(dump, {f.name: spark_type(f.type) for f in schema})
        columns = key.found(dump, [*types])

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in scan.to_arrow_batch_reader():
                yield from _keyed_texts(dump, batch, columns, limits)

        return cls(RowFormat("typed", types), batches)

    @classmethod
    def of_texts(cls, rows: Iterator[str], row_format: RowFormat, key: KeyColumns) -> Self:
        """Return rows that are texts already, with the texts of another key."""
        return cls(row_format, lambda: _in_batches((_key_of(orjson.loads(row), key), row) for row in rows))

    def with_types_of(self, former: RowFormat) -> Self:
        """Return the rows of a dump without columns of its own, an empty one, read by what the last dump is read by."""
        is_bare = self.format.layout == "typed" and not self.format.types
        return replace(self, format=former) if is_bare else self


# --- Parquet --------------------------------------------------------------------------------------------------------


def _layout_of(file: Path) -> Layout:
    name = file.name.lower()
    if name.endswith(".parquet"):
        return "typed"
    return "texts" if name.endswith((".csv", ".csv.gz")) else "json"


def _parquet_schema(file: Path, limits: Limits) -> pa.Schema:
    try:
        with LocalFile(file).open() as raw, pq.ParquetFile(raw) as parquet:
            metadata = parquet.metadata
            if sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) > limits.file:
                raise file_too_large(LocalFile(file), limits.file)
            check_column_names(LocalFile(file), [f.name for f in parquet.schema_arrow])
            return parquet.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as e:
        raise MalformedRecordError(f"{file}: not a complete Parquet file ({e}). {_AGAIN}") from e


def _common_types(dump: str, schemas: Mapping[Path, pa.Schema]) -> dict[str, str]:
    """Return Spark's type of each column, the widest of all files."""
    types: dict[str, str] = {}
    for file, schema in schemas.items():
        _check_spelling(str(file), schema.names)
        for column in schema:
            try:
                kind = spark_type(column.type)
            except UnsupportedEventError as e:
                raise UnsupportedEventError(f"{file}, column {column.name}: {e}") from e
            if pa.types.is_null(column.type):
                continue  # no value tells the type: a later dump does
            known = types.get(column.name, kind)
            wide = widest(known, kind)
            if wide is None:
                raise UnsupportedEventError(
                    f"{dump}: {column.name} is {kind} in {file.name}, and {known} in other files of the dump: write "
                    "all files of a dump with the same types"
                )
            types[column.name] = wide
    return _checked(dump, types)


def _check_spelling(where: str, names: Sequence[str]) -> None:
    """Raise UnsupportedEventError if two columns differ in upper and lower case only: they are one in the lake."""
    if same := next((c for c in by_column(names).values() if len(c) > 1), None):
        raise UnsupportedEventError(
            f"{where} has the columns {' and '.join(same)}, which differ in upper and lower case only, and are one "
            "column in the lake: rename one at the source, or leave it out of the dump"
        )


def _checked(where: str, row: _R) -> _R:
    """Return a row, or types by column, if no column has a name of a change feed's.

    Raises:
        UnsupportedEventError: one has.
    """
    if taken := [name for name in row if name.startswith("_") and caseless(name) in CHANGE_FEED.technical]:
        raise UnsupportedEventError(
            f"{where} has the column {taken[0]}, which the records of its changes have as well: rename the column at "
            "the source, or leave it out of the dump"
        )
    return row


def _of_parquet(dump: str, files: Sequence[Path], key: KeyColumns, limits: Limits) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            with LocalFile(file).open() as raw, pq.ParquetFile(raw) as parquet:
                columns = key.found(f"{dump}, {file.name}", parquet.schema_arrow.names)
                for batch in parquet.iter_batches(batch_size=thresholds.DUMP_ROWS_A_BATCH):
                    yield from _keyed_texts(f"{dump}, {file.name}", batch, columns, limits)
        except (pa.ArrowException, OSError, ValueError) as e:
            raise MalformedRecordError(f"{file}: not a complete Parquet file ({e}). {_AGAIN}") from e


def _keyed_texts(where: str, batch: pa.RecordBatch, key: Sequence[str], limits: Limits) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, thresholds.DUMP_ROWS_A_BATCH):
        part = batch.slice(start, thresholds.DUMP_ROWS_A_BATCH)
        keys = key_texts(part, key) if key else pa.nulls(part.num_rows, pa.string())
        rows = row_texts(part)
        if (size := longest(rows)) > limits.record:
            raise InputTooLargeError(
                f"{where}: a row has {size:,} bytes, and `max_record` is {limits.record:,}. {_AGAIN}, or raise "
                "the limit"
            )
        yield pa.RecordBatch.from_arrays([keys, rows], schema=ROWS)


# --- CSV and JSON lines ---------------------------------------------------------------------------------------------


def _of_records(
    dump: str, files: Sequence[Path], layout: Layout, key: KeyColumns, limits: Limits, read: ReadRecords
) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[tuple[str | None, str]]:
        for file in files:
            try:
                for number, row in enumerate(_rows_of(file, layout, limits, read)):
                    if layout == "texts" and not number:
                        _check_spelling(str(file), [*row])
                        key.found(f"{dump}, {file.name}", [*row])
                    yield _key_of(row, key), _row_text(row)
            except InputError as e:
                raise type(e)(str(e) if _AGAIN in str(e) else f"{e}. {_AGAIN}") from e

    return _in_batches(rows())


def _rows_of(file: Path, layout: Layout, limits: Limits, read: ReadRecords) -> Iterator[dict[str, Any]]:
    for record in read(file, limits):
        if record.problem:
            raise MalformedRecordError(f"{file}, line {record.number}: {record.problem}")
        try:
            row = decode(record.text, limits.depth)
        except MalformedRecordError as e:
            raise MalformedRecordError(f"{file}, line {record.number}: {e}") from e
        if layout == "texts":
            yield _checked(str(file), row[TEXT])
            continue
        if not isinstance(row, dict):
            raise MalformedRecordError(f"{file}, line {record.number}: expected an object, the columns of a row")
        if _SPELLED.search(record.text):
            # As their own text, numbers keep every digit.
            row = json.loads(record.text, parse_float=orjson.Fragment, parse_int=orjson.Fragment)
        yield _checked(str(file), row)


def _row_text(row: Mapping[str, Any]) -> str:
    return orjson.dumps({n: v for n, v in row.items() if v is not None}, option=orjson.OPT_SORT_KEYS).decode()


def _key_of(row: Mapping[str, Any], key: KeyColumns) -> str | None:
    if not key.columns:
        return None
    values = [row.get(n) if n is not None else None for n in key.within(row)]
    if any(v is None for v in values):
        return None
    return orjson.dumps([v if isinstance(v, str) else orjson.dumps(v).decode() for v in values]).decode()


def _in_batches(rows: Iterable[tuple[str | None, str]]) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while some := list(islice(left, thresholds.DUMP_ROWS_A_BATCH)):
        keys, texts = zip(*some, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), pa.array(texts, pa.string())], schema=ROWS)
