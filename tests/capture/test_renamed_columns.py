"""Columns that lose their names: dropped, renamed, and added again under a name that another one had."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType

from lake_assets.capture.renamed_columns import added_again


def schema(**columns: tuple[int, IcebergType]) -> Schema:
    return Schema(*(NestedField(n, name, kind, required=False) for name, (n, kind) in columns.items()))


THEN = schema(id=(1, IntegerType()), v=(2, IntegerType()), w=(3, StringType()))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (THEN, []),
        (schema(id=(1, IntegerType()), w=(3, StringType())), []),
        (schema(id=(1, IntegerType()), v=(4, StringType()), w=(3, StringType())), ["v"]),
        (schema(id=(1, IntegerType()), v=(4, LongType()), w=(3, StringType())), []),  # it holds the former values
        (schema(id=(1, IntegerType()), v=(3, StringType())), []),  # another one, with its values, was renamed to it
        (schema(id=(1, IntegerType()), v=(3, StringType()), w=(2, IntegerType())), []),  # swapped
    ],
)
def test_only_a_new_column_of_another_type_is_added_again(now: Schema, expected: list[str]) -> None:
    assert [was.name for was, _ in added_again(THEN, now)] == expected
