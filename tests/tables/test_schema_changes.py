"""Changes of a table's columns: the common type of two, and tables that follow their stream."""

from __future__ import annotations

import pytest

from lake_assets.errors import SchemaConflictError
from lake_assets.tables.schema_changes import Change, evolve, former_name, formers, is_former, unite, widest


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ("int", "int", "int"),
        ("int", "bigint", "bigint"),
        ("float", "double", "double"),
        ("decimal(12,2)", "decimal(18,2)", "decimal(18,2)"),
        ("decimal(18,2)", "decimal(24,4)", "decimal(24,4)"),
        ("decimal(10,0)", "decimal(4,4)", "decimal(14,4)"),
        ("decimal(38,0)", "decimal(38,0)", "decimal(38,0)"),
        ("decimal(38,0)", "decimal(38,1)", None),
        ("int", "string", None),
        ("bigint", "double", None),
        ("bigint", "decimal(38,0)", None),
        ("date", "timestamp_ntz", None),
        ("timestamp", "timestamp_ntz", None),
        ("array<int>", "array<bigint>", None),
    ],
)
def test_the_widest_of_two_types_holds_both(a: str, b: str, both: str | None) -> None:
    assert widest(a, b) == both
    assert widest(b, a) == both


def test_schemas_are_united_in_the_order_of_their_columns() -> None:
    united = unite("t", [{"id": "int", "a": "string"}, {"b": "date", "id": "bigint"}])
    assert list(united.items()) == [("id", "bigint"), ("a", "string"), ("b", "date")]


def test_what_has_no_common_type_names_table_column_and_types() -> None:
    with pytest.raises(
        SchemaConflictError, match=r"staging\.t: the source changed the type of column a from int to string"
    ):
        unite("staging.t", [{"a": "int"}, {"a": "string"}])


@pytest.mark.parametrize(
    ("existing", "stream", "rename", "changes"),
    [
        ({"id": "int"}, {"id": "int"}, {}, []),
        ({"id": "int"}, {"id": "int", "a": "string"}, {}, [Change("add", "a", "string")]),
        ({"id": "int", "gone": "date"}, {"id": "int"}, {}, []),
        ({"id": "int"}, {"id": "bigint"}, {}, [Change("widen", "id", "bigint", "int")]),
        ({"id": "bigint"}, {"id": "int"}, {}, []),
        ({"id": "int", "Name": "date"}, {"id": "int", "name": "date"}, {}, [Change("rename", "name", "date", "Name")]),
        ({"Name": "int"}, {"name": "bigint"}, {"Name": "name"},
         [Change("rename", "name", "int", "Name"), Change("widen", "name", "bigint", "int")]),
        (
            {"d": "decimal(8,2)"},
            {"d": "decimal(9,2)"},
            {},
            [Change("widen", "d", "decimal(9,2)", "decimal(8,2)")],
        ),
        (
            {"d": "decimal(8,2)"},
            {"d": "decimal(9,3)"},
            {},
            [Change("replace", "d", "decimal(9,3)", "decimal(8,2)")],
        ),
        ({"d": "decimal(9,3)"}, {"d": "decimal(8,2)"}, {}, []),
        # Renames are declared, because no stream reports them.
        ({"a": "string"}, {"b": "string"}, {"a": "b"}, [Change("rename", "b", "string", was="a")]),
        (
            {"a": "int"},
            {"b": "bigint"},
            {"a": "b"},
            [Change("rename", "b", "int", was="a"), Change("widen", "b", "bigint", "int")],
        ),
        ({"a": "int", "b": "int"}, {"b": "int"}, {"a": "b"}, [Change("fold", "b", "int", was="a")]),
        ({"a": "int"}, {"a": "int"}, {"a": "b"}, []),
        ({"x": "int"}, {"x": "int"}, {"a": "b"}, []),
    ],
)  # fmt: skip
def test_a_table_follows_its_stream(
    existing: dict[str, str], stream: dict[str, str], rename: dict[str, str], changes: list[Change]
) -> None:
    assert evolve("t", existing, stream, rename) == changes


def test_a_fold_of_two_types_that_do_not_meet_is_refused() -> None:
    with pytest.raises(SchemaConflictError, match="column b"):
        evolve("t", {"a": "int", "b": "string"}, {"b": "string"}, {"a": "b"})


def test_values_of_an_earlier_type_are_found_again_by_name() -> None:
    old = former_name("price", "decimal(8,2)")
    columns = ["price", old, "prices", "price_was", "other__was_int"]
    assert formers("price", columns) == [old]
    assert is_former(old, columns)
    assert not is_former("price", columns)
    assert not is_former("other__was_int", columns)  # a column of the source: no column `other` exists
