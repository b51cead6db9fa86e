"""Find all mistakes of a pipeline over a lake before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.table import Table

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import ModelError, PipelineError, TableClaimedError
from lake_assets.final.added_columns import OWN_COLUMNS
from lake_assets.final.column_selection import select
from lake_assets.final.declaration import declaration
from lake_assets.final.declared_order import columns_of_order
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.formats.event_model import TECHNICAL
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.staging.staging_columns import check_source
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.step_settings import STEP_OWNER
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.model_plan import annotated, check_outputs, output_columns, parse, plan
from lake_assets.models.sql.sql_errors import column_problems, located, model_error, quoted_columns
from lake_assets.pipeline.audit_checks import audit_problems
from lake_assets.pipeline.config.job_settings import full_at, read_full
from lake_assets.pipeline.named_columns import misnamed_columns
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.sensitive_checks import partitions_by_sensitive
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.audits.audit_evaluation import NO_KEY
from lake_assets.tables.audits.audit_kinds import Unique
from lake_assets.tables.pending_windows import GONE, is_gone
from lake_assets.tables.schema_changes import is_former
from lake_assets.tables.writing.table_ddl import check_owner_in, key_in


@dataclass(frozen=True)
class CheckResult:
    """Result of checking a pipeline.

    Attributes:
        mistakes: the mistakes found.
        open: checks that are not possible yet, with reasons.
        columns: by SQL model, the names of its columns, as far as metadata tell.
        warnings: what is probably not meant, each with file and line.
    """

    mistakes: tuple[str, ...]
    open: tuple[str, ...] = ()
    columns: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict[TableId, tuple[str, ...]])
    warnings: tuple[str, ...] = ()


def check(pipeline: Pipeline, lake: LakeBase) -> CheckResult:
    """Find every mistake of a pipeline's models, jobs and audits that metadata shows.

    These are missing and ambiguous columns, missing tables, and keys that are not columns; for models with file and
    line, if the pipeline was read from a file. Columns of tables that no run has created yet cannot be checked, except
    for models, whose queries define them.
    """
    checks = _Checks(pipeline, lake)
    problems = [line for mistake in checks.mistakes for line in str(mistake).splitlines()]
    problems += checks.of_owners()
    problems += checks.of_sources()
    problems += checks.of_models()
    problems += checks.of_jobs()
    problems += checks.of_finals()
    problems += checks.of_partitions()
    problems += checks.of_audits()
    problems += checks.of_shown()
    # Each model of a circle has the same one.
    columns = {table: tuple(types) for table, types in checks.outputs.items()}
    unknown = (*checks.unknown_sources, *checks.unknown_tables())
    return CheckResult(tuple(dict.fromkeys(problems)), unknown, columns, tuple(checks.warnings))


class _Checks:
    """The checks of a pipeline over a lake; `of_models` comes first, since it finds the columns of the models.

    Attributes:
        outputs: by model, the types of its columns, each empty if unknown.
        unknown_sources: models that cannot be checked yet, with reasons.
        warnings: texts in the SQL of models that were probably meant as columns.
    """

    def __init__(self, pipeline: Pipeline, lake: LakeBase) -> None:
        declared = pipeline.declared.read(lake)
        self.lake, self.specs, self.mistakes = lake, declared.specs, declared.mistakes
        self._declared, self._places = pipeline.declared, declared.places
        self._types = {s.table: s.types for s in self.specs if isinstance(s, StagingSpec)}
        self.outputs: dict[TableId, dict[str, str]] = {}
        self._model_keys: dict[TableId, tuple[str, ...]] = {}
        self.unknown_sources: list[str] = []
        self.warnings: list[str] = []

    def _at(self, table: TableId, setting: str) -> str:
        """Return `FILE, line N: ` of a setting of a table."""
        return self._declared.at(*self._places[table], setting)

    def _existing(self, table: TableId) -> dict[str, str] | None:
        """Return the columns of a table with their types; None if it does not exist."""
        loaded = self.lake.find(table)
        return _columns(loaded) if loaded else None

    def of_sources(self) -> list[str]:
        """Return names that belong to other source tables, and missing columns of tables that hold records."""
        problems: list[str] = []
        for spec in self.specs:
            if isinstance(spec, StagingSpec):
                table = self.lake.find(spec.table)
                try:
                    check_source(spec, table)
                except TableClaimedError as e:
                    problems.append(str(e))
                problems += _missing_time(spec, table)
            elif isinstance(spec, RawSpec) and spec.source:
                columns = self._existing(spec.source)
                if columns is not None and (missing := spec.missing_columns_text(columns)):
                    problems.append(f"{self._at(spec.table, 'source')}{spec.table}: {missing}")
        return problems

    def of_models(self) -> list[str]:
        """Return mistakes in the SQL of models."""
        problems: list[str] = []
        for spec in self.specs:
            if not isinstance(spec, ModelSpec):
                continue
            if spec.refused:
                problems += spec.refused.splitlines()
                continue
            known = {s: self._model_columns(s) or self._existing(s) for s in spec.sources}
            schemas = {s: columns for s, columns in known.items() if columns}
            if quoted := quoted_columns(spec.sql, schemas):
                self.warnings += str(located(model_error(str(spec.table), quoted), spec.origin)).splitlines()
            if missing := [str(t) for t in spec.sources if t not in schemas]:
                self.unknown_sources.append(f"columns of {spec.table}: {_missing(missing)}")
            try:
                types, key = _output_types(spec, schemas)
                if types:
                    self.outputs[spec.table] = types
                if key is not None:
                    self._model_keys[spec.table] = key
            except ModelError as e:
                problems += str(located(e, spec.origin)).splitlines()
        return problems

    def _model_columns(self, table: TableId) -> dict[str, str]:
        """Return the columns of a model, all with one type; none if they are unknown."""
        return dict.fromkeys(self.outputs.get(table, ()), "string")

    def unknown_tables(self) -> list[str]:
        """Return settings that name columns of tables that no run has created."""
        settings: list[str] = []
        for spec in self.specs:
            if spec.table in self.outputs or self.lake.exists(spec.table):
                continue
            if isinstance(spec, FinalSpec) and self.lake.exists(spec.staging):
                continue
            if named := spec.names_columns_in:
                settings.append(f"{', '.join(named)} of {spec.table}: {_missing([str(spec.table)])}")
        return settings

    def of_owners(self) -> list[str]:
        """Return the tables of the lake that are declared here and belong to another pipeline."""
        problems: list[str] = []
        for spec in self.specs:
            mine = (None, spec.pipeline, STEP_OWNER if isinstance(spec, JobSpec) else None)
            if (existing := self.lake.find(spec.table)) and existing.properties.get(PIPELINE_PROPERTY) not in mine:
                try:
                    check_owner_in(existing, spec.table, spec.pipeline)
                except TableClaimedError as e:
                    problems.append(str(e))
        return problems

    def of_jobs(self) -> list[str]:
        """Return missing tables and columns in the `full` of jobs; the columns only if all of its tables are known."""
        declared, problems = {s.table for s in self.specs}, list[str]()
        for spec in self.specs:
            if not isinstance(spec, JobSpec) or not spec.full:
                continue
            query, reads = read_full(spec.table, spec.full)
            existing = {t: self._existing(t) for t in reads}
            missing = [t for t in reads if existing[t] is None and t not in declared]
            problems += self._missing_tables(spec, full_at(spec.table), missing)
            known = {t: columns for t in reads if (columns := self._model_columns(t) or existing[t])}
            if len(known) == len(reads):
                problems += [f"{full_at(spec.table, line)}: {text}" for line, text in column_problems(query, known)]
        return problems

    def _missing_tables(self, spec: Spec, at: str, tables: Sequence[TableId]) -> list[str]:
        """Return the tables that a setting reads, unless the pipeline may declare them."""
        missing = [t for t in tables if not self._declared.may_declare(t)]
        target = self.lake.find(spec.table) if missing else None
        return [
            f"{at} reads {t}, which {GONE if is_gone(target, t) else 'neither exists in the lake nor is declared'}"
            for t in missing
        ]

    def of_finals(self) -> list[str]:
        """Return columns in settings of final tables that neither staging nor the table has."""
        problems: list[str] = []
        for spec in self.specs:
            staging = self.lake.find(spec.staging) if isinstance(spec, FinalSpec) else None
            if not isinstance(spec, FinalSpec) or staging is None:
                continue
            names = [*_names_of(spec, staging), *self._types.get(spec.staging, ())]
            spec, staged = spec.spelled_as(names), set(names)
            try:
                table = {*(self._columns_of(spec) or ()), *staged}
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
                        f"{self._at(spec.table, setting)}{spec.table}: `{setting}` names {', '.join(missing)}"
                        f"{suggestion}, and the columns are {listed}"
                    )
        return problems

    def of_partitions(self) -> list[str]:
        """Return `partitions` that do not match the columns of their tables, as far as these are known."""
        problems: list[str] = []
        for spec in self.specs:
            if spec.partitions is None:
                continue
            try:
                columns = self.outputs.get(spec.table) or self._future_types(spec)
            except PipelineError:  # reported with the audits
                continue
            partitions = spec.partitions.spelled_as(columns) if columns else spec.partitions
            by = partitions.by
            try:
                # A type that is not known yet is checked by the first step.
                if columns and (by not in columns or columns[by]):
                    partitions.check(spec.table, columns)
            except PipelineError as e:
                problems.append(f"{self._at(spec.table, 'partitions')}{e}")
        return problems

    def _future_types(self, spec: Spec) -> Mapping[str, str] | None:
        """Return the types that a table's columns will have, each empty if unknown; None if the columns are unknown.

        Raises:
            PipelineError: the declared columns do not match staging's.
        """
        columns = self._columns_of(spec)
        if not isinstance(spec, FinalSpec):
            return {c: kind.lower() for c, kind in columns.items()} if columns else None
        staged, types = self._existing(spec.staging), dict(self._types.get(spec.staging, {}))
        if staged is not None:
            types = {spec.rename.get(n, n): kind.lower() for n, kind in staged.items()} | types
        if columns is None:
            # Before the first event, only the declared types are known.
            return types if not spec.columns and spec.partitions and spec.partitions.by in types else None
        own = _own_columns(spec)
        items = select(str(spec.table), spec.columns, [c for c in types if c not in TECHNICAL])
        plain = {i.name: types[i.sources[0]] for i in items.values() if i.is_plain}
        return {c: own.get(c) or plain.get(c, "") for c in columns}

    def of_audits(self) -> list[str]:
        """Return mistakes in audits: missing columns and missing other tables."""
        columns: dict[TableId, Mapping[str, str] | None] = {}
        problems: list[str] = []
        for spec in self.specs:
            try:
                columns[spec.table] = self._model_columns(spec.table) or self._columns_of(spec)
            except PipelineError as e:  # of `columns`
                columns[spec.table] = None
                problems.append(f"{self._at(spec.table, 'columns')}{e}")
        others = {t for s in self.specs for a in s.audits for t in a.reads if t not in columns}
        columns |= {t: self._existing(t) for t in others}
        for spec in self.specs:
            for audit in spec.audits:
                at = f"{self._at(spec.table, 'audits')}{spec.table}: audit {audit.name}"
                problems += self._missing_tables(
                    spec, at, [t for t in audit.reads if t in others and columns[t] is None]
                )
                problems += audit_problems(audit, at, columns[spec.table], columns)
                if isinstance(audit, Unique) and not audit.of and self._key_of(spec) == ():
                    problems.append(f"{at}: {NO_KEY}")
        return problems

    def _key_of(self, spec: Spec) -> tuple[str, ...] | None:
        """Return the columns that identify a row of a table, none if it has no key; None: unknown before a run."""
        match spec:
            case ModelSpec():
                return self._model_keys.get(spec.table)
            case PythonModelSpec():
                return spec.model.key
            case FinalSpec() if spec.mode == "append":
                return ()
            case FinalSpec() if spec.by_row or spec.key or spec.keys:
                return spec.key or (ROW, COPY)
            case FinalSpec():
                staging = self.lake.find(spec.staging)
                return tuple(declaration(spec, staging)["key"]) if staging is not None else None
            case _:
                table = self.lake.find(spec.table)
                return key_in(table) if table is not None else None

    def of_shown(self) -> list[str]:
        """Return mistakes in `sensitive`, `not_sensitive` and `column_descriptions`."""
        known = {s.table: self._known_columns(s) for s in self.specs}
        return [
            *misnamed_columns(self.lake, self._declared, self.specs, self._places, known),
            *partitions_by_sensitive(self.lake, self._declared, self.specs, self._places),
        ]

    def _known_columns(self, spec: Spec) -> Mapping[str, str] | None:
        """Return the columns that a table has, or will have; None: unknown."""
        try:
            return self._model_columns(spec.table) or self._columns_of(spec)
        except PipelineError:  # reported with the audits
            return None

    def _columns_of(self, spec: Spec) -> Mapping[str, str] | None:
        """Return the future columns of a final table, if staging is known; for other tables, their current columns.

        None if unknown.

        Raises:
            PipelineError: the declared columns do not match staging's.
        """
        staging = self.lake.find(spec.staging) if isinstance(spec, FinalSpec) else None
        if not isinstance(spec, FinalSpec) or staging is None:
            return self._existing(spec.table)
        row = [ROW, COPY] if spec.by_row else []
        names = select(str(spec.table), spec.columns, list(_names_of(spec, staging)))
        return dict.fromkeys([*names, *row, *_own_columns(spec)], "string")


def _output_types(
    spec: ModelSpec, schemas: Mapping[TableId, Mapping[str, str]]
) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the types of a model's columns, each empty if unknown, without any if the columns are unknown; and its
    key, None if that is unknown.

    Args:
        schemas: the columns of its sources, as far as they are known.

    Raises:
        ModelError: its SQL does not match them.
    """
    time = spec.span.column if spec.span else ""
    if schemas.keys() >= set(spec.sources):
        planned = plan(str(spec.table), spec.sql, schemas, spec.key, time=time)
        return {s.alias_or_name: annotated(s.unalias()) for s in planned.query.selects}, planned.key
    if wrong := column_problems(parse(str(spec.table), spec.sql), schemas):
        raise model_error(str(spec.table), wrong)
    outputs = output_columns(str(spec.table), spec.sql)
    check_outputs(str(spec.table), outputs, spec.key, time)
    return dict.fromkeys(outputs or (), ""), spec.key or None


def _missing_time(spec: StagingSpec, staging: Table | None) -> list[str]:
    """Return the mistake that no declared `time` of a change set is a column."""
    if not staging or not spec.layout or not spec.layout.time:
        return []
    columns = [f.name for f in staging.schema().fields if f.name not in TECHNICAL]
    times = [spec.rename.get(t, t) for t in spec.layout.time]
    if any(spelled(t, columns) in columns for t in times):
        return []
    return [
        f"{spec.table}: `time` names {', '.join(times)}{nearest(times[0], columns)}, and the columns are "
        f"{', '.join(columns)}"
    ]


def _missing(tables: Sequence[str]) -> str:
    return f"{', '.join(tables)} {'does' if len(tables) == 1 else 'do'} not exist before the first run"


def _own_columns(spec: FinalSpec) -> Mapping[str, str]:
    return OWN_COLUMNS.get("scd2" if spec.mode == "scd2" else spec.deletes, {})


def _names_of(spec: FinalSpec, staging: Table) -> dict[str, None]:
    """Return the columns in staging, by their names in the lake."""
    stored = [f.name for f in staging.schema().fields]
    names = [n for n in stored if n not in TECHNICAL and not is_former(n, stored)]
    return dict.fromkeys(spec.rename.get(n, n) for n in names)


def _columns(table: Table) -> dict[str, str]:
    return {f.name: spark_type(f.field_type) for f in table.schema().fields}
