"""Freshness of assets: the declared policy, and an age that redone rows of the past do not change."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg
from dagster_shared.check import CheckError

from lake_assets.errors import PipelineError
from lake_assets.orchestration._compat import report_again
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.pipeline.table_graph import Spec


def policy(spec: Spec) -> dg.FreshnessPolicy | None:
    """Convert the declared freshness to Dagster's policy.

    Raises:
        PipelineError: Dagster rejects the declared values.
    """
    declared = spec.shown.freshness
    if declared is None:
        return None
    fail, warn, within = (
        None if s is None else timedelta(seconds=s) for s in (declared.fail, declared.warn, declared.within)
    )
    try:
        if declared.cron is not None and within is not None:
            return dg.FreshnessPolicy.cron(declared.cron, within, declared.timezone)
        assert fail is not None
        return dg.FreshnessPolicy.time_window(fail, warn)
    except (dg.DagsterError, CheckError) as error:
        raise PipelineError(f"pipeline {spec.pipeline!r}: {spec.table}: `freshness`: {error}") from error


def last_update(instance: dg.DagsterInstance, spec: Spec) -> dg.EventLogEntry | None:
    """Return the event from which Dagster takes the age of a table; None if there is none, or no declared freshness."""
    if spec.shown.freshness is None:
        return None
    return instance.get_latest_materialization_event(asset_key(spec.table))


def restore(instance: dg.DagsterInstance, spec: Spec, last: dg.EventLogEntry | None) -> None:
    """Give a table the age again that it had before partitions of it were redone.

    Dagster needs a materialization of each redone partition, and takes the age of an asset from the newest event, so
    the last update is reported once more, with its own time.
    """
    if last is not None and last.asset_materialization is not None:
        of = last.asset_materialization
        again = dg.AssetMaterialization(
            asset_key(spec.table),
            description="The table's last update, reported again, because partitions that were redone since do not "
            "make a table fresh.",
            metadata=of.metadata,
            tags=of.tags,
        )
        report_again(instance, again, last.timestamp)
