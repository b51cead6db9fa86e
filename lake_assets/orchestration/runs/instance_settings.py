"""Warnings about unsuitable settings of Dagster's instance (`dagster.yaml`), logged when the sensor requests a run.

No setting can lose data, since progress is stored in the tables. But tables may stop advancing, or be computed twice.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection
from pathlib import Path

import dagster as dg

from lake_assets.errors import ConfigError
from lake_assets.orchestration._compat import DefaultRunLauncher, InstanceRef, PoolGranularity
from lake_assets.orchestration.runs.run_retries import shortened

WARNING = "InstanceSettingsWarning"
_UNSET = re.compile(r'environment variable "(\w+)" which is not set')


def config_warnings(instance: dg.DagsterInstance, pools: Collection[str]) -> list[str]:
    """Return a warning per unsuitable setting, with its consequence and the correction."""
    warnings = [*_pool_warnings(instance, pools), *_run_warnings(instance)]
    if warnings and (advice := missing_file()):
        # One sentence instead of one correction after the other.
        return [f"{WARNING}: {advice}. Without it: {'; '.join(warnings)}"]
    return [f"{WARNING}: dagster.yaml: {text}" for text in warnings]


def settings_finding() -> str:
    """Return that the settings of Dagster's instance fit. Reads them without touching what the instance has stored.

    Raises:
        ConfigError: they do not, or cannot be used; says what to do.
    """
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        return "DAGSTER_HOME is not set; Dagster needs it, and `lake-assets run` does not"
    if advice := missing_file():
        raise ConfigError(advice)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            dg.DagsterInstance.from_ref(InstanceRef.from_dir(folder, config_dir=home)) as instance,
        ):
            warnings = config_warnings(instance, ["lake_assets/any"])
    except Exception as e:  # YAML's, Dagster's, or those of a class that the file names
        raise ConfigError(f"{home}/dagster.yaml cannot be used: {_in_short(e)}") from e
    if warnings:
        raise ConfigError("; ".join(text.removeprefix(f"{WARNING}: ") for text in warnings))
    return f"{home}/dagster.yaml"


def _in_short(error: Exception) -> str:
    """Return what is wrong with settings without Dagster's description of all fields and its stack."""
    if not isinstance(error, dg.DagsterInvalidConfigError):
        return " ".join(str(error).removeprefix("Failure condition: ").split())
    if unset := sorted(set(_UNSET.findall(str(error)))):
        return f"it names {', '.join(unset)} of the environment, which must be set"
    return "; ".join(e.message.partition("\n")[0] for e in error.errors)


def missing_file() -> str:
    """Return that Dagster's instance has no `dagster.yaml`, and how to get one; empty if it has one."""
    home = os.environ.get("DAGSTER_HOME")
    # Without DAGSTER_HOME, `dagster dev` reads the settings of the current folder into a temporary instance.
    file = Path(home or Path.cwd()) / "dagster.yaml"
    if file.is_file():
        return ""
    if home:
        return f"there is no {file}: `lake-assets init --dagster-home {home}` writes one; then restart Dagster"
    return (
        "DAGSTER_HOME is not set, so Dagster forgets its runs when it ends, and there is no dagster.yaml: `lake-assets "
        "init --dagster-home dagster_home` writes one, and says how to set DAGSTER_HOME; then restart Dagster"
    )


def _pool_warnings(instance: dg.DagsterInstance, pools: Collection[str]) -> list[str]:
    config = instance.get_concurrency_config().pool_config
    set_by_hand = {p.name: p.limit for p in instance.event_log_storage.get_pool_limits() if not p.from_default}
    warnings: list[str] = []
    if unlimited := sorted(p for p in pools if set_by_hand.get(p, config.default_pool_limit) != 1):
        warnings.append(
            f"no limit of 1 on {shortened(unlimited)}: two runs may compute one table at once, and one is wasted. Set "
            "`concurrency.pools.default_limit: 1`"
        )
    if config.pool_granularity == PoolGranularity.RUN:
        warnings.append(
            "`concurrency.pools.granularity: run` makes a run wait until all of its tables are free. Set `op`"
        )
    return warnings


def _run_warnings(instance: dg.DagsterInstance) -> list[str]:
    warnings: list[str] = []
    if type(instance.run_launcher) is DefaultRunLauncher:
        warnings.append(
            "each run imports everything and starts Spark again. Set `run_launcher: {module: lake_assets.launcher, "
            "class: WarmRunLauncher}`"
        )
    queue = instance.get_concurrency_config().run_queue_config
    if queue is not None and queue.max_concurrent_runs == 0:
        warnings.append("`concurrency.runs.max_concurrent_runs: 0` keeps every run from starting. Set 1 or more")
    if not instance.run_monitoring_enabled:
        warnings.append(f"{UNMONITORED}. Set `run_monitoring.enabled: true`")
    elif "free_slots_after_run_end_seconds" not in instance.run_monitoring_settings:
        warnings.append(
            "a killed run occupies its tables' pools forever. Set `run_monitoring.free_slots_after_run_end_seconds: 30`"
        )
    if instance.run_retries_enabled and instance.run_retries_retry_on_asset_or_op_failure:
        warnings.append(
            "`run_retries` retries failed steps at once, while the sensor's retries wait longer each time. Set "
            "`run_retries.retry_on_asset_or_op_failure: false`"
        )
    return warnings


UNMONITORED = "runs are not monitored, so a run whose process was killed counts as in progress forever"
