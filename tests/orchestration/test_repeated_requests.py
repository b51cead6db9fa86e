"""A window that was requested before is requested again, under a run key that Dagster has not seen."""

from __future__ import annotations

import dagster as dg

from lake_assets.orchestration.asset_names import PIPELINE_TAG
from lake_assets.orchestration.runs.run_history import ATTEMPT_TAG, PLAN_TAG, next_attempt


@dg.job
def anything() -> None: ...


def test_an_attempt_that_was_executed_again_does_not_repeat_the_number_of_a_later_one(
    instance: dg.DagsterInstance,
) -> None:
    assert next_attempt(instance, "p", "x") == 1
    for attempt in ("1", "2", "1"):  # the last one is the first one, executed again from Dagster's UI
        tags = {PIPELINE_TAG: "p", PLAN_TAG: "x", ATTEMPT_TAG: attempt}
        instance.create_run_for_job(anything, tags=tags, status=dg.DagsterRunStatus.FAILURE)
    assert next_attempt(instance, "p", "x") == 3
    assert next_attempt(instance, "p", "y") == 1
