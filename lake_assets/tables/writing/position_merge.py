"""Carry out a MERGE by position: find the changed rows with Arrow, and commit new rows and deletion vectors.

If few rows change, Spark's MERGE spends nearly all of its time on planning, scanning and shuffling. Here Spark computes
the source, and the values that depend on stored rows; this process finds the rows (`stored_rows`), writes them
(`position_files`) and commits. The rows, their row ids and the checks are the same. Measured in
docs/decisions/0053-commits-by-position.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from lake_assets.capture.rows.few_rows import is_handed_on
from lake_assets.errors import LakeError, Refused
from lake_assets.lake import thresholds
from lake_assets.tables.spark_tuning import size_of
from lake_assets.tables.writing._compat import has_jvm
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Match, Update, plain_column
from lake_assets.tables.writing.merge_pairs import Chosen, Flags, HeldRows, Pairs, Source
from lake_assets.tables.writing.position_files import Deleted, NewFiles, Part, refused_partitioning
from lake_assets.tables.writing.stored_rows import ROW_ID, VERSION, StoredRows

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
# Rows in memory are this many times as large as in compressed files, or more.
_DECODED = 4


@dataclass
class PositionMerge:
    """A MERGE whose rows have been found, and not yet written.

    Attributes:
        parts: the rows to write, by partition.
        deleted: the deleted positions of each changed file.
        counts: how many rows are inserted, updated and deleted.
        searched: the number of rows in the source.
    """

    table: Table
    parts: Sequence[Part]
    deleted: Sequence[Deleted]
    counts: tuple[int, int, int]
    searched: int

    def written(self) -> NewFiles:
        """Write the files of the commit; if that fails, none of them is left."""
        files = NewFiles(self.table)
        try:
            for part in self.parts:
                files.add_rows(part)
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
    try:
        return _found(spark, table, types, rows, match, clauses, at_most)
    except pa.ArrowException as e:  # such as null structs with fields that are never null, in lists
        return Refused(f"Arrow does not convert the rows: {e}")


def _found(
    spark: SparkSession,
    table: Table,
    types: Mapping[str, str],
    rows: DataFrame | HeldRows,
    match: Match,
    clauses: Sequence[Clause],
    at_most: int | None,
) -> PositionMerge | Refused:
    if why := _refused(spark, table, match, at_most, types) or _refused_clauses(rows, table, types, match, clauses):
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
    except (OSError, LakeError) as e:
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
    if "write.location-provider.impl" in properties:
        return "a class of Java decides where the table's files are"
    size, stored = size_of(table)
    if at_most is not None and (
        at_most * len(types) > thresholds.POSITION_VALUES
        or at_most * size * _DECODED > thresholds.POSITION_BYTES * max(stored, 1)
    ):
        return "too many rows change"
    if list(types) != [f.name for f in schema.fields]:
        return "the columns of the table are not known by name"
    if any(k not in types or not isinstance(schema.find_field(k).field_type, _KEYS) for k in match.key):
        return "the type of the key is not compared here, or it is spelled differently in the table"
    if other := next((f.name for f in schema.fields if not is_handed_on(f.field_type) or f.required), ""):
        return f"columns like {other} are not written here"
    return refused_partitioning(table)


def _refused_clauses(
    rows: DataFrame | HeldRows, table: Table, types: Mapping[str, str], match: Match, clauses: Sequence[Clause]
) -> str:
    """Return why a source and its clauses are left to Spark, which ignores case, converts types and knows defaults;
    empty: nothing."""
    of_table = {c for clause in clauses for c in (*clause.values, *clause.stored_columns)}
    if other := of_table - types.keys():
        return f"the column {min(other)} is spelled differently in the table"
    taken = [(k, k) for k in match.key]
    taken += [(column, c) for clause in clauses for c, v in clause.values.items() if (column := plain_column(v))]
    given = rows.types if isinstance(rows, HeldRows) else dict(rows.dtypes)
    if other := next((s for s, t in taken if given.get(s) != types[t]), ""):
        return f"the column {other} of the source has another type than in the table, or another spelling"
    defaults = {f.name for f in table.schema().fields if f.write_default is not None}
    if any(defaults - clause.values.keys() for clause in clauses if isinstance(clause, Insert)):
        return "new rows get the default of a column"
    return ""


def _merge_of(table: Table, pairs: Pairs, chosen: Chosen) -> PositionMerge | Refused:
    """Return the changes that follow from the chosen clauses."""
    clauses = pairs.source.clauses
    kinds: list[type[Clause]] = [type(c) for c in clauses]

    def chose(kind: type[Clause]) -> Flags:
        return np.isin(chosen.clauses, [n for n, k in enumerate(kinds) if k is kind])

    updates, inserts, deletes = chose(Update), chose(Insert), chose(Delete)
    written = np.flatnonzero(updates | inserts)
    row_ids = np.concatenate([*(m.row_ids for m in pairs.found), np.zeros(len(pairs.rows) - pairs.matched, np.int64)])
    first, gone = 0, updates | deletes
    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    parts: list[Part] | Refused = []
    if len(written):
        rows = chosen.values.take(pa.array(written)).cast(arrow)
        if gone.any():
            # All rows get the version of this commit. Its column is there since captures learn that from its counts.
            ids = pa.array(row_ids[written], pa.int64(), mask=inserts[written])
            rows = rows.append_column(ROW_ID, ids).append_column(VERSION, pa.nulls(len(written), pa.int64()))
        parts = Part.all_of(table, rows, pairs.source.key)
    if isinstance(parts, Refused):
        return parts
    deleted: list[Deleted] = []
    for m in pairs.found:
        here = gone[first : first + len(m.keys)]
        first += len(m.keys)
        if not here.any():
            continue
        of_file = Deleted.of(table, m.file, m.deleted | BitMap64(m.positions[here].tolist()))
        if isinstance(of_file, Refused):
            return of_file
        deleted.append(of_file)
    counts = (int(inserts.sum()), int(updates.sum()), int(deletes.sum()))
    return PositionMerge(table, parts, deleted, counts, pairs.source.rows.num_rows)
