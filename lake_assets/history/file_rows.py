"""The wanted rows of single data files and the deletes that apply to them, read with Arrow; each file once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyroaring import BitMap64

from lake_assets.capture.files.delete_files import FILE_PATH_ID
from lake_assets.capture.files.deletion_vectors import is_vector, read_vectors
from lake_assets.capture.files.manifests import EQUALITY_DELETES, Entry
from lake_assets.capture.files.parquet_columns import ParquetColumns, names_by_id
from lake_assets.errors import Refused, RowHistoryError
from lake_assets.history.wanted_rows import Wanted, pc
from lake_assets.lake import thresholds

_POSITION_ID = 2147483545
# A row as values by field id.
Row = Mapping[int, Any]


@dataclass
class FileRows:
    """Reads the wanted rows of data files, and remembers them.

    Raises RowHistoryError if there are too many.

    Attributes:
        table: the table.
        schema: the columns to read, by field id: those that the table has, or had in a kept snapshot.
        wanted: which rows.
        opened: how many files were read so far.
    """

    table: Table
    schema: Schema
    wanted: Wanted
    opened: int = 0
    _rows: dict[str, dict[int, Row] | Refused] = field(default_factory=dict[str, "dict[int, Row] | Refused"])
    _deletes: dict[tuple[str, int], BitMap64] = field(default_factory=dict[tuple[str, int], BitMap64])

    def __post_init__(self) -> None:
        self._columns, self._found = ParquetColumns.of(self.schema), 0

    def visible(self, data: Entry, deletes: Sequence[Entry]) -> Mapping[int, Row] | Refused:
        """Return the wanted rows of a data file by position, without those that deletes remove; a refusal if Spark has
        to read them."""
        if data.path not in self._rows:
            self._rows[data.path] = read = self._read(data)
            self._check_count(0 if isinstance(read, Refused) else len(read))
        rows = self._rows[data.path]
        for delete in deletes:
            if isinstance(rows, Refused) or not rows:
                break
            rows = self._without(rows, data, delete)
        return rows

    def _check_count(self, more: int) -> None:
        """Raise RowHistoryError if there are more rows than a person would look at."""
        self._found += more
        if self._found > thresholds.HISTORY_ROWS:
            raise RowHistoryError(
                f"{'.'.join(self.table.name())} holds more than {thresholds.HISTORY_ROWS:,} versions of rows with "
                f"{', '.join(self.wanted.values)} as asked for: name further columns with --key"
            )

    def _without(self, rows: Mapping[int, Row], data: Entry, delete: Entry) -> dict[int, Row] | Refused:
        if delete.content == EQUALITY_DELETES:
            gone = self._equal(delete)
            if isinstance(gone, Refused):
                return gone
            ids, values = gone
            return {at: row for at, row in rows.items() if tuple(map(comparable, (row[i] for i in ids))) not in values}
        deleted = self._positions(data, delete)
        return deleted if isinstance(deleted, Refused) else {at: r for at, r in rows.items() if at not in deleted}

    def _read(self, data: Entry) -> dict[int, Row] | Refused:
        if data.file["file_format"].upper() != "PARQUET":
            return Refused("a data file is no Parquet file")
        self.opened += 1
        with self.table.io.new_input(data.path).open() as opened, pq.ParquetFile(opened) as parquet:
            names = names_by_id(parquet)
            if not names:
                return Refused("a data file has no field ids")
            if any(
                isinstance(f.transform, IdentityTransform) and f.source_id not in names
                for f in self.table.specs()[data.spec_id].fields
            ):
                return Refused("a column is in the partitions alone")
            return self._wanted_in(parquet, names)

    def _wanted_in(self, parquet: pq.ParquetFile, names: Mapping[int, str]) -> dict[int, Row] | Refused:
        found: dict[int, Row] = {}
        first, every = 0, [f.name for f in self.schema.fields]
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            if count and self._may_be_in_group(parquet, group, names):
                at = self._wanted_at(parquet, group, names)
                if isinstance(at, Refused):
                    return at
                if len(at):
                    rows = self._columns.read(parquet, group, names, every)
                    if isinstance(rows, Refused):
                        return rows
                    taken = as_rows(rows.take(pa.array(at)), self.schema)
                    found |= dict(zip((at + first).tolist(), taken, strict=True))
            first += count
        return found

    def _wanted_at(
        self, parquet: pq.ParquetFile, group: int, names: Mapping[int, str]
    ) -> npt.NDArray[np.int64] | Refused:
        """Return the positions of the wanted rows in a row group, of which only the columns that tell are read."""
        if not self.wanted.columns:
            return np.arange(parquet.metadata.row_group(group).num_rows)
        keys = self._columns.read(parquet, group, names, self.wanted.columns)
        return keys if isinstance(keys, Refused) else np.flatnonzero(self.wanted.mask(keys))

    def _may_be_in_group(self, parquet: pq.ParquetFile, group: int, names: Mapping[int, str]) -> bool:
        """Whether a row group may hold a wanted row, by its statistics of whole numbers and texts."""
        metadata = parquet.metadata.row_group(group)
        places = {metadata.column(n).path_in_schema: n for n in range(metadata.num_columns)}
        for name, values in self.wanted.values.items():
            place = places.get(names.get(self.schema.find_field(name).field_id, ""))
            if place is None or self.wanted.others.get(name) or values.null_count:
                continue
            if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
                continue
            statistics = metadata.column(place).statistics
            if statistics is None or not statistics.has_min_max:
                continue
            low, high, of = statistics.min, statistics.max, pc.min_max(values).as_py()
            # Texts of Parquet may have been written as bytes; a number may have been widened to a text since.
            if type(low) is type(of["min"]) and (of["max"] < low or of["min"] > high):
                return False
        return True

    def _positions(self, data: Entry, delete: Entry) -> BitMap64 | Refused:
        """Return the positions of a data file that a deletion vector or a position delete file removes."""
        if is_vector(delete):
            at = delete.path, delete.offset
            if at not in self._deletes:
                self._deletes[at] = read_vectors(self.table.io, [delete])[at]
            return self._deletes[at]
        if delete.file["file_format"].upper() != "PARQUET":
            return Refused("a delete file is no Parquet file")
        with self.table.io.new_input(delete.path).open() as opened, pq.ParquetFile(opened) as parquet:
            names = names_by_id(parquet)
            if not {FILE_PATH_ID, _POSITION_ID} <= names.keys():
                return Refused("a delete file has no field ids")
            rows = parquet.read(columns=[names[FILE_PATH_ID], names[_POSITION_ID]])
        mine = rows.filter(pc.equal(rows[names[FILE_PATH_ID]].cast(pa.string()), data.path))
        return BitMap64(mine[names[_POSITION_ID]].to_pylist())

    def _equal(self, delete: Entry) -> tuple[list[int], set[tuple[Any, ...]]] | Refused:
        """Return the field ids of an equality delete file, and the values that it removes."""
        ids: list[int] = list(delete.file.get("equality_ids") or ())
        known = {f.field_id: f for f in self.schema.fields}
        if delete.file["file_format"].upper() != "PARQUET" or not ids or any(i not in known for i in ids):
            return Refused("rows are deleted by values of columns that this process does not read")
        with self.table.io.new_input(delete.path).open() as opened, pq.ParquetFile(opened) as parquet:
            names = names_by_id(parquet)
            gone: set[tuple[Any, ...]] = set()
            for group in range(parquet.num_row_groups):
                rows = self._columns.read(parquet, group, names, [known[i].name for i in ids])
                if isinstance(rows, Refused):
                    return rows
                gone |= {tuple(comparable(r[i]) for i in ids) for r in as_rows(rows, self.schema)}
        return ids, gone


def as_rows(rows: pa.Table, schema: Schema) -> list[Row]:
    """Return the rows of a table of Arrow as values by field id."""
    columns = {schema.find_field(n).field_id: _as_python(rows[n]) for n in rows.column_names}
    return [{i: values[at] for i, values in columns.items()} for at in range(rows.num_rows)]


def _as_python(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):  # times that Python cannot represent
        return column.cast(pa.string()).to_pylist()


def comparable(value: Any) -> Any:
    """Return a value that is equal to another one exactly if Iceberg calls them equal: NaN is, 0.0 and -0.0 are not."""
    return repr(value) if isinstance(value, float | list | dict) else value
