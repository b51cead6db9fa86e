"""Temporary errors of a step: a catalog that is locked or unreachable for a moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import CatalogUnavailableError, StorageFullError
from lake_assets.lake import caching_catalog
from lake_assets.orchestration.runs import step_failures
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines

USERS = Table({"id": BIGINT}, name="public.users")


def pipeline(table: str) -> Pipeline:
    return Pipeline(PipelineConfig.model_validate({"name": "crm", "streams": [{"name": "crm", "tables": [table]}]}))


@pytest.fixture
def landed(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with two tables' records in raw; the catalog's timeout is half a second, and retries do not wait."""
    monkeypatch.setattr(caching_catalog, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(step_failures, "SECONDS_BETWEEN", 0)
    land(plain_lake, 1)
    assert [o.error for o in pipeline("public.users").run(plain_lake, ["raw.crm"])] == [None]
    return plain_lake


def land(lake: Lake, n: int) -> None:
    (folder := lake.config.home / "landing" / "crm").mkdir(parents=True, exist_ok=True)
    write_lines(folder / f"{n}.jsonl", to_lines([Event(USERS, "c", (n, n), {"id": n})]))


@pytest.fixture
def lock(landed: Lake) -> Iterator[sqlite3.Connection]:
    """A connection that holds the catalog's lock, as another process would."""
    connection = sqlite3.connect(landed.config.home / "catalog.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


def events(result: dg.ExecuteInProcessResult, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    return [e for e in result.all_events if e.event_type == kind]


def test_errors_of_disks_and_catalogs_are_temporary() -> None:
    assert not CatalogUnavailableError.permanent
    assert not StorageFullError.permanent


def test_a_step_retries_until_a_locked_catalog_is_free(
    landed: Lake, lock: sqlite3.Connection, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, attempts = Harness(pipeline("public.users"), landed, instance), list[int]()
    of = step_failures._retry_number

    def tries(context: step_failures.Context) -> int:
        attempts.append(of(context))
        if len(attempts) == 3:
            lock.execute("ROLLBACK")
        return of(context)

    monkeypatch.setattr(step_failures, "_retry_number", tries)
    land(landed, 2)
    result = run(harness, "raw")
    assert events(result, dg.DagsterEventType.STEP_RESTARTED)
    assert result.success
    assert landed.table("raw.crm").scan().count() == 2


def run(harness: Harness, layer: str) -> dg.ExecuteInProcessResult:
    job = harness.job.get_subset(asset_selection=frozenset({dg.AssetKey([layer, "crm"])}))
    return job.execute_in_process(instance=harness.instance, raise_on_error=False)


def test_a_catalog_that_stays_locked_is_a_named_error_and_the_next_run_succeeds(
    landed: Lake, lock: sqlite3.Connection, instance: dg.DagsterInstance
) -> None:
    harness = Harness(pipeline("public.users"), landed, instance)
    land(landed, 2)
    result = run(harness, "raw")
    (failed,) = events(result, dg.DagsterEventType.STEP_FAILURE)
    message = str(failed.step_failure_data.user_failure_data or failed.step_failure_data.error)
    assert "CatalogUnavailableError" in message
    assert "locked" in message
    assert len(events(result, dg.DagsterEventType.STEP_RESTARTED)) == step_failures.RETRIES
    lock.execute("ROLLBACK")
    assert run(harness, "raw").success
    assert landed.table("raw.crm").scan().count() == 2
