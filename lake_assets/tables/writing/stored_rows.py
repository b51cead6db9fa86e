"""Find stored rows by their key without Spark: read the key columns of data files with Arrow, in this process.

A MERGE in Spark plans, scans, shuffles and joins to learn at which positions of which files the changed rows are. The
key columns alone tell that, and are a small part of a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyroaring import BitMap64

from lake_assets.capture.files.column_bounds import bound
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.deletion_vectors import is_vector, read_vectors
from lake_assets.capture.files.file_partitions import unpartitioned_specs
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.capture.files.parquet_columns import ParquetColumns, names_by_id
from lake_assets.errors import Refused
from lake_assets.lake import thresholds
from lake_assets.tables.writing.key_lookup import KeyLookup, Positions, pc

# The reserved columns of row lineage, and their field ids.
ROW_ID, ROW_ID_FIELD = "_row_id", 2147483540
VERSION, VERSION_FIELD = "_last_updated_sequence_number", 2147483539


@dataclass(frozen=True)
class StoredFile:
    """A data file, with its deletion vector."""

    entry: Entry
    vector: Entry | None


@dataclass(frozen=True)
class Matches:
    """The rows of one file that have one of the keys.

    Attributes:
        file: the file.
        positions: their positions in the file.
        keys: the row of each one's key among the keys.
        row_ids: their row ids.
        deleted: the positions that were deleted before.
        rows: their values in the columns that were asked for.
    """

    file: StoredFile
    positions: Positions
    keys: Positions
    row_ids: Positions
    deleted: BitMap64
    rows: pa.Table


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table's current snapshot, to be found by their key.

    Attributes:
        table: the loaded table, of format version 3.
        files: its data files.
        columns: its columns.
    """

    table: Table
    files: Sequence[StoredFile]
    columns: ParquetColumns

    @classmethod
    def of(cls, table: Table, key: Sequence[str]) -> StoredRows | Refused:
        """Return the rows of a table; a refusal if they cannot be found, or Spark finds them as quickly."""
        current = table.current_snapshot()
        if current is None:
            return Refused("the table is empty")
        reader = ManifestReader(table.io)
        manifests, _ = reader.manifest_list(current.manifest_list)
        if sum(m.length for m in manifests) > thresholds.POSITION_MANIFEST_BYTES:
            return Refused("the table has too many files")
        entries = reader.entries(manifests)
        data = [e for e in entries if not e.content]
        index = DeleteIndex([e for e in entries if e.content], unpartitioned_specs(table.specs()))
        files: list[StoredFile] = []
        for e in data:
            deletes = index.applying_to(e)
            if len(deletes) > 1 or not all(map(is_vector, deletes)):
                return Refused("rows are deleted by delete files of an older format")
            if e.first_row_id is None or e.file["file_format"].upper() != "PARQUET":
                return Refused("a data file has no row ids, or is no Parquet file")
            files.append(StoredFile(e, deletes[0] if deletes else None))
        if len({f.entry.path for f in files}) < len(files):
            return Refused("a data file is listed twice")
        ids = [table.schema().find_field(k).field_id for k in key]
        size = sum(f.entry.statistic("column_sizes").get(i, 8 * f.entry.records) for f in files for i in ids)
        if size > thresholds.POSITION_KEY_BYTES:
            return Refused("the key columns are too large")
        return cls(table, files, ParquetColumns.of(table.schema()))

    def find(self, keys: pa.Table, *, nulls_match: bool, columns: Sequence[str] = ()) -> list[Matches] | Refused:
        """Return the rows that have one of the keys, by file.

        Args:
            keys: the keys, with the types of the table's columns.
            nulls_match: whether null equals null.
            columns: the columns to read of these rows.
        """
        lookup = KeyLookup(keys, nulls_match=nulls_match)
        if not lookup.is_unique:
            return Refused("several rows have the same key")
        ranges = {name: _range(keys[name]) for name in keys.column_names}
        files = [f for f in self.files if self._may_hold(f, ranges)]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            parts = list(pool.map(lambda f: self._find_in(f, lookup, columns), files))
        if refused := next((p for p in parts if isinstance(p, Refused)), None):
            return refused
        return [p for p in parts if isinstance(p, Matches)]

    def _may_hold(self, file: StoredFile, ranges: Mapping[str, tuple[Any, Any] | None]) -> bool:
        """Whether a file's bounds allow for one of the keys."""
        for name, range_ in ranges.items():
            column = self.table.schema().find_field(name)
            if range_ is None:
                continue
            raw = (file.entry.statistic(which).get(column.field_id) for which in ("lower_bounds", "upper_bounds"))
            low, high = (bound(column.field_type, r, upper=u) for r, u in zip(raw, (False, True), strict=True))
            if (low is not None and range_[1] < low) or (high is not None and range_[0] > high):
                return False
        return True

    def _find_in(self, file: StoredFile, lookup: KeyLookup, columns: Sequence[str]) -> Matches | Refused | None:
        with self.table.io.new_input(file.entry.path).open() as opened, pq.ParquetFile(opened) as parquet:
            names = names_by_id(parquet)
            if not names:
                return Refused("a data file has no field ids")
            groups: list[tuple[int, Positions, Positions]] = []
            for group, rows in self._groups(parquet, names, lookup.columns):
                if isinstance(rows, Refused):
                    return rows
                at, keys = lookup.find(rows)
                groups.append((group, at, keys))
            return self._matches(file, parquet, names, groups, columns)

    def _groups(
        self, parquet: pq.ParquetFile, names: Mapping[int, str], columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.Table | Refused]]:
        for group in range(parquet.num_row_groups):
            yield group, self.columns.read(parquet, group, names, columns)

    def _matches(
        self,
        file: StoredFile,
        parquet: pq.ParquetFile,
        names: Mapping[int, str],
        groups: Sequence[tuple[int, Positions, Positions]],
        columns: Sequence[str],
    ) -> Matches | Refused | None:
        if not any(len(at) for _, at, _ in groups):
            return None
        deleted = self._deleted(file)
        first, parts = 0, list[tuple[Positions, Positions, Positions, pa.Table]]()
        for group, at, keys in groups:
            positions = at + first
            first += parquet.metadata.row_group(group).num_rows
            if deleted and len(at):
                live = np.fromiter((p not in deleted for p in positions.tolist()), bool, len(positions))
                at, positions, keys = at[live], positions[live], keys[live]
            if not len(at):
                continue
            rows = self.columns.read(parquet, group, names, columns)
            if isinstance(rows, Refused):
                return rows
            ids = positions + (file.entry.first_row_id or 0)
            if stored := names.get(ROW_ID_FIELD):  # rows that were updated before keep their ids
                column = parquet.read_row_group(group, columns=[stored], use_threads=False)[stored].take(pa.array(at))
                ids = pc.coalesce(column, pa.array(ids)).to_numpy()
            parts.append((positions, keys, ids, rows.take(pa.array(at))))
        if not parts:
            return None
        positions, keys, ids = (np.concatenate([p[n] for p in parts]) for n in range(3))
        return Matches(file, positions, keys, ids, deleted, pa.concat_tables([p[3] for p in parts]))

    def _deleted(self, file: StoredFile) -> BitMap64:
        if (vector := file.vector) is None:
            return BitMap64()
        return next(iter(read_vectors(self.table.io, [vector]).values()))


def _range(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and greatest of the keys; None if one is null, or none is known."""
    if values.null_count or not len(values) or pa.types.is_boolean(values.type):
        return None
    try:
        ends = pc.min_max(values).as_py()
    except (ValueError, OverflowError):  # times that Python cannot represent
        return None
    return ends["min"], ends["max"]
