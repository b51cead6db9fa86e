"""Runs of a pipeline in Dagster's instance: those in progress, and past attempts."""

from __future__ import annotations

import dagster as dg

from lake_assets.orchestration._compat import BACKFILL_ID_TAG
from lake_assets.orchestration.asset_names import PIPELINE_TAG, REBUILD_TAG
from lake_assets.orchestration.runs.run_retries import PastRun
from lake_assets.orchestration.runs.step_failures import ATTEMPTED

# Fingerprints of the windows for which a run was requested, and of all of them together: for the sensor, and not for
# people. Dagster shows no tags that begin with `.dagster/`.
PENDING_TAG = ".dagster/lake_assets.pending"
PLAN_TAG = ".dagster/lake_assets.plan"
# From the second attempt on.
ATTEMPT_TAG = "lake_assets/attempt"
MAX_RUNS = 50
_REDOING = frozenset({BACKFILL_ID_TAG, REBUILD_TAG})

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def active_runs(
    instance: dg.DagsterInstance, jobs: frozenset[str], assets: frozenset[dg.AssetKey]
) -> list[dg.DagsterRun]:
    """Return the runs of the pipeline that are queued or in progress, including manual ones."""
    runs = instance.get_runs(dg.RunsFilter(statuses=ACTIVE), limit=MAX_RUNS)
    # A manual run belongs to Dagster's own job and lacks our tags, but lists its assets.
    return [run for run in runs if run.job_name in jobs or assets.intersection(run.asset_selection or ())]


def redoes_history(run: dg.DagsterRun) -> bool:
    """Whether a run recomputes chosen partitions, or everything, besides absorbing changes."""
    return run.is_partitioned or not _REDOING.isdisjoint(run.tags)


def past_runs(instance: dg.DagsterInstance, pipeline: str, pending: frozenset[str]) -> list[PastRun]:
    """Return the newest finished runs of the sensor that attempted any of the pending windows.

    A window is attempted by a run that was requested for it, or whose step failed at it: a table downstream of a
    requested one has its window only once that one is written.
    """
    runs: list[PastRun] = []
    filters = dg.RunsFilter(tags={PIPELINE_TAG: pipeline}, statuses=_FINISHED)
    for record in instance.get_run_records(filters, limit=MAX_RUNS):
        run = record.dagster_run
        if PENDING_TAG not in run.tags:
            continue
        fingerprints, failed = frozenset(run.tags[PENDING_TAG].split()), frozenset[str]()
        succeeded = run.status == dg.DagsterRunStatus.SUCCESS
        if not succeeded:
            failed, attempted = _failed_steps(instance, run.run_id)
            fingerprints |= attempted
        if not fingerprints & pending:
            continue
        ended = record.end_time or record.update_timestamp.timestamp()
        is_outdated = not succeeded and not failed and _had_other_assets(instance, run.run_id)
        runs.append(PastRun(run.run_id, fingerprints, failed, succeeded, ended, is_outdated))
    return runs


def _failed_steps(instance: dg.DagsterInstance, run_id: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the steps of a run that failed, and the fingerprints of what they attempted."""
    failures = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    steps, attempted = set[str](), set[str]()
    for record in failures.records:
        entry = record.event_log_entry
        steps |= {entry.step_key} if entry.step_key else set()
        event = entry.dagster_event
        given = event.step_failure_data.user_failure_data if event else None
        if given is not None and (at := given.metadata.get(ATTEMPTED)) is not None:
            attempted.add(str(at.value))
    return frozenset(steps), frozenset(attempted)


def _had_other_assets(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a run's process had loaded definitions without an asset that the run was to materialize."""
    of_engine = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    events = (r.event_log_entry.dagster_event for r in of_engine.records)
    errors = (e.engine_event_data.error for e in events if e)
    return any(e.cls_name == dg.DagsterInvalidSubsetError.__name__ for e in errors if e)


def next_attempt(instance: dg.DagsterInstance, pipeline: str, plan: str) -> int:
    """Return the number of the next attempt at a plan, counted from 1.

    The newest run need not have the highest number: a run that is executed again has the tags of the first one.
    """
    filters = dg.RunsFilter(tags={PIPELINE_TAG: pipeline, PLAN_TAG: plan})
    return max((int(r.tags.get(ATTEMPT_TAG, "1")) for r in instance.get_runs(filters, limit=MAX_RUNS)), default=0) + 1
