"""Recompute selected rows of a table, such as partitions, and publish those that differ.

The sources are read at the snapshots that the table has absorbed, and its watermarks stay. So later windows apply as
before, and downstream tables follow this commit like any other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import DefinitionChangedError, NotRunError, PipelineError, RebuildError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import all_rows
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Frames
from lake_assets.models.operators.row_identity import identity
from lake_assets.models.sql.model_plan import ModelPlan, reason_rows_depend
from lake_assets.pipeline.row_scope import RowScope
from lake_assets.pipeline.step_retries import retried
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.pipeline.verification import expected_rows, planned_at
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate, forget_failed
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.spark_frames import checkpoint
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.races import lost
from lake_assets.tables.writing.row_differences import SIGN, incomparable
from lake_assets.tables.writing.table_ddl import check_owner_in, columns_of, key_in
from lake_assets.tables.writing.table_writer import TableWriter

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
        properties = {RECOMPUTED_PROPERTY: chosen.label}
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
    read = frames.spark.read.option("versionAsOf", str(commit.existing.metadata.current_snapshot_id))
    stands = read.table(commit.name).select(*map(quote, types))
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
