"""Verify a table: compare it with its rows recomputed over the snapshots it has absorbed.

A model is recomputed by its query or function, a final table from all events of staging, the table of a job by the
SELECT that its user gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from lake_assets.errors import (
    DefinitionChangedError,
    ModelError,
    NotRunError,
    PipelineError,
    SnapshotExpiredError,
    TableReplacedError,
)
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import all_rows
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.step_notes import find_note
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.float_columns import guarded_rows
from lake_assets.lake.foreign_errors import first_line, named_errors
from lake_assets.lake.metadata.watermark import Watermark, read_marks
from lake_assets.lake.sql_text import DIALECT, changed
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.stability import Level, state
from lake_assets.models.python import function_call
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.model_plan import ModelPlan, parse, plan, qualified_query
from lake_assets.models.sql.query_text import as_named, text_over
from lake_assets.models.sql.sql_rewrite import is_text, qualify_as_where
from lake_assets.models.steps.planned_models import keys_of
from lake_assets.pipeline.config.job_settings import full_at, read_full
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
from lake_assets.pipeline.table_graph import ComputedSpec, lookups_of
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.pending_windows import rebuild_advice
from lake_assets.tables.spark_frames import temp_view
from lake_assets.tables.table_step import in_review, review_of
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY


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
        differences: some of these rows.
        sample: the share of the rows (or of the keys) that was compared.
        not_compared: columns whose values depend on the order in which rows are read, each with the reason: any values
            there are valid results of the query.
        doubt: why differing rows may be correct: the query does not determine which rows it returns. Empty: it does.
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

    def run() -> Verification:
        with named_errors(spec.table):
            return _verified(lake, spec, sample, limit)

    if shows_sensitive:
        return run()
    found = without_values_in_errors(lake, spec, run)
    columns = SensitiveTables.of_specs(lake, [spec]).of(spec.table)
    return replace(found, differences=tuple(replace(d, row=columns.row(d.row)) for d in found.differences))


def _verified(lake: LakeBase, spec: ComputedSpec | JobSpec, sample: float, limit: int) -> Verification:
    if not 0 < sample <= 1:
        raise PipelineError(f"a sample of {sample} is not valid: write a share above 0 and up to 1, such as 0.01 or 1%")
    table = lake.find(spec.table)
    if table is None or (current := table.metadata.current_snapshot_id) is None:
        raise NotRunError(f"{spec.table} was never run: run pipeline {spec.pipeline!r} first")
    with contextlib.ExitStack() as scope:
        expected, pinned = _expected_of(lake, spec, table, scope)
        not_compared, doubt = {}, ""
        if isinstance(spec, ModelSpec):
            not_compared, doubt = _in_doubt(planned_at(lake, spec, pinned))
        if isinstance(spec, JobSpec) and find_note(lake, spec.table):
            doubt = f"a step of the job is running or was interrupted, see `lake-assets step {spec.table}`"
        stored = _at(lake, spec.table, current)
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
            is_in = in_sample(table, stored, sample)
            expected, stored = expected.where(is_in), stored.where(is_in)
        counts = counted_rows(expected, stored)
        rows_expected, rows_found, different = totals(counts)
        differences: tuple[Difference, ...] = ()
        if different and is_all_in_doubt:
            why = "; ".join(dict.fromkeys(not_compared.values()))
            raise ModelError(
                f"{spec.table} differs from its recomputed query, but that proves no error, because every column "
                f"can have other values in each computation ({why}). Add a column that does not depend on the order "
                "of rows, such as a count"
            )
        if different:
            differing = beyond_rounding(counts.where(differ()), stored)
            different = differing.count()
            differences = tuple(
                Difference({c: row[c] for c in columns}, row[EXPECTED], row[FOUND])
                for row in differing.orderBy(*orderable(stored)).limit(limit).collect()
            )
    return Verification(
        str(spec.table), current, {str(t): s for t, s in pinned.items()}, rows_expected, rows_found, different,
        differences, sample, {} if is_all_in_doubt else not_compared, doubt,
    )  # fmt: skip


def _in_doubt(model: ModelPlan) -> tuple[dict[str, str], str]:
    """Return the columns whose values may differ between computations, with reasons, and why the rows may differ.

    Floating-point sums are not among the columns: they are compared up to rounding.
    """
    if model.tree is None:
        return {}, "; ".join(model.warnings)
    whole = state(model.tree.root)
    doubts = {o: whole.columns[c] for o, c in model.tree.outputs.items() if c in whole.columns}
    return {o: d.why for o, d in doubts.items() if d.level == Level.ARBITRARY}, whole.rows.why if whole.rows else ""


def planned_at(lake: LakeBase, spec: ModelSpec, pinned: Mapping[TableId, int | None]) -> ModelPlan:
    """Return the plan of a model for its sources at some snapshots."""
    schemas = {t: dict(_at(lake, t, snapshot).dtypes) for t, snapshot in pinned.items()}
    return plan(str(spec.table), spec.sql, schemas, spec.key, lambda t: keys_of(lake.table(t)))


def _expected_of(
    lake: LakeBase, spec: ComputedSpec | JobSpec, table: Table, scope: contextlib.ExitStack
) -> tuple[DataFrame, dict[TableId, int | None]]:
    if isinstance(spec, JobSpec):
        return _rows_of_full(lake, spec, table, scope)
    if not isinstance(spec, FinalSpec):
        return expected_rows(lake, spec, table, scope)
    mark = read_marks(table).get(str(spec.staging))
    pinned = {spec.staging: _pinned(lake, spec.table, spec.staging, mark)}
    _, rows = all_rows(lake, spec, table, scope)
    types = columns_of(lake, spec.table)
    # Staging keeps the stream's types; a final table's types may be wider.
    return rows.select(*(F.col(quote(c)).cast(types.get(c, kind)).alias(c) for c, kind in rows.dtypes)), pinned


def expected_rows(
    lake: LakeBase, spec: ModelSpec | PythonModelSpec, table: Table, scope: contextlib.ExitStack
) -> tuple[DataFrame, dict[TableId, int | None]]:
    """Return a model's rows over the snapshots that its table has absorbed, and these snapshots by source and lookup.

    Args:
        scope: the rows can be read until it is closed.

    Raises:
        NotRunError, DefinitionChangedError, SnapshotExpiredError, TableReplacedError, ModelError: see `verify`.
    """
    is_python = isinstance(spec, PythonModelSpec)
    if not is_python:
        spec.check()
    if (stored := table.properties.get(FINGERPRINT_PROPERTY)) is None:
        raise NotRunError(f"{spec.table} was not created by a model: it has no query to compare with")
    if stored != spec.definition:
        if backfill := review_of(table):
            raise in_review(spec.table, backfill)
        raise DefinitionChangedError(
            step_of(spec).why_not_rebuilt(table)
            or f"the {'declaration' if is_python else 'query'} of {spec.table} was changed since the table was "
            f"computed: run `lake-assets rebuild {spec.table}`, then verify"
        )
    if is_python and spec.model.past and spec.model.full is None:
        advice = "" if spec.place is None else ". With `full`, a function that computes all of its rows, it can"
        raise ModelError(
            f"{spec.table} cannot be compared with computed rows: {spec.model.past}. If its inputs tell all of its "
            f"rows, declare `on_query_change: rebuild`{advice}"
        )
    marks = read_marks(table)
    pinned = {
        t: _pinned(lake, spec.table, t, marks.get(str(t))) for t in dict.fromkeys((*spec.sources, *lookups_of(spec)))
    }
    if is_python:
        return function_call.expected_rows(lake, spec, pinned, scope), pinned
    return _result(lake, spec, parse(str(spec.table), spec.sql), pinned, scope), pinned


def _rows_of_full(
    lake: LakeBase, spec: JobSpec, table: Table, scope: contextlib.ExitStack
) -> tuple[DataFrame, dict[TableId, int | None]]:
    """Return the rows of a job's `full`: over its inputs at the absorbed snapshots, and over other tables as they are.

    Raises:
        PipelineError: see `verify`.
    """
    if not spec.full:
        raise PipelineError(
            f"{spec.table} is written by a job, and only the job knows which rows it should have: to compare it, give "
            "the job a SELECT of all of them with the setting `full`"
        )
    query, reads = read_full(spec.table, spec.full)
    if not (marks := read_marks(table)):
        raise NotRunError(f"the job of {spec.table} has absorbed nothing yet: run pipeline {spec.pipeline!r} first")
    pinned = {
        t: _pinned(lake, spec.table, t, marks.get(str(t)))
        if t in spec.sources
        else lake.table(t).metadata.current_snapshot_id
        for t in reads
    }
    views = {t: scope.enter_context(temp_view(guarded_rows(_at(lake, t, s)))) for t, s in pinned.items()}
    try:
        rows = lake.spark().sql(text_over(query, spec.full, lambda t: views[t]))
        names = rows.columns
    except PySparkException as e:
        raise PipelineError(f"{full_at(spec.table)}: Spark does not accept it: {first_line(e)}") from e
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise PipelineError(f"{full_at(spec.table)}: several of its columns are called {', '.join(twice)}")
    return rows, pinned


def _pinned(lake: LakeBase, table: TableId, source: TableId, mark: Watermark | None) -> int | None:
    """Return the snapshot of a source that the table has absorbed, which must still exist."""
    if mark is None:
        raise NotRunError(f"{table} has absorbed nothing from {source} yet: run its pipeline first")
    loaded = lake.table(source)
    if str(loaded.metadata.table_uuid) != mark.uuid:
        raise TableReplacedError(
            f"{source} was dropped and created again, so the rows that {table} absorbed can no longer be read. "
            f"{rebuild_advice(table, source)}, then verify (uuid {mark.uuid} before, {loaded.metadata.table_uuid} "
            "now)"
        )
    if mark.snapshot is not None and loaded.snapshot_by_id(mark.snapshot) is None:
        raise SnapshotExpiredError(
            f"{table} cannot be compared, because the snapshot of {source} that it has absorbed has expired. "
            f"{rebuild_advice(table, source)}, then verify (snapshot {mark.snapshot})"
        )
    return mark.snapshot


def _at(lake: LakeBase, table: TableId, snapshot: int | None) -> DataFrame:
    spark, name = lake.spark(), lake.sql_name(table)
    if snapshot is None:  # the table was empty
        return spark.table(name).where(F.lit(False))
    return spark.read.option("versionAsOf", str(snapshot)).table(name)


def _result(
    lake: LakeBase,
    spec: ModelSpec,
    query: exp.Query,
    pinned: Mapping[TableId, int | None],
    scope: contextlib.ExitStack,
) -> DataFrame:
    """Return the query's result over its sources at their pinned snapshots."""
    rows_of = {t: guarded_rows(_at(lake, t, snapshot)) for t, snapshot in pinned.items()}
    views = {t: scope.enter_context(temp_view(rows)) for t, rows in rows_of.items()}
    # Keep the original text if sqlglot would render it with another meaning.
    named, unlike = qualified_query(str(spec.table), query, {t: dict(rows.dtypes) for t, rows in rows_of.items()})
    as_written = unlike or changed(spec.sql, query)
    if as_written or is_text(query):
        try:
            rows = _analysed(lake, spec, text_over(query, spec.sql, lambda t: views[t]))
        except ModelError:
            if as_written:
                raise
        else:
            return rows if as_written else as_named(rows, [s.alias_or_name for s in named.selects])
    return _analysed(lake, spec, qualify_as_where(_over(named, views)).sql(DIALECT))


def _analysed(lake: LakeBase, spec: ModelSpec, sql: str) -> DataFrame:
    try:
        rows = lake.spark().sql(sql)
        rows.schema  # noqa: B018 (analysed here, so errors name the model)
    except PySparkException as e:
        raise ModelError(
            f"model {spec.table}: Spark does not accept its SQL over the snapshots that the table has absorbed: "
            f"{first_line(e)}"
        ) from e
    return rows


def _over(query: exp.Query, views: Mapping[TableId, str]) -> exp.Query:
    """Replace each table in the query by a view; independent of the code that maintains the table."""
    query = query.copy()
    for table in [t for t in query.find_all(exp.Table) if t.db and not t.find_ancestor(exp.Hint)]:
        name, view = table.name, views[TableId((table.db,), table.name)]
        table.set("this", exp.to_identifier(view, quoted=True))
        table.set("db", None)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
    return query


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
            "rebuilds the table, then verify"
        )
