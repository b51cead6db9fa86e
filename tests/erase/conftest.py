"""The command line, and lakes with users."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lake_assets import Lake
from lake_assets.facade import Lake as LakeOfCommands
from tests.support.cli import Done, caller


@pytest.fixture
def call(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls commands, which find the test's lake."""
    for name in ("load", "load_existing"):
        monkeypatch.setattr(LakeOfCommands, name, classmethod(lambda *_: lake))
    return caller(monkeypatch, capsys)
