"""Whether a field's range covers single values."""

from __future__ import annotations

from uuid import UUID

import pytest

from lake_assets.capture.field_ranges import FieldRange

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
