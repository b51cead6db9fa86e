"""Convert a pipeline's YAML to its tables: one spec per table."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lake_assets.errors import ModelError, PipelineError, TableClaimedError
from lake_assets.final.column_selection import read_columns
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats import SourceTable
from lake_assets.formats.debezium_control import is_signal_table
from lake_assets.formats.files.limited_files import Limits
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model import PythonModel
from lake_assets.models.sql.query_reading import read_query
from lake_assets.models.sql.sql_errors import located
from lake_assets.pipeline.config.asset_settings import combined_settings
from lake_assets.pipeline.config.audit_settings import read_audits, read_comparisons
from lake_assets.pipeline.config.declaration_mistakes import (
    collected,
    foreign_mistakes,
    once_each,
    with_existing_sources,
)
from lake_assets.pipeline.config.dump_settings import dump_rules
from lake_assets.pipeline.config.flag_settings import row_layout
from lake_assets.pipeline.config.job_settings import job_spec
from lake_assets.pipeline.config.live_specs_of_streams import live_spec
from lake_assets.pipeline.config.pipeline_config import PipelineConfig, SqlModel, Stream, seconds_of
from lake_assets.pipeline.config.python_models import python_spec
from lake_assets.pipeline.config.retention_settings import retention_mistakes
from lake_assets.pipeline.config.sensitive_settings import of_records, with_sensitive_tables
from lake_assets.pipeline.config.setting_lines import Place, SettingLines
from lake_assets.pipeline.config.shared_names import Claim, refused
from lake_assets.pipeline.config.sql_positions import ModelText, circles_of
from lake_assets.pipeline.config.stream_contents import StreamContents
from lake_assets.pipeline.config.stream_tables import StreamTable, batch_size
from lake_assets.pipeline.config.upkeep_places import upkeep_mistakes
from lake_assets.pipeline.table_graph import Spec, ordered
from lake_assets.tables.audits.audit_kinds import Audit
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.specs import Limit


@dataclass(frozen=True)
class Declarations:
    """The tables that a pipeline declares, and what is wrong with their declarations.

    Attributes:
        specs: the tables, upstream first, without those whose declaration cannot be used.
        mistakes: what is wrong, each with file and line if the pipeline was read from a file.
        places: by table, the place of its declaration in the settings.
    """

    specs: list[Spec]
    mistakes: list[PipelineError]
    places: Mapping[TableId, Place]


@dataclass(frozen=True)
class DeclaredTables:
    """The tables of a pipeline's configuration.

    Attributes:
        config: the configuration.
        texts: by SQL model, its SQL and the position of the SQL.
        python: its Python models.
        folder: the folder that files and programs of jobs are relative to.
        refused: by SQL model over changes, why its SQL cannot be used.
        lines: the lines of its settings; None: they were not read from a file.
        left_out: names, without layer, of the tables that were left out of `config` because of mistakes; None: some of
            them are unknown.
    """

    config: PipelineConfig
    texts: Mapping[str, ModelText]
    python: Sequence[PythonModel] = ()
    folder: Path = field(default_factory=Path)
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    lines: SettingLines | None = None
    left_out: frozenset[str] | None = frozenset()

    def at(self, *place: int | str) -> str:
        """Return `FILE, line N: ` of a setting; empty if the settings were not read from a file."""
        return self.lines.at(*place) if self.lines else ""

    def may_declare(self, table: TableId) -> bool:
        """Whether the pipeline may have a table that is not among its specs: of a pattern, or left out for mistakes."""
        return self.has_patterns or self.left_out is None or table.name in self.left_out

    @property
    def _queries(self) -> list[SqlModel]:
        """The SQL models whose query is maintained, and those over changes that cannot be read."""
        return [m for m in self.config.models if not m.write or m.name in self.refused]

    @property
    def has_patterns(self) -> bool:
        """Whether the tables depend on the contents of the streams."""
        return any(t.is_pattern for stream in self.config.streams for t in stream.tables)

    def specs(self, lake: LakeBase, *, alone: bool = True, contents: StreamContents | None = None) -> list[Spec]:
        """Return all tables, upstream first.

        A pattern matches the tables that the stream contained so far, so the list grows with the stream.

        A mistake in the SQL of a model concerns only its table: its spec says why it is refused, and has no sources if
        they are unknown.

        Args:
            lake: the lake of the tables.
            alone: whether models may only read tables that exist or belong to this pipeline; False if other pipelines
                may still create them.
            contents: the streams' source tables and their makers; default: as they are now.

        Raises:
            TableClaimedError: two declarations claim one table.
            PipelineError: Python models or jobs depend on each other in a circle, or read a table that nothing creates.
        """
        found = self.read(lake, alone=alone, contents=contents)
        if found.mistakes:
            is_claim = all(isinstance(m, TableClaimedError) for m in found.mistakes)
            raise (TableClaimedError if is_claim else PipelineError)("\n".join(map(str, found.mistakes)))
        return found.specs

    def read(self, lake: LakeBase, *, alone: bool = True, contents: StreamContents | None = None) -> Declarations:
        """Return all tables with all mistakes in their declarations; see `specs`."""
        mistakes: list[PipelineError] = []
        placed = [*self._of_streams(lake, contents or StreamContents(lake), mistakes)]
        placed += self._models(lake.config.name, {s.table for s, _ in placed}, mistakes)
        made = [*(s.table for s, _ in placed), *(m.table for m in self.python)]
        made += [TableId.parse(j.table) for j in self.config.jobs]
        for model in self.python:
            place = self._place_of(model)
            with collected(mistakes):
                spec = python_spec(lake, self.config.name, model, made, self.config, self.config)
                placed.append((spec, place))
        for i, job in enumerate(self.config.jobs):
            with collected(mistakes, self.at("jobs", i, "audits")):
                placed.append(
                    (job_spec(self.config.name, job, self.folder, made, self.config, self.config), ("jobs", i))
                )
        places = {spec.table: place for spec, place in reversed(placed)}
        specs = _with_readers(once_each(placed, self.config.name, self.lines, mistakes))
        mistakes += foreign_mistakes(specs, self.config.name, [t.table for t in self.config.external_tables])
        mistakes += retention_mistakes(self.config, specs, places, self.at)
        mistakes += upkeep_mistakes(self.config, places.values(), self.at)
        if alone:
            specs = with_existing_sources(lake, specs, set(made), self.may_declare, self.config.name, mistakes)
        with collected(mistakes):
            specs = ordered(specs, self.config.name)
        return Declarations(with_sensitive_tables(specs), mistakes, places)

    def _of_streams(
        self, lake: LakeBase, contents: StreamContents, mistakes: list[PipelineError]
    ) -> Iterator[tuple[Spec, Place]]:
        """Yield the tables of the streams, each with its place in the settings."""
        streams = [(i, stream, self.raw(lake, stream)) for i, stream in enumerate(self.config.streams)]
        yield from ((raw, ("streams", i)) for i, _, raw in streams)
        claims = [(i, stream, raw, c, d) for i, stream, raw in streams for c, d in self._claims(contents, stream, raw)]
        models = [*(TableId.parse(m.name) for m in self._queries), *(m.table for m in self.python)]
        models += [TableId.parse(j.table) for j in self.config.jobs]
        refusals = refused(contents, [claim for _, _, _, claim, _ in claims], models)
        for i, stream, raw, claim, declared in claims:
            place = ("streams", i, "tables", next(n for n, t in enumerate(stream.tables) if t is declared))
            staging = self._staging(stream, raw, claim, declared)
            if claim in refusals:
                yield replace(staging, table=claim.instead, refused=refusals[claim]), place
                continue
            yield staging, place
            if claim.final:
                with collected(mistakes, self.at(*place, "audits")):
                    audits = read_audits(claim.final, declared.audits)
                    yield self._final(stream, claim.final, staging, declared, audits, self.at(*place, "key")), place

    def _place_of(self, model: PythonModel) -> Place:
        """Return the place of a model over changes; of a Python model, that of the setting with its file."""
        names = [m.name for m in self.config.models]
        return ("models", names.index(str(model.table))) if str(model.table) in names else ("python",)

    def _claims(self, contents: StreamContents, stream: Stream, raw: RawSpec) -> Iterator[tuple[Claim, StreamTable]]:
        below = (stream.namespace,) if stream.namespace else ()
        for source, declared in self._tables(contents, stream, raw.table):
            name = declared.name or stream.prefix + source.name
            final = TableId(("final", *below), name) if declared.final else None
            yield Claim(source, raw.table, TableId(("staging", *below), name), final, declared.is_pattern), declared

    def _staging(self, stream: Stream, raw: RawSpec, claim: Claim, declared: StreamTable) -> StagingSpec:
        batch = batch_size(declared.max_wait, declared, stream, self.config)
        rename = {old: new for old, new in declared.rename.items() if old != new}
        return StagingSpec(
            claim.staging,
            raw.table,
            claim.source,
            stream.format,
            self.config.name,
            rename,
            not_renamed=frozenset(declared.rename.keys() - rename.keys()),
            types=declared.types,
            key=declared.keys[0] if len(declared.keys) == 1 else (),
            keys=declared.keys if len(declared.keys) > 1 else (),
            by_row=declared.by_row,
            start=declared.start_position,
            on_conflict=declared.on_conflict or stream.on_conflict,
            on_misfit=declared.on_misfit or stream.on_misfit,
            order_by=tuple(declared.order_by),
            max_rejected=raw.max_rejected,
            layout=raw.layout,
            placeholder=stream.unavailable_value,
            batch=replace(batch, wait=0.0),
            shown=combined_settings([declared, stream, self.config], own=not declared.final),
        )

    def _final(
        self,
        stream: Stream,
        table: TableId,
        staging: StagingSpec,
        declared: StreamTable,
        audits: tuple[Audit, ...],
        key_at: str,
    ) -> FinalSpec:
        by = declared.partitions.declared if declared.partitions else None
        return FinalSpec(
            table,
            staging.table,
            self.config.name,
            key=staging.key,
            rename=staging.rename,
            properties=declared.properties,
            format=stream.format,
            mode=declared.mode,
            deletes=declared.deletes,
            on_change=declared.on_change,
            track=tuple(declared.track) if declared.track is not None else None,
            columns=read_columns(declared.columns),
            partition_by=(by.field,) if by else tuple(map(PartitionField.parse, declared.partition_by)),
            sort_by=tuple(declared.sort_by),
            horizon=seconds_of(declared.horizon) if declared.horizon is not None else None,
            on_gap=declared.on_gap,
            on_replaced=declared.on_replaced,
            by_row=declared.by_row,
            write=declared.write,
            keys=staging.keys,
            order_by=tuple(declared.order_by),
            batch=batch_size(declared.max_wait, declared, stream, self.config),
            shown=combined_settings([declared, stream, self.config]),
            audits=audits,
            partitions=by,
            key_at=key_at,
        )

    def _sources(
        self, catalog: str
    ) -> tuple[
        dict[TableId, ModelText], dict[TableId, tuple[TableId, ...]], dict[TableId, list[str]], dict[TableId, str]
    ]:
        """Return the SQL of each model without the name of the lake's catalog, its sources, its columns as far as the
        SQL names them, and by model why its SQL cannot be used."""
        sources: dict[TableId, tuple[TableId, ...]] = {}
        outputs: dict[TableId, list[str]] = {}
        refused = {TableId.parse(name): why for name, why in self.refused.items()}
        texts = {TableId.parse(m.name): self.texts[m.name] for m in self._queries}
        for table, text in texts.items():
            try:
                if table not in refused:
                    query = read_query(str(table), text.sql, catalog)
                    texts[table], outputs[table] = replace(text, sql=query.sql), list(query.columns)
                    sources[table] = query.sources
            except ModelError as e:
                refused[table] = str(located(e, text.origin))
        for circle, why in circles_of(sources, texts).items():
            refused |= dict.fromkeys(circle, why)
        return texts, {t: names for t, names in sources.items() if t not in refused}, outputs, refused

    def _models(
        self, catalog: str, tables: Collection[TableId], mistakes: list[PipelineError]
    ) -> Iterator[tuple[ModelSpec, Place]]:
        tables = {*tables, *(TableId.parse(m.name) for m in self._queries), *(m.table for m in self.python)}
        tables |= {TableId.parse(j.table) for j in self.config.jobs}
        texts, sources, outputs, refused = self._sources(catalog)
        position = {id(m): i for i, m in enumerate(self.config.models)}
        for model in self._queries:
            table, place = TableId.parse(model.name), ("models", position[id(model)])
            text, reads, columns = texts[table], sources.get(table, ()), outputs.get(table, [])
            span = model.span
            audits: tuple[Audit, ...] = ()
            with collected(mistakes, self.at(*place, "audits")):
                audits = read_audits(table, model.audits)
            # Only tables that read from outside of the pipeline wait for more changes.
            default = None if tables.intersection(reads) else self.config.max_wait
            wait = default if model.max_wait is None else model.max_wait
            spec = ModelSpec(
                table,
                text.sql,
                reads,
                self.config.name,
                tuple(spelled(k, columns) for k in model.key),
                model.properties,
                text.origin,
                "stop" if model.on_query_change == "stop" else "rebuild",
                model.full_above,
                replace(span, column=spelled(span.column, columns)) if span else None,
                on_gap=model.on_gap,
                on_replaced=model.on_replaced,
                batch=batch_size(wait, model, self.config),
                shown=combined_settings([model, self.config]),
                audits=tuple(a.spelled_as(columns) for a in audits),
                comparisons=read_comparisons(model.audits),
                partitions=model.partitions.declared.spelled_as(columns) if model.partitions else None,
                refused=refused.get(table, ""),
            )
            yield spec, place

    def raw(self, lake: LakeBase, stream: Stream) -> RawSpec:
        """Return the raw table of a stream."""
        source = stream.source
        return RawSpec(
            TableId(("raw",), stream.name),
            None if source else _landing(lake, stream),
            stream.format,
            self.config.name,
            source=TableId.parse(source.table) if source and source.table else None,
            live=live_spec(self.config.name, stream),
            column=source.value if source else "value",
            key_column=source.key if source else None,
            order=tuple(source.order) if source else (),
            on_gap=source.on_gap if source else "stop",
            on_replaced=source.on_replaced if source else "stop",
            about=SourceTable.parse(stream.about) if stream.about else None,
            layout=row_layout(stream.flag, stream.time),
            databases=tuple(stream.databases),
            tables=(*(_matched(t) for t in stream.tables), *stream.exclude),
            signal_tables=_signal_tables(stream),
            dumps=dump_rules(stream.tables, stream) if stream.format == "snapshot" else None,
            max_rejected=Limit.parse(stream.max_rejected) if stream.max_rejected is not None else None,
            limits=Limits(stream.max_record, stream.max_file, stream.max_depth),
            batch=batch_size(self.config.max_wait if stream.max_wait is None else stream.max_wait, stream, self.config),
            shown=of_records(combined_settings([stream, self.config]), [stream, *stream.tables]),
        )

    def _tables(
        self, contents: StreamContents, stream: Stream, raw: TableId
    ) -> Iterator[tuple[SourceTable, StreamTable]]:
        named = [t for t in stream.tables if not t.is_pattern]
        for declared in named:
            yield SourceTable.parse(declared.table), declared
        patterns = [t for t in stream.tables if t.is_pattern]
        if not patterns:
            return
        exact = {t.table for t in named}
        for source in contents.sources(raw):
            text = str(source)
            if text in exact or any(fnmatch.fnmatchcase(text, p) for p in stream.exclude):
                continue
            declared = next((p for p in patterns if fnmatch.fnmatchcase(text, p.table)), None)
            if declared:
                yield source, declared


def _signal_tables(stream: Stream) -> frozenset[SourceTable]:
    """Return the tables of Debezium's signals that a stream declares by name."""
    declared = (SourceTable.parse(t.table) for t in stream.tables if not t.is_pattern)
    return frozenset(filter(is_signal_table, declared))


def _matched(table: StreamTable) -> str:
    return table.table if table.is_pattern else str(SourceTable.parse(table.table))


def _landing(lake: LakeBase, stream: Stream) -> Landing:
    folder = stream.landing or Path("landing") / stream.name
    by_name = stream.landing_order == "by-name"
    try:
        return Landing.parse(folder, lake.config.home, schema=stream.folder_schema, by_name=by_name)
    except ValueError as e:  # a template that nothing has resolved
        raise PipelineError(f"stream {stream.name}: landing: {e}") from e


def _with_readers(specs: list[Spec]) -> list[Spec]:
    """Let each SQL model know whether another table is computed from it."""
    read = {t for s in specs for t in s.sources}
    return [replace(s, is_read=s.table in read) if isinstance(s, ModelSpec) else s for s in specs]
