"""Carry out a MERGE by position: find the changed rows with Arrow, and commit new rows and deletion vectors.

If few rows change, Spark's MERGE spends nearly all of its time on planning, scanning and shuffling. Here Spark computes
the source, and the values that depend on stored rows; this process finds the rows (`stored_rows`), writes them
(`position_files`) and commits. The rows, their row ids and the checks are the same. Measured in
docs/decisions/0053-commits-by-position.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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

from lake_assets.errors import Refused
from lake_assets.lake import quote, thresholds
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.writing._compat import has_jvm
from lake_assets.tables.writing.key_lookup import Positions
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Update, plain_column
from lake_assets.tables.writing.position_files import NewFiles, refused_partitioning
from lake_assets.tables.writing.stored_rows import ROW_ID, Matches, StoredFile, StoredRows

# Columns of the collected source: its keys with the table's types, and whether a clause's condition is met.
_KEY, _WHEN = "__lake_key{}", "__lake_when{}"
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
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Match:
    """When a row `s` of the source and a stored row `t` are the same row: if they agree in the columns of a key.

    Attributes:
        key: the columns.
        nulls_match: whether null equals null.
    """

    key: Sequence[str]
    nulls_match: bool = True

    @property
    def sql(self) -> str:
        """The condition in SQL."""
        return " AND ".join(f"t.{quote(k)} {'<=>' if self.nulls_match else '='} s.{quote(k)}" for k in self.key)


@dataclass
class PositionMerge:
    """A MERGE whose rows have been found, and not yet written.

    Attributes:
        rows: the rows to write, with `ROW_ID`.
        deleted: the deleted positions of each changed file, with those that were deleted before.
        counts: how many rows are inserted, updated and deleted.
        searched: the number of rows in the source.
    """

    table: Table
    rows: pa.Table
    deleted: list[tuple[StoredFile, BitMap64]] = field(default_factory=list)
    counts: tuple[int, int, int] = (0, 0, 0)
    searched: int = 0

    def written(self) -> NewFiles:
        """Write the files of the commit; if that fails, none of them is left."""
        files = NewFiles(self.table)
        try:
            if self.rows.num_rows:
                files.add_rows(self.rows)
            files.add_vectors(self.deleted)
        except BaseException:
            files.delete_all()
            raise
        return files


def find(
    spark: SparkSession,
    table: Table,
    types: Mapping[str, str],
    rows: DataFrame,
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
    stored = StoredRows.of(table, match.key)
    if isinstance(stored, Refused):
        return stored
    source = _Source.of(spark, rows, match.key, types, clauses, at_most)
    if isinstance(source, Refused):
        return source
    needed = source.stored_columns(types)
    found = stored.find(source.keys(stored.columns), nulls_match=match.nulls_match, columns=needed)
    if isinstance(found, Refused):
        return found
    pairs = _Pairs.of(source, found, pa.schema([stored.columns.field(c) for c in needed]))
    chosen = pairs.plain(types) if source.is_plain(types) else pairs.evaluated(spark, types)
    return _merge_of(table, pairs, chosen)


def _refused(spark: SparkSession, table: Table, match: Match, at_most: int | None, types: Mapping[str, str]) -> str:
    """Return why a table is left to MERGE; empty: nothing that its metadata tell."""
    properties, schema = table.properties, table.schema()
    if not has_jvm(spark):
        return "there is no JVM at hand"
    if table.format_version < 3:
        return "the table has no deletion vectors"
    if any(properties.get(f"write.{kind}.mode", "copy-on-write") != "merge-on-read" for kind in ("merge",)):
        return "the table is declared to be rewritten"
    if properties.get("write.format.default", "parquet").lower() != "parquet":
        return "the table is not written as Parquet"
    if at_most is not None and at_most * len(types) > thresholds.POSITION_VALUES:
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


@dataclass(frozen=True)
class _Source:
    """The collected rows of a source."""

    rows: pa.Table
    key: Sequence[str]
    clauses: Sequence[Clause]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        rows: DataFrame,
        key: Sequence[str],
        types: Mapping[str, str],
        clauses: Sequence[Clause],
        at_most: int | None,
    ) -> _Source | Refused:
        """Collect a source, with its keys and conditions; a refusal if it is too large."""
        most = thresholds.POSITION_VALUES // max(len(types), 1)
        named = new_name()
        keys = (f"CAST(s.{quote(k)} AS {types[k]}) AS {_KEY.format(n)}" for n, k in enumerate(key))
        conditions = (
            f"coalesce({c.when}, false) AS {_WHEN.format(n)}"
            for n, c in enumerate(clauses)
            if c.when and not Clause(c.when).stored_columns
        )
        limit = f" LIMIT {most + 1}" if at_most is None else ""
        sql = f"SELECT {', '.join(['s.*', *keys, *conditions])} FROM {named} s{limit}"
        collected = over(spark, sql, {named: rows}).toArrow()
        if collected.num_rows > most or collected.nbytes > thresholds.POSITION_BYTES:
            return Refused("too many rows change")
        return cls(collected, key, clauses)

    def keys(self, columns: pa.Schema) -> pa.Table:
        """Return the keys, with the types of the table."""
        values = [self.rows[_KEY.format(n)].cast(columns.field(k).type) for n, k in enumerate(self.key)]
        return pa.table(values, names=list(self.key))

    def stored_columns(self, types: Mapping[str, str]) -> list[str]:
        """Return the columns of stored rows that the new rows or the conditions depend on."""
        needed = {c for clause in self.clauses for c in clause.stored_columns}
        for clause in self.clauses:
            if isinstance(clause, Update):
                needed |= {c for c in types if c not in clause.values and c not in self.key}
        return [c for c in types if c in needed]

    def is_plain(self, types: Mapping[str, str]) -> bool:
        """Whether conditions and values are those of the source, but for the comparison of simple values."""
        for clause in self.clauses:
            if Clause(clause.when, clause.values).stored_columns:
                return False
            if any(plain_column(v) is None for v in clause.values.values()):
                return False
            if isinstance(clause, Update):
                if not {*clause.values, *self.key} >= set(types):
                    return False
                if any("<" in kind for kind in clause.compared.values()):
                    return False
        return True

    def value_of(self, column: str, clause: Clause) -> str:
        """Return SQL of the value that a clause writes to a column."""
        if column in clause.values:
            return clause.values[column]
        if isinstance(clause, Insert):
            return "NULL"
        # The key of a matched row is the same in the source.
        return f"s.{quote(_KEY.format(list(self.key).index(column)))}" if column in self.key else f"t.{quote(column)}"


@dataclass(frozen=True)
class _Chosen:
    """What happens to the pairs of rows.

    Attributes:
        clauses: the number of the clause that applies to each pair; -1: none.
        values: the table's columns, with the values to write; of pairs without a value, any.
    """

    clauses: Positions
    values: pa.Table


@dataclass(frozen=True)
class _Pairs:
    """Rows of the source: first those with a stored row, by file, and then the others.

    Attributes:
        source: the source.
        found: the stored rows.
        rows: the row of the source of each pair.
        stored: the stored columns that were read, of the pairs with a stored row.
    """

    source: _Source
    found: Sequence[Matches]
    rows: Positions
    stored: pa.Table

    @classmethod
    def of(cls, source: _Source, found: Sequence[Matches], columns: pa.Schema) -> _Pairs:
        """Pair a source with the stored rows that were found, of some columns."""
        matched = np.concatenate([m.keys for m in found]) if found else np.zeros(0, np.int64)
        others = np.setdiff1d(np.arange(source.rows.num_rows), matched)
        stored = pa.concat_tables([columns.empty_table(), *(m.rows.cast(columns) for m in found)])
        return cls(source, found, np.concatenate([matched, others]), stored)

    @property
    def matched(self) -> int:
        """The number of pairs with a stored row."""
        return sum(len(m.keys) for m in self.found)

    def plain(self, types: Mapping[str, str]) -> _Chosen:
        """Choose by the conditions that were collected with the source, and write its values."""
        clauses, choice = self.source.clauses, np.full(len(self.rows), -1)
        is_matched = np.arange(len(self.rows)) < self.matched
        for n, clause in reversed(list(enumerate(clauses))):
            applies = np.equal(is_matched, clause.is_matched)
            if clause.when:
                flags: _Flags = self.source.rows[_WHEN.format(n)].to_numpy()
                applies = applies & flags[self.rows]
            if isinstance(clause, Update) and clause.compared:
                applies[: self.matched] &= self._differ(clause)
            choice[applies] = n
        # Clauses that write take each column from the same place, or their rows are put together.
        writing = [n for n, c in enumerate(clauses) if not isinstance(c, Delete)]
        parts: list[pa.Table] = []
        at = np.zeros(len(self.rows), np.int64)
        for n in writing:
            rows = np.flatnonzero(choice == n)
            at[rows] = sum(p.num_rows for p in parts) + np.arange(len(rows))
            taken = self.source.rows.take(pa.array(self.rows[rows]))
            columns = [plain_column(self.source.value_of(c, clauses[n])) for c in types]
            parts.append(pa.table([pa.nulls(len(rows)) if c is None else taken[c] for c in columns], names=list(types)))
        values = pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})
        return _Chosen(choice, values.take(pa.array(at)) if values.num_rows else values)

    def _differ(self, update: Update) -> _Flags:
        """Return which stored rows differ from the values of an update in a column that it compares."""
        differ = np.zeros(self.matched, bool)
        rows = pa.array(self.rows[: self.matched])
        for column in update.compared:
            stored = self.stored[column]
            new = self.source.rows[plain_column(update.values[column])].take(rows).cast(stored.type)
            differ |= ~_same(stored, new)
        return differ

    def evaluated(self, spark: SparkSession, types: Mapping[str, str]) -> _Chosen:
        """Let Spark choose, and compute the values."""
        clauses, source = self.source.clauses, self.source.rows.take(pa.array(self.rows))
        there = np.arange(len(self.rows)) < self.matched
        stored = self.stored.take(pa.array(np.where(there, np.arange(len(self.rows)), 0), mask=~there))
        frame = pa.table(
            [_struct(source), _struct(stored.append_column("__there", pa.array(there))), pa.array(range(len(there)))],
            names=["s", "t", "__n"],
        )
        choice = " ".join(
            f"WHEN {'' if c.is_matched else 'NOT '}t.__there{f' AND ({c.condition})' if c.condition else ''} THEN {n}"
            for n, c in enumerate(clauses)
        )
        writing = {n: c for n, c in enumerate(clauses) if not isinstance(c, Delete)}
        values = (
            "CASE __clause "
            + " ".join(f"WHEN {n} THEN CAST({self.source.value_of(column, c)} AS {kind})" for n, c in writing.items())
            + f" END AS {quote(column)}"
            for column, kind in types.items()
        )
        pairs = new_name()
        each = f"SELECT *, CASE {choice} ELSE -1 END AS __clause FROM {pairs}"
        computed = over(
            spark,
            f"SELECT __n, __clause, {', '.join(values)} FROM ({each})",
            {pairs: spark.createDataFrame(frame)},
        ).toArrow()
        computed = computed.sort_by("__n")
        return _Chosen(computed["__clause"].to_numpy().astype(np.int64), computed.select(list(types)))


def _merge_of(table: Table, pairs: _Pairs, chosen: _Chosen) -> PositionMerge:
    """Return the changes that follow from the chosen clauses."""
    clauses = pairs.source.clauses
    kinds: list[type[Clause]] = [type(c) for c in clauses]

    def chose(kind: type[Clause]) -> _Flags:
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
    return PositionMerge(table, rows, deleted, counts, pairs.source.rows.num_rows)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> _Flags:
    """Return where two columns of one simple type have the same value, as `merge_clauses.same` says."""
    both_null = pc.and_(one.is_null(), other.is_null()).to_numpy()
    equal = pc.fill_null(pc.equal(one, other), False).to_numpy()
    if pa.types.is_floating(one.type):
        zero = pc.fill_null(pc.equal(one, 0), False).to_numpy()
        signs = (np.signbit(pc.fill_null(c, 0).to_numpy()) for c in (one, other))
        both_nan = pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False).to_numpy()
        equal = (equal & ~(zero & np.not_equal(*signs))) | both_nan
    return equal | both_null


def _struct(table: pa.Table) -> Any:
    columns = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in table.columns]
    return pa.StructArray.from_arrays(columns, names=table.column_names)
