"""Which columns two states of a table share, and what differs in each of them.

Columns of one state alone are counted by themselves: a new column does not make every row differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lake_assets.capture.rows.incompatible_columns import reads_as
from lake_assets.capture.rows.spark_types import spark_type

_NUMBERS = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
# Values of these become texts, and texts become them, or nothing.
_TEXTUAL = (*_NUMBERS, StringType, DateType, TimestampType, TimestamptzType)
Change = Literal["values", "added", "dropped", "renamed", "retyped"]


@dataclass(frozen=True)
class ColumnChange:
    """What differs in one column.

    Attributes:
        column: its name; of a dropped one, the former name.
        change: `values`: nothing else than values. `renamed`, `retyped`: perhaps values as well.
        rows: of rows that are on both sides, how many have another value; of an added or dropped column, how many of
            its values are not null; None: values of the two types cannot be compared.
        rounding: how many of these rows differ in the last digits of floats only.
        before, after: its names, if it was renamed; its types, if it has another one, was added, or dropped.
        values: some values of an added column.
    """

    column: str
    change: Change
    rows: int | None = 0
    rounding: int = 0
    before: str = ""
    after: str = ""
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class SharedColumns:
    """The columns of two states of a table.

    Attributes:
        common: by the name of a column after, its name before; without those whose values cannot be compared.
        retyped: by name after, the types before and after.
        incomparable: the columns of `retyped` whose values cannot be compared.
        added, dropped: by name, the type of the others.
        types: by name after, the types of the common columns.
        is_read_alike: whether files of either state can be read by the columns after.
    """

    common: Mapping[str, str]
    retyped: Mapping[str, tuple[str, str]]
    incomparable: frozenset[str]
    added: Mapping[str, str]
    dropped: Mapping[str, str]
    types: Mapping[str, str]
    is_read_alike: bool

    @property
    def renamed(self) -> dict[str, str]:
        """By name after, the name before, of the columns that were renamed."""
        return {after: before for after, before in self.common.items() if after != before}


def shared_columns(before: Schema, after: Schema) -> SharedColumns:
    """Pair the columns of two schemas of one table: by name, and of those that are left, by their ids."""
    old = {f.name: f for f in before.fields}
    ids = {f.field_id: f.name for f in before.fields if f.name not in {g.name for g in after.fields}}
    pairs = {f.name: f.name if f.name in old else ids.get(f.field_id, "") for f in after.fields}
    kinds = {f.name: f for f in after.fields}
    both = {name: former for name, former in pairs.items() if former}
    retyped = {
        n: (spark_type(old[o].field_type), spark_type(kinds[n].field_type))
        for n, o in both.items()
        if old[o].field_type != kinds[n].field_type
    }
    retyped = {n: types for n, types in retyped.items() if types[0] != types[1]}
    alike = {
        n: old[o].field_id == kinds[n].field_id and reads_as(old[o].field_type, kinds[n].field_type)
        for n, o in both.items()
    }
    incomparable = frozenset(
        n for n in retyped if not alike[n] and not _is_castable(old[both[n]].field_type, kinds[n].field_type)
    )
    common = {n: o for n, o in both.items() if n not in incomparable}
    return SharedColumns(
        common,
        retyped,
        incomparable,
        {n: spark_type(kinds[n].field_type) for n in pairs if n not in both},
        {n: spark_type(f.field_type) for n, f in old.items() if n not in both.values()},
        {n: spark_type(kinds[n].field_type) for n in common},
        all(alike[n] for n in common),
    )


def _is_castable(before: IcebergType, after: IcebergType) -> bool:
    """Whether Spark has a cast from one type to another that keeps the value where it can."""
    numbers = isinstance(before, _NUMBERS) and isinstance(after, _NUMBERS)
    texts = isinstance(before, _TEXTUAL) and isinstance(after, _TEXTUAL) and StringType() in (before, after)
    return numbers or texts
