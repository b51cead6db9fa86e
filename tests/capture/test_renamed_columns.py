"""Columns that lose their names: dropped, renamed, and added again under a name that another one had."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from lake_assets.capture.renamed_columns import added_again, reused_names
from tests.support.seeds import any_seed

INT, LONG, TEXT = IntegerType(), LongType(), StringType()


def struct(**columns: tuple[int, IcebergType]) -> StructType:
    return StructType(*(NestedField(n, name, kind, required=False) for name, (n, kind) in columns.items()))


def schema(**columns: tuple[int, IcebergType]) -> Schema:
    return Schema(*struct(**columns).fields)


THEN = schema(id=(1, INT), v=(2, INT), w=(3, TEXT))
NESTED = schema(s=(1, struct(a=(2, INT), b=(3, TEXT))), t=(4, ListType(5, INT)), m=(6, MapType(7, TEXT, 8, INT)))


def nested(
    a: tuple[int, IcebergType] = (2, INT), t: IcebergType | None = None, m: IcebergType | None = None, s: int = 1
) -> Schema:
    lists, maps = t or ListType(5, INT), m or MapType(7, TEXT, 8, INT)
    return schema(s=(s, struct(a=a, b=(3, TEXT))), t=(4, lists), m=(6, maps))


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (THEN, THEN, []),
        (THEN, schema(id=(1, INT), w=(3, TEXT)), []),
        (THEN, schema(id=(1, INT), v=(4, TEXT), w=(3, TEXT)), ["v"]),
        (THEN, schema(id=(1, INT), V=(4, TEXT), w=(3, TEXT)), ["V"]),  # a query finds it under its former name
        (THEN, schema(id=(1, INT), v=(4, LONG), w=(3, TEXT)), []),  # it holds the former values
        (THEN, schema(id=(1, INT), v=(3, TEXT)), []),  # another one, with its values, was renamed to it
        (THEN, schema(id=(1, INT), v=(3, TEXT), w=(2, INT)), []),  # swapped
        (THEN, schema(id=(1, INT), v=(4, struct(a=(5, INT))), w=(3, TEXT)), ["v"]),
        (NESTED, NESTED, []),
        (NESTED, nested(a=(9, TEXT)), ["s.a"]),
        (NESTED, nested(a=(9, LONG)), []),
        (NESTED, nested(a=(9, TEXT), s=10), ["s.a"]),
        (NESTED, nested(t=ListType(9, TEXT)), ["t.element"]),
        (NESTED, nested(t=TEXT), []),  # `REPLACE TABLE` keeps the id of the column; there are no earlier rows
        (NESTED, nested(m=MapType(7, TEXT, 9, TEXT)), ["m.value"]),
    ],
)
def test_only_a_new_field_of_another_type_is_added_again(then: Schema, now: Schema, expected: list[str]) -> None:
    assert [t.name for t in added_again(then, now)] == expected


def test_a_column_with_converted_values_that_takes_the_name_of_the_former_one_is_not_added_again() -> None:
    converted = schema(id=(1, INT), v=(2, INT), v2=(4, TEXT))
    now = schema(id=(1, INT), v=(4, TEXT))
    assert [t.name for t in added_again(THEN, now)] == ["v"]
    assert not list(added_again(THEN, now, [THEN, converted, now]))


def _read(rows: dict[int, str], columns: Schema) -> dict[str, str | None]:
    """Values by name, as a reader finds them: by the ids of the fields."""

    def of(fields: tuple[NestedField, ...], prefix: str) -> Iterator[tuple[str, str | None]]:
        for f in fields:
            if isinstance(f.field_type, StructType):
                yield from of(f.field_type.fields, f"{prefix}{f.name}.")
            else:
                yield f"{prefix}{f.name}".lower(), rows.get(f.field_id)

    return dict(of(columns.fields, ""))


def _altered(chance: random.Random, fields: list[NestedField], ids: Iterator[int]) -> list[NestedField]:
    """Fields after a change of one of them, or of one within a struct."""
    fields = list(fields)
    n = chance.randrange(len(fields))
    f, kind = fields[n], chance.choice([INT, LONG, TEXT, DoubleType()])
    if isinstance(f.field_type, StructType) and chance.random() < 0.7:
        inner = StructType(*_altered(chance, list(f.field_type.fields), ids))
        fields[n] = NestedField(f.field_id, f.name, inner, required=False)
        return fields
    name = f.name.swapcase() if chance.random() < 0.2 else f.name
    match chance.choice(["add", "add", "swap", "convert"]):
        case "swap":
            m = chance.randrange(len(fields))
            fields[n], fields[m] = (
                NestedField(a.field_id, b.name, a.field_type, required=False)
                for a, b in ((fields[m], f), (f, fields[m]))
            )
        case _:
            fields[n] = NestedField(next(ids), name, kind, required=False)
    return fields


@any_seed(100)
def test_names_are_taken_whose_values_are_others_now(seed: int) -> None:
    chance, ids = random.Random(seed), itertools.count(10)
    then = schema(v=(1, INT), w=(2, TEXT), s=(3, struct(a=(4, INT), b=(5, LONG), r=(6, struct(x=(7, INT))))))
    rows, now = {n: f"value {n}" for n in range(1, 8)}, then
    for _ in range(chance.randint(1, 5)):
        now = Schema(*_altered(chance, list(now.fields), ids))
    before, after = _read(rows, then), _read(rows, now)
    others = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    reused = {t.name.lower() for t in reused_names(then, now)} & before.keys() & after.keys()
    assert reused == others
    lost = {t.name.lower() for t in added_again(then, now)} & before.keys() & after.keys()
    assert all(after[name] is None and before[name] not in after.values() for name in lost)
    for name in others - lost:
        was, again = then.find_field(name, case_sensitive=False), now.find_field(name, case_sensitive=False)
        is_held = was.field_type == again.field_type or (was.field_type, again.field_type) == (INT, LONG)
        assert is_held or after[name] is not None or before[name] in after.values()
