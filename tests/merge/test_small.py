"""What counts as little data: all that is read, or the share that goes on where the rest is skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets.merge.small import SMALL_BYTES, SMALL_ROWS, in_one_piece


class Rows:
    """A DataFrame that says whether it was made one partition."""

    pieces = 8

    def coalesce(self, n: int) -> Rows:
        found = Rows()
        found.pieces = n
        return found


@pytest.mark.parametrize(
    ("size", "rows", "of_it", "is_small"),
    [
        (SMALL_BYTES, SMALL_ROWS, None, True),
        (SMALL_BYTES + 1, SMALL_ROWS, None, False),
        (SMALL_BYTES, SMALL_ROWS + 1, None, False),
        (SMALL_BYTES, SMALL_ROWS * 2, 1_000, True),
        (SMALL_BYTES * 2, SMALL_ROWS * 2, SMALL_ROWS, True),
        # The share is as large as the rest of the file is small.
        (SMALL_BYTES * 9, SMALL_ROWS, SMALL_ROWS // 2, False),
        (SMALL_BYTES, SMALL_ROWS * 2, SMALL_ROWS + 1, False),
        # More than is captured: a record may be about many tables, and that is told by the commits.
        (SMALL_BYTES, SMALL_ROWS, SMALL_ROWS * 5, True),
        # To skip very much takes long as well.
        (SMALL_BYTES, SMALL_ROWS * 11, 1, False),
        (SMALL_BYTES * 11, SMALL_ROWS, 1, False),
        (0, 0, 0, True),
    ],
)
def test_a_share_is_small_where_the_rest_is_not_too_large(
    size: int, rows: int, of_it: int | None, is_small: bool
) -> None:
    captured: Any = SimpleNamespace(files=[SimpleNamespace(bytes=size, records=rows)])
    frame: Any = Rows()
    assert in_one_piece(frame, captured, of_it).pieces == (1 if is_small else 8)
