"""Execute a run that is interrupted. A script that tests start."""

import sys
import time

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._utils.interrupts import capture_interrupts, setup_interrupt_handlers

from lake_assets.orchestration import threads_executor
from lake_assets.orchestration.runs import thread_executor

thread_executor._INTERRUPTED_SECONDS = 2.0


@dg.op
def loops(context: dg.OpExecutionContext) -> None:
    print("begun", flush=True)
    for _ in range(600):
        time.sleep(0.1)


@dg.op
def deaf(context: dg.OpExecutionContext) -> None:
    print("begun", flush=True)
    time.sleep(60)


@dg.op(ins={"after": dg.In(dg.Nothing)})
def below(context: dg.OpExecutionContext) -> None:
    print("below", flush=True)


@dg.job(executor_def=threads_executor)
def j() -> None:
    below(loops())
    if sys.argv[2] == "deaf":
        deaf()


setup_interrupt_handlers()
with dg.DagsterInstance.from_config(sys.argv[1]) as instance, capture_interrupts():
    run = instance.create_run_for_job(j)
    try:
        execute_run(InMemoryJob(j), run, instance)
    except dg.DagsterError as e:
        print(type(e).__name__)
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    print(ended.status.value, flush=True)
