"""Which rows are looked for: those with given values in some columns; which files may hold them, by their bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from importlib import import_module
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lake_assets.capture.field_ranges import field_ranges
from lake_assets.capture.files.manifests import Entry
from lake_assets.errors import RowHistoryError
from lake_assets.lake import thresholds

# Type checkers do not see its functions, which it makes while it is imported.
pc: Any = import_module("pyarrow.compute")

_WHOLE: dict[type[IcebergType], int] = {IntegerType: 31, LongType: 63}
_TIMES = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_EXAMPLES: dict[type[IcebergType], str] = {
    DateType: "2026-01-31",
    TimestampType: "2026-01-31T12:30:00",
    TimestamptzType: "2026-01-31T12:30:00+00:00",
    TimeType: "12:30:00",
    BooleanType: "true",
    BinaryType: "00ff as hexadecimal digits",
    UUIDType: "f79c3e09-677c-4bbd-a479-3f349cb785e7",
}


@dataclass(frozen=True)
class Wanted:
    """Rows whose columns have one of some values each.

    Attributes:
        values: the values by column, as Arrow's; null is a value like others.
        others: further columns by column, whose values count where that column is null: a table that is never rewritten
            keeps values of earlier types and names in them.
    """

    values: Mapping[str, pa.Array]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def columns(self) -> list[str]:
        """The columns that tell whether a row is wanted."""
        return list(dict.fromkeys(c for name in self.values for c in (name, *self.others.get(name, ()))))

    @property
    def is_empty(self) -> bool:
        """Whether no row can be wanted."""
        return any(not len(v) for v in self.values.values())

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows are wanted."""
        found = np.ones(rows.num_rows, bool)
        for name, values in self.values.items():
            column = rows[name]
            if others := self.others.get(name):
                column = pc.coalesce(column, *(rows[o].cast(column.type) for o in others))
            found &= pc.is_in(column, value_set=values).to_numpy()
        return found

    def may_be_in(
        self, entry: Entry, schema: Schema, specs: Mapping[int, PartitionSpec], unreadable: Collection[int] = ()
    ) -> bool:
        """Whether a data file may hold a wanted row, by the bounds of its columns and its partition.

        Args:
            unreadable: ids of columns whose bounds may have another type.
        """
        named = [schema.find_field(name) for name in self.values if not self.others.get(name)]
        if not named:
            return bool(entry.records)
        ranges = field_ranges([entry], Schema(*named), specs, unreadable=unreadable)
        return all(self._may_be_in(f, ranges) for f in named) and bool(entry.records)

    def _may_be_in(self, column: NestedField, ranges: Mapping[str, Any]) -> bool:
        hull = ranges.get(column.name)
        if hull is None:
            return True
        try:
            return any(hull.covers(v) for v in self._ends(column.name))
        except (TypeError, ValueError):  # bounds of another type, from before the table was replaced
            return True

    def _ends(self, name: str) -> list[Any]:
        """Return the values of a column, to be compared with bounds.

        Raises:
            ValueError: there are many, or Python cannot represent them.
        """
        values = self.values[name]
        if len(values) > thresholds.HISTORY_COMPARED_VALUES:
            raise ValueError(f"{len(values)} values")
        try:
            return values.to_pylist()
        except (OverflowError, pa.ArrowException) as e:
            raise ValueError(str(e)) from e


def wanted(types: pa.Schema, values: Mapping[str, Sequence[Any]]) -> Wanted:
    """Return the rows with some values of columns, given as Python values; `types` are the columns in Arrow."""
    return Wanted({name: pa.array(these, types.field(name).type) for name, these in values.items()})


# --- texts ----------------------------------------------------------------------------------------------------------


def value_of(text: str, column: NestedField, table: object) -> Any:
    """Return a value of a column from its text on the command line.

    Raises:
        RowHistoryError: the text is no value of the column's type, or the type has no values that are written so.
    """
    kind = column.field_type
    try:
        return _parsed(text, kind)
    except (ValueError, InvalidOperation, OverflowError) as e:
        example = _EXAMPLES.get(type(kind), "")
        like = f", such as {example}" if example else ""
        raise RowHistoryError(f"--key {column.name}={text}: {column.name} of {table} is {kind}: write one{like}") from e
    except NotImplementedError as e:
        raise RowHistoryError(
            f"--key {column.name}: {column.name} of {table} is {kind}, by which rows cannot be looked up: name another "
            "column"
        ) from e


def _parsed(text: str, kind: IcebergType) -> Any:
    if isinstance(kind, StringType):
        return text
    plain = text.strip()
    if isinstance(kind, IntegerType | LongType):
        return _whole(plain, _WHOLE[type(kind)])
    if isinstance(kind, DecimalType):
        return _decimal(plain, kind)
    if isinstance(kind, FloatType | DoubleType):
        return float(plain)
    if isinstance(kind, BooleanType):
        return {"true": True, "false": False}[plain.lower()] if plain.lower() in ("true", "false") else _no(plain)
    if isinstance(kind, DateType):
        return date.fromisoformat(plain)
    if isinstance(kind, TimeType):
        return time.fromisoformat(plain)
    if isinstance(kind, _TIMES):
        return _moment(plain, is_zoned=isinstance(kind, TimestamptzType | TimestamptzNanoType))
    if isinstance(kind, BinaryType | FixedType):
        return bytes.fromhex(plain)
    if isinstance(kind, UUIDType):
        return UUID(plain).bytes
    raise NotImplementedError(str(kind))


def _no(text: str) -> Any:
    raise ValueError(text)


def _whole(text: str, bits: int) -> int:
    number = int(text)
    return number if -(1 << bits) <= number < 1 << bits else _no(text)


def _decimal(text: str, kind: DecimalType) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        _no(text)
    scaled = number.quantize(Decimal(1).scaleb(-kind.scale))
    return scaled if scaled == number and len(scaled.as_tuple().digits) <= kind.precision else _no(text)


def _moment(text: str, *, is_zoned: bool) -> datetime:
    """Return a time; without a zone it is in UTC."""
    at = datetime.fromisoformat(text)
    if is_zoned:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return at if at.tzinfo is None else _no(text)


def text_of(value: Any) -> str:
    """Return a value as text, which `value_of` reads again."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)
