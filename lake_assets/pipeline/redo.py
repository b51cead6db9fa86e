"""Redo a table: what a rebuild, recomputed partitions and a backfill do to each table, with another scope.

Everything is computed from the current contents of the sources, even after lost history, and moves the watermarks. Some
rows are computed from what the table has absorbed, at the snapshots of its watermarks, which stay, so later windows
apply as before. Both are one commit that writes the rows that differ, so downstream tables follow it like any other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Literal

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import (
    CorruptMetadataError,
    DefinitionChangedError,
    MissingDataFileError,
    NotRunError,
    PipelineError,
    RebuildError,
)
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import all_rows
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.foreign_errors import is_unreadable, named_errors
from lake_assets.lake.metadata import refresh_state
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Frames
from lake_assets.models.operators.row_identity import identity
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.model_plan import ModelPlan, reason_rows_depend
from lake_assets.models.steps.model_step import ModelStep
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.expected_rows import expected_rows, planned_at
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.row_scope import EVERYTHING, RowScope, rows_of_partitions
from lake_assets.pipeline.step_retries import absorb, retried
from lake_assets.pipeline.table_graph import ComputedSpec, Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate, forget_failed
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.spark_frames import checkpoint
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.writing.commit_counts import counts, has_counts
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.races import lost
from lake_assets.tables.writing.row_differences import SIGN, count_differences, incomparable
from lake_assets.tables.writing.table_ddl import check_owner_in, columns_of, key_in
from lake_assets.tables.writing.table_writer import TableWriter


def redo(
    lake: LakeBase,
    spec: Spec,
    scope: RowScope = EVERYTHING,
    pins: SnapshotPins | None = None,
    *,
    file: Path | None = None,
    past: Past | None = None,
    is_aside: bool = False,
) -> Outcome:
    """Redo a table, or some of its rows.

    Args:
        lake: the lake.
        spec: the table; a final table or a model, if `scope` is not everything.
        scope: the rows.
        pins: snapshots that the models of this run have read so far; for everything.
        file: the file of the pipeline, for the note of a failure; for everything.
        past: what becomes of rows that cannot be computed again; for everything.
        is_aside: whether this is a working copy: what is done to it is no step of the table, and its failures say
            nothing of the table.

    Raises:
        LakeError: see `rebuild` and `recompute`.
    """
    if scope == EVERYTHING:
        return rebuild(lake, spec, pins, file=file, past=past, is_aside=is_aside)
    assert isinstance(spec, ComputedSpec)
    return recompute(lake, spec, scope)


def redo_partitions(lake: LakeBase, spec: ComputedSpec, keys: Sequence[str]) -> Outcome:
    """Redo some partitions of a table; see `redo`.

    Raises:
        PipelineError: the table has no `partitions`, or a key is not one of them.
    """
    types = {} if lake.find(spec.table) is None else columns_of(lake, spec.table)
    return redo(lake, spec, rows_of_partitions(spec, keys, types))


Past = Literal["keep", "discard"]
ROWS_BEFORE, ROWS_AFTER = "rows_before", "rows_after"


def rebuild(
    lake: LakeBase,
    spec: Spec,
    pins: SnapshotPins | None = None,
    *,
    file: Path | None = None,
    past: Past | None = None,
    is_aside: bool = False,
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
        is_aside: whether this is a working copy (see `redo`).

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
    if why and past not in step.past_options:
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
        outcome = absorb(lake, spec, pins, rebuild=True, file=file, is_aside=is_aside)
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
    if not types:  # the table has other columns altogether
        return replace(outcome, inserted=details[ROWS_AFTER], updated=0, deleted=details[ROWS_BEFORE])
    listed = [quote(c) for c in types]
    key = [k for k in key_in(after) if k in types]
    old = old.selectExpr(*(f"try_cast({quote(c)} AS {k}) AS {quote(c)}" for c, k in types.items()))
    inserted, updated, deleted = count_differences(lake, new.select(*listed), old, types, key)
    return replace(outcome, inserted=inserted, updated=updated, deleted=deleted)


def _rows(lake: LakeBase, spec: Spec, snapshot: int | None) -> DataFrame | None:
    return lake.rows_at(spec.table, snapshot) if snapshot is not None else None


RECOMPUTED_PROPERTY = "lake-assets.recomputed"


@dataclass(frozen=True)
class _Expected:
    """Expected rows of a table.

    Attributes:
        key: columns that identify its rows; empty: no key.
        as_a_whole: the reason to compute all rows together; empty: the chosen ones do not depend on the others.
    """

    rows: DataFrame
    key: tuple[str, ...]
    gate: Gate
    as_a_whole: str = ""


def recompute(lake: LakeBase, spec: ComputedSpec, chosen: RowScope) -> Outcome:
    """Recompute chosen rows of a table and write those that differ, in one commit, or none if all are equal.

    A row in a wrong partition is moved, so no two rows share a key. If values depend on the order of rows (ties) across
    partitions, all partitions are computed: partitions of different computations may not add up to a valid result.

    Raises:
        RebuildError: the table holds rows that cannot be computed again.
        NotRunError: the table does not exist yet, or has absorbed nothing.
        DefinitionChangedError: the table was built from another declaration: absorb first.
        SnapshotExpiredError, SnapshotNotFoundError: a snapshot that it has absorbed is missing.
        ConcurrentWriteError: every attempt lost a race to another writer.
        AuditFailedError: the new rows do not pass the audits. Nothing is published.
    """
    return retried(lake, spec, lambda: _recompute(lake, spec, chosen))


def _recompute(lake: LakeBase, spec: ComputedSpec, chosen: RowScope) -> Outcome:
    began, name = time.monotonic(), str(spec.table)
    table = lake.find(spec.table)
    if table is None or table.metadata.current_snapshot_id is None:
        raise NotRunError(f"{name} was never run: it has no rows to recompute")
    check_owner_in(table, spec.table, spec.pipeline)
    forget_failed(lake, spec.table, table)
    if why := step_of(spec).why_not_rebuilt(table):
        raise RebuildError(why)
    if why := after_redeclaration(lake, spec):
        raise DefinitionChangedError(f"rows of {name} cannot be recomputed by another declaration than its own: {why}")
    head, marks = table.metadata.current_snapshot_id, read_marks(table)
    with contextlib.ExitStack() as scope:
        expected = _expected(lake, spec, table, chosen, scope)
        types = columns_of(lake, spec.table)
        if wrong := {c for c in types if c not in expected.rows.columns} ^ {
            c for c in expected.rows.columns if c not in types
        }:
            raise DefinitionChangedError(
                f"{name}: {', '.join(sorted(wrong))} is missing from the table or from its declaration: absorb "
                "pending changes first"
            )
        expected.gate.check(types)
        properties = {RECOMPUTED_PROPERTY: chosen.label, **refresh_state.carried(table)}
        writer = TableWriter(Commit(lake, spec.table, table, marks, expected.gate, properties), types, quiet=True)
        where = "true" if expected.as_a_whole else chosen.where
        _write(writer, Frames(lake.spark(), scope), expected, where)
    done = lake.table(spec.table)
    commit = find_property(done, RECOMPUTED_PROPERTY)
    snapshot = commit[1] if commit and done.metadata.current_snapshot_id != head else None
    inserted, updated, deleted = counts(snapshot) if snapshot else (0, 0, 0)
    audits: tuple[Finding, ...] = ()
    if snapshot:
        audits = expected.gate.audit_published(snapshot.snapshot_id, head)
    why = "rows that differ are written" if snapshot else "no row differs"
    if expected.as_a_whole:
        why = f"all rows are computed, because {expected.as_a_whole}: {why}"
    return Outcome(
        name, "absorbed", (), inserted, updated, deleted, "recompute", f"{chosen.label}: {why}",
        time.monotonic() - began, snapshot.snapshot_id if snapshot else None, audits=audits,
    )  # fmt: skip


def _expected(
    lake: LakeBase, spec: ComputedSpec, table: Table, chosen: RowScope, scope: contextlib.ExitStack
) -> _Expected:
    if isinstance(spec, FinalSpec):
        target, rows = all_rows(lake, spec, table, scope)
        return _Expected(rows, target.row_key, target.gate)
    scope.enter_context(tuned_for(lake, (spec.table, *spec.sources)))
    key = key_in(table)
    rows, pinned = expected_rows(lake, spec, table, scope)
    why = _why_as_a_whole(planned_at(lake, spec, pinned), chosen.columns) if isinstance(spec, ModelSpec) else ""
    return _Expected(checkpoint(rows) if why else rows, key, Gate(lake, spec.table, spec.audits, key), why)


def _why_as_a_whole(model: ModelPlan, columns: Sequence[str]) -> str:
    """Return why rows of a model, chosen by columns, cannot be computed without the others; empty if they can."""
    if model.tree is None:
        return "; ".join(model.warnings)
    by = identity(model.tree, model.key)
    return next(filter(None, (reason_rows_depend(column, by) for column in columns)), "")


def _write(writer: TableWriter, frames: Frames, expected: _Expected, where: str) -> None:
    commit, types, key = writer.commit, writer.types, expected.key
    should = expected.rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))
    stands = commit.lake.rows_at(commit.table, commit.existing.metadata.current_snapshot_id, frames.spark).select(
        *map(quote, types)
    )
    new, old = frames.materialize(should.where(where)), frames.materialize(stands.where(where))
    if column := incomparable(types):
        # Values that cannot be compared: write whole partitions.
        if key and (_others(new, old, key).limit(1).count() or _others(old, new, key).limit(1).count()):
            raise PipelineError(
                f"{commit.table}: some rows are in the wrong partition, and rows with a column like "
                f"{column} cannot be compared one by one: `lake-assets rebuild {commit.table}` writes all rows again"
            )
        writer.overwrite(new, where)
        return
    come, gone = [new], [old]
    if key:
        # Rows with the same keys whose stored or correct partition is another one.
        keys = new.select(*map(quote, key)).union(old.select(*map(quote, key))).distinct()
        come.append(frames.materialize(_with(should, _others(old, new, key))))
        gone.append(frames.materialize(_with(stands.where(f"NOT coalesce({where}, false)"), keys)))
    listed = ", ".join(map(quote, types))
    sides = [(f, sign) for fs, sign in ((come, 1), (gone, -1)) for f in fs]
    delta = " UNION ALL ".join(f"SELECT {listed}, {sign} AS {SIGN} FROM {frames.view(f)}" for f, sign in sides)
    # No step writes two rows with one key; if they exist, all of their values identify them.
    if key and not _has_duplicates(gone[0].unionByName(gone[1]), key):
        refused = writer.change(delta, key)
    else:
        refused = writer.count_copies(delta)
    if refused:
        raise lost(commit.table, refused.reason)


def _has_duplicates(rows: DataFrame, key: Sequence[str]) -> bool:
    return not rows.groupBy(*map(quote, key)).count().where("count > 1").isEmpty()


def _with(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the rows with some keys."""
    names = {k: f"__lake_k{i}" for i, k in enumerate(keys.columns)}
    renamed = keys.select(*(F.col(quote(k)).alias(n) for k, n in names.items()))
    same = reduce(Column.__and__, (F.col(quote(k)).eqNullSafe(F.col(n)) for k, n in names.items()))
    return rows.join(renamed, same, "left_semi")


def _others(some: DataFrame, others: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the keys in `some` that are missing from `others`; null counts as a value."""
    keys = some.select(*map(quote, key)).distinct()
    return keys.exceptAll(others.select(*map(quote, key)).distinct())
