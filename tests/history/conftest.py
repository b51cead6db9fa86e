"""The command line, which finds the test's lake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lake_assets import Lake
from lake_assets.facade import Lake as LakeOfCommands
from tests.support.cli import Done, caller


@pytest.fixture
def call_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Lake], Callable[..., Done]]:
    """Makes callers of commands that find a lake."""

    def on(lake: Lake) -> Callable[..., Done]:
        for name in ("load", "load_existing"):
            monkeypatch.setattr(LakeOfCommands, name, classmethod(lambda *_: lake))
        return caller(monkeypatch, capsys)

    return on
