"""A receiver on loopback, and no settings of OpenLineage from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.http_receiver import Receiver, receiver


@pytest.fixture
def received() -> Iterator[Receiver]:
    """A receiver."""
    with receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_settings_of_the_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {n: v for n, v in os.environ.items() if n.startswith("OPENLINEAGE")}
    for name in before:
        monkeypatch.delenv(name)
    yield
    # The client makes variables of its own from these.
    for name in [n for n in os.environ if n.startswith("OPENLINEAGE")]:
        del os.environ[name]
