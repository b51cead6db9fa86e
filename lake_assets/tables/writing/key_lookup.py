"""Find the rows of Arrow tables that have one of many keys, by hashing one column after the other."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Type checkers do not see its functions, which it makes while it is imported.
pc: Any = import_module("pyarrow.compute")
Positions = npt.NDArray[np.int64]


class KeyLookup:
    """Keys to look up, of one or more columns.

    Types are those whose equal values are equal to Spark too: no floating-point numbers, no collations.
    """

    def __init__(self, keys: pa.Table, *, nulls_match: bool) -> None:
        """
        Args:
            keys: one row per key; its columns have the types of the tables that are searched.
            nulls_match: whether null equals null; else rows with a null are equal to no other row.
        """
        self.columns: list[str] = list(keys.column_names)
        rows = np.arange(keys.num_rows)
        if not nulls_match:
            known: Any = np.ones(keys.num_rows, bool)
            for name in self.columns:
                known &= ~keys[name].is_null().to_numpy()
            rows = rows[known]
            keys = keys.take(pa.array(rows))
        self._values = {name: pc.unique(keys[name]) for name in self.columns}
        # The column that rules out the most rows comes first.
        self.columns.sort(key=lambda name: -len(self._values[name]))
        self._codes: list[Positions] = []
        code = np.zeros(keys.num_rows, np.int64)
        for name in self.columns:
            code, known_codes = _numbered(code * len(self._values[name]) + self._index(name, keys[name]))
            self._codes.append(known_codes)
        self.is_unique = len(code) == 0 or len(self._codes[-1]) == len(code)
        """Whether no two rows have the same key, of those that can match."""
        self._filter = _HashFilter.of(keys)
        # From the number of a key to its row.
        self._rows = np.empty(len(self._codes[-1]) if len(code) else 0, np.int64)
        self._rows[code] = rows

    def find(self, table: pa.Table) -> tuple[Positions, Positions]:
        """Return the rows of a table that have one of the keys, and the row of each one's key among the keys."""
        if self._filter is not None and table.num_rows:
            candidates = self._filter.candidates(table)
            at, rows = self._find_all(table.take(pa.array(candidates)))
            return candidates[at], rows
        return self._find_all(table)

    def _find_all(self, table: pa.Table) -> tuple[Positions, Positions]:
        positions: Positions | None = None
        code = np.zeros(0, np.int64)
        for name, known in zip(self.columns, self._codes, strict=True):
            column = table[name]
            index = self._index(name, column if positions is None else column.take(pa.array(positions)))
            at = np.flatnonzero(index >= 0)
            index = index[at]
            if positions is None:
                positions, code = at, index
            else:
                positions, code = positions[at], code[at] * len(self._values[name]) + index
            if not len(known):
                return np.zeros(0, np.int64), np.zeros(0, np.int64)
            place = np.minimum(np.searchsorted(known, code), len(known) - 1)
            exists = known[place] == code
            positions, code = positions[exists], place[exists]
        assert positions is not None
        return positions, self._rows[code]

    def _index(self, name: str, column: Any) -> Positions:
        """Return the number of each value among the values of the keys; -1: it is none of them."""
        index = pc.index_in(column, value_set=self._values[name])
        return pc.fill_null(index, -1).to_numpy().astype(np.int64)


def _numbered(codes: Positions) -> tuple[Positions, Positions]:
    """Return the number of each code among the distinct codes, and these in order."""
    known, number = np.unique(codes, return_inverse=True)
    return number.reshape(-1).astype(np.int64), known


class _HashFilter:
    """Rules out most rows without a key by one bit of a hash of their numbers, dates and times.

    Looking a value up takes several times as long, and so does each further column of a key.
    """

    def __init__(self, columns: list[str], keys: pa.Table) -> None:
        self._columns = columns
        # A row without a key passes with a probability of a sixty-fourth.
        self._shift = np.uint64(64 - max(10, (keys.num_rows * 64).bit_length()))
        self._bits = np.zeros(1 << int(64 - self._shift), bool)
        self._bits[self._hash(keys)] = True

    @classmethod
    def of(cls, keys: pa.Table) -> _HashFilter | None:
        """Return the filter of keys; None if they have no columns of this kind, or there is no key."""
        columns = [f.name for f in keys.schema if pa.types.is_integer(f.type) or pa.types.is_temporal(f.type)]
        return cls(columns, keys) if columns and keys.num_rows else None

    def candidates(self, table: pa.Table) -> Positions:
        """Return the rows that may have one of the keys."""
        return np.flatnonzero(self._bits[self._hash(table)])

    def _hash(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        hashed = np.zeros(table.num_rows, np.uint64)
        for name in self._columns:
            column = table[name]
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
            numbers = pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False).view(np.uint64)
            hashed = (hashed ^ numbers) * _FACTOR
        return hashed >> self._shift


# An odd number whose bits are spread, so that the high bits of a product depend on all bits of the other factor.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
