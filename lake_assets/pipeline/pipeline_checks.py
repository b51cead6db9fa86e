"""Find all mistakes of a pipeline over a lake before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.table import Table

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import ModelError, PipelineError, TableClaimedError
from lake_assets.final.added_columns import OWN_COLUMNS
from lake_assets.final.column_selection import select
from lake_assets.final.declared_order import columns_of_order
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.formats.event_model import TECHNICAL
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.staging.staging_columns import check_source
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import annotated, check_outputs, output_columns, parse, plan
from lake_assets.models.sql.sql_errors import column_problems, located, model_error
from lake_assets.pipeline.config.audit_settings import AUDITED, parse_assertion
from lake_assets.pipeline.config.job_settings import full_at, read_full
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.audits.audit_kinds import PLACEHOLDER, Assertion, Relationship
from lake_assets.tables.pending_windows import GONE, is_gone
from lake_assets.tables.schema_changes import is_former

# Returns `FILE, line N: ` of a setting of a table.
At = Callable[[TableId, str], str]


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
    declared = pipeline.read(lake)
    specs = declared.specs
    problems = [line for mistake in declared.mistakes for line in str(mistake).splitlines()]

    def at(table: TableId, setting: str) -> str:
        """Return `FILE, line N: ` of a setting of a table."""
        return pipeline.at(*declared.places[table], setting)

    problems += _of_sources(specs, lake, at)
    models = _of_models(specs, lake)
    problems += models.problems
    problems += _of_jobs(specs, lake, models.outputs, pipeline.may_declare)
    problems += _of_finals(specs, lake, at)
    problems += _of_partitions(specs, lake, models.types, at)
    problems += _of_audits(specs, lake, models.outputs, pipeline.may_declare, at)
    # Each model of a circle has the same one.
    unknown = (*models.unknown, *_unknown_tables(specs, lake, models.outputs))
    return Checked(tuple(dict.fromkeys(problems)), unknown)


@dataclass(frozen=True)
class _Models:
    """What the SQL of a pipeline's models says.

    Attributes:
        outputs: by model, its columns; all of them with one type.
        types: by model, the types of its columns; empty if unknown.
        problems: mistakes in the SQL.
        unknown: models that cannot be checked yet, with reasons.
    """

    outputs: dict[TableId, dict[str, str]] = field(default_factory=dict[TableId, dict[str, str]])
    types: dict[TableId, dict[str, str]] = field(default_factory=dict[TableId, dict[str, str]])
    problems: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])


def _of_models(specs: Sequence[Spec], lake: LakeBase) -> _Models:
    found = _Models()
    for spec in specs:
        if not isinstance(spec, ModelSpec):
            continue
        if spec.refused:
            found.problems.extend(spec.refused.splitlines())
            continue
        schemas: dict[TableId, dict[str, str]] = {}
        for source in spec.sources:
            table = lake.find(source)
            if columns := found.outputs.get(source) or (_columns(table) if table else None):
                schemas[source] = columns
        if missing := [str(t) for t in spec.sources if t not in schemas]:
            found.unknown.append(f"columns of {spec.table}: {_missing(missing)}")
        try:
            types = _output_types(spec, schemas)
        except ModelError as e:
            found.problems.extend(str(located(e, spec.origin)).splitlines())
        else:
            if types:
                found.types[spec.table] = types
                found.outputs[spec.table] = dict.fromkeys(types, "string")
    return found


def _output_types(spec: ModelSpec, schemas: Mapping[TableId, Mapping[str, str]]) -> dict[str, str]:
    """Return the types of a model's columns, each empty if unknown; without any if the columns are unknown.

    Args:
        spec: the model.
        schemas: the columns of its sources, as far as they are known.

    Raises:
        ModelError: its SQL does not match them.
    """
    time = spec.span.column if spec.span else ""
    if schemas.keys() >= set(spec.sources):
        query = plan(str(spec.table), spec.sql, schemas, spec.key, time=time).query
        return {s.alias_or_name: annotated(s.unalias()) for s in query.selects}
    if wrong := column_problems(parse(str(spec.table), spec.sql), schemas):
        raise model_error(str(spec.table), wrong)
    outputs = output_columns(str(spec.table), spec.sql)
    check_outputs(str(spec.table), outputs, spec.key, time)
    return dict.fromkeys(outputs or (), "")


def _of_sources(specs: Sequence[Spec], lake: LakeBase, at: At) -> list[str]:
    """Return names that belong to other source tables, and missing columns of tables that hold records."""
    problems: list[str] = []
    for spec in specs:
        if isinstance(spec, StagingSpec):
            problems += [*_refusal(lake, spec), *_missing_time(lake, spec)]
        elif isinstance(spec, RawSpec) and spec.source:
            source = lake.find(spec.source)
            if source is not None and (missing := spec.missing_columns(_columns(source))):
                problems.append(f"{at(spec.table, 'source')}{spec.table}: {missing}")
    return problems


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
    if any(spelled(t, columns) in columns for t in times):
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
    specs: Sequence[Spec],
    lake: LakeBase,
    outputs_of: Mapping[TableId, Mapping[str, str]],
    may_declare: Callable[[TableId], bool],
) -> list[str]:
    """Return missing tables and columns in the `full` of jobs; the columns only if all of its tables are known."""
    declared, problems = {s.table for s in specs}, list[str]()
    for spec in specs:
        if not isinstance(spec, JobSpec) or not spec.full:
            continue
        query, reads = read_full(spec.table, spec.full)
        tables = {t: lake.find(t) for t in reads}
        if missing := [t for t, table in tables.items() if not table and not may_declare(t) and t not in declared]:
            problems += _missing_tables(lake, spec, full_at(spec.table), missing)
        schemas = {t: outputs_of.get(t) or (_columns(table) if table else None) for t, table in tables.items()}
        known = {t: columns for t, columns in schemas.items() if columns}
        if len(known) == len(reads):
            problems += [f"{full_at(spec.table, line)}: {text}" for line, text in column_problems(query, known)]
    return problems


def _missing_tables(lake: LakeBase, spec: Spec, at: str, missing: Sequence[TableId]) -> list[str]:
    target = lake.find(spec.table)
    return [
        f"{at} reads {t}, which {GONE if is_gone(target, t) else 'neither exists in the lake nor is declared'}"
        for t in missing
    ]


def _of_finals(specs: Sequence[Spec], lake: LakeBase, at: At) -> list[str]:
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
            ("order_by", columns_of_order(spec.order_by), staged),
            ("track", spec.track or (), table - OWN_COLUMNS["scd2"].keys()),
            ("partition_by", [p.column for p in partitions], table),
            ("sort_by", spec.sort_by, table),
        ):
            if missing := [c for c in columns if c not in existing]:
                suggestion, listed = nearest(missing[0], existing), ", ".join(sorted(existing))
                problems.append(
                    f"{at(spec.table, setting)}{spec.table}: `{setting}` names {', '.join(missing)}{suggestion}, and "
                    f"the columns are {listed}"
                )
    return problems


def _of_partitions(
    specs: Sequence[Spec], lake: LakeBase, types_of: Mapping[TableId, Mapping[str, str]], at: At
) -> list[str]:
    """Return `partitions` that do not match the columns of their tables, as far as these are known."""
    declared = {s.table: s.types for s in specs if isinstance(s, StagingSpec)}
    problems: list[str] = []
    for spec in specs:
        if spec.partitions is None:
            continue
        try:
            columns = types_of.get(spec.table) or _future_types(lake, spec, declared)
        except PipelineError:  # reported with the audits
            continue
        partitions = spec.partitions.spelled_as(columns) if columns else spec.partitions
        by = partitions.by
        try:
            # A type that is not known yet is checked by the first step.
            if columns and (by not in columns or columns[by]):
                partitions.check(spec.table, columns)
        except PipelineError as e:
            problems.append(f"{at(spec.table, 'partitions')}{e}")
    return problems


def _future_types(
    lake: LakeBase, spec: Spec, declared: Mapping[TableId, Mapping[str, str]]
) -> Mapping[str, str] | None:
    """Return the types that a table's columns will have, each empty if unknown; None if the columns are unknown.

    Raises:
        PipelineError: the declared columns do not match staging's.
    """
    columns = _columns_of(lake, spec)
    if not isinstance(spec, FinalSpec):
        return {c: kind.lower() for c, kind in columns.items()} if columns else None
    staging, types = lake.find(spec.staging), dict(declared.get(spec.staging, {}))
    if staging is not None:
        stored = {spec.rename.get(n, n): kind.lower() for n, kind in _columns(staging).items()}
        types = {**stored, **types}
    if columns is None:
        # Before the first event, only the declared types are known.
        return types if not spec.columns and spec.partitions and spec.partitions.by in types else None
    own = OWN_COLUMNS.get("scd2" if spec.mode == "scd2" else spec.deletes, {})
    items = select(str(spec.table), spec.columns, [c for c in types if c not in TECHNICAL])
    plain = {i.name: types[i.sources[0]] for i in items.values() if i.is_plain}
    return {c: own.get(c) or plain.get(c, "") for c in columns}


def _of_audits(
    specs: Sequence[Spec],
    lake: LakeBase,
    outputs_of: Mapping[TableId, Mapping[str, str]],
    may_declare: Callable[[TableId], bool],
    place: At,
) -> list[str]:
    """Return mistakes in audits: missing columns and missing other tables."""
    columns_by_table: dict[TableId, Mapping[str, str] | None] = {}
    problems: list[str] = []
    for spec in specs:
        try:
            columns_by_table[spec.table] = outputs_of.get(spec.table) or _columns_of(lake, spec)
        except PipelineError as e:  # of `columns`
            columns_by_table[spec.table] = None
            problems.append(f"{place(spec.table, 'columns')}{e}")

    def columns(table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if still unknown."""
        if table not in columns_by_table:
            other_columns = lake.find(table)
            columns_by_table[table] = _columns(other_columns) if other_columns else None
        return columns_by_table[table]

    for spec in specs:
        own = columns(spec.table)
        for audit in spec.audits:
            at = f"{place(spec.table, 'audits')}{spec.table}: audit {audit.name}"
            if missing_tables := [
                t for t in audit.reads if not may_declare(t) and t not in columns_by_table and not lake.exists(t)
            ]:
                problems += _missing_tables(lake, spec, at, missing_tables)
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
