"""Dagster's settings: the sensor logs unsuitable ones when it requests a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lake_assets import Lake, Pipeline
from lake_assets.orchestration._compat import InstanceRef
from lake_assets.orchestration.runs.instance_settings import config_warnings, missing_file
from lake_assets.orchestration.sensing.sensor import Watch, tick
from tests.support.cli import Done, caller
from tests.support.dagster_harness import Harness
from tests.support.dagster_shop import feed

SHIPPED = Path(__file__).parents[2] / "dagster_home" / "dagster.yaml"
POOLS = ["lake_assets/final.a", "lake_assets/final.b"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.setenv("COLUMNS", "1000")
    return caller(monkeypatch, capsys)


def settings(**changed: Any) -> dict[str, Any]:
    """Return the shipped settings with some changed; None removes a setting."""
    merged = {**yaml.safe_load(SHIPPED.read_text(encoding="utf-8")), **changed}
    return {k: v for k, v in merged.items() if v is not None}


def warnings_for(home: Path, **changed: Any) -> list[str]:
    with dg.instance_for_test(overrides=settings(**changed), temp_dir=str(home)) as instance:
        return config_warnings(instance, POOLS)


def test_the_shipped_settings_fit(dagster_home: Path) -> None:
    assert warnings_for(dagster_home) == []


def test_restarting_the_code_server_fails_no_queued_run(dagster_home: Path) -> None:
    with dg.instance_for_test(overrides=settings(), temp_dir=str(dagster_home)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue
    assert queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay >= 60
    assert queue.max_concurrent_runs == 2, "the coordinator's own settings are beside those of `concurrency`"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"concurrency": None}, "no limit of 1 on lake_assets/final.a, lake_assets/final.b"),
        ({"concurrency": {"pools": {"default_limit": 2}}}, "`concurrency.pools.default_limit: 1`"),
        (
            {"concurrency": {"pools": {"default_limit": 1, "granularity": "run"}}},
            "`concurrency.pools.granularity: run` makes a run wait",
        ),
        (
            {"concurrency": {"pools": {"default_limit": 1}, "runs": {"max_concurrent_runs": 0}}},
            "`concurrency.runs.max_concurrent_runs: 0` keeps every run from starting",
        ),
        ({"run_launcher": None}, "starts Spark again. Set `run_launcher: {module: lake_assets.launcher"),
        ({"run_monitoring": None}, "counts as in progress forever. Set `run_monitoring.enabled: true`"),
        ({"run_monitoring": {"enabled": True}}, "`run_monitoring.free_slots_after_run_end_seconds: 30`"),
        ({"run_retries": {"enabled": True}}, "`run_retries.retry_on_asset_or_op_failure: false`"),
    ],
)
def test_unsuitable_settings_are_named_with_the_correction(
    dagster_home: Path, changed: dict[str, Any], message: str
) -> None:
    (warning,) = warnings_for(dagster_home, **changed)
    assert warning.startswith("InstanceSettingsWarning: dagster.yaml: ")
    assert message in warning


@pytest.mark.parametrize("home", ["home", ""])
def test_a_missing_file_is_named_with_the_command_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Done], home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / home) if home else "")
    (stored := tmp_path / "stored").mkdir()
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(stored))) as instance:
        (warning,) = config_warnings(instance, POOLS)
    assert all(text in warning for text in ("no limit of 1", "starts Spark again", "counts as in progress forever"))
    command = re.search(r"`lake-assets (init --dagster-home [^`]+)`", warning)
    assert command
    done = call(*command[1].split())
    assert done.code == 0, done.err
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / home) if home else str(tmp_path / "dagster_home"))
    assert missing_file() == ""
    with dg.DagsterInstance.get() as instance:
        assert config_warnings(instance, POOLS) == []


def test_a_pool_limit_set_by_hand_counts(dagster_home: Path) -> None:
    with dg.instance_for_test(overrides=settings(concurrency=None), temp_dir=str(dagster_home)) as instance:
        instance.event_log_storage.set_concurrency_slots(POOLS[0], 1)
        (warning,) = config_warnings(instance, POOLS)
        assert "no limit of 1 on lake_assets/final.b:" in warning
        instance.event_log_storage.set_concurrency_slots(POOLS[1], 3)
        (warning,) = config_warnings(instance, POOLS)
        assert "no limit of 1 on lake_assets/final.b:" in warning


@pytest.fixture
def unmonitored(dagster_home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(overrides=settings(run_monitoring=None), temp_dir=str(dagster_home)) as instance:
        yield instance


def test_a_tick_with_a_request_logs_the_warnings(
    shop_pipeline: Pipeline, plain_lake: Lake, unmonitored: dg.DagsterInstance, capfd: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(shop_pipeline, plain_lake, unmonitored)
    harness.skipped()
    assert "InstanceSettingsWarning" not in capfd.readouterr().err
    feed(harness)
    harness.request()
    assert "InstanceSettingsWarning: dagster.yaml: runs are not monitored" in capfd.readouterr().err


def test_a_skip_mentions_that_runs_are_not_monitored(
    shop_pipeline: Pipeline, plain_lake: Lake, unmonitored: dg.DagsterInstance
) -> None:
    harness = Harness(shop_pipeline, plain_lake, unmonitored)
    feed(harness)
    run = unmonitored.create_run_for_job(harness.job, status=dg.DagsterRunStatus.STARTED)
    assert "counts as in progress forever" in harness.skipped()
    unmonitored.report_run_canceled(run)
    assert isinstance(tick_of(harness), dg.RunRequest)


def tick_of(harness: Harness) -> dg.RunRequest | dg.SkipReason:
    watch: Watch = harness.watch
    with dg.build_sensor_context(instance=harness.instance) as context:
        return tick(context, watch)
