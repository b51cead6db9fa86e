"""An executor that runs steps in parallel, in threads of the run's process.

A small step mostly waits: for Spark's planner, for a file, for the catalog. The steps of a run share one JVM (or Spark
Connect server), each thread with its own session, so two steps take little longer than one.

Dagster's own executors run steps one after the other in one process, or each in a separate process, which would start
Spark for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from lake_assets.orchestration._compat import (
    DagsterEvent,
    DagsterExecutionInterruptedError,
    EngineEventData,
    ExecuteRunWithPlanIterable,
    Executor,
    InstanceConcurrencyContext,
    PlanExecutionContextManager,
    RetryMode,
    StepDependencyConfig,
    create_compute_log_file_key,
    dagster_event_sequence_for_step,
    get_retries_config,
    get_step_dependency_config_field,
    log_handler,
    serializable_error_info_from_exc_info,
    set_event_loop,
    trigger_hook,
)
from lake_assets.orchestration.runs.resources import interrupt_sessions

if TYPE_CHECKING:
    from lake_assets.orchestration._compat import (
        ActiveExecution,
        ExecutionPlan,
        PlanExecutionContext,
        PlanOrchestrationContext,
        StepExecutionContext,
    )

log = logging.getLogger(__name__)

# All steps share Spark's cores: more threads only use the time that a step spends outside of Spark jobs.
_MAX_THREADS = 4
# Polling interval for signals, free pool slots and steps to retry.
_POLL_SECONDS = 0.25
# Longest wait for interrupted steps to end.
_INTERRUPTED_SECONDS = 30.0


@dg.executor(
    name="threads",
    config_schema={
        "max_concurrent": dg.Field(
            dg.Noneable(int),
            default_value=None,
            description="maximum number of parallel steps; default: the number of cores, from 2 to 4",
        ),
        "retries": get_retries_config(),
        "step_dependency_config": get_step_dependency_config_field(),
    },
)
def threads_executor(context: dg.InitExecutorContext) -> Executor:
    """Run steps in parallel, in threads of the run's process; see `lake_assets.orchestration.runs.thread_executor`.

    ```yaml
    execution:
      config:
        max_concurrent: 1
    ```
    """
    config: Any = context.executor_config
    return ThreadsExecutor(
        RetryMode.from_config(config["retries"]) or RetryMode.ENABLED,
        StepDependencyConfig.from_config(config.get("step_dependency_config")),
        config["max_concurrent"] or max(2, min(_MAX_THREADS, os.cpu_count() or 1)),
    )


class ThreadsExecutor(Executor):
    """Executes a run's steps in threads, each as soon as its dependencies are done and a thread is free."""

    def __init__(self, retries: RetryMode, dependencies: StepDependencyConfig, threads: int) -> None:
        if threads < 1:
            raise dg.DagsterInvalidConfigError(
                f"the executor's max_concurrent is {threads}: at least 1 is needed", [], {"max_concurrent": threads}
            )
        self._retries, self._dependencies, self._threads = retries, dependencies, threads

    @property
    def retries(self) -> RetryMode:
        """Whether steps that request a retry are retried."""
        return self._retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        """When a step may begin."""
        return self._dependencies

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[DagsterEvent]:
        """Execute the plan; yields its events."""
        began, keys = time.monotonic(), execution_plan.step_keys_to_execute
        threads = min(self._threads, max(1, len(keys)))
        process = EngineEventData.in_process(os.getpid(), keys)
        text = f"Executing steps in {threads} threads of process {os.getpid()}"
        yield DagsterEvent.engine_event(plan_context, text, event_specific_data=process)
        yield from ExecuteRunWithPlanIterable(
            execution_plan=execution_plan,
            iterator=lambda job_context, execution_plan: _Steps(job_context, execution_plan, threads).events(),
            execution_context_manager=PlanExecutionContextManager(
                job=plan_context.job,
                retry_mode=plan_context.retry_mode,
                execution_plan=execution_plan,
                run_config=plan_context.run_config,
                dagster_run=plan_context.dagster_run,
                instance=plan_context.instance,
                raise_on_error=plan_context.raise_on_error,
                output_capture=plan_context.output_capture,
                step_dependency_config=self.step_dependency_config,
            ),
        )
        text = f"Finished steps of process {os.getpid()} in {time.monotonic() - began:.1f} s"
        yield DagsterEvent.engine_event(plan_context, text, event_specific_data=process)


class _Worker(threading.Thread):
    """A thread that runs steps and puts each event, with the step's key, into a queue; None marks the step's end.

    A daemon thread, so a step that cannot be interrupted does not keep the process alive.
    """

    def __init__(self, events: queue.SimpleQueue[tuple[str, Any]], idents: set[int]) -> None:
        super().__init__(daemon=True, name="step")
        self._events, self._idents = events, idents
        self.todo: queue.SimpleQueue[StepExecutionContext | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        # An interruption may arrive after the step has ended.
        with contextlib.suppress(DagsterExecutionInterruptedError):
            while (context := self.todo.get()) is not None:
                self._step(context)
        if self._loop is not None:
            self._loop.close()

    def _step(self, context: StepExecutionContext) -> None:
        key = context.step.key
        try:
            self._prepare(context)
            for event in dagster_event_sequence_for_step(context):
                self._events.put((key, event))
        except BaseException as e:  # passed to the run's main thread, which handles it
            self._events.put((key, e))
        finally:
            self._events.put((key, None))

    def _prepare(self, context: StepExecutionContext) -> None:
        ident = threading.get_ident()
        self._idents.add(ident)
        # Records of Python's loggers go to the step of the logging thread. Dagster's handler ignores added filters.
        handler = log_handler(context.log)
        accepts = handler.filter
        handler.filter = lambda record: (
            (record.thread == ident or record.thread not in self._idents) and accepts(record)
        )
        # For users' asynchronous functions: each thread needs its own event loop.
        self._loop = self._loop or asyncio.new_event_loop()
        set_event_loop(context, self._loop)

    def interrupt(self) -> None:
        """Raise Dagster's interruption in the thread, as soon as it executes Python again."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(DagsterExecutionInterruptedError)
            )


class _Steps:
    """The steps of one run."""

    def __init__(self, context: PlanExecutionContext, plan: ExecutionPlan, threads: int) -> None:
        self._context, self._plan, self._threads = context, plan, threads
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._idents: set[int] = set()
        self._idle: list[_Worker] = []
        self._active: dict[str, _Worker] = {}
        self._steps: dict[str, tuple[StepExecutionContext, list[DagsterEvent]]] = {}

    def events(self) -> Iterator[DagsterEvent]:
        """Execute the steps; yields their events."""
        context = self._context
        with (
            InstanceConcurrencyContext(context.instance, context.dagster_run) as pools,
            self._plan.start(
                retry_mode=context.retry_mode,
                max_concurrent=self._threads,
                instance_concurrency_context=pools,
                step_dependency_config=context.step_dependency_config,
            ) as active,
        ):
            capture = contextlib.ExitStack()
            yield self._start_capture(capture)
            try:
                yield from self._run_steps(active)
            finally:
                # Steps are still running here only if the run's main thread was interrupted or failed.
                for _ in self._interrupt_and_wait():
                    pass
                self._end_threads()
                problem = self._stop_capture(capture)
            if problem:
                yield problem

    def _stop_capture(self, capture: contextlib.ExitStack) -> DagsterEvent | None:
        """Stop capturing the process's output. A failure must not fail a step: return it as an event."""
        try:
            capture.close()
        except Exception:
            return self._capture_failed()
        return None

    def _capture_failed(self) -> DagsterEvent:
        error = serializable_error_info_from_exc_info(sys.exc_info())
        return DagsterEvent.engine_event(
            self._context,
            "The output of this process could not be captured",
            event_specific_data=EngineEventData(error=error),
        )

    def _start_capture(self, capture: contextlib.ExitStack) -> DagsterEvent:
        """Start capturing the process's output. If that fails, the run continues."""
        manager, context = self._context.instance.compute_log_manager, self._context
        log_key = manager.build_log_key_for_run(context.run_id, create_compute_log_file_key())
        steps = [s.key for s in self._plan.get_steps_to_execute_in_topo_order()]
        try:
            return DagsterEvent.capture_logs(
                context, steps, log_key, capture.enter_context(manager.capture_logs(log_key))
            )
        except Exception:
            return self._capture_failed()

    def _run_steps(self, active: ActiveExecution) -> Iterator[DagsterEvent]:
        failure: BaseException | None = None
        while (not active.is_complete and failure is None) or self._active:
            if active.check_for_interrupts():
                yield from self._interrupted(active)
                raise DagsterExecutionInterruptedError
            if failure is None:
                for step in active.get_steps_to_execute():
                    self._start(step, active)
                yield from active.concurrency_event_iterator(self._context)
            # Skipped steps: a dependency failed or was skipped.
            yield from active.plan_events_iterator(self._context)
            for key, item in self._queued():
                if isinstance(item, BaseException):
                    failure = failure or item
                elif item is not None:
                    self._steps[key][1].append(item)
                    yield item
                    active.handle_event(item)
                else:
                    yield from self._finish(key, active)
        if failure is not None:
            raise failure

    def _queued(self) -> Iterator[tuple[str, Any]]:
        """Yield the queued events of steps, waiting a while for the first."""
        wait = _POLL_SECONDS
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._events.get(timeout=wait)
                wait = 0

    def _start(self, step: Any, active: ActiveExecution) -> None:
        context = self._context.for_step(step, active.get_known_state())
        if not self._idle:
            worker = _Worker(self._events, self._idents)
            worker.start()
            self._idle.append(worker)
        # The worker that was active last has the warmest session.
        self._active[step.key] = worker = self._idle.pop()
        self._steps[step.key] = (context, [])
        worker.todo.put(context)

    def _finish(self, key: str, active: ActiveExecution) -> Iterator[DagsterEvent]:
        self._idle.append(self._active.pop(key))
        context, events = self._steps.pop(key)
        active.verify_complete(self._context, key)
        for event in active.plan_events_iterator(self._context):
            events.append(event)
            yield event
        yield from trigger_hook(context, events)

    def _interrupted(self, active: ActiveExecution) -> Iterator[DagsterEvent]:
        """Report the termination, interrupt the running steps, and wait a while for them to end."""
        yield DagsterEvent.engine_event(
            self._context,
            "Received termination signal: interrupting the running steps",
            EngineEventData.interrupted(sorted(self._active)),
        )
        active.mark_interrupted()
        for event in self._interrupt_and_wait():
            yield event
            active.handle_event(event)

    def _interrupt_and_wait(self) -> Iterator[DagsterEvent]:
        """Interrupt the running steps and wait a while for them to end; yields their events."""
        if not self._active:
            return
        for worker in self._active.values():
            worker.interrupt()
        # A thread that waits for Spark notices the interruption only when Spark answers.
        done = threading.Event()
        interrupt_sessions(done)
        deadline = time.monotonic() + _INTERRUPTED_SECONDS
        try:
            while self._active and time.monotonic() < deadline:
                for key, item in self._queued():
                    if isinstance(item, DagsterEvent):
                        yield item
                    elif item is None:
                        self._idle.append(self._active.pop(key))
        finally:
            done.set()
        for key in self._active:
            log.warning("step %s did not stop when interrupted: it ends with its process", key)
        self._active.clear()

    def _end_threads(self) -> None:
        """End the idle threads; busy ones end with the process."""
        for worker in self._idle:
            worker.todo.put(None)
        for worker in self._idle:
            worker.join(_INTERRUPTED_SECONDS)
