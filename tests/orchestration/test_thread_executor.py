"""Steps in parallel: order, failures, retries, pools, logs, interruption, and a Spark session per thread."""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.api import execute_run
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.storage.compute_log_manager import CapturedLogContext

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from lake_assets.orchestration import LakePySparkResource, build_definitions, threads_executor
from lake_assets.orchestration.runs.resources import PYSPARK, interrupt_sessions
from lake_assets.orchestration.runs.step_failures import open_lake
from tests.support.dagster_harness import OtherSession

SETTINGS = {
    "python_logs": {"managed_python_loggers": ["lake_assets.here"], "python_log_level": "INFO"},
    "concurrency": {"pools": {"default_limit": 1, "granularity": "op"}},
    "telemetry": {"enabled": False},
}
log = logging.getLogger("lake_assets.here")
Body = Callable[[dg.OpExecutionContext], Any]


@pytest.fixture
def instance(dagster_home: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with files, like the daemon's, so settings of pools and logs apply."""
    (dagster_home / "dagster.yaml").write_text(yaml.safe_dump(SETTINGS))
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        yield instance


class Graph:
    """Ops with bodies defined by a test, in a job with the executor."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.ops: list[dg.OpDefinition] = []
        self.after: dict[Any, Any] = {}
        self.hooks: set[dg.HookDefinition] = set()
        self.fail_at_success = False

    def add(self, name: str, body: Body, after: tuple[str, ...] = (), **more: Any) -> None:
        ins = {f"after_{a}": dg.In(dg.Nothing) for a in after}

        @dg.op(name=name, ins=ins, out=dg.Out(dg.Nothing), **more)
        def run(context: dg.OpExecutionContext) -> None:
            body(context)

        self.adopt(run, after)

    def adopt(self, op: dg.OpDefinition, after: tuple[str, ...] = ()) -> None:
        self.ops.append(op)
        self.after[op.name] = {f"after_{a}": dg.DependencyDefinition(a) for a in after}

    def run(self, **config: Any) -> dg.DagsterRun:
        """Execute the graph; return the finished run."""
        made = dg.GraphDefinition(name="g", node_defs=self.ops, dependencies=self.after).to_job(
            executor_def=threads_executor, hooks=self.hooks, resource_defs={"io_manager": dg.mem_io_manager}
        )
        run_config = {"execution": {"config": config}} if config else {}
        run = self.instance.create_run_for_job(made, run_config=run_config)
        free = InstanceConcurrencyContext.free_step

        def fail(pools: InstanceConcurrencyContext, step_key: str) -> None:
            if self.fail_at_success:
                raise OSError("the database is gone")
            free(pools, step_key)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InstanceConcurrencyContext, "free_step", fail)
            return self._execute(made, run)

    def _execute(self, job: dg.JobDefinition, run: dg.DagsterRun) -> dg.DagsterRun:
        # Like a run's process: `execute_in_process` would use Dagster's executor.
        execute_run(InMemoryJob(job), run, self.instance, raise_on_error=False)
        stored = self.instance.get_run_by_id(run.run_id)
        assert stored is not None
        return stored

    def steps_with(self, run: dg.DagsterRun, kind: dg.DagsterEventType) -> list[str | None]:
        return [e.step_key for e in self.instance.all_logs(run.run_id, of_type=kind)]


@pytest.fixture
def graph(instance: dg.DagsterInstance) -> Graph:
    return Graph(instance)


def test_steps_run_in_parallel_and_wait_for_their_dependencies(graph: Graph) -> None:
    both, order = threading.Barrier(2, timeout=60), list[str]()

    def first(context: dg.OpExecutionContext) -> None:
        both.wait()
        order.append("first")

    graph.add("a", first)
    graph.add("b", first)
    graph.add("c", lambda context: order.append("last"), after=("a", "b"))
    assert graph.run(max_concurrent=2).status == dg.DagsterRunStatus.SUCCESS
    assert order == ["first", "first", "last"]


def test_max_concurrent_one_runs_one_step_at_a_time(graph: Graph) -> None:
    at_work, most, expected = list[str](), list[int](), 1

    def body(context: dg.OpExecutionContext) -> None:
        at_work.append(context.op.name)
        most.append(len(at_work))
        until = time.monotonic() + 60
        while max(most) < expected and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)  # wait for one more, which must not start
        at_work.remove(context.op.name)

    for name in "abcd":
        graph.add(name, body)
    assert graph.run(max_concurrent=1).status == dg.DagsterRunStatus.SUCCESS
    assert most == [1, 1, 1, 1]
    expected = 3
    assert graph.run(max_concurrent=3).status == dg.DagsterRunStatus.SUCCESS
    assert max(most) == 3


def test_an_invalid_number_of_threads_is_rejected(graph: Graph) -> None:
    graph.add("a", lambda context: None)
    run = graph.run(max_concurrent=-1)
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert any("max_concurrent is -1" in str(e) for e in graph.instance.all_logs(run.run_id))


def test_a_failed_step_stops_only_its_dependents(graph: Graph) -> None:
    done, hooked = list[str](), list[str]()

    @dg.failure_hook(name="told")
    def told(context: dg.HookContext) -> None:
        hooked.append(context.op.name)

    def fails(context: dg.OpExecutionContext) -> None:
        raise ValueError("wrong")

    graph.hooks = {told}
    graph.add("a", fails)
    graph.add("below_a", lambda context: done.append("below_a"), after=("a",))
    graph.add("b", lambda context: done.append("b"))
    graph.add("below_b", lambda context: done.append("below_b"), after=("b",))
    run = graph.run()
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert done == ["b", "below_b"]
    assert hooked == ["a"]
    assert graph.steps_with(run, dg.DagsterEventType.STEP_FAILURE) == ["a"]


def test_a_step_that_requests_a_retry_is_retried_while_others_continue(graph: Graph) -> None:
    tries, ended = list[float](), dict[str, float]()

    def once_more(context: dg.OpExecutionContext) -> None:
        tries.append(time.monotonic())
        if context.retry_number < 2:
            raise dg.RetryRequested(max_retries=2, seconds_to_wait=0.5)

    def other(context: dg.OpExecutionContext) -> None:
        ended[context.op.name] = time.monotonic()

    graph.add("a", once_more)
    graph.add("below", other, after=("a",))
    graph.add("b", other)
    run = graph.run(max_concurrent=2)
    assert run.status == dg.DagsterRunStatus.SUCCESS
    assert len(tries) == 3
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(tries))
    assert ended["b"] < tries[1] < ended["below"]
    assert len(graph.steps_with(run, dg.DagsterEventType.STEP_UP_FOR_RETRY)) == 2


def test_steps_of_one_pool_take_turns(graph: Graph) -> None:
    at_work, most = list[str](), list[int]()

    def body(context: dg.OpExecutionContext) -> None:
        at_work.append(context.op.name)
        most.append(len(at_work))
        time.sleep(0.1)
        at_work.remove(context.op.name)

    graph.add("a", body, pool="one_table")
    graph.add("b", body, pool="one_table")
    assert graph.run(max_concurrent=2).status == dg.DagsterRunStatus.SUCCESS
    assert most == [1, 1]


@pytest.mark.long
def test_waiting_for_a_pool_takes_no_cpu(graph: Graph, instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default("taken")
    assert storage.claim_concurrency_slot("taken", "another run", "its step").is_claimed
    began = time.process_time()
    ended: list[float] = []
    graph.add("a", lambda context: ended.append(time.process_time() - began), pool="taken")
    letting_go = threading.Timer(4, lambda: storage.free_concurrency_slots_for_run("another run"))
    letting_go.start()
    assert graph.run().status == dg.DagsterRunStatus.SUCCESS
    letting_go.join()
    # Four seconds of waiting, all of which Dagster's in-process executor would spend polling.
    assert ended[0] < 2


def test_log_records_go_to_the_step_of_their_thread(graph: Graph) -> None:
    both = threading.Barrier(2, timeout=60)

    def body(context: dg.OpExecutionContext) -> None:
        for _ in range(20):
            both.wait()
            log.info("from %s", context.op.name)

    graph.add("a", body)
    graph.add("b", body)
    run = graph.run(max_concurrent=2)
    messages = [(e.step_key, e.user_message) for e in graph.instance.all_logs(run.run_id) if "from " in e.user_message]
    assert sorted(messages) == [("a", "from a")] * 20 + [("b", "from b")] * 20


def test_asynchronous_steps_of_users(graph: Graph) -> None:
    both = threading.Barrier(2, timeout=60)
    for name in "ab":

        @dg.op(name=name, out=dg.Out(dg.Nothing))
        async def wait() -> None:
            both.wait()

        graph.adopt(wait)
    assert graph.run(max_concurrent=2).status == dg.DagsterRunStatus.SUCCESS


def test_an_error_in_dagster_fails_the_run_after_running_steps_have_ended(graph: Graph) -> None:
    begun, done = threading.Event(), list[str]()

    @dg.op(name="a", out=dg.Out(dg.Nothing))
    def wrong() -> Iterator[Any]:
        begun.wait(60)
        yield "neither an output nor an event"

    def slow(context: dg.OpExecutionContext) -> None:
        begun.set()
        time.sleep(0.5)
        done.append("b")

    graph.adopt(wrong)
    graph.add("b", slow)
    run = graph.run(max_concurrent=2)
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert done == ["b"]
    assert graph.steps_with(run, dg.DagsterEventType.STEP_SUCCESS) == ["b"]


@pytest.mark.parametrize("when", ["hook", "log"])
def test_an_error_in_the_main_thread_ends_the_running_steps(graph: Graph, when: str) -> None:
    begun, ended = threading.Event(), list[str]()

    @dg.success_hook(name="stops")
    def stops(context: dg.HookContext) -> None:
        if when == "hook" and context.op.name == "a":
            begun.wait(60)
            raise DagsterExecutionInterruptedError

    def long(context: dg.OpExecutionContext) -> None:
        begun.set()
        try:
            for _ in range(600):
                time.sleep(0.1)
            ended.append("done")
        except DagsterExecutionInterruptedError:
            ended.append("interrupted")
            raise

    def quick(context: dg.OpExecutionContext) -> None:
        if when == "log":
            begun.wait(60)
            graph.fail_at_success = True

    graph.hooks = {stops}
    graph.add("a", quick)
    graph.add("b", long)
    run = graph.run(max_concurrent=2)
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert ended == ["interrupted"]


def test_output_that_cannot_be_captured_fails_no_run(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def failing(key: list[str]) -> Generator[CapturedLogContext]:
        yield CapturedLogContext(key)
        raise OSError("the disk is full")

    monkeypatch.setattr(graph.instance.compute_log_manager, "capture_logs", failing)
    graph.add("a", lambda context: None)
    run = graph.run()
    assert run.status == dg.DagsterRunStatus.SUCCESS
    assert any("the disk is full" in str(e) for e in graph.instance.all_logs(run.run_id))


def test_a_resource_with_one_session_runs_steps_one_after_the_other(plain_lake: Lake) -> None:
    pipeline = Pipeline.load(shop.PIPELINE)
    for resource, executor in (
        (OtherSession(plain_lake), dg.in_process_executor),
        (LakePySparkResource(), threads_executor),
        (None, threads_executor),
    ):
        assert build_definitions(pipeline, plain_lake, pyspark=resource).executor is executor


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("what", [pytest.param("hears", marks=pytest.mark.long), "deaf"])
def test_an_interrupted_run_ends_with_steps_that_ignore_interrupts(instance: dg.DagsterInstance, what: str) -> None:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("interrupted_run.py")), instance.root_directory, what],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(2 if what == "deaf" else 1):
        assert process.stdout.readline() == "begun\n"
    (run,) = instance.get_runs()
    instance.report_run_canceling(run)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=50)
    assert "below" not in output
    assert output.split()[-1] == "CANCELED", output
    assert process.returncode == 0
    failed = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [e.step_key for e in failed] == ["loops"]


def in_threads(*bodies: Callable[[], object]) -> list[Any]:
    """Run functions in parallel; return their results."""
    results: list[Any] = [None] * len(bodies)

    def call(n: int, body: Callable[[], object]) -> None:
        try:
            results[n] = body()
        except Exception as e:
            results[n] = e

    threads = [threading.Thread(target=call, args=(n, body)) for n, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_each_thread_has_its_own_session_for_the_whole_run(lake: Lake) -> None:
    lake.spark()  # the suite's JVM
    resource = LakePySparkResource()
    set_both, name = threading.Barrier(2, timeout=60), "spark.sql.iceberg.snapshot-property.who"

    def body(who: str) -> tuple[str | None, bool]:
        session = resource.session_of(lake.config)
        session.conf.set(name, who)
        set_both.wait()
        again = resource.session_of(lake.config) is session and resource.spark_session is session
        return session.conf.get(name), again

    assert in_threads(lambda: body("a"), lambda: body("b")) == [("a", True), ("b", True)]
    resource.teardown_after_execution(dg.build_init_resource_context())


def test_spark_jobs_of_a_thread_can_be_cancelled_from_another(lake: Lake) -> None:
    lake.spark()
    resource, begun = LakePySparkResource(), threading.Event()

    def long() -> list[Any]:
        session = resource.session_of(lake.config)
        begun.set()
        return session.range(10**13).selectExpr("sum(id % 7)").collect()

    def stop() -> None:
        begun.wait(60)
        over = threading.Event()
        interrupt_sessions(over)
        work.join(120)
        over.set()

    errors: list[Any] = []
    work = threading.Thread(target=lambda: errors.extend(in_threads(long)))
    work.start()
    stop()
    assert "cancel" in str(errors[0]).lower(), errors
    resource.teardown_after_execution(dg.build_init_resource_context())


def test_steps_that_share_a_users_session_take_turns(plain_lake: Lake) -> None:
    def most_of(resource: object) -> int:
        """Return how many of three steps with a resource run at the same time."""
        context: Any = SimpleNamespace(resources=SimpleNamespace(**{PYSPARK: resource}))
        at_work, most = list[int](), list[int]()

        def body(n: int) -> None:
            with open_lake(context, plain_lake.config):
                at_work.append(n)
                most.append(len(at_work))
                time.sleep(0.2)
                at_work.remove(n)

        in_threads(*(lambda n=n: body(n) for n in range(3)))
        return max(most)

    assert most_of(OtherSession(plain_lake)) == 1
    assert most_of(LakePySparkResource()) == 3
