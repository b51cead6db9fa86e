"""Lakes for tests: one JVM for the whole session, a lake of its own for every test."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event

from lake_assets import Lake, LakeConfig
from lake_assets.lake import thresholds
from tests.support.kills import Points, around_writes
from tests.support.lakes import lake_on, set_for_little_data, small_lake
from tests.support.seeds import TODAY, VARIANTS

if TYPE_CHECKING:
    from tests.support.object_store import Bucket, StoreServer

# Where tests run beside each other there is no terminal whose width could be asked for.
os.environ["COLUMNS"] = "150"


def pytest_report_header() -> str | None:
    return (
        f"long tests: every {VARIANTS}th of a test's variants, DAY={TODAY} (VARIANTS=1: all)" if VARIANTS > 1 else None
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Whatever asks for a Spark session is marked as such; the longest come first, so that no process is left alone
    with one at the end. Of what `-m` and `-k` leave, today's variants are kept."""
    for item in items:
        if {"lake", "spark_lake"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: item.get_closest_marker("system") is None)
    yield
    _leave_out_variants(config, items)


def _leave_out_variants(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep today's variants of the long tests; of each test at least one."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long"):
            variants[item.nodeid.partition("[")[0]].append(item)
    others = {
        item
        for same in variants.values()
        for n, item in enumerate(same)
        if n % min(VARIANTS, len(same)) != TODAY % min(VARIANTS, len(same))
    }
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests put down as `summary` (record_property) is shown at the end, also of other processes."""
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    for report in reports:
        for name, value in report.user_properties:
            if name == "summary" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {value}")


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_user() -> Iterator[None]:
    """Whoever runs the tests may have a lake of their own configured; only the cache of jars is shared with it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("LAKE_") and n != "LAKE_JARS"]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _few_rows_are_absorbed_as_many_are() -> Iterator[None]:
    """The tables of tests are small; what is tested is how changes are absorbed. Other programs have the default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "FULL_UP_TO_COST", 0)
        # Some are read whole, and some are large enough for lookups by keys, or for pruning.
        patch.setattr(thresholds, "SMALL_SIDE_ROWS", 12)
        patch.setattr(thresholds, "SMALL_TARGET_ROWS", 12)
        yield


@pytest.fixture(scope="session", autouse=True)
def _commits_do_not_wait_for_the_disk() -> Iterator[None]:
    """The catalogs of tests, and Dagster's instances, need not survive the end of the machine (`QUICK_CATALOG`)."""

    def is_quick(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", is_quick)
    yield
    event.remove(Engine, "connect", is_quick)


@pytest.fixture(autouse=True)
def _small_windows_are_read_either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in three tests reads small windows as large ones are read: by Spark. A test is always one of either kind."""
    if zlib.crc32(request.node.nodeid.encode()) % 3 == 0:
        monkeypatch.setattr(thresholds, "LOCAL_FILES", 0)


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake for tests that only compute; whichever is opened first starts the session's one JVM."""
    lake = small_lake(tmp_path_factory.mktemp("spark"))
    set_for_little_data(lake)
    return lake


@pytest.fixture
def new_lake(spark_lake: Lake, tmp_path: Path) -> Callable[[str], Lake]:
    """Makes lakes in folders of the test, each with its own catalog and Spark session on the shared JVM."""

    def make(name: str) -> Lake:
        return lake_on(spark_lake, tmp_path / name)

    return make


@pytest.fixture
def lake(new_lake: Callable[[str], Lake]) -> Lake:
    """The test's own lake."""
    return new_lake("lake")


@pytest.fixture
def plain_lake(tmp_path: Path) -> Lake:
    """A lake whose Spark is never started: catalog and files only."""
    return Lake(LakeConfig(home=tmp_path / "plain"))


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    """The points at which a step can be killed; it is not, until they are armed."""
    points = Points(only_after=True)
    around_writes(points, monkeypatch)
    return points


@pytest.fixture(scope="session")
def _store() -> Iterator[StoreServer]:
    from tests.support.object_store import running_store

    with running_store() as server:
        yield server


@pytest.fixture
def bucket(_store: StoreServer) -> Bucket:
    """A bucket of an object store on this machine."""
    from tests.support.object_store import new_bucket

    return new_bucket(_store)
