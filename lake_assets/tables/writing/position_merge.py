"""Carry out a MERGE by position: find the changed rows with Arrow, and commit new rows and deletion vectors.

If few rows change, Spark's MERGE spends nearly all of its time on planning, scanning and shuffling. Here Spark computes
the source, and the values that depend on stored rows; this process finds the rows (`stored_rows`), writes them
(`position_files`) and commits. The rows, their row ids and the checks are the same. Measured in
docs/decisions/0053-commits-by-position.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from lake_assets.errors import LakeError, Refused
from lake_assets.lake import thresholds
from lake_assets.tables.spark_tuning import size_of
from lake_assets.tables.writing._compat import has_jvm
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Match, Update
from lake_assets.tables.writing.merge_pairs import Chosen, Flags, HeldRows, Pairs, Source
from lake_assets.tables.writing.position_files import NewFiles, refused_partitioning
from lake_assets.tables.writing.stored_rows import ROW_ID, StoredFile, StoredRows

_KEYS = (
    BooleanType,
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
)
_VALUES = (*_KEYS, FloatType, DoubleType)
# Rows in memory are this many times as large as in compressed files, or more.
_DECODED = 4


@dataclass
class PositionMerge:
    """A MERGE whose rows have been found, and not yet written.

    Attributes:
        rows: the rows to write, with `ROW_ID`.
        deleted: the deleted positions of each changed file, with those that were deleted before.
        counts: how many rows are inserted, updated and deleted.
        searched: the number of rows in the source.
        key: the columns that identify a row.
    """

    table: Table
    rows: pa.Table
    deleted: list[tuple[StoredFile, BitMap64]] = field(default_factory=list)
    counts: tuple[int, int, int] = (0, 0, 0)
    searched: int = 0
    key: Sequence[str] = ()

    def written(self) -> NewFiles:
        """Write the files of the commit; if that fails, none of them is left."""
        files = NewFiles(self.table)
        try:
            if self.rows.num_rows:
                files.add_rows(self.rows, self.key)
            files.add_vectors(self.deleted)
        except BaseException:
            files.delete_all()
            raise
        return files


def find(
    spark: SparkSession,
    table: Table,
    types: Mapping[str, str],
    rows: DataFrame | HeldRows,
    match: Match,
    clauses: Sequence[Clause],
    at_most: int | None = None,
) -> PositionMerge | Refused:
    """Find out what a MERGE changes, without changing anything.

    Args:
        spark: a session.
        table: the table, as it was loaded.
        types: Spark's types by column of the table.
        rows: the source.
        match: when two rows are the same row.
        clauses: what happens to matched and other rows.
        at_most: the maximum number of source rows, if known.

    Returns:
        A refusal if MERGE has to do it, or does it as quickly.
    """
    if why := _refused(spark, table, match, at_most, types):
        return Refused(why)
    stored = _readable(lambda: StoredRows.of(table, match.key))
    if isinstance(stored, Refused):
        return stored
    source = Source.of(spark, rows, match.key, types, clauses, at_most)
    if isinstance(source, Refused):
        return source
    needed = source.stored_columns(types)
    keys, columns = source.keys(stored.columns.types), pa.schema([stored.columns.types.field(c) for c in needed])
    found = _readable(lambda: stored.find(keys, nulls_match=match.nulls_match, columns=needed))
    if isinstance(found, Refused):
        return found
    pairs = Pairs.of(source, found, columns)
    chosen = pairs.plain(types) if source.is_plain(types) else pairs.evaluated(spark, types)
    return _merge_of(table, pairs, chosen)


_T = TypeVar("_T")


def _readable(read: Callable[[], _T]) -> _T | Refused:
    """Return what was read; a refusal if files cannot be read: then it is Spark that reads them, or says why not."""
    try:
        return read()
    except (OSError, LakeError, pa.ArrowException) as e:
        return Refused(f"{type(e).__name__}: {e}")


def _refused(spark: SparkSession, table: Table, match: Match, at_most: int | None, types: Mapping[str, str]) -> str:
    """Return why a table is left to MERGE; empty: nothing that its metadata tell."""
    properties, schema = table.properties, table.schema()
    if not has_jvm(spark):
        return "there is no JVM at hand"
    if table.format_version < 3:
        return "the table has no deletion vectors"
    if properties.get("write.merge.mode", "copy-on-write") != "merge-on-read":
        return "the table is declared to be rewritten"
    if properties.get("write.format.default", "parquet").lower() != "parquet":
        return "the table is not written as Parquet"
    size, stored = size_of(table)
    if at_most is not None and (
        at_most * len(types) > thresholds.POSITION_VALUES
        or at_most * size * _DECODED > thresholds.POSITION_BYTES * max(stored, 1)
    ):
        return "too many rows change"
    if list(types) != [f.name for f in schema.fields]:
        return "the columns of the table are not known by name"
    if any(not isinstance(schema.find_field(k).field_type, _KEYS) for k in match.key):
        return "the type of the key is not compared here"
    if other := next((f.name for f in schema.fields if not _is_written(f.field_type) or f.required), ""):
        return f"columns like {other} are not written here"
    return refused_partitioning(table)


def _is_written(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_written(f.field_type) for f in kind.fields)
    if isinstance(kind, ListType):
        return _is_written(kind.element_type)
    if isinstance(kind, MapType):
        return _is_written(kind.key_type) and _is_written(kind.value_type)
    return isinstance(kind, _VALUES)


def _merge_of(table: Table, pairs: Pairs, chosen: Chosen) -> PositionMerge:
    """Return the changes that follow from the chosen clauses."""
    clauses = pairs.source.clauses
    kinds: list[type[Clause]] = [type(c) for c in clauses]

    def chose(kind: type[Clause]) -> Flags:
        return np.isin(chosen.clauses, [n for n, k in enumerate(kinds) if k is kind])

    updates, inserts, deletes = chose(Update), chose(Insert), chose(Delete)
    written = np.flatnonzero(updates | inserts)
    row_ids = np.concatenate([*(m.row_ids for m in pairs.found), np.zeros(len(pairs.rows) - pairs.matched, np.int64)])
    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    rows = pa.table({})
    if len(written):
        rows = chosen.values.take(pa.array(written)).cast(arrow)
        ids = pa.array(row_ids[written], pa.int64(), mask=inserts[written])
        rows = rows.append_column(ROW_ID, ids)
    deleted: list[tuple[StoredFile, BitMap64]] = []
    first, gone = 0, updates | deletes
    for m in pairs.found:
        here = gone[first : first + len(m.keys)]
        first += len(m.keys)
        if here.any():
            deleted.append((m.file, m.deleted | BitMap64(m.positions[here].tolist())))
    counts = (int(inserts.sum()), int(updates.sum()), int(deletes.sum()))
    return PositionMerge(table, rows, deleted, counts, pairs.source.rows.num_rows, pairs.source.key)
