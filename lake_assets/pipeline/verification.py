"""Verify a table: compare it with its rows recomputed over the snapshots it has absorbed.

A model is recomputed by its query or function, a final table from all events of staging, the table of a job by the
SELECT that its user gives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.errors import (
    DefinitionChangedError,
    ModelError,
    NotRunError,
    PipelineError,
)
from lake_assets.final.final_spec import FinalSpec
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.step_notes import find_note
from lake_assets.journal.resource_use import ResourceUse, measured
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.stability import Level, state
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.pipeline.config.job_settings import full_at
from lake_assets.pipeline.expected_rows import planned_at, rows_to_compare
from lake_assets.pipeline.paired_rows import changed_rows, count
from lake_assets.pipeline.row_comparison import (
    EXPECTED,
    FOUND,
    beyond_rounding,
    counted_rows,
    differ,
    in_sample,
    orderable,
    totals,
)
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.sensitive_steps import without_values_in_errors
from lake_assets.pipeline.step_retries import advised_on_lost_files
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.writing.table_ddl import columns_of, key_in


@dataclass(frozen=True)
class Difference:
    """A row whose count in the table differs from that in the expected result.

    Attributes:
        row: its values by column.
        expected: count in the expected result.
        found: count in the table.
    """

    row: Mapping[str, Any]
    expected: int
    found: int


@dataclass(frozen=True)
class Verification:
    """Result of comparing a table with its recomputed rows.

    Attributes:
        table: the table.
        snapshot: the compared snapshot of the table.
        sources: by source, the snapshot that was read.
        expected, found: number of compared rows of the query's result, and of the table.
        different: number of distinct rows with different counts on the two sides.
        differences: some of these rows, by key.
        key: columns that identify a row; with them, an expected row and one of the table with equal values in them are
            one row that differs.
        missing, additional, changed: numbers of rows that the table lacks, that only the table has, and of rows of one
            key that differ.
        columns: by column, in how many of the `changed` rows it differs, if by more than rounding.
        sample: the share of the rows (or of the keys) that was compared.
        not_compared: columns whose values depend on the order in which rows are read, each with the reason: any values
            there are valid results of the query.
        doubt: why differing rows may be correct: the query does not determine which rows it returns. Empty: it does.
        seconds, cpu_seconds: time taken, and seconds of one core that were used.
    """

    table: str
    snapshot: int
    sources: Mapping[str, int | None]
    expected: int
    found: int
    different: int
    differences: tuple[Difference, ...]
    sample: float = 1.0
    not_compared: Mapping[str, str] = field(default_factory=dict[str, str])
    doubt: str = ""
    key: tuple[str, ...] = ()
    missing: int = 0
    additional: int = 0
    changed: int = 0
    columns: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = field(default=0.0, compare=False)
    cpu_seconds: float = field(default=0.0, compare=False)

    @property
    def equal(self) -> bool:
        """Whether both sides are the same multiset of rows, as far as compared."""
        return not self.different


def verify(
    lake: LakeBase,
    spec: ComputedSpec | JobSpec,
    *,
    sample: float = 1.0,
    limit: int = 20,
    shows_sensitive: bool = False,
) -> Verification:
    """Compare a table, as a multiset of rows, with its rows recomputed at the snapshots of its watermark.

    NULL equals NULL and NaN equals NaN. Numbers of the types float and double may differ by a billionth of their size.
    Columns whose values depend on the order in which rows are read (ties) are left out. Everything else must be equal.

    Args:
        sample: the share (0 to 1) of the keys to compare, picked by their hash, so the same on both sides and each
            time; a share of the rows if the table has no key.
        shows_sensitive: whether differing rows, and errors, have their sensitive values.

    Raises:
        NotRunError: the table does not exist yet, or has absorbed nothing.
        DefinitionChangedError: the table was built from another query or other columns.
        SnapshotExpiredError: a snapshot of a source, or the table's watermark itself, has expired.
        TableReplacedError: a source was dropped and created again.
        ModelError: the query fails over those snapshots, or the table differs and each of its columns depends on the
            order in which rows are read.
        PipelineError: a job has no `full`, or Spark does not accept it.
    """
    use = ResourceUse(time.time())

    def run() -> Verification:
        with advised_on_lost_files(lake, step_of(spec)), named_errors(spec.table), measured(lake, use):
            verification = _verified(lake, spec, sample, limit)
        return replace(verification, seconds=use.seconds, cpu_seconds=use.cpu_seconds)

    if shows_sensitive:
        return run()
    verification = without_values_in_errors(lake, spec, run)
    columns = SensitiveTables.of_specs(lake, [spec]).of(spec.table)
    differences = tuple(replace(d, row=columns.row(d.row)) for d in verification.differences)
    return replace(verification, differences=differences)


def _verified(lake: LakeBase, spec: ComputedSpec | JobSpec, sample: float, limit: int) -> Verification:
    if not 0 < sample <= 1:
        raise PipelineError(f"a sample of {sample} is not valid: write a share above 0 and up to 1, such as 0.01 or 1%")
    table = lake.find(spec.table)
    if table is None or (current := table.metadata.current_snapshot_id) is None:
        raise NotRunError(f"{spec.table} was never run: run pipeline {spec.pipeline!r} first")
    with contextlib.ExitStack() as scope:
        expected, pinned = rows_to_compare(lake, spec, table, scope)
        not_compared, doubt = {}, ""
        if isinstance(spec, ModelSpec):
            not_compared, doubt = _in_doubt(planned_at(lake, spec, pinned))
        if isinstance(spec, JobSpec) and find_note(lake, spec.table):
            doubt = f"a step of the job is running or was interrupted, see `lake-assets step {spec.table}`"
        stored = lake.rows_at(spec.table, current)
        # A column may have been renamed after the snapshot.
        columns = dict(expected.dtypes)
        for existing in (columns_of(lake, spec.table), dict(stored.dtypes)):
            _check_columns(spec, columns, existing)
        # If every column is in doubt, compare them all: equal rows settle the doubt.
        is_all_in_doubt = not columns.keys() - not_compared.keys()
        if not is_all_in_doubt:
            columns = {c: kind for c, kind in columns.items() if c not in not_compared}
        expected, stored = (rows.select(*(F.col(quote(c)) for c in columns)) for rows in (expected, stored))
        if sample < 1:
            is_in_sample = in_sample(key_in(table), stored, sample)
            expected, stored = expected.where(is_in_sample), stored.where(is_in_sample)
        counts = counted_rows(expected, stored)
        rows_expected, rows_found, different = totals(counts)
        if different and is_all_in_doubt:
            why = "; ".join(dict.fromkeys(not_compared.values()))
            raise ModelError(
                f"{spec.table} differs from its recomputed query, but that proves no error, because every column "
                f"can have other values in each computation ({why}). Add a column that does not depend on the order "
                "of rows, such as a count"
            )
        verification = Verification(
            str(spec.table), current, {str(t): s for t, s in pinned.items()}, rows_expected, rows_found, 0, (), sample,
            {} if is_all_in_doubt else not_compared, doubt, key_in(table),
        )  # fmt: skip
        if not different:
            return verification
        differing = beyond_rounding(counts.where(differ()), stored).persist()
        scope.callback(differing.unpersist)
        return _with_differences(verification, differing, stored, limit)


def _with_differences(verification: Verification, differing: DataFrame, stored: DataFrame, limit: int) -> Verification:
    key = verification.key if set(verification.key) <= set(stored.columns) else ()
    signed = differing.withColumn(SIGN, F.col(FOUND) - F.col(EXPECTED))
    counts = count(changed_rows(signed, stored.columns, key), key)
    by_column = {c: n - rounding for c, (n, rounding) in counts.columns.items() if n > rounding}
    return replace(
        verification,
        different=differing.count(),
        differences=tuple(
            Difference({c: row[c] for c in stored.columns}, row[EXPECTED], row[FOUND])
            for row in differing.orderBy(*orderable(stored, key)).limit(limit).collect()
        ),
        key=key,
        missing=counts.deleted,
        additional=counts.inserted,
        changed=counts.updated,
        columns=by_column,
    )


def _in_doubt(model: ModelPlan) -> tuple[dict[str, str], str]:
    """Return the columns whose values may differ between computations, with reasons, and why the rows may differ.

    Floating-point sums are not among the columns: they are compared up to rounding.
    """
    if model.tree is None:
        return {}, "; ".join(model.warnings)
    whole = state(model.tree.root)
    doubts = {o: whole.columns[c] for o, c in model.tree.outputs.items() if c in whole.columns}
    return {o: d.why for o, d in doubts.items() if d.level == Level.ARBITRARY}, whole.rows.why if whole.rows else ""


def _check_columns(spec: ComputedSpec | JobSpec, expected: Mapping[str, str], existing: Mapping[str, str]) -> None:
    """Raise DefinitionChangedError if the table lacks columns of the result; additional columns are ignored."""
    if wrong := [c for c, kind in expected.items() if existing.get(c) != kind]:
        listed = ", ".join(f"{c} {expected[c]} (table: {existing.get(c, 'missing')})" for c in wrong)
        if isinstance(spec, JobSpec):
            raise PipelineError(
                f"{full_at(spec.table)}: its columns are not those of the table: {listed}. Rename them with AS, and "
                "convert them with CAST"
            )
        origin = str(spec.staging) if isinstance(spec, FinalSpec) else "its query or function"
        raise DefinitionChangedError(
            f"{spec.table} has other columns than {origin}, "
            f"with {listed}: run pipeline {spec.pipeline!r}, which "
            "rebuilds the table; verify it afterwards"
        )
