"""The rows that a table should hold: recomputed from the snapshots of its sources that it has absorbed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

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
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.float_columns import guarded_rows
from lake_assets.lake.foreign_errors import first_line
from lake_assets.lake.metadata.watermark import Watermark, read_marks
from lake_assets.lake.sql_text import DIALECT, changed
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python import function_call
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.model_plan import ModelPlan, parse, plan, qualified_query
from lake_assets.models.sql.query_text import as_named, text_over
from lake_assets.models.sql.sql_rewrite import is_text, qualify_as_where
from lake_assets.models.steps.planned_models import keys_of
from lake_assets.pipeline.config.job_settings import full_at, read_full
from lake_assets.pipeline.table_graph import ComputedSpec, lookups_of
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.pending_windows import rebuild_advice
from lake_assets.tables.spark_frames import temp_view
from lake_assets.tables.table_step import in_review, review_of
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY


def planned_at(lake: LakeBase, spec: ModelSpec, pinned: Mapping[TableId, int | None]) -> ModelPlan:
    """Return the plan of a model for its sources at some snapshots."""
    schemas = {t: dict(lake.rows_at(t, snapshot).dtypes) for t, snapshot in pinned.items()}
    return plan(str(spec.table), spec.sql, schemas, spec.key, lambda t: keys_of(lake.table(t)))


def rows_to_compare(
    lake: LakeBase, spec: ComputedSpec | JobSpec, table: Table, scope: contextlib.ExitStack
) -> tuple[DataFrame, dict[TableId, int | None]]:
    """Return the rows that a table should hold, and the snapshots of its sources that they are computed from.

    Args:
        scope: the rows can be read until it is closed.

    Raises:
        LakeError: see `verify`.
    """
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
            f"computed: run `lake-assets rebuild {spec.table}`; verify it afterwards"
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
    views = {t: scope.enter_context(temp_view(guarded_rows(lake.rows_at(t, s)))) for t, s in pinned.items()}
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
            f"{rebuild_advice(table, source)}. Verify it afterwards (uuid {mark.uuid} before, "
            f"{loaded.metadata.table_uuid} now)"
        )
    if mark.snapshot is not None and loaded.snapshot_by_id(mark.snapshot) is None:
        raise SnapshotExpiredError(
            f"{table} cannot be compared, because the snapshot of {source} that it has absorbed has expired. "
            f"{rebuild_advice(table, source)}. Verify it afterwards (snapshot {mark.snapshot})"
        )
    return mark.snapshot


def _result(
    lake: LakeBase,
    spec: ModelSpec,
    query: exp.Query,
    pinned: Mapping[TableId, int | None],
    scope: contextlib.ExitStack,
) -> DataFrame:
    """Return the query's result over its sources at their pinned snapshots."""
    rows_of = {t: guarded_rows(lake.rows_at(t, snapshot)) for t, snapshot in pinned.items()}
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
