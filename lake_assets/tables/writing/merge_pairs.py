"""Rows of a MERGE's source beside the stored rows that they match, and what the clauses make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lake_assets.errors import Refused
from lake_assets.lake import quote, thresholds
from lake_assets.lake.rows_in_memory import arrow_rows
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.writing.key_lookup import Positions, pc
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Update, plain_column, stored_columns
from lake_assets.tables.writing.stored_rows import Matches

# Columns of the collected source: its keys with the table's types, and whether a clause's condition is met.
_KEY, _WHEN = "__lake_key{}", "__lake_when{}"
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class HeldRows:
    """Rows of a source that this process holds.

    Attributes:
        rows: the rows; the columns that are written have the types of the table's.
        types: Spark's types of their columns.
        applies: for each clause whose condition reads the source alone, by its number, which rows meet it.
    """

    rows: pa.Table
    types: Mapping[str, str]
    applies: Mapping[int, Flags]


def frame_of(rows: DataFrame | HeldRows, spark: SparkSession) -> DataFrame:
    """Return the rows of a source as a frame."""
    if not isinstance(rows, HeldRows):
        return rows
    return arrow_rows(spark, rows.rows, ", ".join(f"{quote(c)} {kind}" for c, kind in rows.types.items()))


@dataclass(frozen=True)
class Source:
    """The collected rows of a source."""

    rows: pa.Table
    key: Sequence[str]
    clauses: Sequence[Clause]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        rows: DataFrame | HeldRows,
        key: Sequence[str],
        types: Mapping[str, str],
        clauses: Sequence[Clause],
        at_most: int | None,
    ) -> Source | Refused:
        """Collect a source, with its keys and conditions; a refusal if it is too large."""
        most = thresholds.POSITION_VALUES // max(len(types), 1)
        if isinstance(rows, HeldRows):
            held = rows.rows
            for n, k in enumerate(key):
                held = held.append_column(_KEY.format(n), held[k])
            for n, flags in rows.applies.items():
                held = held.append_column(_WHEN.format(n), pa.array(flags))
            return cls(held, key, clauses) if held.num_rows <= most else Refused("too many rows change")
        named = new_name()
        keys = (f"CAST(s.{quote(k)} AS {types[k]}) AS {_KEY.format(n)}" for n, k in enumerate(key))
        conditions = (
            f"coalesce({c.when}, false) AS {_WHEN.format(n)}"
            for n, c in enumerate(clauses)
            if c.when and not stored_columns(c.when)
        )
        limit = f" LIMIT {most + 1}" if at_most is None else ""
        sql = f"SELECT {', '.join(['s.*', *keys, *conditions])} FROM {named} s{limit}"
        try:
            collected = over(spark, sql, {named: rows}).toArrow()
        except Exception as e:
            if "spark.driver.maxResultSize" not in str(e):
                raise
            return Refused("the changed rows are too large for the driver")
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
            if stored_columns(clause.when, *clause.values.values()):
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
class Chosen:
    """What happens to the pairs of rows.

    Attributes:
        clauses: the number of the clause that applies to each pair; -1: none.
        values: the table's columns, with the values to write; of pairs without a value, any.
    """

    clauses: Positions
    values: pa.Table


@dataclass(frozen=True)
class Pairs:
    """Rows of the source: first those with a stored row, by file, and then the others.

    Attributes:
        source: the source.
        found: the stored rows.
        rows: the row of the source of each pair.
        stored: the stored columns that were read, of the pairs with a stored row.
    """

    source: Source
    found: Sequence[Matches]
    rows: Positions
    stored: pa.Table

    @classmethod
    def of(cls, source: Source, found: Sequence[Matches], columns: pa.Schema) -> Pairs:
        """Pair a source with the stored rows that were found, of some columns."""
        matched = np.concatenate([m.keys for m in found]) if found else np.zeros(0, np.int64)
        others = np.setdiff1d(np.arange(source.rows.num_rows), matched)
        stored = pa.concat_tables([columns.empty_table(), *(m.rows.cast(columns) for m in found)])
        return cls(source, found, np.concatenate([matched, others]), stored)

    @property
    def matched(self) -> int:
        """The number of pairs with a stored row."""
        return sum(len(m.keys) for m in self.found)

    def plain(self, types: Mapping[str, str]) -> Chosen:
        """Choose by the conditions that were collected with the source, and write its values."""
        clauses, choice = self.source.clauses, np.full(len(self.rows), -1)
        is_matched = np.arange(len(self.rows)) < self.matched
        for n, clause in reversed(list(enumerate(clauses))):
            applies = np.equal(is_matched, clause.is_matched)
            if clause.when:
                flags: Flags = self.source.rows[_WHEN.format(n)].to_numpy()
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
        return Chosen(choice, values.take(pa.array(at)) if values.num_rows else values)

    def _differ(self, update: Update) -> Flags:
        """Return which stored rows differ from the values of an update in a column that it compares."""
        differ = np.zeros(self.matched, bool)
        rows = pa.array(self.rows[: self.matched])
        for column in update.compared:
            stored = self.stored[column]
            new = self.source.rows[plain_column(update.values[column])].take(rows).cast(stored.type)
            differ |= ~_same(stored, new)
        return differ

    def evaluated(self, spark: SparkSession, types: Mapping[str, str]) -> Chosen:
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
        return Chosen(computed["__clause"].to_numpy().astype(np.int64), computed.select(list(types)))


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Flags:
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
