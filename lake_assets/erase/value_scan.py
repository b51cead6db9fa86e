"""Look for erased keys in every file of a table's folders, whether or not a snapshot names it.

A key is found in the columns that hold it: in rows of data and delete files, in the bounds and partition values of
manifests, in paths. Longer values are also looked for as text: in metadata files, and in the columns of text of tables
whose lineage is unknown.

Source: https://iceberg.apache.org/spec/#manifests, "Binary single-value serialization"
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from lake_assets.capture.files.avro_files import decode
from lake_assets.erase.key_values import Key, is_distinctive
from lake_assets.erase.record_mentions import Mentions
from lake_assets.errors import LakeError
from lake_assets.lake.metadata_json import decode as decode_json
from lake_assets.tables.leftovers import named_files

pc: Any = import_module("pyarrow.compute")
# Writers truncate bounds of texts to so many characters.
_TRUNCATED = 16
_BATCH = 65_536
# Files without values of rows: positions of deleted rows, and sketches of hashes.
_WITHOUT_VALUES = (".puffin", ".crc", ".stats")


@dataclass(frozen=True)
class Finding:
    """A file that holds an erased key, or that cannot be read.

    Attributes:
        path: its location.
        where: what of it holds the key.
        is_named: whether the table's metadata name it.
        written_at: seconds since 1970.
    """

    path: str
    where: str
    is_named: bool
    written_at: float


@dataclass(frozen=True)
class Wanted:
    """What to look for in a table.

    Attributes:
        columns: the columns that hold the key; empty: unknown.
        keys: the keys, as texts.
        names: former names of each of these columns.
        records: how to tell whether a record mentions a key; None: the table holds no records.
        about: the source table of records that may; others are left out, unless their position is known.
        positions: positions of records that were erased.
        last: the last position when the erasure began: later events and records are new ones.
        others: positions of records of other rows that mention a key.
        text: the column with the record.
        is_within: whether values that are found in any text may be a part of it, as in messages.
    """

    columns: Sequence[str]
    keys: Collection[Key]
    names: Sequence[Collection[str]] = ()
    records: Mentions | None = None
    about: str = ""
    positions: frozenset[int] = frozenset()
    last: int | None = None
    others: frozenset[int] = frozenset()
    text: str = "record"
    is_within: bool = False

    @cached_property
    def texts(self) -> list[str]:
        """Values that are long enough to be looked for in any text."""
        return sorted({v for key in self.keys for v in key if is_distinctive(v)})


class TableScan:
    """Looks through the files of a table.

    Attributes:
        files: how many files it has looked through.
    """

    def __init__(self, table: Table, wanted: Wanted) -> None:
        self._table, self._wanted = table, wanted
        self._io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
        self.files = 0
        # Of many keys, what is looked for is computed once.
        self._read: dict[tuple[int, pa.DataType], list[Any]] = {}
        self._found_bytes: dict[tuple[int, bool], set[bytes]] = {}
        self._fields = [_field(s, c) for c in wanted.columns for s in [table.schema()]]

    def findings(self) -> list[Finding]:
        """Return the files that hold a key, or cannot be read."""
        named = {self._path(f): f for f in named_files(self._table)}
        found: list[Finding] = []
        for path, location, written_at in [*self._listed(named)]:
            if path.endswith(_WITHOUT_VALUES):
                continue
            self.files += 1
            where = self._path_mentions(path)
            try:
                where = where or self._where(path, is_named=path in named)
            except FileNotFoundError:
                continue  # removed meanwhile, by its own table
            except (OSError, ValueError, pa.ArrowException, LakeError) as e:
                where = f"cannot be read: {type(e).__name__}"
            if where:
                found.append(Finding(location, where, path in named, written_at))
        return found

    def _path(self, location: str) -> str:
        return PyArrowFileIO.parse_location(location, self._io.properties)[2]

    def _system(self, location: str) -> FileSystem:
        scheme, netloc, _ = PyArrowFileIO.parse_location(location, self._io.properties)
        return self._io.fs_by_scheme(scheme, netloc)

    def _listed(self, named: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
        """Yield path, location and time of all files in the table's folder, and of the named files elsewhere."""
        folder = self._path(self._table.location())
        prefix = self._table.location()[: -len(folder)] if self._table.location().endswith(folder) else ""
        listed = set[str]()
        for info in self._system(self._table.location()).get_file_info(
            FileSelector(folder, recursive=True, allow_not_found=True)
        ):
            if info.type == FileType.File:
                listed.add(info.path)
                yield info.path, named.get(info.path, prefix + info.path), (info.mtime_ns or 0) / 1e9
        for path in sorted(named.keys() - listed):
            yield path, named[path], 0.0

    def _where(self, path: str, *, is_named: bool) -> str:
        system = self._system(self._table.location())
        if path.endswith(".parquet"):
            with system.open_input_file(path) as file:
                return self._in_parquet(pq.ParquetFile(file))
        with system.open_input_stream(path, compression=None) as stream:
            content = stream.read()
        if path.endswith(".avro"):
            return self._in_avro(content, path, is_named=is_named)
        if path.endswith((".metadata.json", ".metadata.json.gz")):
            return self._in_text(json.dumps(decode_json(content), ensure_ascii=False))
        return self._in_text(content.decode("utf-8", "replace"))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _in_parquet(self, file: pq.ParquetFile) -> str:
        schema, wanted = file.schema_arrow, self._wanted
        columns = [_column(schema, field, self._former(i)) for i, field in enumerate(self._fields)]
        read: list[str] = []
        check: Callable[[pa.RecordBatch], bool]
        if wanted.records is not None:
            read = [c for c in ("position", "source_table", wanted.text) if c in schema.names]
            check = self._has_records
            if wanted.text not in read:
                return ""
        elif columns and None not in columns:
            read = [*filter(None, columns), *(["_position"] if "_position" in schema.names else [])]
            check = lambda batch: self._has_keys(batch, [*filter(None, columns)])  # noqa: E731
        elif wanted.texts and wanted.is_within:
            read = [f.name for f in schema if _is_textual(f.type)]
            check = lambda batch: any(_has_words(batch.column(c), wanted.texts) for c in read)  # noqa: E731
        elif wanted.texts:
            read = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
            check = lambda batch: any(_is_in(batch.column(c), wanted.texts).true_count for c in read)  # noqa: E731
        else:
            return ""
        if read and any(check(batch) for batch in file.iter_batches(_BATCH, columns=read)):
            return f"rows ({', '.join(read)})"
        return ""

    def _former(self, index: int) -> Collection[str]:
        return self._wanted.names[index] if index < len(self._wanted.names) else ()

    def _has_keys(self, batch: pa.RecordBatch, columns: Sequence[str]) -> bool:
        mask = None
        for i, column in enumerate(columns):
            among = _is_in(
                batch.column(column), [v for v in self._read_as(i, batch.column(column).type) if v is not None]
            )
            mask = among if mask is None else pc.and_(mask, among)
        if "_position" in batch.schema.names and self._wanted.last is not None:
            mask = pc.and_(mask, pc.less_equal(batch.column("_position"), pa.scalar(self._wanted.last)))
        if mask is None or not mask.true_count:
            return False
        if len(columns) == 1:
            return True
        rows = batch.filter(mask)
        keys = set(zip(*(self._read_as(i, rows.column(c).type) for i, c in enumerate(columns)), strict=True))
        return not keys.isdisjoint(zip(*(rows.column(c).to_pylist() for c in columns), strict=True))

    def _read_as(self, index: int, kind: pa.DataType) -> list[Any]:
        """Return the value of each key in a column of a type; None: it is none."""
        found = self._read.get((index, kind))
        if found is None:
            found = self._read[index, kind] = [_read(key[index], kind) for key in self._wanted.keys]
        return found

    def _has_records(self, batch: pa.RecordBatch) -> bool:
        wanted = self._wanted
        assert wanted.records is not None
        rows = batch.to_pydict()
        none = [None] * batch.num_rows
        about, positions = (rows.get(name, none) for name in ("source_table", "position"))
        for position, table, record in zip(positions, about, rows[wanted.text], strict=True):
            if position in wanted.positions:
                return True
            is_new = wanted.last is not None and position is not None and position > wanted.last
            is_other = is_new or position in wanted.others
            if not is_other and table in (wanted.about, None) and wanted.records.are_in(record):
                return True
        return False

    # --- metadata ---------------------------------------------------------------------------------------------------

    def _in_avro(self, content: bytes, path: str, *, is_named: bool) -> str:
        records, kind = decode(content, path)
        if kind.has_field("data_file"):
            return next((w for r in records if (w := self._in_entry(r, is_named=is_named))), "")
        if kind.has_field("manifest_path"):
            summaries = (b for r in records for p in r.get("partitions") or () for b in _bounds_of(p))
            return "summaries of partitions" if self._has_partition_bytes(summaries) else ""
        names = {field.name.lower() for field in self._fields}
        rows = ({str(k).lower(): v for k, v in r.items()} for r in records)
        keys = set(self._wanted.keys)
        found = names and any(tuple(str(r.get(f.name.lower())) for f in self._fields) in keys for r in rows)
        return "rows" if found else ""

    def _in_entry(self, entry: Mapping[str, Any], *, is_named: bool) -> str:
        file = entry["data_file"]
        if where := self._path_mentions(file["file_path"]):
            return f"an entry's {where}"
        # Bounds of files that are there may be a prefix of another value.
        truncates = entry["status"] == 2 or not is_named
        for name in ("lower_bounds", "upper_bounds"):
            bounds = {pair["key"]: pair["value"] for pair in file.get(name) or ()}
            for i, field in enumerate(self._fields):
                if len(self._fields) == 1 and bounds.get(field.field_id) in self._bytes(i, truncates=truncates):
                    return f"bounds of {field.name}"
        parts = file.get("partition") or {}
        for spec in self._table.specs().values():
            for part in spec.fields:
                for i, field in enumerate(self._fields):
                    is_key = part.source_id == field.field_id and isinstance(part.transform, IdentityTransform)
                    if is_key and len(self._fields) == 1 and _same(parts.get(part.name), self._values(i), field):
                        return f"partition {part.name}"
        return ""

    def _values(self, index: int) -> list[Any]:
        """Return the values of a key column as Python values of its type."""
        kind = schema_to_pyarrow(self._fields[index].field_type)
        return [v for v in self._read_as(index, kind) if v is not None]

    def _bytes(self, index: int, *, truncates: bool) -> set[bytes]:
        if (known := self._found_bytes.get((index, truncates))) is not None:
            return known
        field = self._fields[index]
        found = {to_bytes(field.field_type, v) for v in self._values(index)}  # pyright: ignore[reportArgumentType]
        if truncates and isinstance(field.field_type, StringType):
            found |= {v[:_TRUNCATED].encode() for key in self._wanted.keys if len(v := key[index]) > _TRUNCATED}
        self._found_bytes[index, truncates] = found
        return found

    def _has_partition_bytes(self, found: Iterator[bytes]) -> bool:
        ids = {
            p.source_id
            for spec in self._table.specs().values()
            for p in spec.fields
            if isinstance(p.transform, IdentityTransform)
        }
        wanted = {b for i, f in enumerate(self._fields) if f.field_id in ids for b in self._bytes(i, truncates=False)}
        return len(self._fields) == 1 and any(b in wanted for b in found)

    def _path_mentions(self, path: str) -> str:
        """Return `path` if a file's path names a key as the value of a partition; empty: it does not."""
        return "" if self._parts_of_paths.isdisjoint(path.split("/")) else "path"

    @cached_property
    def _parts_of_paths(self) -> set[str]:
        """The folders of partitions by a key."""
        if len(self._fields) != 1:
            return set()
        values = (v for key in self._wanted.keys for v in (key[0], quote_plus(key[0])))
        return {f"{self._fields[0].name}={v}" for v in values}

    def _in_text(self, text: str) -> str:
        texts: list[str] = []
        if len(self._fields) == 1:
            ends = ("/", '"', ",")
            texts += [f"{self._fields[0].name}={key[0]}{end}" for key in self._wanted.keys for end in ends]
        return "text" if any(t in text for t in texts) or has_word(text, self._wanted.texts) else ""


def has_word(text: str, words: Sequence[str]) -> bool:
    """Whether a text has one of some words, and not as a part of a longer word or number."""
    return any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text) for w in words if w in text)


def _is_textual(kind: pa.DataType) -> bool:
    of = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    return pa.types.is_string(of) or pa.types.is_large_string(of)


def _has_words(column: pa.Array, words: Sequence[str]) -> bool:
    """Whether a text of a column, or in one of its lists, has one of some words."""
    texts = (t for value in column.to_pylist() for t in (value if isinstance(value, list) else [value]))
    return any(has_word(t, words) for t in texts if t)


def _field(schema: Schema, column: str) -> NestedField:
    return schema.find_field(column, case_sensitive=False)


def _column(schema: pa.Schema, field: NestedField, former: Collection[str]) -> str | None:
    """Return the column of a file that holds a field: by its id, or by one of its names."""
    for column in schema:
        if (column.metadata or {}).get(b"PARQUET:field_id") == str(field.field_id).encode():
            return column.name
    names = {field.name.lower(), *former}
    return next((c for c in schema.names if c.lower() in names), None)


def _is_in(column: pa.Array, values: Sequence[Any]) -> pa.BooleanArray:
    """Return which values of a column are among some values of its type."""
    if not values:
        return pa.array([False] * len(column), pa.bool_())
    return pc.is_in(column, value_set=pa.array(values, column.type))


def _read(text: str, kind: pa.DataType) -> Any:
    """Return a text as a value of a type; None if it is none."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and not text.endswith("Z") and "+" not in text:
        text = f"{text}Z"  # sessions of Spark write times in UTC here
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return pa.scalar(text).cast(kind).as_py()
    return None


def _bounds_of(summary: Mapping[str, Any]) -> Iterator[bytes]:
    yield from (b for name in ("lower_bound", "upper_bound") if (b := summary.get(name)) is not None)


def _same(stored: Any, values: Sequence[Any], field: NestedField) -> bool:
    """Whether a partition value, as Avro stores it, is one of some values."""
    if stored is None:
        return False
    if isinstance(stored, int) and not isinstance(stored, bool) and values and not isinstance(values[0], int):
        return stored in {int.from_bytes(to_bytes(field.field_type, v), "little", signed=True) for v in values}  # pyright: ignore[reportArgumentType]
    return stored in values


def text_findings(folder: Path, texts: Sequence[str], outside: Collection[str]) -> list[Finding]:
    """Return the files of a lake's home that hold one of some texts: notes of steps, records of backfills, logs.

    Args:
        outside: folders that are left out, since they hold tables or landed files.
    """
    found: list[Finding] = []
    left_out = {Path(f).resolve() for f in outside if f}
    for at, folders, names in os.walk(folder.resolve()) if texts else ():
        folders[:] = [f for f in folders if Path(at, f) not in left_out]
        for file in (Path(at, n) for n in sorted(names) if not n.endswith(".plan.json")):
            try:
                if has_word(file.read_bytes().decode("utf-8", "replace"), texts):
                    found.append(Finding(str(file), "text", True, file.stat().st_mtime))
            except FileNotFoundError:
                continue
            except OSError as e:
                found.append(Finding(str(file), f"cannot be read: {type(e).__name__}", True, 0.0))
    return found
