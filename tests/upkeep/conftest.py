"""Eager upkeep: a few batches make every kind of action due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lake_assets.lake import thresholds
from tests.support.cli import Done, caller


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers of files and snapshots are many."""
    monkeypatch.setattr(thresholds, "UPKEEP_INPUT_FILES", 2)
    monkeypatch.setattr(thresholds, "UPKEEP_EXPIRED_SNAPSHOTS", 2)
    monkeypatch.setattr(thresholds, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(thresholds, "ORPHAN_SEARCH_SECONDS", 0)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return caller(monkeypatch, capsys)
