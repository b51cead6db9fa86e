"""A record may be nested up to a limit."""

from __future__ import annotations

import pytest

from lake_assets.errors import MalformedRecordError
from lake_assets.formats.format_base import DEPTH, decode


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


@pytest.mark.parametrize("text", [nested(DEPTH), "[" + ",".join([nested(DEPTH - 1)] * 3) + "]", '"' + "[" * 999 + '"'])
def test_a_record_may_be_nested_up_to_the_limit(text: str) -> None:
    assert decode(text) == decode(text.encode())


@pytest.mark.parametrize("levels", [DEPTH + 1, 1000, 1_000_000])
@pytest.mark.parametrize("shape", [("[", "]"), ('{"a":', "}")])
def test_a_deeper_record_is_rejected(levels: int, shape: tuple[str, str]) -> None:
    opening, closing = shape
    text = opening * levels + "1" + closing * levels
    for line in (text, text.encode()):
        with pytest.raises(MalformedRecordError, match=f"nested deeper than {DEPTH} levels"):
            decode(line)
