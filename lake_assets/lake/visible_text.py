"""Texts from outside, without characters that a terminal or a browser would obey."""

from __future__ import annotations

import re

# Terminal control characters, bidirectional controls, and lone surrogates, which cannot be encoded. Names, values and
# records come from outside and may contain any of them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape the control characters of a text: ESC becomes \x1b. Line breaks and tabs stay."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def visible_json(text: str) -> str:
    """Write control characters in JSON as JSON escapes."""
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
