"""Files with keys, as spreadsheets and scripts write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets.erase.key_values import read_file


@pytest.mark.parametrize(
    ("name", "content", "keys"),
    [
        ("a.csv", '\ufeffid,name\r\n1,"a, ""b"""\r\n\r\n2,\u2028\r\n', [("1", 'a, "b"'), ("2", "\u2028")]),
        ("a.CSV", "id,name\n1,\n", [("1", "")]),
        (
            "a.jsonl",
            '\ufeff{"id": 1, "name": "a\u2028b"}\r\n\n{"id": 1.50, "name": "x"}',
            [("1", "a\u2028b"), ("1.50", "x")],
        ),
    ],
)
def test_keys_are_read_as_they_are_written(
    tmp_path: Path, name: str, content: str, keys: list[tuple[str, str]]
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert [tuple(key.values()) for key in read_file(tmp_path / name)] == keys
