"""Whether a field's range covers single values, and how people see it."""

from __future__ import annotations

from uuid import UUID

import pytest

from lake_assets.capture.field_ranges import FieldRange
from lake_assets.tables.outcome import range_text

LOW, HIGH = UUID(int=16), UUID(int=4096)


@pytest.mark.parametrize(
    ("value", "is_covered"),
    [
        (UUID(int=16), True),
        (str(UUID(int=300)), True),
        (str(UUID(int=15)), False),
        (UUID(int=5000), False),
        (None, False),
    ],
)
def test_uuids_are_found_as_themselves_and_as_text(value: UUID | str | None, is_covered: bool) -> None:
    """Spark has no UUID type and returns text."""
    assert FieldRange(LOW, HIGH, exact=True, nulls=False).covers(value) == is_covered


@pytest.mark.parametrize(
    ("found", "ends", "text"),
    [
        (FieldRange(1, 498, exact=True, nulls=False), ("1", "498"), "1..498"),
        (FieldRange(1, 498, exact=True, nulls=True), ("1", "498"), "1..498, null"),
        # Iceberg cuts the bounds of texts, and rounds the upper one up: nobody lives in "Zurich, Switzerb".
        (
            FieldRange("Aachen", "Zurich, Switzerb", exact=False, nulls=True),
            (">= Aachen", "<= Zurich, Switzerb"),
            ">= Aachen, <= Zurich, Switzerb, null",
        ),
        (FieldRange("Aachen", None, exact=False, nulls=False), (">= Aachen", "unbounded"), ">= Aachen"),
        (FieldRange(None, "b", exact=False, nulls=False), ("unbounded", "<= b"), "<= b"),
        (FieldRange(None, None, exact=False, nulls=True), ("unbounded", "unbounded"), "unbounded"),
        (FieldRange(None, None, exact=True, nulls=True, has_values=False), ("no values", "no values"), "null"),
    ],
)
def test_a_bound_that_need_not_be_a_value_is_not_shown_as_one(
    found: FieldRange, ends: tuple[str, str], text: str
) -> None:
    assert (found.ends, range_text(found)) == (ends, text)
