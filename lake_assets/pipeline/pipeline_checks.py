"""Find all mistakes of a pipeline over a lake before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import ModelError, PipelineError, TableClaimedError
from lake_assets.final.added_columns import OWN_COLUMNS
from lake_assets.final.column_selection import select
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.formats.event_model import TECHNICAL
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.staging.staging_columns import check_source
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import check_outputs, output_columns, plan
from lake_assets.models.sql.sql_errors import column_problems, located
from lake_assets.pipeline.config.audit_settings import AUDITED, parse_assertion
from lake_assets.pipeline.config.job_settings import full_at, read_full
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.audits.audit_kinds import PLACEHOLDER, Assertion, Relationship
from lake_assets.tables.schema_changes import is_former


@dataclass(frozen=True)
class Checked:
    """Result of checking a pipeline.

    Attributes:
        mistakes: the mistakes found.
        open: checks that are not possible yet, with reasons.
    """

    mistakes: tuple[str, ...]
    open: tuple[str, ...] = ()


def mistakes(pipeline: Pipeline, lake: LakeBase) -> list[str]:
    """See `check`."""
    return list(check(pipeline, lake).mistakes)


def check(pipeline: Pipeline, lake: LakeBase) -> Checked:
    """Find every mistake of a pipeline's models, jobs and audits that metadata shows.

    These are missing and ambiguous columns, missing tables, and keys that are not columns; for models with file and
    line, if the pipeline was read from a file. Columns of tables that no run has created yet cannot be checked, except
    for models, whose queries define them.
    """
    try:
        specs = pipeline.specs(lake)
    except PipelineError as e:
        return Checked(tuple(str(e).splitlines()))
    outputs_of: dict[TableId, dict[str, str]] = {}
    problems: list[str] = []
    unknown: list[str] = []
    for spec in specs:
        if isinstance(spec, StagingSpec):
            problems += [*_refusal(lake, spec), *_missing_time(lake, spec)]
        if not isinstance(spec, ModelSpec):
            continue
        if spec.refused:
            problems += spec.refused.splitlines()
            continue
        schemas: dict[TableId, dict[str, str]] = {}
        for source in spec.sources:
            table = lake.find(source)
            columns = outputs_of.get(source) or (_columns(table) if table else None)
            if columns:
                schemas[source] = columns
        time = spec.span.column if spec.span else ""
        try:
            if missing := [str(t) for t in spec.sources if t not in schemas]:
                unknown.append(f"columns of {spec.table}: {_missing(missing)}")
                outputs = output_columns(str(spec.table), spec.sql)
                check_outputs(str(spec.table), outputs, spec.key, time)
            else:
                query = plan(str(spec.table), spec.sql, schemas, spec.key, time=time).query
                outputs = [s.alias_or_name for s in query.selects]
        except ModelError as e:
            problems += str(located(e, spec.origin)).splitlines()
        else:
            if outputs:
                outputs_of[spec.table] = dict.fromkeys(outputs, "string")
    problems += _of_jobs(specs, lake, outputs_of, open_ended=pipeline.has_patterns)
    problems += _of_finals(specs, lake)
    problems += _of_partitions(specs, lake, outputs_of)
    problems += _of_audits(specs, lake, outputs_of, open_ended=pipeline.has_patterns)
    # Each model of a circle has the same one.
    return Checked(tuple(dict.fromkeys(problems)), (*unknown, *_unknown_tables(specs, lake, outputs_of)))


def _refusal(lake: LakeBase, spec: StagingSpec) -> list[str]:
    try:
        check_source(spec, lake.find(spec.table))
    except TableClaimedError as e:
        return [str(e)]
    return []


def _missing_time(lake: LakeBase, spec: StagingSpec) -> list[str]:
    """Return the mistake that no declared `time` of a change set is a column."""
    staging = lake.find(spec.table) if spec.layout and spec.layout.time else None
    if not staging or not spec.layout:
        return []
    columns = [f.name for f in staging.schema().fields if f.name not in TECHNICAL]
    times = [spec.rename.get(t, t) for t in spec.layout.time]
    if {t.lower() for t in times} & {c.lower() for c in columns}:
        return []
    return [
        f"{spec.table}: `time` names {', '.join(times)}{nearest(times[0], columns)}, and the columns are "
        f"{', '.join(columns)}"
    ]


def _unknown_tables(
    specs: Sequence[Spec], lake: LakeBase, outputs_of: Mapping[TableId, Mapping[str, str]]
) -> list[str]:
    """Return settings that name columns of tables that no run has created."""
    settings: list[str] = []
    for spec in specs:
        if spec.table in outputs_of or lake.exists(spec.table):
            continue
        if isinstance(spec, FinalSpec) and lake.exists(spec.staging):
            continue
        if named := spec.names_columns_in:
            settings.append(f"{', '.join(named)} of {spec.table}: {_missing([str(spec.table)])}")
    return settings


def _missing(tables: Sequence[str]) -> str:
    return f"{', '.join(tables)} {'does' if len(tables) == 1 else 'do'} not exist before the first run"


def _of_jobs(
    specs: Sequence[Spec], lake: LakeBase, outputs_of: Mapping[TableId, Mapping[str, str]], *, open_ended: bool
) -> list[str]:
    """Return missing tables and columns in the `full` of jobs; the columns only if all of its tables are known."""
    declared, problems = {s.table for s in specs}, list[str]()
    for spec in specs:
        if not isinstance(spec, JobSpec) or not spec.full:
            continue
        query, reads = read_full(spec.table, spec.full)
        tables = {t: lake.find(t) for t in reads}
        if missing := [str(t) for t, table in tables.items() if not table and not open_ended and t not in declared]:
            problems.append(
                f"{full_at(spec.table)} reads {', '.join(missing)}, which neither exists in the lake nor is declared"
            )
        schemas = {t: outputs_of.get(t) or (_columns(table) if table else None) for t, table in tables.items()}
        known = {t: columns for t, columns in schemas.items() if columns}
        if len(known) == len(reads):
            problems += [f"{full_at(spec.table, line)}: {text}" for line, text in column_problems(query, known)]
    return problems


def _of_finals(specs: Sequence[Spec], lake: LakeBase) -> list[str]:
    """Return columns in settings of final tables that neither staging nor the table has."""
    declared = {s.table: s.types for s in specs if isinstance(s, StagingSpec)}
    problems: list[str] = []
    for spec in specs:
        staging = lake.find(spec.staging) if isinstance(spec, FinalSpec) else None
        if not isinstance(spec, FinalSpec) or staging is None:
            continue
        names = [*_names_of(spec, staging), *declared.get(spec.staging, ())]
        spec, staged = spec.spelled_as(names), set(names)
        try:
            table = {*(_columns_of(lake, spec) or ()), *staged}
        except PipelineError:  # reported with the audits
            continue
        partitions = () if spec.partitions else spec.partition_by
        for setting, columns, existing in (
            ("key", spec.key, staged),
            ("order_by", spec.order_by, staged),
            ("track", spec.track or (), table),
            ("partition_by", [p.column for p in partitions], table),
            ("sort_by", spec.sort_by, table),
        ):
            if missing := [c for c in columns if c not in existing]:
                suggestion, listed = nearest(missing[0], existing), ", ".join(sorted(existing))
                problems.append(
                    f"{spec.table}: `{setting}` names {', '.join(missing)}{suggestion}, and the columns are {listed}"
                )
    return problems


def _of_partitions(specs: Sequence[Spec], lake: LakeBase, outputs_of: Mapping[TableId, Mapping[str, str]]) -> list[str]:
    """Return missing columns of `partitions`; their types are checked only by the steps."""
    problems: list[str] = []
    for spec in specs:
        if spec.partitions is None:
            continue
        try:
            columns = outputs_of.get(spec.table) or _columns_of(lake, spec)
        except PipelineError:  # reported with the audits
            continue
        if columns and spec.partitions.spelled_as(columns).by not in columns:
            problems.append(
                f"{spec.table}: `partitions` names {spec.partitions.by}, and the table has {', '.join(columns)}"
            )
    return problems


def _of_audits(
    specs: Sequence[Spec], lake: LakeBase, outputs_of: Mapping[TableId, Mapping[str, str]], *, open_ended: bool
) -> list[str]:
    """Return mistakes in audits: missing columns and missing other tables."""
    columns_by_table: dict[TableId, Mapping[str, str] | None] = {}
    problems: list[str] = []
    for spec in specs:
        try:
            columns_by_table[spec.table] = outputs_of.get(spec.table) or _columns_of(lake, spec)
        except PipelineError as e:  # of `columns`
            columns_by_table[spec.table] = None
            problems.append(str(e))

    def columns(table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if still unknown."""
        if table not in columns_by_table:
            other_columns = lake.find(table)
            columns_by_table[table] = _columns(other_columns) if other_columns else None
        return columns_by_table[table]

    for spec in specs:
        own = columns(spec.table)
        for audit in spec.audits:
            at = f"{spec.table}: audit {audit.name}"
            if missing_tables := [
                str(t) for t in audit.reads if not open_ended and t not in columns_by_table and not lake.exists(t)
            ]:
                problems.append(
                    f"{at} reads {', '.join(missing_tables)}, which neither exists in the lake nor is declared"
                )
            if own and (missing := [c for c in audit.spelled_as(own).columns if c not in own]):
                problems.append(f"{at} names {', '.join(missing)}, and the table has {', '.join(own)}")
            if (
                isinstance(audit, Relationship)
                and (other_columns := columns(audit.table))
                and audit.other not in other_columns
            ):
                problems.append(f"{at}: no column {audit.other}: {audit.table} has {', '.join(other_columns)}")
            if isinstance(audit, Assertion) and own:
                schemas = {t: other_columns for t in audit.tables if (other_columns := columns(t))} | {AUDITED: own}
                if len(schemas) > len(audit.tables):
                    sql_problems = column_problems(parse_assertion(audit.sql), schemas)
                    name = ".".join(AUDITED.parts)
                    numbered = ((n or 1, text.replace(name, PLACEHOLDER)) for n, text in sql_problems)
                    problems += [f"{at}, line {n} of its SQL: {text}" for n, text in numbered]
    return problems


def _columns_of(lake: LakeBase, spec: Spec) -> Mapping[str, str] | None:
    """Return the future columns of a final table, if staging is known; for other tables, their current columns.

    None if unknown.

    Raises:
        PipelineError: the declared columns do not match staging's.
    """
    staging = lake.find(spec.staging) if isinstance(spec, FinalSpec) else None
    if isinstance(spec, FinalSpec) and staging is not None:
        renamed = _names_of(spec, staging)
        own = OWN_COLUMNS.get("scd2" if spec.mode == "scd2" else spec.deletes, {})
        row = [ROW, COPY] if spec.by_row else []
        return dict.fromkeys([*select(str(spec.table), spec.columns, list(renamed)), *row, *own], "string")
    table = lake.find(spec.table)
    return _columns(table) if table else None


def _names_of(spec: FinalSpec, staging: Table) -> dict[str, None]:
    """Return the columns in staging, by their names in the lake."""
    stored = [f.name for f in staging.schema().fields]
    names = [n for n in stored if n not in TECHNICAL and not is_former(n, stored)]
    return dict.fromkeys(spec.rename.get(n, n) for n in names)


def _columns(table: Table) -> dict[str, str]:
    return {f.name: spark_type(f.field_type) for f in table.schema().fields}
