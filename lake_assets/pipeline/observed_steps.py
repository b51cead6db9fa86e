"""Observers of steps and runs: how rooms above this one learn what happens, without being imported here.

An observer cannot fail or change a step: what it raises is logged.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeBase
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.outcome import Outcome

if TYPE_CHECKING:
    from lake_assets.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObservedStep:
    """A step that has begun.

    Attributes:
        id: a UUID; without its hyphens, it is the id of the record.
        run: what executes it, as in `StepRecord.run`.
        started_at: seconds since 1970.
    """

    lake: LakeBase
    spec: Spec
    run: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    started_at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StepEnd:
    """How a step ended.

    Attributes:
        record: its record in the journal; None: it absorbed nothing, or was interrupted.
        seen: the tables that the record was made of (see `LakeBase.glance`); None: there is no record.
        outcome: None: it failed, or was interrupted.
        error: what it raised.
    """

    record: StepRecord | None = None
    seen: LakeBase | None = None
    outcome: Outcome | None = None
    error: BaseException | None = None


class Observer(Protocol):
    """What is told of steps and runs."""

    def began(self, step: ObservedStep) -> None:
        """Take note of a step that begins."""
        ...

    def ended(self, step: ObservedStep, end: StepEnd) -> None:
        """Take note of how a step has ended."""
        ...

    def run_ended(self, lake: LakeBase, pipeline: Pipeline) -> None:
        """Take note of a run of a pipeline that has ended."""
        ...


_sources: list[Callable[[LakeBase], Sequence[Observer]]] = []


def register(source: Callable[[LakeBase], Sequence[Observer]]) -> None:
    """Add a function that returns the observers of a lake; it is called at each step, and has to be quick."""
    if source not in _sources:
        _sources.append(source)


def observed(lake: LakeBase, spec: Spec, run: Callable[[], Outcome]) -> Outcome:
    """Run a step, record it, and tell the observers of the lake."""
    observers = _of(lake)
    if not observers:
        return step_journal.recorded(lake, spec.pipeline, spec.table, run)
    step, records = ObservedStep(lake, spec, step_journal.executor()), list[tuple[StepRecord, LakeBase]]()

    def tell(outcome: Outcome | None = None, error: BaseException | None = None) -> None:
        end = StepEnd(*(records[0] if records else (None, None)), outcome, error)
        for observer in observers:
            _guarded(lake, lambda o=observer: o.ended(step, end))

    for observer in observers:
        _guarded(lake, lambda o=observer: o.began(step))
    try:
        outcome = step_journal.recorded(
            lake, spec.pipeline, spec.table, run, lambda *found: records.append(found), step.id.replace("-", "")
        )
    except BaseException as e:
        tell(error=e)
        raise
    tell(outcome)
    return outcome


def run_ended(lake: LakeBase, pipeline: Pipeline) -> None:
    """Tell the observers of the lake that a run has ended."""
    for observer in _of(lake):
        _guarded(lake, lambda o=observer: o.run_ended(lake, pipeline))


def _of(lake: LakeBase) -> list[Observer]:
    found: list[Observer] = []
    for source in _sources:
        _guarded(lake, lambda s=source: found.extend(s(lake)))
    return found


def _guarded(lake: LakeBase, tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception as e:  # of any kind: the step has its own outcome
        log.warning("a signal was not sent: %s", lake.config.hidden(f"{type(e).__name__}: {e}"))
