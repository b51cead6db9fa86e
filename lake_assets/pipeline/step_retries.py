"""Run one table's step safely: clear leftovers before it, repeat it after lost races, keep needed snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import (
    LOST_FILE_ADVICE,
    LOST_FILE_ADVICE_OF_CAPTURE,
    ConcurrentWriteError,
    CorruptMetadataError,
    LakeError,
    MissingDataFileError,
)
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import as_named, named_errors, spark_error_text
from lake_assets.lake.metadata import clock_skew, metadata_versions
from lake_assets.lake.metadata.lost_files import lost_file
from lake_assets.lake.metadata.metadata_commits import MovedError
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline import observed_steps
from lake_assets.pipeline.pipelines_of_lake import note_file
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.sensitive_steps import is_interrupted, without_values
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import TableStep, step_of
from lake_assets.tables import leftovers, standing_failures, table_lock
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.snapshot_retention import keep_own, keep_sources, release
from lake_assets.tables.writing.races import as_race

ATTEMPTS = 4


def absorb(
    lake: LakeBase,
    spec: Spec,
    pins: SnapshotPins | None = None,
    *,
    rebuild: bool = False,
    file: Path | None = None,
    is_aside: bool = False,
) -> Outcome:
    """Absorb pending changes of one table. A step that loses a race to another writer is repeated from the watermark.

    Args:
        pins: snapshots that the models of this run have read so far, so that all of them read the same.
        rebuild: whether to compute the table (not a raw one) from the current contents of its sources (see
            `redo`).
        file: the file of the pipeline, for the note of a failure (see `standing_failures`).
        is_aside: whether this is a working copy: its failures say nothing of the table.

    Raises:
        LakeError: see the steps.
    """
    step = step_of(spec)
    if file and not is_aside:
        note_file(lake, spec.pipeline, file)

    def run() -> Outcome:
        outcome = step.absorb(lake, pins or SnapshotPins(), rebuild=rebuild)
        if outcome.status == "absorbed":
            _keep(lake, step, outcome)
        return outcome

    def attempt() -> Outcome:
        return retried(lake, spec, run)

    try:
        outcome = attempt() if is_aside else observed_steps.observed(lake, spec, attempt)
    except Exception as e:
        if not is_aside and not is_interrupted(e):
            standing_failures.note(lake, spec.table, spec.pipeline, file, e)
        raise
    if not is_aside:
        standing_failures.forget(lake, spec.table)
    if rebuild or not is_aside:  # a copy is published with what its declaration hides
        SensitiveTables.of_specs(lake, [spec]).store(spec.table)
    return outcome


def retried(lake: LakeBase, spec: Spec, run: Callable[[], Outcome]) -> Outcome:
    """Run a step of a table, and repeat it after a race lost to another writer; see `without_values`.

    Before each attempt, branches of killed runs are dropped, and future timestamps are reset, since Iceberg would
    refuse the commit.

    Raises:
        ConcurrentWriteError: every attempt lost.
    """
    return without_values(lake, spec, lambda: _retried(lake, spec, run))


def _retried(lake: LakeBase, spec: Spec, run: Callable[[], Outcome]) -> Outcome:
    step = step_of(spec)
    try:
        for attempt in Retrying(
            retry=retry_if_exception_type(ConcurrentWriteError),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=5),
        ):
            with (
                attempt,
                contextlib.ExitStack() as locks,
                advised_on_lost_files(lake, step),
                named_errors(spec.table),
                _lost_files(lake, step),
                as_race(spec.table),
            ):
                for table in step.written_tables:
                    locks.enter_context(table_lock.shared(lake, table))
                for table in step.written_tables:
                    _make_ready(lake, table)
                with leftovers.at_work(lake, step.written_tables):
                    return run()
    except RetryError as e:
        cause = e.last_attempt.exception()
        raise ConcurrentWriteError(
            f"{spec.table}: another writer committed first, {ATTEMPTS} times in a row. Nothing is lost: run again "
            f"when that writer is done. Last: {cause}"
        ) from cause
    raise AssertionError("unreachable: the loop returns or raises")


@contextlib.contextmanager
def _lost_files(lake: LakeBase, step: TableStep[Any, SnapshotPins]) -> Generator[None]:
    """Turn an unnamed error of the context into one about a lost file, if a table of the step has one."""
    try:
        yield
    except Exception as e:
        if isinstance(e, LakeError) or as_named(e, "") is not None or spark_error_text(e):
            raise
        for name in (*step.written_tables, *step.spec.sources):
            table = lake.find(name)
            if table is not None and (lost := lost_file(table, step.lost_file_advice(name))) is not None:
                raise lost from e
        raise


@contextlib.contextmanager
def advised_on_lost_files(lake: LakeBase, step: TableStep[Any, SnapshotPins]) -> Generator[None]:
    """Let the context's errors advise by whose file is lost: a rebuild needs none that only past snapshots name."""
    try:
        yield
    except (CorruptMetadataError, MissingDataFileError) as e:
        message = str(e)
        if LOST_FILE_ADVICE not in message or isinstance(step.spec, RawSpec):
            raise
        message = message.replace(LOST_FILE_ADVICE_OF_CAPTURE, LOST_FILE_ADVICE)
        for name in (*step.spec.sources, *step.written_tables):
            table = lake.find(name)
            if table is None or f"{_path(table.location())}/" not in message:
                continue
            advice = step.lost_file_advice(name)
            if name in step.spec.sources and lost_file(table) is None:
                way_on = step.recovery("on_gap" if hasattr(step.spec, "on_gap") else "")
                advice = f"Only past snapshots of {name} name it. Restore the file from a backup; or {way_on}"
            raise type(e)(message.replace(LOST_FILE_ADVICE, advice)) from e
        raise type(e)(message) from e


def _path(location: str) -> str:
    """Return a location without its scheme, which errors of Java and Python write with one or three slashes."""
    return location.partition(":")[2].strip("/") or location


def _make_ready(lake: LakeBase, name: TableId) -> None:
    try:
        if (table := lake.find(name)) is not None:
            clock_skew.reset_future_times(table)
            leftovers.drop_branches(lake, name, table)
            if metadata_versions.is_due(table):
                metadata_versions.delete_old_versions(table)
    except (MovedError, CommitFailedException) as e:
        raise ConcurrentWriteError(f"{name}: another writer committed before this step began: {e}") from e


def _keep(lake: LakeBase, step: TableStep[Any, SnapshotPins], outcome: Outcome) -> None:
    """Tag the snapshots that the next step needs. If a run is killed before this, the tags lag, which is harmless."""
    spec = step.spec
    if step.is_only_writer:
        keep_own(lake, spec.table)
    else:
        release(lake, spec.table)
    if spec.sources and step.keeps_source_snapshots:
        # While another query is reviewed, the step reads the sources of the former one.
        read = (TableId.parse(window.source) for window in outcome.windows)
        keep_sources(lake, spec.table, dict.fromkeys((*spec.sources, *read)))
