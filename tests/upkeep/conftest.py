"""Eager upkeep: a few batches make every kind of action due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cli import Done, caller
from tests.support.upkeep import make_eager


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers of files and snapshots are many."""
    make_eager(monkeypatch)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return caller(monkeypatch, capsys)
