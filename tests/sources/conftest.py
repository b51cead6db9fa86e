"""Servers that the tests of sources share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apicurio import Registry, registry
from tests.support.kafka import Broker, broker
from tests.support.kafka_streams import Stream


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A broker for tests that do not end it."""
    with broker() as server:
        yield server


@pytest.fixture(scope="session")
def schemas() -> Iterator[Registry]:
    """A schema registry."""
    with registry() as server:
        yield server


@pytest.fixture
def topic(kafka: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a topic of the test's own, which is not there yet."""
    return f"t{abs(hash(request.node.nodeid)) % 10**10}"


@pytest.fixture
def stream(kafka: Broker, tmp_path: Path) -> Callable[..., Stream]:
    """Makes a stream of topics in a lake of the test's own."""
    return lambda topics, more=None, **settings: Stream(tmp_path, kafka, topics, more, **settings)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Whatever needs a server starts one."""
    for item in items:
        if {"kafka", "schemas"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.system)
