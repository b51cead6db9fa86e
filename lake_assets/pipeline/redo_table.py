"""Rebuild one table from its sources, even after lost history, and report the differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.errors import CorruptMetadataError, MissingDataFileError, RebuildError
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.foreign_errors import is_unreadable, named_errors
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.steps.model_step import ModelStep
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.writing.commit_counts import has_counts
from lake_assets.tables.writing.row_differences import count_differences, incomparable
from lake_assets.tables.writing.table_ddl import columns_of, key_in

Past = Literal["keep", "discard"]
ROWS_BEFORE, ROWS_AFTER = "rows_before", "rows_after"


def rebuild(
    lake: LakeBase,
    spec: Spec,
    pins: SnapshotPins | None = None,
    *,
    file: Path | None = None,
    past: Past | None = None,
) -> Outcome:
    """Compute a table from the current contents of its sources, and publish it in one commit with its watermarks.

    Neither the table's rows nor its watermarks are used, so it repairs damaged rows, lost history, and changed
    definitions. If it is killed at any point, the table is unchanged. If the definition and the columns are the same,
    only rows that differ are written, and downstream tables absorb only these.

    Args:
        lake: the lake.
        spec: the table.
        pins: snapshots that the models of this run have read so far, so that all of them read the same.
        file: the file of the pipeline, for the note of a failure.
        past: what becomes of rows that cannot be computed again. `keep`: they stay, the table takes over the present
            declaration, and goes on from what is still known of its sources' changes. `discard`: they are lost.

    Returns:
        The outcome. Its details have `rows_before` (unless their files are lost) and `rows_after`; the numbers of rows
        inserted, updated and deleted are the differences between the two (in their common columns).

    Raises:
        RebuildError: the table is a raw table, or holds rows that cannot be computed again and `past` does not say
            what becomes of them; or a source is missing, or its raw or staging table is empty.
        ConcurrentWriteError: every attempt lost a race to another writer.
        AuditFailedError: the new rows do not pass the audits. Nothing is published.
        LakeError: see the steps.
    """
    step, before = step_of(spec), lake.find(spec.table)
    why = "" if before is None and isinstance(step, ModelStep) else step.why_not_rebuilt(before)
    if why and not (past and f"--{past}-rows" in why):
        raise RebuildError(why)
    if past and not why:
        raise RebuildError(f"no row of {spec.table} is lost when it is computed again: leave out --{past}-rows")
    for source in spec.sources:
        table = lake.find(source)
        is_empty = table is not None and table.metadata.current_snapshot_id is None
        if table is None or (is_empty and step.empty_sources == "ignored"):
            what = "does not exist" if table is None else "is still empty"
            raise RebuildError(
                f"{spec.table} cannot be rebuilt: its source {source} {what}. {spec.table} is unchanged. Run the "
                f"pipeline {spec.pipeline!r} first, or restore {source}"
            )
    if past == "keep" and isinstance(spec, PythonModelSpec):
        outcome = _kept(lake, spec, pins, file)
    else:
        outcome = absorb(lake, spec, pins, rebuild=True, file=file)
    after = lake.find(spec.table)
    if outcome.status != "absorbed" or after is None:
        raise RebuildError(f"{spec.table} cannot be rebuilt: {outcome.why or 'its sources have no rows for it'}")
    try:
        with named_errors(spec.table):
            return _described(lake, spec, outcome, before, after)
    except (MissingDataFileError, CorruptMetadataError) as e:
        if before is None or not is_unreadable(e, before.location()):
            raise
        outcome = _described(lake, spec, outcome, None, after)
        details = {k: v for k, v in outcome.details.items() if k != ROWS_BEFORE}
        return replace(outcome, details=details, why=f"{outcome.why}; files of the previous rows cannot be read")


def _kept(lake: LakeBase, spec: PythonModelSpec, pins: SnapshotPins | None, file: Path | None) -> Outcome:
    """Let a table go on with its rows, the present declaration and the changes that can still be read."""
    try:
        return absorb(lake, replace(spec, skipped="lost"), pins, file=file)
    except (MissingDataFileError, CorruptMetadataError):
        # A file of the changes is lost, which metadata did not tell.
        return absorb(lake, replace(spec, skipped="pending"), pins, file=file)


def _described(lake: LakeBase, spec: Spec, outcome: Outcome, before: Table | None, after: Table) -> Outcome:
    """Add the row counts before and after to the outcome, and count differences instead of written rows."""
    old = _rows(lake, spec, before.metadata.current_snapshot_id) if before is not None else None
    new = _rows(lake, spec, outcome.snapshot or after.metadata.current_snapshot_id)
    assert new is not None
    details = {ROWS_BEFORE: old.count() if old is not None else 0, ROWS_AFTER: new.count(), **outcome.details}
    outcome = replace(outcome, details=details)
    snapshot = after.snapshot_by_id(outcome.snapshot) if outcome.snapshot is not None else None
    if old is None or has_counts(snapshot):
        return outcome
    types = {c: k for c, k in columns_of(lake, spec.table).items() if c in old.columns and not incomparable({c: k})}
    listed = [quote(c) for c in types]
    key = [k for k in key_in(after) if k in types]
    old = old.selectExpr(*(f"try_cast({quote(c)} AS {k}) AS {quote(c)}" for c, k in types.items()))
    inserted, updated, deleted = count_differences(lake, new.select(*listed), old, types, key)
    return replace(outcome, inserted=inserted, updated=updated, deleted=deleted)


def _rows(lake: LakeBase, spec: Spec, snapshot: int | None) -> DataFrame | None:
    if snapshot is None:
        return None
    return lake.spark().read.option("versionAsOf", str(snapshot)).table(lake.sql_name(spec.table))
