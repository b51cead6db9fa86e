"""The wanted rows of a table as of any of its snapshots: each manifest and each data file is read once for all of them.

Files are chosen by the bounds in manifests. Where this process cannot read a file, or its deletes, Spark reads the
snapshots, as far as their files that may hold a wanted row differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.files.delete_files import DeleteIndex, only_file
from lake_assets.capture.files.file_partitions import unpartitioned_specs
from lake_assets.capture.files.manifest_lists import Manifest
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.capture.renamed_columns import schema_at
from lake_assets.capture.rows.incompatible_columns import incompatible_columns
from lake_assets.errors import LakeError, Refused, RowHistoryError
from lake_assets.history.file_rows import FileRows, Row, as_rows
from lake_assets.history.wanted_rows import Wanted
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.rows_in_memory import rows_in_memory

# Where a row is: the path of its file, and its position there.
Place = tuple[str, int]
Visible = Mapping[Place, Row]
# The files of a snapshot that may hold a wanted row, with the deletes that apply to each.
_Files = tuple[tuple[Entry, tuple[Entry, ...]], ...]
_NO_ROWS: Visible = {}


class SnapshotRows:
    """The wanted rows of one table.

    Attributes:
        table: the loaded table.
        schema: the columns of its rows: see `every_column`.
        spark_reason: why Spark reads the rows; empty: this process does.
    """

    def __init__(self, lake: LakeBase, name: TableId, table: Table, wanted: Wanted) -> None:
        self._lake, self._name, self.table, self._wanted = lake, name, table, wanted
        self.schema = every_column(table)
        self.spark_reason = ""
        # A table that was replaced keeps the ids of its columns, also of those that got another type.
        self._unreadable = {i for old in table.schemas().values() for i in incompatible_columns(old, self.schema)}
        self._reader = ManifestReader(table.io)
        self._specs, self._unpartitioned = table.specs(), unpartitioned_specs(table.specs())
        self._entries: dict[tuple[str, int | None], tuple[Entry, ...]] = {}
        self._at: dict[int, Visible] = {}
        self._by_files: dict[frozenset[Any], Visible] = {}

    @cached_property
    def _files(self) -> FileRows | Refused:
        try:
            return FileRows(self.table, self.schema, self._wanted)
        except (NotImplementedError, TypeError, ValueError, ValidationError) as e:  # types that Arrow does not know
            return Refused(str(e))

    @property
    def opened(self) -> int:
        """How many data files were read so far by this process."""
        return self._files.opened if isinstance(self._files, FileRows) else 0

    def at(self, snapshot_id: int | None) -> Visible:
        """Return the wanted rows of a snapshot that the table has; none for None.

        Raises:
            RowHistoryError: there are too many.
        """
        if snapshot_id is None or self._wanted.is_empty:
            return _NO_ROWS
        if snapshot_id not in self._at:
            self._at[snapshot_id] = self._rows_of(snapshot_id)
        return self._at[snapshot_id]

    def columns_at(self, snapshot_id: int) -> frozenset[int]:
        """Return the ids of the columns that a snapshot has."""
        return frozenset(f.field_id for f in schema_at(self.table, snapshot_id).fields)

    def _rows_of(self, snapshot_id: int) -> Visible:
        files = self._files_of(snapshot_id)
        state = frozenset(
            (e.path, e.sequence_number, frozenset((d.path, d.offset, d.sequence_number) for d in deletes))
            for e, deletes in files
        )
        if state not in self._by_files:
            self._by_files[state] = self._read(files, snapshot_id) if files else _NO_ROWS
        return self._by_files[state]

    def _read(self, files: _Files, snapshot_id: int) -> Visible:
        if not self.spark_reason:
            rows = self._read_here(files)
            if not isinstance(rows, Refused):
                return rows
            self.spark_reason = rows.reason
        return self._read_by_spark(snapshot_id)

    def _read_here(self, files: _Files) -> Visible | Refused:
        if isinstance(self._files, Refused):
            return self._files
        if len({e.path for e, _ in files}) < len(files):
            return Refused("a data file is listed twice")
        found: dict[Place, Row] = {}
        for entry, deletes in files:
            try:
                rows = self._files.visible(entry, deletes)
            except RowHistoryError:
                raise  # there are too many, for Spark too
            except (pa.ArrowException, LakeError, OSError) as e:
                # Spark casts what Arrow does not, and says which file is missing or broken.
                return Refused(f"{type(e).__name__}: {e}")
            if isinstance(rows, Refused):
                return rows
            found.update({(entry.path, at): row for at, row in rows.items()})
        return found

    def _files_of(self, snapshot_id: int) -> _Files:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None, f"{self._name} has no snapshot {snapshot_id}"
        manifests, _ = self._reader.manifest_list(snapshot.manifest_list)
        data = self._listed([m for m in manifests if not m.holds_deletes])
        if not data:
            return ()
        paths = {e.path for e in data}
        deletes = self._listed([m for m in manifests if m.holds_deletes])
        # Those of other data files are most of them.
        index = DeleteIndex([d for d in deletes if only_file(d) in (None, *paths)], self._unpartitioned)
        return tuple((e, tuple(index.applying_to(e))) for e in data)

    def _listed(self, manifests: list[Manifest]) -> list[Entry]:
        """Return the delete files, and the data files that may hold a wanted row, of manifests."""
        missing = [m for m in manifests if (m.path, m.first_row_id) not in self._entries]
        for m in missing:
            self._entries[m.path, m.first_row_id] = ()
        for e in self._reader.entries(missing, keep=self._may_matter, complete=True):
            self._entries[e.manifest.path, e.manifest.first_row_id] += (e,)
        return [e for m in manifests for e in self._entries[m.path, m.first_row_id]]

    def _may_matter(self, entry: Entry) -> bool:
        return bool(entry.content) or self._wanted.may_be_in(entry, self.schema, self._specs, self._unreadable)

    def _read_by_spark(self, snapshot_id: int) -> Visible:
        """Return the wanted rows of a snapshot, read with the columns that the table had then."""
        spark = self._lake.spark()
        rows = self._lake.rows_at(self._name, snapshot_id)
        names = {f.field_id: f.name for f in schema_at(self.table, snapshot_id).fields}
        here = {f.field_id: f.name for f in self.schema.fields}
        has = [i for i in names if i in here]
        conditions: list[str] = []
        frames: list[Any] = []
        for name, values in self._wanted.values.items():
            ids = [self.schema.find_field(c).field_id for c in (name, *self._wanted.others.get(name, ()))]
            columns = [quote(names[i]) for i in ids if i in names]
            if not columns:
                return _NO_ROWS
            kind = next(f.dataType.simpleString() for f in rows.schema.fields if quote(f.name) == columns[0])
            value = f"coalesce({', '.join(f'CAST({c} AS {kind})' for c in columns)})"
            listed = rows_in_memory(spark, [(_spark_text(v),) for v in values.to_pylist()], "v string")
            text = "unhex(v)" if kind == "binary" else "v"
            frames.append(listed.selectExpr(f"CAST({text} AS {kind}) AS v{len(frames)}"))
            conditions.append(f"{value} AS w{len(frames) - 1}")
        every = (f"{quote(names[i])} AS {quote(here[i])}" for i in has)
        found = rows.selectExpr(*every, "_file", "_pos", *conditions)
        for n, frame in enumerate(frames):
            found = found.join(frame, found[f"w{n}"].eqNullSafe(frame[f"v{n}"]), "left_semi")
        table = found.toArrow()
        known = as_rows(table.select([here[i] for i in has]), self.schema)
        places = zip(table["_file"].to_pylist(), table["_pos"].to_pylist(), strict=True)
        return {place: {**dict.fromkeys(here), **row} for place, row in zip(places, known, strict=True)}


def _spark_text(value: Any) -> str | None:
    """Return a value as text that Spark casts to its column's type."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return str(value).lower() if isinstance(value, bool) else str(value)


def every_column(table: Table) -> Schema:
    """Return the columns of a table, by their current names, and those that it had in a kept snapshot and has dropped.

    The name of a dropped column says that it is one.
    """
    current = list(table.schema().fields)
    ids, names = {f.field_id for f in current}, {f.name for f in current}
    used = {s.schema_id for s in table.metadata.snapshots}
    dropped: dict[int, NestedField] = {}
    for number, schema in sorted(table.schemas().items()):
        if number in used:
            dropped |= {f.field_id: f for f in schema.fields if f.field_id not in ids}
    more: list[NestedField] = []
    for f in dropped.values():
        name = f"{f.name} (dropped)"
        name = name if name not in names else f"{f.name} (dropped, field {f.field_id})"
        names.add(name)
        more.append(f.model_copy(update={"name": name, "required": False}))
    return Schema(*current, *more)
