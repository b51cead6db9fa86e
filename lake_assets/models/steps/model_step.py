"""The step of a model, whatever computes it: find what is due, compute, publish in one commit with all watermarks."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pyiceberg.table import Table

from lake_assets.capture.renamed_columns import added_again, renamed_text, schema_at
from lake_assets.capture.source_tags import is_of_others
from lake_assets.errors import DefinitionChangedError, TableReplacedError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import row_count
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.models.steps.cost_estimate import past_costs
from lake_assets.models.steps.model_sources import has_rows_without, read_in
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.tables import standing_failures, table_step
from lake_assets.tables.audits.audit_gate import forget_failed
from lake_assets.tables.batch_limits import left_behind
from lake_assets.tables.lost_history import Declared, rebuilt_if_lost, started_again
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, continues, head_of, known_marks, window_of
from lake_assets.tables.published import published
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.table_step import REQUESTED, StepTables, TableStep, in_review, review_of, tables_of
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY, past_in


class DeclaredModel(Declared, table_step.Declared, Protocol):
    """The declaration of a model."""

    @property
    def batch(self) -> BatchSize:
        """The limits of a step."""
        ...

    @property
    def definition(self) -> str:
        """A fingerprint of what the rows depend on, besides the sources."""
        ...


M = TypeVar("M", bound=DeclaredModel)


@dataclass(frozen=True)
class DueModel(StepTables):
    """A model's step with something to do.

    Attributes:
        windows: the window of each source whose changes it absorbs.
        begun: whether it continues from the table's contents.
        rebuild: why the table is rebuilt; empty: it is not, or only since its history is lost.
    """

    windows: Mapping[TableId, Window]
    begun: bool
    rebuild: str

    @property
    def lost(self) -> str:
        """Why the history of sources is lost; empty if it is not."""
        return "; ".join(w.lost.why for w in self.windows.values() if w.lost)

    @property
    def is_absorbed(self) -> bool:
        """Whether nothing is pending."""
        return self.begun and all(w.is_absorbed for w in self.windows.values())

    @property
    def marks(self) -> Watermarks:
        """The watermarks of the step's commit; of sources that are no longer read only if rows come from them."""
        heads = {s: w.head for s, w in self.windows.items()}
        read = {str(t): heads.get(t) or head_of(table) for t, table in self.sources.items()}
        return {**known_marks(self.table), **read} if self.begun else read


@dataclass(frozen=True)
class StepResult:
    """What a step did.

    Attributes:
        strategy: how the change was applied; `none` if no row changed.
        why: what was done, and why, for people.
    """

    strategy: str
    why: str

    def because(self, reason: str) -> StepResult:
        """Return the same result with the reason for the strategy."""
        return StepResult(self.strategy, f"{self.why}: {reason}")


@dataclass(frozen=True)
class ComputedModel:
    """A model whose rows are written."""

    result: StepResult
    absorbed: tuple[Absorbed, ...]
    commit: Commit
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelStep(TableStep[M, SnapshotPins]):
    """Maintaining the rows that a model computes from its sources."""

    @abstractmethod
    def needs_history(self, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]) -> bool:
        """Whether a step over these windows reads changes: otherwise lost history does not stop it."""

    @abstractmethod
    def compute(
        self, lake: LakeBase, due: DueModel, pins: SnapshotPins, began: float, scope: contextlib.ExitStack
    ) -> ComputedModel:
        """Compute the rows and write them, with the watermarks `due.marks`.

        Args:
            pins: the snapshots that other models of the run have read, and the changes that they share.
            began: start of the step, in seconds since 1970.
            scope: captures and rows in memory live until it is closed.
        """

    @property
    def lookups(self) -> tuple[TableId, ...]:
        """The tables that it reads at their current snapshots."""
        return ()

    def limits(self, sources: Mapping[TableId, Table]) -> BatchSize:
        """Return the limits of a step that continues from the table."""
        return self.spec.batch

    def check_due(self, due: DueModel) -> None:
        """Raise an error if the table may not be computed otherwise than before."""
        return

    def past(self, table: Table | None) -> str:
        """Return what of the past a table holds that its sources do not; empty: its rows can be computed again."""
        return past_in(table) if table is not None else ""

    @property
    def past_options(self) -> tuple[str, ...]:
        """What can become of rows that cannot be computed again: a query has no place for them."""
        return ("discard",)

    def why_not_rebuilt(self, table: Table | None) -> str:
        """Return what would be lost, and how to go on."""
        past = self.past(table)
        return past and f"{self.spec.table} cannot be computed again: {past}. {self.ways_on}"

    @property
    def ways_on(self) -> str:
        """How a table goes on whose rows cannot be computed again: sentences without a full stop."""
        name, sources = self.spec.table, ", ".join(map(str, self.spec.sources))
        return f"`lake-assets rebuild {name} --discard-rows` computes it from what {sources} hold, and loses other rows"

    def check_unchanged(self, sources: Mapping[TableId, Table]) -> None:
        """Raise the error of a query that no longer fits its sources, though there is nothing to absorb."""
        return

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source."""
        return list(self.windows_of(table, sources).values())

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with other models of the run."""
        return list(self.next_of(lake, table, sources, pins)[0].values())

    def windows_of(self, table: Table | None, sources: Mapping[TableId, Table]) -> dict[TableId, Window]:
        """Return the pending windows of the sources. Reads metadata only.

        If the history of a source is lost, and the model is declared to be rebuilt or recomputes everything on each
        change anyway, all windows start at the beginning.

        Raises:
            TableReplacedError, SnapshotExpiredError: the history of a source is lost, and the model is declared to
                stop.
        """
        spec = self.spec
        windows = {s: window_of(spec.table, table, s, sources[s]) for s in spec.sources if s in sources}
        if not any(w.lost for w in windows.values()):
            return windows
        return started_again(spec, windows, self.recovery, may_stop=self.needs_history(windows, sources))

    def next_of(
        self,
        lake: LakeBase,
        table: Table | None,
        sources: Mapping[TableId, Table],
        pins: SnapshotPins,
        *,
        rebuild: bool = False,
    ) -> tuple[dict[TableId, Window], bool]:
        """Return each source's window for the next step, and whether it continues from the table; reads metadata only.

        Args:
            pins: snapshots fixed by other models of the run; the pins of this step are added.
            rebuild: whether the table is rebuilt in full.

        Raises:
            TableReplacedError, SnapshotExpiredError: see `windows_of`.
        """
        if rebuild:
            windows = {s: Window(s, None, head_of(sources[s])) for s in self.spec.sources}
        else:
            windows = self.windows_of(table, sources)
        begun = self.is_begun(table, windows)
        is_pending = not all(w.is_absorbed for w in windows.values())
        size = self.limits(sources) if begun and is_pending else BatchSize()
        return pins.pin(lake, windows, {s: sources[s] for s in windows}, size), begun

    def is_same_definition(self, table: Table | None) -> bool:
        """Whether a table was built by the current definition."""
        return table is not None and table.properties.get(FINGERPRINT_PROPERTY) == self.spec.definition

    def after_redeclaration(self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]) -> str:
        """Return whether the next step stops, or computes the table again, and at which cost."""
        if self.is_same_definition(table):
            return ""
        if backfill := review_of(table):
            return f"{in_review(self.spec.table, backfill)}"
        changed = "its declaration has changed: the next run"
        if past := self.past(table):
            return f"{changed} stops, since {past}"
        if self.is_stopped_by_change:
            return f"{changed} stops, as `on_query_change: stop` says"
        rows = sum(row_count(s) or 0 for s in sources.values())
        # What it took before says little of a step that has just failed: it may have hung, or grown.
        fails = standing_failures.has_failed(lake, self.spec.table)
        full = None if fails else next((c for c in past_costs(table) if c.strategy == "full"), None)
        seconds = f", in about {full.seconds * rows / max(full.rows, 1):,.0f} s" if full else ""
        return f"{changed} computes it again from {plural(rows, 'row')} of {', '.join(map(str, sources))}{seconds}"

    @property
    def is_stopped_by_change(self) -> bool:
        """Whether the declaration says that a change of it stops the table."""
        return False

    def why_stopped(self, due: DueModel) -> str:
        """Return why the step stops: somebody has replaced a column that it reads by another one; empty if none.

        Such a column has no values in earlier rows. (A pipeline's own tables convert them.)
        """
        if not due.begun or due.rebuild or self.spec.on_replaced == "rebuild":
            return ""
        found: dict[str, str] = {}
        for name, window in due.windows.items():
            table = due.sources[name]
            then, history = schema_at(table, window.start), table.schemas().values()
            for again in added_again(then, table.schema(), history) if is_of_others(table) else ():
                if self.reads(due, name, again.column) and has_rows_without(table, window.head.snapshot, again.now):
                    found.setdefault(f"{name}.{again.column}", f"{name}: the column {again.text}")
        if not found:
            return ""
        return (
            f"{'; '.join(found.values())}, so rows that were written before have no value in it. {self.spec.table} "
            "stays as it is: computed again, it has null for them. The next run goes on if the column is added with "
            "its former type again. "
            f"{self.recovery('on_replaced')}"
        )

    def reads(self, due: DueModel, source: TableId, column: str) -> bool:
        """Whether the table is computed from a column."""
        return True

    def is_begun(self, table: Table | None, windows: Mapping[TableId, Window]) -> bool:
        """Whether a step continues from the table's contents."""
        return self.is_same_definition(table) and continues(windows.values())

    def due(self, lake: LakeBase, pins: SnapshotPins, rebuild: str) -> DueModel | Outcome:
        """Return the step, or the outcome if there is nothing to do.

        Args:
            rebuild: why the table is rebuilt in full; empty if it is not.
        """
        found = tables_of(lake, self.spec, self.lookups)
        if isinstance(found, Outcome):
            return found
        windows, begun = self.next_of(lake, found.table, found.sources, pins, rebuild=bool(rebuild))
        due = DueModel(found.table, read_in(found.sources, windows), windows, begun, rebuild)
        if due.is_absorbed:
            why = renamed_text({str(s): (found.sources[s], w.start) for s, w in windows.items()})
            if why:
                self.check_unchanged(found.sources)
            return Outcome(str(self.spec.table), "nothing", why=why)
        if (backfill := review_of(found.table)) and not self.is_same_definition(found.table):
            raise in_review(self.spec.table, backfill)
        self.check_due(due)
        if text := self.why_stopped(due):
            raise TableReplacedError(text)
        if found.table is not None and not begun and not rebuild and (past := self.past(found.table)):
            raise DefinitionChangedError(
                f"{self.spec.table} was built by another declaration, and stays as it is: {past}. Restore the former "
                f"declaration. Otherwise, {self.ways_on}"
            )
        return due

    def absorb(self, lake: LakeBase, pins: SnapshotPins, *, rebuild: bool = False) -> Outcome:
        """Absorb the changes of all sources, as of snapshots that are fixed at the start.

        Raises:
            SnapshotExpiredError, TableReplacedError, MissingDataFileError: the history of a source is lost.
            ModelError: the model is wrong for its current sources. Nothing is written.
            DefinitionChangedError: the query has changed, and the model is declared to stop.
            KeyMissingError: two of its rows share a declared key.
            ConcurrentWriteError: the step lost a race to another run.
            AuditFailedError: the new rows do not pass the audits. Nothing is published.
        """
        with pins.release_on_failure():
            asked, advice = REQUESTED if rebuild else "", self.recovery("on_gap")
            return rebuilt_if_lost(self.spec, lambda why: self._absorb(lake, pins, why), asked, advice)

    def _absorb(self, lake: LakeBase, pins: SnapshotPins, rebuild: str) -> Outcome:
        began, clock = time.monotonic(), time.time()
        due = self.due(lake, pins, rebuild)
        if isinstance(due, Outcome):
            return due
        table = self.spec.table
        forget_failed(lake, table, due.table)
        with contextlib.ExitStack() as scope:
            scope.enter_context(tuned_for(lake, (table, *due.sources)))
            done = self.compute(lake, due, pins, clock, scope)
        details: dict[str, Any] = {**done.details, **left_behind(*due.windows.values())}
        strategy, why = done.result.strategy, done.result.why
        return published(done.commit, done.absorbed, strategy=strategy, why=why, began=began, details=details)
