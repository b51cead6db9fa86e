"""A pipeline over a lake: its tables in the order of their dependencies, what is pending, and absorbing it."""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import (
    LOST_FILE_ADVICE,
    AuditFailedError,
    ConcurrentWriteError,
    CorruptMetadataError,
    LakeError,
    ModelError,
    PipelineError,
)
from lake_assets.final.column_selection import read_columns
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_tables import absorb_changes
from lake_assets.formats import SourceTable
from lake_assets.formats.file_records import Limits
from lake_assets.ingest.file_ledger import ledger_of
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.landing import Landed, land, land_records
from lake_assets.ingest.raw_tables import offsets, routes
from lake_assets.ingest.record_sources import Read
from lake_assets.ingest.rejects import rejected_of
from lake_assets.ingest.routing import replay as replay_records
from lake_assets.ingest.staging import absorb_events
from lake_assets.ingest.staging import replay as replay_events
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import as_named, named_errors, said_by_spark
from lake_assets.lake.metadata import clock_skew, metadata_versions
from lake_assets.lake.metadata.lost_files import lost_file
from lake_assets.lake.metadata.metadata_commits import MovedError
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.models.sql.sql_errors import Origin, located
from lake_assets.models.steps.model_runs import absorb_sources
from lake_assets.models.steps.snapshot_pins import Heads
from lake_assets.pipeline.asset_settings import shown
from lake_assets.pipeline.audit_settings import read_audits, read_comparisons
from lake_assets.pipeline.pending import Pending, pending_of
from lake_assets.pipeline.pipeline_config import Batches, LayerTables, PipelineConfig, Stream, seconds_of
from lake_assets.pipeline.shared_names import Claim, refused
from lake_assets.pipeline.sql_positions import Written, line_of_table, origins, read_sql
from lake_assets.pipeline.table_graph import Spec, ordered, sources
from lake_assets.pipeline.yaml_file import read_pipeline
from lake_assets.tables import leftovers
from lake_assets.tables.batch_limits import LEFT
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.partition_fields import PartitionField
from lake_assets.tables.snapshot_retention import keep_own, keep_sources
from lake_assets.tables.specs import BatchSize, Limit

ATTEMPTS = 4


class Pipeline:
    """A declared pipeline; see `PipelineConfig` for what can be declared."""

    def __init__(self, config: PipelineConfig, path: Path | None = None) -> None:
        """
        Args:
            config: what is declared.
            path: the YAML file that it is from: files with SQL are beside it (default: in the working directory), and
                mistakes are told with their lines.

        Raises:
            PipelineError: files with SQL cannot be read, or hold none: all of them.
        """
        self.config, self.path = config, path
        self._written = _written(config, path)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.config.name

    @property
    def has_patterns(self) -> bool:
        """Whether its tables depend on what its streams turn out to hold."""
        return any(t.is_pattern for stream in self.config.streams for t in stream.tables)

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """The pipeline of a YAML file.

        Raises:
            PipelineError: the file is wrong; says where, all mistakes at once.
        """
        return cls(read_pipeline(Path(path)), Path(path))

    # --- tables -------------------------------------------------------------------------------------------------

    def specs(self, lake: LakeBase, *, alone: bool = True) -> list[Spec]:
        """All tables, sources before what depends on them.

        Patterns stand for the tables that the stream has shown so far, so that the list grows with it.

        Args:
            lake: where the tables are.
            alone: whether a model may read only what is there or is made here; false where other pipelines beside this
                one may still make it.

        Raises:
            TableClaimedError: two declarations make one table.
            PipelineError: models that depend on each other in a circle, or read what nothing makes.
        """
        claims = [
            (stream, raw, c, d) for stream, raw in self._streams(lake) for c, d in self._claims(lake, stream, raw)
        ]
        models = [TableId.parse(m.name) for m in self.config.models]
        refusals = refused(lake, [claim for _, _, claim, _ in claims], models)
        specs: list[Spec] = [raw for _, raw in self._streams(lake)]
        for stream, raw, claim, declared in claims:
            staging = self._staging(stream, raw, claim, declared)
            if claim in refusals:
                specs.append(replace(staging, table=claim.instead, refused=refusals[claim]))
                continue
            specs.append(staging)
            if claim.final:
                specs.append(self._final(stream, claim.final, staging, declared))
        specs += self._models({s.table for s in specs})
        self._check_foreign(specs)
        if alone:
            self._check_sources(lake, specs)
        return ordered(specs, self.name)

    def _streams(self, lake: LakeBase) -> list[tuple[Stream, RawSpec]]:
        return [(stream, self._raw(lake, stream)) for stream in self.config.streams]

    def _claims(self, lake: LakeBase, stream: Stream, raw: RawSpec) -> Iterator[tuple[Claim, LayerTables]]:
        below = (stream.namespace,) if stream.namespace else ()
        for source, declared in self._tables(lake, stream, raw.table):
            name = declared.name or stream.prefix + source.name
            final = TableId(("final", *below), name) if declared.final else None
            yield Claim(source, raw.table, TableId(("staging", *below), name), final, declared.is_pattern), declared

    def _staging(self, stream: Stream, raw: RawSpec, claim: Claim, declared: LayerTables) -> StagingSpec:
        batch = _batch(declared.max_wait, declared, stream, self.config)
        rename = {old: new for old, new in declared.rename.items() if old != new}
        return StagingSpec(
            claim.staging,
            raw.table,
            claim.source,
            stream.format,
            self.name,
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
            batch=replace(batch, wait=0.0),
            shown=shown([declared, stream, self.config], own=not declared.final),
        )

    def _final(self, stream: Stream, table: TableId, staging: StagingSpec, declared: LayerTables) -> FinalSpec:
        by = declared.partitions.declared if declared.partitions else None
        return FinalSpec(
            table,
            staging.table,
            self.name,
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
            batch=_batch(declared.max_wait, declared, stream, self.config),
            shown=shown([declared, stream, self.config]),
            audits=read_audits(table, declared.audits),
            partitions=by,
        )

    def _models(self, made: Collection[TableId]) -> Iterator[ModelSpec]:
        made = {*made, *(TableId.parse(m.name) for m in self.config.models)}
        for model in self.config.models:
            written = self._written[model.name]
            reads = sources_of(model.name, parse(model.name, written.sql))
            # Changes wait where they come in, not once more on their way.
            default = None if made.intersection(reads) else self.config.max_wait
            wait = default if model.max_wait is None else model.max_wait
            yield ModelSpec(
                TableId.parse(model.name),
                written.sql,
                reads,
                self.name,
                tuple(model.key),
                model.properties,
                written.origin,
                model.on_query_change,
                model.full_above,
                model.span,
                on_gap=model.on_gap,
                on_replaced=model.on_replaced,
                batch=_batch(wait, model, self.config),
                shown=shown([model, self.config]),
                audits=read_audits(TableId.parse(model.name), model.audits),
                comparisons=read_comparisons(model.audits),
                partitions=model.partitions.declared if model.partitions else None,
            )

    def _raw(self, lake: LakeBase, stream: Stream) -> RawSpec:
        source = stream.source
        return RawSpec(
            TableId(("raw",), stream.name),
            None if source else _landing(lake, stream),
            stream.format,
            self.name,
            source=TableId.parse(source.table) if source else None,
            column=source.value if source else "value",
            key_column=source.key if source else None,
            order=tuple(source.order) if source else (),
            about=SourceTable.parse(stream.about) if stream.about else None,
            max_rejected=Limit.parse(stream.max_rejected) if stream.max_rejected is not None else None,
            limits=Limits(stream.max_record, stream.max_file, stream.max_depth),
            batch=_batch(self.config.max_wait if stream.max_wait is None else stream.max_wait, stream, self.config),
            shown=shown([stream, self.config]),
        )

    def _check_sources(self, lake: LakeBase, specs: Sequence[Spec]) -> None:
        """A model's table that nothing makes is a slip of the pen, unless a pattern may still bring it."""
        if self.has_patterns:
            return
        made = {s.table for s in specs}
        others = [(spec, s) for spec in specs for s in sources(spec) if s not in made]
        # A list of names, not a look at each table: that comes when it is absorbed.
        there = {t for namespace in {s.namespace for _, s in others} for t in lake.tables(namespace)}
        missing = [(spec, s) for spec, s in others if s not in there]
        if missing:
            declared = ", ".join(str(t) for t in sorted(made))
            raise PipelineError(
                "\n".join(
                    f"{_read_at(spec, source)}pipeline {self.name!r}: {spec.table} reads {source}, which the lake does "
                    f"not have and no declaration makes{nearest(str(source), map(str, (*made, *there)))}"
                    for spec, source in missing
                )
                + f". Declared are: {declared}"
            )

    def _check_foreign(self, specs: Sequence[Spec]) -> None:
        own = {"/".join(s.table.parts) for s in specs}
        wrong = [(s.table, key) for s in specs for key in s.shown.depends_on if key in own]
        if wrong:
            raise PipelineError(
                "\n".join(
                    f"pipeline {self.name!r}: {table}: `depends_on` names {key}, a table of the same pipeline: what is "
                    "read is a dependency anyway, and `depends_on` is for assets of others"
                    for table, key in wrong
                )
            )

    def _tables(self, lake: LakeBase, stream: Stream, raw: TableId) -> Iterator[tuple[SourceTable, LayerTables]]:
        named = [t for t in stream.tables if not t.is_pattern]
        for declared in named:
            yield SourceTable.parse(declared.table), declared
        patterns = [t for t in stream.tables if t.is_pattern]
        if not patterns:
            return
        taken = {t.table for t in named}
        try:
            found = routes(lake, raw)
        except CorruptMetadataError:
            return  # its own step says so, and tables of other streams go on
        for source in found:
            text = str(source)
            if text in taken or any(fnmatch.fnmatchcase(text, p) for p in stream.exclude):
                continue
            declared = next((p for p in patterns if fnmatch.fnmatchcase(text, p.table)), None)
            if declared:
                yield source, declared

    # --- records ------------------------------------------------------------------------------------------------

    def land(self, lake: LakeBase, stream: str, read: Read, name: str = "python") -> Landed:
        """Take in records that Python code yields, each exactly once: with the last record of a commit its offset is
        committed, and `read` is asked for those after it the next time.

        Args:
            lake: the lake.
            stream: name of a declared stream.
            read: called with the last offset that was taken in (None at first); yields `(offset, record)`, the record
                as text, bytes or a mapping, the offset as anything that JSON can hold.
            name: of the source, where a stream has several (partitions of a topic).

        Raises:
            PipelineError: no such stream.
            RejectedLimitError, ConcurrentWriteError: see `land_records`.
        """
        return land_records(lake, self._raw(lake, self._stream(stream)), read, name)

    def offset(self, lake: LakeBase, stream: str, name: str = "python") -> Any:
        """Up to where a Python source was taken in; None: not at all yet."""
        return offsets(lake, self._raw(lake, self._stream(stream)).table).get(name)

    def _stream(self, name: str) -> Stream:
        found = next((s for s in self.config.streams if s.name == name), None)
        if found is None:
            there = ", ".join(s.name for s in self.config.streams) or "none"
            raise PipelineError(f"pipeline {self.name!r} has no stream {name!r}; it has {there}")
        return found

    def replay(self, lake: LakeBase, select: Collection[str] | None = None) -> list[Outcome]:
        """Read rejected records again, after a declaration or this package was corrected; those that can be read now
        are taken in, at the places in the stream where they came.

        Args:
            lake: the lake.
            select: names of raw and staging tables; default: all.
        """
        outcomes: list[Outcome] = []
        done: set[TableId] = set()
        # Records that can be routed now may bring tables.
        while spec := next((s for s in self.specs(lake, alone=False) if s.table not in done), None):
            done.add(spec.table)
            if isinstance(spec, RawSpec | StagingSpec) and (select is None or str(spec.table) in select):
                outcomes.append(_guarded(lambda s=spec: retried(lake, s, lambda: _replay(lake, s)), spec))
        return outcomes

    def rebuild(self, lake: LakeBase, table: str | TableId) -> Outcome:
        """Compute one table from all that its sources hold now, and publish it in one commit.

        Tables that are made of it follow with the next run.

        Args:
            lake: the lake.
            table: a staging, final or model table of this pipeline.

        Raises:
            PipelineError: the pipeline has no such table.
            RebuildError: the table cannot be rebuilt: it is a raw one, or its sources do not hold what it is made of.
            LakeError: see the steps.
        """
        from lake_assets.pipeline.rebuild import rebuild  # it uses this module

        name = TableId.parse(table)
        specs = {s.table: s for s in self.specs(lake, alone=False)}
        if name not in specs:
            there = ", ".join(map(str, specs)) or "none"
            raise PipelineError(f"pipeline {self.name!r} has no table {name}; it has {there}")
        return rebuild(lake, specs[name])

    # --- what is to be done -------------------------------------------------------------------------------------

    def pending(self, lake: LakeBase, specs: Sequence[Spec] | None = None) -> list[Pending]:
        """What each table has still to absorb of its sources as they are now. Reads metadata only.

        Raises:
            HistoryError: a source is another table than the one that was absorbed.
        """
        found: list[Pending] = []
        for spec in self.specs(lake) if specs is None else specs:
            found += pending_of(lake, spec)
        return found

    def run(
        self,
        lake: LakeBase,
        select: Collection[str] | None = None,
        *,
        on_outcome: Callable[[Outcome], None] | None = None,
        on_start: Callable[[str], None] | None = None,
    ) -> list[Outcome]:
        """Absorb everything that is pending and return what each table did.

        A table that fails does not stop the ones that do not depend on it: its outcome is `failed`, and what depends
        on it absorbs what it has. Running again goes on from where each table is.

        Where batches are limited, the tables are gone through until nothing is left of what had come when the run
        began; what had nothing more to do is told of once.

        Args:
            lake: the lake.
            select: names of tables; default: all.
            on_outcome: called after each table.
            on_start: called with the name of each table before it.
        """
        tell = on_outcome or (lambda outcome: None)
        leftovers.sweep(lake)
        outcomes: list[Outcome] = []
        over: set[TableId] = set()
        while True:
            is_first, is_left = not outcomes, False
            for spec, outcome in self._pass(lake, select, over, on_start or (lambda table: None)):
                if is_first or outcome.status in ("absorbed", "failed"):
                    tell(outcome)
                    outcomes.append(outcome)
                is_left = is_left or (outcome.status == "absorbed" and LEFT in outcome.details)
                # What arrives meanwhile is for the next run, and what failed would fail again.
                if outcome.status == "failed" or (isinstance(spec, RawSpec) and spec.landing):
                    over.add(spec.table)
            if not is_left:
                return outcomes

    def _pass(
        self,
        lake: LakeBase,
        select: Collection[str] | None,
        over: Collection[TableId],
        on_start: Callable[[str], None],
    ) -> Iterator[tuple[Spec, Outcome]]:
        """One batch of each table that is not `over`."""
        done: set[TableId] = set(over)
        heads, specs = Heads(), self.specs(lake)
        while spec := next((s for s in specs if s.table not in done), None):
            done.add(spec.table)
            if select is not None and str(spec.table) not in select:
                continue
            on_start(str(spec.table))
            yield spec, _guarded(lambda s=spec: absorb(lake, s, heads), spec)
            if isinstance(spec, RawSpec):
                # Landing may show tables that a pattern matches: they join the same run.
                specs = self.specs(lake)


def _written(config: PipelineConfig, path: Path | None) -> dict[str, Written]:
    """By model, its SQL and where it is."""
    known = origins(path) if path and config.models else {}
    found: dict[str, Written] = {}
    mistakes: list[str] = []
    for model in config.models:
        if model.sql_file is None:
            found[model.name] = Written(model.sql, known.get(model.name))
            continue
        try:
            written = read_sql(model.name, model.sql_file, path.parent if path else Path())
            sources_of(model.name, parse(model.name, written.sql))
            found[model.name] = written
        except ModelError as e:
            mistakes.append(str(located(e, Origin(str((path.parent if path else Path()) / model.sql_file)))))
        except PipelineError as e:
            mistakes.append(str(e))
    if mistakes:
        raise PipelineError("\n".join(mistakes))
    return found


def _read_at(spec: Spec, source: TableId) -> str:
    if not isinstance(spec, ModelSpec) or spec.origin is None:
        return ""
    return f"{spec.origin.at(line_of_table(spec.sql, source))}: "


def _guarded(step: Callable[[], Outcome], spec: Spec) -> Outcome:
    began = time.monotonic()
    try:
        return step()
    except Exception as e:  # kept in the outcome: one failure, of whatever kind, is its own
        if _is_interrupted(e):
            raise KeyboardInterrupt from e
        return Outcome(
            str(spec.table), "failed", error=f"{type(e).__name__}: {e}", exception=e, seconds=time.monotonic() - began,
            audits=e.findings if isinstance(e, AuditFailedError) else (),
        )  # fmt: skip


def _is_interrupted(error: BaseException) -> bool:
    """Whether an error came while an interrupt was handled: a call of Spark that is cut off leaves its connection
    unusable, so that cleaning up fails as well."""
    at: BaseException | None = error
    seen: list[BaseException] = []
    # An error that is raised again where it is handled can be its own context.
    while at is not None and at not in seen:
        if isinstance(at, KeyboardInterrupt):
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False


def absorb(lake: LakeBase, spec: Spec, heads: Heads | None = None, *, rebuild: bool = False) -> Outcome:
    """Absorb what is pending for one table; a race that was lost to another writer is run again from the watermark.

    Args:
        lake: the lake.
        spec: the table.
        heads: what the models of this run have read so far, so that all of them see the same.
        rebuild: whether the table (no raw one) is computed from all that its sources hold, see `rebuild.rebuild`.

    Raises:
        LakeError: see the steps.
    """

    def step() -> Outcome:
        outcome = _absorb(lake, spec, heads, rebuild=rebuild)
        if outcome.status == "absorbed":
            _keep(lake, spec)
        return outcome

    return retried(lake, spec, step)


def retried(lake: LakeBase, spec: Spec, step: Callable[[], Outcome]) -> Outcome:
    """Run a step of a table; one that lost a race to another writer is run again.

    Before it, branches of killed runs are dropped, and times that lie ahead are taken back, else nothing could be
    committed.

    Raises:
        ConcurrentWriteError: it lost again and again.
    """
    try:
        for attempt in Retrying(
            retry=retry_if_exception_type(ConcurrentWriteError),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=5),
        ):
            with attempt, named_errors(spec.table), _lost_files(lake, spec):
                tables = _written_by(spec)
                for table in tables:
                    _make_ready(lake, table)
                with leftovers.at_work(lake, tables):
                    return step()
    except RetryError as e:
        cause = e.last_attempt.exception()
        raise ConcurrentWriteError(
            f"{spec.table}: lost against another writer {ATTEMPTS} times in a row. Nothing is lost; run again when "
            f"it is "
            f"done. Last: {cause}"
        ) from cause
    raise AssertionError("unreachable: the loop returns or raises")


@contextlib.contextmanager
def _lost_files(lake: LakeBase, spec: Spec) -> Generator[None]:
    """An error of the body that has no name is about a lost file where a table of the step has one."""
    try:
        yield
    except Exception as e:
        if isinstance(e, LakeError) or as_named(e, "") is not None or said_by_spark(e):
            raise
        for name in (*_written_by(spec), *sources(spec)):
            is_ledger = isinstance(spec, RawSpec) and name == ledger_of(spec.table)
            advice = (
                f"Restore the file from a backup; or drop {name}: the next run makes it again from {spec.table}"
                if is_ledger
                else LOST_FILE_ADVICE
            )
            table = lake.find(name)
            if table is not None and (lost := lost_file(table, advice)) is not None:
                raise lost from e
        raise


def _written_by(spec: Spec) -> tuple[TableId, ...]:
    """The tables that a step commits to."""
    if isinstance(spec, RawSpec):
        return spec.table, ledger_of(spec.table), rejected_of(spec.table)
    return (spec.table, rejected_of(spec.raw)) if isinstance(spec, StagingSpec) else (spec.table,)


def _make_ready(lake: LakeBase, name: TableId) -> None:
    try:
        if (table := lake.find(name)) is not None:
            clock_skew.take_back(table)
            leftovers.drop_branches(lake, name, table)
            if metadata_versions.is_due(table):
                metadata_versions.thin(table)
    except (MovedError, CommitFailedException) as e:
        raise ConcurrentWriteError(f"{name}: another writer committed before this step began: {e}") from e


def _keep(lake: LakeBase, spec: Spec) -> None:
    """Keep the snapshots that the next step needs. A run killed before this leaves the tags behind: they may lag."""
    if not isinstance(spec, RawSpec):
        keep_own(lake, spec.table)
    if sources(spec):
        keep_sources(lake, spec.table, sources(spec))


def _replay(lake: LakeBase, spec: RawSpec | StagingSpec) -> Outcome:
    if isinstance(spec, StagingSpec):
        return replay_events(lake, spec)
    routed = replay_records(lake, spec)
    if not routed:
        return Outcome(str(spec.table), "nothing")
    return Outcome(
        str(spec.table), "absorbed", updated=routed, strategy="replay", why=f"{routed} records can be routed now"
    )


def _absorb(lake: LakeBase, spec: Spec, heads: Heads | None, *, rebuild: bool) -> Outcome:
    why = "a rebuild was requested" if rebuild else ""
    match spec:
        case RawSpec():
            began = time.monotonic()
            if spec.source and not lake.exists(spec.source):
                return Outcome(str(spec.table), "waiting", why=f"{spec.source} does not exist yet")
            landed = land(lake, spec)
            if not landed.files:
                if spec.landing and not spec.landing.exists():
                    return Outcome(str(spec.table), "waiting", why=f"the folder {spec.landing} does not exist yet")
                return Outcome(str(spec.table), "nothing")
            return Outcome(
                str(spec.table),
                "absorbed",
                (Absorbed(str(spec.source or spec.landing), None, None, landed.files, landed.bytes),),
                inserted=landed.records,
                strategy="land",
                why="new snapshots of the source" if spec.source else "new files of the landing folder",
                seconds=time.monotonic() - began,
                snapshot=landed.snapshot,
                details=({"rejected": landed.rejected} if landed.rejected else {})
                | ({LEFT: landed.left} if landed.left else {}),
            )
        case StagingSpec():
            return absorb_events(lake, spec, rebuild=rebuild)
        case FinalSpec():
            return absorb_changes(lake, spec, rebuild=why)
        case ModelSpec():
            heads = heads or Heads()
            try:
                with heads.unless_failed():
                    return absorb_sources(lake, spec, heads, rebuild=why)
            except ModelError as e:
                raise located(e, spec.origin) from e


def _batch(wait: str | float | None, *declared: Batches) -> BatchSize:
    """The limits that are declared, the innermost first."""
    files, rows = (
        next((n for d in declared if (n := getattr(d, what)) is not None), None) for what in ("max_files", "max_rows")
    )
    return BatchSize(files, rows, seconds_of(wait or 0))


def _landing(lake: LakeBase, stream: Stream) -> Path:
    folder = stream.landing or Path("landing") / stream.name
    return lake.config.home / folder
