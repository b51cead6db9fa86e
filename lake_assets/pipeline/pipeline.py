"""A pipeline over a lake: its tables in the order of their dependencies, pending changes, and runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lake_assets.errors import AuditFailedError, ModelError, PipelineError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import Landed, land_records
from lake_assets.ingest.raw.record_sources import Read
from lake_assets.ingest.raw_tables import offsets
from lake_assets.journal import step_journal
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import error_text
from lake_assets.models.python.python_model import PythonModel
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline import observed_steps
from lake_assets.pipeline.config.declared_tables import DeclaredTables
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.config.python_models import load_models, python_files, template_model
from lake_assets.pipeline.config.setting_lines import SettingLines
from lake_assets.pipeline.config.sql_positions import ModelText, origins, read_sql
from lake_assets.pipeline.config.stream_contents import StreamContents
from lake_assets.pipeline.config.yaml_file import read_pipeline, read_settings
from lake_assets.pipeline.pending import PendingWindow, pending_of
from lake_assets.pipeline.redo import Past, redo
from lake_assets.pipeline.sensitive_steps import is_interrupted
from lake_assets.pipeline.step_retries import absorb, retried
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables import leftovers, standing_failures
from lake_assets.tables.batch_limits import LEFT
from lake_assets.tables.outcome import Outcome


class Pipeline:
    """A declared pipeline; see `PipelineConfig` for its settings.

    Attributes:
        declared: its tables, with the mistakes in their declarations.
    """

    def __init__(
        self,
        config: PipelineConfig,
        path: Path | None = None,
        *,
        models: Sequence[PythonModel] = (),
        left_out: frozenset[str] | None = frozenset(),
        mistakes: list[str] | None = None,
    ) -> None:
        """
        Args:
            path: its YAML file: SQL and Python files are relative to it (default: to the working directory), and
                mistakes are reported with its lines.
            models: Python models in addition to those in files.
            left_out: see `DeclaredTables`.
            mistakes: where to add mistakes in Python files and templates, whose models are then left out; None: they
                are raised.

        Raises:
            PipelineError: SQL files cannot be read (lists all of them), or a Python file fails. Mistakes in the SQL of
                a model fail only the steps of its table.
        """
        self.config, self.path = config, path
        files = python_files([Path(f) for f in config.python], path.parent if path else None)
        texts = _model_texts(config, path)
        try:
            declared = (*load_models(files, mistakes), *models)
        except PipelineError as e:
            if mistakes is None:
                raise
            mistakes += str(e).splitlines()
            declared, left_out = tuple(models), None
        templates, refused = _templates(config, texts, mistakes)
        self.declared = DeclaredTables(
            config,
            texts,
            (*templates, *declared),
            path.parent if path else Path(),
            refused,
            SettingLines(path) if path else None,
            left_out,
        )

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.config.name

    @property
    def files(self) -> tuple[Path, ...]:
        """Its YAML file, if it has one."""
        return (self.path,) if self.path else ()

    @property
    def has_patterns(self) -> bool:
        """Whether the tables depend on the contents of the streams."""
        return self.declared.has_patterns

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """Load the pipeline of a YAML file.

        Raises:
            PipelineError: the file is wrong; lists all mistakes with their lines. Mistakes only in the SQL of models
                fail the steps of their tables instead.
        """
        return cls(read_pipeline(Path(path)), Path(path))

    @classmethod
    def load_what_is_right(cls, path: str | Path) -> tuple[Pipeline | None, list[str]]:
        """Load the pipeline of a YAML file without the tables whose settings are wrong.

        Returns:
            The pipeline, or None if nothing can be used; and the mistakes, each with its line.

        Raises:
            PipelineError: the file is missing, not YAML, or not a pipeline.
        """
        settings = read_settings(Path(path))
        mistakes = list(settings.mistakes)
        if settings.config is None:
            return None, [*mistakes, *settings.sql_mistakes]
        return cls(settings.config, Path(path), left_out=settings.left_out, mistakes=mistakes), mistakes

    # --- tables -------------------------------------------------------------------------------------------------

    def specs(self, lake: LakeBase, *, alone: bool = True, contents: StreamContents | None = None) -> list[Spec]:
        """Return all tables, upstream first; see `DeclaredTables.specs`."""
        return self.declared.specs(lake, alone=alone, contents=contents)

    # --- records ------------------------------------------------------------------------------------------------

    def land(self, lake: LakeBase, stream: str, read: Read, name: str = "python") -> Landed:
        """Land records that Python code yields, each exactly once.

        Each commit stores the offset of its last record; the next call passes it to `read`.

        Args:
            read: called with the last committed offset (None at first); yields `(offset, record)`, the record as text,
                bytes or a mapping, the offset as any JSON value.
            name: name of the source, if a stream has several (partitions of a topic).

        Raises:
            PipelineError: no such stream.
            RejectedLimitError, ConcurrentWriteError: see `land_records`.
        """
        return land_records(lake, self._raw(lake, stream), read, name)

    def offset(self, lake: LakeBase, stream: str, name: str = "python") -> Any:
        """Return the last committed offset of a Python source; None before the first commit."""
        return offsets(lake, self._raw(lake, stream).table).get(name)

    def _raw(self, lake: LakeBase, name: str) -> RawSpec:
        stream = next((s for s in self.config.streams if s.name == name), None)
        if stream is None:
            existing = ", ".join(s.name for s in self.config.streams) or "none"
            raise PipelineError(f"pipeline {self.name!r} has no stream {name!r}; it has {existing}")
        return self.declared.raw(lake, stream)

    def replay(self, lake: LakeBase, select: Collection[str] | None = None) -> list[Outcome]:
        """Read rejected records again, after a correction of the declaration or of this package.

        Records that can be read now are inserted at their position in the stream.

        Args:
            select: names of raw and staging tables; default: all.
        """
        outcomes: list[Outcome] = []
        done: set[TableId] = set()
        # Records that can be routed now may add tables.
        while spec := next((s for s in self.specs(lake, alone=False) if s.table not in done), None):
            done.add(spec.table)
            step = step_of(spec)
            if step.has_rejects and (select is None or str(spec.table) in select):
                outcomes.append(_guarded(lambda s=step: retried(lake, s.spec, lambda: s.replay(lake)), spec))
        return outcomes

    def rebuild(self, lake: LakeBase, table: str | TableId, *, past: Past | None = None) -> Outcome:
        """Compute one table from the current contents of its sources, and publish it in one commit.

        Downstream tables follow with the next run.

        Args:
            table: a staging, final or model table of this pipeline.
            past: for a table that holds rows that cannot be computed again: `keep` them, and go on with the present
                declaration; or `discard` them.

        Raises:
            PipelineError: the pipeline has no such table.
            RebuildError: the table cannot be rebuilt: it is a raw table, or its sources are missing or empty; or
                `past` has to be chosen.
            LakeError: see the steps.
        """
        name = TableId.parse(table)
        specs = {s.table: s for s in self.specs(lake, alone=False)}
        if name not in specs:
            existing = ", ".join(map(str, specs)) or "none"
            raise PipelineError(f"pipeline {self.name!r} has no table {name}; it has {existing}")
        return redo(lake, specs[name], file=self.path, past=past)

    # --- pending changes and runs -------------------------------------------------------------------------------------

    def pending(self, lake: LakeBase) -> list[PendingWindow]:
        """Return the pending changes of each table. Reads metadata only.

        Raises:
            HistoryError: a source was replaced by another table.
        """
        return [window for spec in self.specs(lake) for window in pending_of(lake, spec)]

    def run(
        self,
        lake: LakeBase,
        select: Collection[str] | None = None,
        *,
        on_outcome: Callable[[Outcome], None] | None = None,
        on_start: Callable[[str], None] | None = None,
    ) -> list[Outcome]:
        """Absorb all pending changes and return one outcome per table.

        If a table fails, its outcome is `failed`; the others continue, and downstream tables absorb what it holds. The
        next run continues from each table's watermark.

        With limited batches, the tables are processed repeatedly until all changes pending at the start are absorbed;
        a table with nothing more to do is reported once.
        """
        report = on_outcome or (lambda outcome: None)
        leftovers.sweep(lake)
        outcomes: list[Outcome] = []
        finished: set[TableId] = set()
        while True:
            is_first, has_more = not outcomes, False
            for spec, outcome in self._pass(lake, select, finished, on_start or (lambda table: None)):
                if is_first or outcome.status in ("absorbed", "failed"):
                    report(outcome)
                    outcomes.append(outcome)
                has_more = has_more or (outcome.status == "absorbed" and LEFT in outcome.details)
                # New changes wait for the next run, and failed tables would fail again.
                if outcome.status == "failed" or spec.landing:
                    finished.add(spec.table)
            if not has_more:
                if select is None:
                    self.forget_former(lake, self.specs(lake))
                step_journal.try_flush(lake)
                observed_steps.run_ended(lake, self)
                return outcomes

    def forget_former(self, lake: LakeBase, specs: Iterable[Spec]) -> None:
        """Forget the failures of tables that are declared no longer: no step of them will ever succeed."""
        standing_failures.forget_others(lake, self.name, [s.table for s in specs])

    def _pass(
        self,
        lake: LakeBase,
        select: Collection[str] | None,
        finished: Collection[TableId],
        on_start: Callable[[str], None],
    ) -> Iterator[tuple[Spec, Outcome]]:
        """Absorb one batch of each table that is not in `finished`."""
        done: set[TableId] = set(finished)
        specs = self.specs(lake)
        pins = SnapshotPins.for_run(s for s in specs if select is None or str(s.table) in select)
        while spec := next((s for s in specs if s.table not in done), None):
            done.add(spec.table)
            if select is not None and str(spec.table) not in select:
                continue
            on_start(str(spec.table))
            yield spec, _guarded(lambda s=spec: absorb(lake, s, pins, file=self.path), spec)
            if step_of(spec).brings_tables:
                # Landing may add tables that match a pattern: they take part in the same run.
                specs = self.specs(lake)


def _model_texts(config: PipelineConfig, path: Path | None) -> dict[str, ModelText]:
    """Return, by model, its SQL and the position of the SQL."""
    positions = origins(path) if path and config.models else {}
    texts: dict[str, ModelText] = {}
    mistakes: list[str] = []
    for model in config.models:
        if model.sql_file is None:
            texts[model.name] = ModelText(model.sql, positions.get(model.name))
            continue
        try:
            texts[model.name] = read_sql(model.name, model.sql_file, path.parent if path else Path())
        except PipelineError as e:
            mistakes.append(str(e))
    if mistakes:
        raise PipelineError("\n".join(mistakes))
    return texts


def _templates(
    config: PipelineConfig, texts: Mapping[str, ModelText], mistakes: list[str] | None
) -> tuple[list[PythonModel], dict[str, str]]:
    """Return the models over changes, and by name the mistakes in the SQL of the others.

    Mistakes in their settings are added to `mistakes`, or raised if it is None.
    """
    models: list[PythonModel] = []
    refused: dict[str, str] = {}
    for declared in config.models:
        try:
            if declared.write:
                models.append(template_model(declared, texts[declared.name]))
        except ModelError as e:
            refused[declared.name] = str(e)
        except PipelineError as e:
            if mistakes is None:
                raise
            mistakes.append(str(e))
            refused[declared.name] = str(e)
    return models, refused


def _guarded(step: Callable[[], Outcome], spec: Spec) -> Outcome:
    began = time.monotonic()
    try:
        return step()
    except Exception as e:  # stored in the outcome: a failure of any kind concerns one table
        if is_interrupted(e):
            raise KeyboardInterrupt from e
        return Outcome(
            str(spec.table), "failed", error=error_text(e), exception=e, seconds=time.monotonic() - began,
            audits=e.findings if isinstance(e, AuditFailedError) else (),
        )  # fmt: skip
