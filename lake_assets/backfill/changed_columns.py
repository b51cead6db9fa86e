"""Which columns two states of a table share, and how their rows differ, column by column.

Rows are compared as multisets, over the columns that both states have. With a key, a removed and an added row of equal
key are one row that differs; without one, they are two rows. Columns of one state alone are counted by themselves: a
new column does not make every row differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.capture.rows.incompatible_columns import reads_as
from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.capture.rows.value_differences import PAIR, SIGN, canonical, net, paired
from lake_assets.lake import quote
from lake_assets.pipeline.row_comparison import near

_BEFORE, _AFTER = "before", "after"
# Of a sample, the columns whose values differ from those of the sample before it.
CHANGED = "_changed"
OF_SAMPLES = ("_change_type", CHANGED)
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


def changed_rows(signed: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return one row for each row that differs, with the structs `before` and `after`, of which one may be null.

    Args:
        signed: removed (`SIGN` -1) and added (`SIGN` 1) rows with the columns; equal ones cancel out.
        key: columns that identify a row on either side; empty: none does.
    """
    rows = net(signed, list(columns)).withColumn(PAIR, F.lit(None).cast("string"))
    image = F.struct(*(F.col(quote(c)).alias(c) for c in columns))
    removed, added = F.when(F.col(SIGN) < 0, image), F.when(F.col(SIGN) > 0, image)
    if not key:
        return rows.select(removed.alias(_BEFORE), added.alias(_AFTER))
    rows = paired(rows, key)
    single = rows.where(F.col(PAIR).isNull()).select(removed.alias(_BEFORE), added.alias(_AFTER))
    pairs = rows.where(F.col(PAIR).isNotNull()).groupBy(PAIR)
    both = pairs.agg(F.first(removed, ignorenulls=True).alias(_BEFORE), F.first(added, ignorenulls=True).alias(_AFTER))
    return single.unionAll(both.drop(PAIR))


@dataclass(frozen=True)
class Counts:
    """Numbers of rows that differ.

    Attributes:
        columns: by column, how many rows on both sides differ in it, and how many of them in the last digits only.
        sums: by numeric column, its sum over the differing rows before and after.
    """

    inserted: int
    updated: int
    deleted: int
    columns: Mapping[str, tuple[int, int]]
    sums: Mapping[str, tuple[Any, Any]]


def count(changed: DataFrame, key: Sequence[str]) -> Counts:
    """Count the rows of `changed_rows`."""
    before, after = F.col(_BEFORE), F.col(_AFTER)
    is_both = before.isNotNull() & after.isNotNull()
    fields = [f for f in _image(changed).fields if f.name not in key]
    numbers = [f.name for f in fields if isinstance(f.dataType, T.NumericType)]
    measures: list[Column] = [
        F.count_if(before.isNull()).alias("inserted"),
        F.count_if(is_both).alias("updated"),
        F.count_if(after.isNull()).alias("deleted"),
    ]
    for n, f in enumerate(fields):
        a, b = before.getField(f.name), after.getField(f.name)
        differs = is_both & ~canonical(a, f.dataType).eqNullSafe(canonical(b, f.dataType))
        measures.append(F.count_if(differs).alias(f"d{n}"))
        is_float = isinstance(f.dataType, T.FloatType | T.DoubleType)
        is_near = F.coalesce(near(a, b), F.lit(False)) if is_float else F.lit(False)
        measures.append(F.count_if(differs & is_near).alias(f"r{n}"))
    for n, c in enumerate(numbers):
        measures += [F.try_sum(side.getField(c)).alias(f"{name}{n}") for name, side in (("b", before), ("a", after))]
    row = changed.agg(*measures).first()
    assert row is not None
    return Counts(
        row["inserted"],
        row["updated"],
        row["deleted"],
        {f.name: (row[f"d{n}"], row[f"r{n}"]) for n, f in enumerate(fields)},
        {c: (row[f"b{n}"], row[f"a{n}"]) for n, c in enumerate(numbers)},
    )


def samples(changed: DataFrame, counts: Counts, key: Sequence[str], at_most: int) -> Iterator[dict[str, Any]]:
    """Yield some rows of `changed_rows` of each kind, as they were and are, with `_change_type`.

    A row that differs counts as one, and is its two images, one after the other; the second one has the names of the
    columns that differ, as `CHANGED`.
    """
    before, after = F.col(_BEFORE), F.col(_AFTER)
    kinds = {
        "update": (counts.updated, before.isNotNull() & after.isNotNull()),
        "insert": (counts.inserted, before.isNull()),
        "delete": (counts.deleted, after.isNull()),
    }
    shares = _shares({kind: n for kind, (n, _) in kinds.items()}, at_most)
    row = F.coalesce(after, before)
    fields = _image(changed).fields
    by = [row.getField(f.name) for f in fields if (f.name in key if key else _is_orderable(f.dataType))]
    for kind, share in shares.items():
        for found in changed.where(kinds[kind][1]).orderBy(*by).limit(share).collect() if share else ():
            images = {"update": ("update_before", "update_after")}.get(kind, (kind,))
            sides = [s.asDict(recursive=True) for s in (found[_BEFORE], found[_AFTER]) if s is not None]
            for image, side in zip(images, sides, strict=True):
                differing = [c for c, v in side.items() if repr(sides[0][c]) != repr(v)]
                more = {CHANGED: differing} if image == "update_after" else {}
                yield {**side, "_change_type": image, **more}


def _is_orderable(kind: T.DataType) -> bool:
    return isinstance(kind, T.AtomicType) and not isinstance(kind, T.VariantType)


def _shares(counts: Mapping[str, int], at_most: int) -> dict[str, int]:
    """Return how many samples there are of each kind: as many of each, as far as there are so many."""
    shares = dict.fromkeys(counts, 0)
    while sum(shares.values()) < at_most and (left := [k for k, n in counts.items() if shares[k] < n]):
        for kind in left[: at_most - sum(shares.values())]:
            shares[kind] += 1
    return shares


def _image(changed: DataFrame) -> T.StructType:
    kind = changed.schema[_AFTER].dataType
    assert isinstance(kind, T.StructType)
    return kind
