"""The command line in this process, with lines long enough for every message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cli import Done, caller


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls `lake-assets` in this process, with lines long enough for every message."""
    monkeypatch.setenv("COLUMNS", "1000")
    return caller(monkeypatch, capsys)
