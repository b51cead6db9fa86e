"""The step of a SQL model: absorb the changes of its sources in one commit that moves all of its watermarks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    SparkRuntimeException,
)

from lake_assets.capture import Capture, capture
from lake_assets.errors import DefinitionChangedError, HistoryError, ModelError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import first_line, wrapped_value_error
from lake_assets.lake.metadata.refresh_state import refresh_state
from lake_assets.models.model_spec import ModelSpec, changed_settings, is_of_query, spec_of
from lake_assets.models.operators.kept_frames import Frames, types_of
from lake_assets.models.operators.operator_types import mixed_types_reason
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.models.sql.sql_errors import located
from lake_assets.models.steps.cost_estimate import Estimate, estimate, past_costs
from lake_assets.models.steps.incremental import incremental, tree_with_types
from lake_assets.models.steps.model_context import ModelContext, NotAcceptedError
from lake_assets.models.steps.model_sources import Sources
from lake_assets.models.steps.model_step import ComputedModel, DueModel, ModelStep, StepResult
from lake_assets.models.steps.planned_models import needed_columns, planned
from lake_assets.models.steps.recomputed_ranges import absorb_ranges
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.stages import OTHER_COLUMNS, is_stopped, stages
from lake_assets.models.steps.stored_result import full, full_by_differences, make_table
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.table_step import ChangedSetting, review_of
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of

log = logging.getLogger(__name__)

# Errors of a step's SQL that the query itself need not have.
_OF_A_PART = (
    NotAcceptedError, AnalysisException, ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException,
    NumberFormatException, ParseException, SparkRuntimeException,
)  # fmt: skip


@dataclass(frozen=True)
class SqlModelStep(ModelStep[ModelSpec]):
    """Maintaining the result of a query.

    Attributes:
        is_former: whether the query is the one that built the table, while another one is declared.
    """

    is_former: bool = False

    def check(self) -> None:
        """Raise ModelError if the query cannot be used."""
        self.spec.check()

    def _is_maintained(self, sources: Mapping[TableId, Table]) -> bool:
        return len(sources) == len(self.spec.sources) and planned(self.spec, sources).strategy != "full"

    def needs_history(self, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]) -> bool:
        """Whether the query is maintained from changes."""
        return self._is_maintained(sources)

    def limits(self, sources: Mapping[TableId, Table]) -> BatchSize:
        """Return the declared limits; none if everything is computed anyway."""
        return self.spec.batch if self.spec.batch.is_limited and self._is_maintained(sources) else BatchSize()

    def check_unchanged(self, sources: Mapping[TableId, Table]) -> None:
        """Raise the error of a query that reads a renamed column now, not with the next change."""
        planned(self.spec, sources)

    @property
    def is_stopped_by_change(self) -> bool:
        """Whether a changed query stops the table."""
        return self.spec.on_query_change == "stop"

    def reads(self, due: DueModel, source: TableId, column: str) -> bool:
        """Whether the query names a column; a query that cannot be compiled may name any."""
        tree = planned(self.spec, due.sources).tree
        return tree is None or column in needed_columns(tree).get(source, ())

    def check_due(self, due: DueModel) -> None:
        """Raise DefinitionChangedError if the query has changed, and the model is declared to stop."""
        name = self.spec.table
        if is_stopped(self, due):
            raise DefinitionChangedError(
                f"{name} was built by another query, or with other partitions, and the model declares "
                f"`on_query_change: stop`. Restore them, or run `lake-assets rebuild {name}` to compute the table "
                "again. With `on_query_change: rebuild`, the next run does so"
            )

    def changed_settings(
        self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]
    ) -> tuple[ChangedSetting, ...]:
        """Return what differs from the query that built the table, and from its key and partitions."""
        return () if self.is_same_definition(table) else changed_settings(self.spec, table)

    def former(self, table: Table | None) -> SqlModelStep | None:
        """Return the step by the query that built a table, while a backfill with the declared one is open."""
        if table is None or not review_of(table) or self.is_same_definition(table) or not is_of_query(table):
            return None
        built = spec_of(self.spec.table, table)
        own = {n: getattr(built, n) for n in ("sql", "sources", "key", "span", "full_above", "partitions")}
        return SqlModelStep(replace(self.spec, **own, origin=None, refused=""), is_former=True)

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source of the query in effect."""
        if former := self.former(table):
            return former.windows(lake, table, former.loaded_sources(lake))
        return super().windows(lake, table, sources)

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the windows of the next step, for the query in effect."""
        if former := self.former(table):
            return former.batch(lake, table, former.loaded_sources(lake), pins)
        return super().batch(lake, table, sources, pins)

    def loaded_sources(self, lake: LakeBase) -> dict[TableId, Table]:
        """Return the sources that exist."""
        return {s: found for s in self.spec.sources if (found := lake.find(s)) is not None}

    def absorb(self, lake: LakeBase, pins: SnapshotPins, *, rebuild: bool = False) -> Outcome:
        """Absorb the changes of all sources; errors name the file and line of the query.

        While a backfill that brings another query is open, the table goes on with the one that built it.
        """
        if (former := self.former(lake.find(self.spec.table))) and not rebuild:
            return former.absorb(lake, pins)
        self.check()
        try:
            return super().absorb(lake, pins, rebuild=rebuild)
        except ModelError as e:
            raise located(e, self.spec.origin) from e
        finally:
            pins.changes.release(lake.spark, self.spec.table)

    def compute(
        self, lake: LakeBase, due: DueModel, pins: SnapshotPins, began: float, scope: contextlib.ExitStack
    ) -> ComputedModel:
        """Compute the touched rows of the result, or all of them."""
        spec, plan = self.spec, planned(self.spec, due.sources)
        gate = Gate(lake, spec.table, spec.audits, plan.key)
        if self.is_former:
            # Audits are declared for the columns of the other query.
            gate = gate.fitting(columns_of(lake, spec.table))
        state = refresh_state(lake, due.marks, spec.definition, began)
        commit = Commit(lake, spec.table, due.table, due.marks, gate, state)
        captures = self.captures(lake, due, plan, scope)
        if due.rebuild:
            for captured in captures.values():
                captured.check_files()
        absorbed = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
        expected = self.expected(plan, due, captures, pins.changes.readers_of)
        frames, needed = Frames(lake.spark(), scope), needed_columns(plan.tree) if plan.tree else {}
        sources = Sources(lake, due.sources, due.windows, captures, frames, needed, spec.table, pins.changes)
        ctx = ModelContext(commit, spec, plan, sources, frames, began, expected)
        # The first stage with a result has committed, and ends the step.
        results = (_RUN[s.name](ctx, s.why) for s in stages(self, due, plan, expected, captures))
        result = next(filter(None, results))
        log.info("%s: %s: %s (%s)", spec.table, result.strategy, result.why, expected)
        details: dict[str, object] = {"estimate": str(expected), "key": ", ".join(plan.key) or plan.key_why}
        if plan.warnings:
            details["warning"] = "; ".join(plan.warnings)
        return ComputedModel(result, absorbed, commit, details)

    def captures(
        self, lake: LakeBase, due: DueModel, plan: ModelPlan, scope: contextlib.ExitStack
    ) -> dict[TableId, Capture]:
        """Capture the pending changes of the sources, or all of their rows."""
        pending = {s: w for s, w in due.windows.items() if not (due.begun and w.is_absorbed)}
        return {s: scope.enter_context(_captured(lake, plan, w, begun=due.begun)) for s, w in pending.items()}

    def expected(
        self,
        plan: ModelPlan,
        due: DueModel,
        captures: Mapping[TableId, Capture],
        readers: Callable[[TableId], int] = lambda _: 1,
    ) -> Estimate:
        """Return the estimated cost of some captured windows; see `estimate`."""
        return estimate(
            plan.strategy, due.windows, due.sources, captures, past_costs(due.table), self.spec.full_above,
            readers=readers, target=due.table, operators=plan.operators, is_read=self.spec.is_read,
        )  # fmt: skip


def _captured(lake: LakeBase, model: ModelPlan, window: Window, *, begun: bool) -> Capture:
    """Capture the changes of a source, or all of it if the changes are unknown and not needed."""
    if begun and model.strategy != "full":
        return capture(lake, window.source, window.start, window.end)
    with contextlib.suppress(HistoryError):
        if begun:
            return capture(lake, window.source, window.start, window.end)
    return capture(lake, window.source, None, window.end)


def _created(ctx: ModelContext, strategy: str, why: str) -> StepResult:
    make_table(ctx)
    return StepResult(strategy, why)


def _absorb(ctx: ModelContext, why: str) -> StepResult:
    """Absorb the captured changes by the plan's strategy."""
    tree = ctx.plan.tree
    assert tree is not None
    try:
        mixed_types = mixed_types_reason(tree.root, ctx.type_of)
        typed = tree if mixed_types else tree_with_types(ctx, tree)
        if ctx.plan.strategy == "ranges":
            return absorb_ranges(ctx, typed, why)
        if mixed_types:
            return full(ctx, mixed_types)
        return _or_in_full(ctx, lambda: incremental(ctx, typed, why), "Spark did not accept a part of the query")
    except UnsupportedCaptureError as e:
        # Raised while changes are read, before anything is written.
        return full(ctx, f"the changes of a source cannot be determined: {e}")


def _or_in_full(ctx: ModelContext, step: Callable[[], StepResult], failed: str) -> StepResult:
    """Run a step; compute everything instead if Spark accepts the query, but not the step's SQL.

    Some types are not determined by a part of the query alone, some cannot be written in SQL, and a row that a
    condition would have filtered out may fail in a cast.
    """
    try:
        return step()
    except Exception as e:
        message = first_line(e) if isinstance(e, _OF_A_PART) else wrapped_value_error(e)
        if not message:
            raise
        # Nothing is written before these errors. If the query itself fails, it fails again below.
        # What Spark says may quote values.
        is_sensitive = ctx.sources.are_sensitive or bool(ctx.spec.shown.sensitive.among)
        log.warning("%s: computed in full: %s", ctx.spec.table, failed, exc_info=not is_sensitive)
        return full(ctx, f"{failed}: {message}")


# What the stages do, given their reasons. Spark reads within the queries of later stages; rows are published by the
# commit that writes them, and watermarks alone by `publish`. `check_due` raises the error of `stop`.
_RUN: dict[str, Callable[[ModelContext, str], StepResult | None]] = {
    "audits": lambda ctx, _: ctx.commit.check_audits(types_of(ctx.query)),
    "columns": lambda ctx, _: _created(ctx, "full", OTHER_COLUMNS) if ctx.columns_differ() else None,
    "read": lambda *_: None,
    "create": lambda ctx, why: _created(ctx, "full", why),
    "rebuild": lambda ctx, why: _created(ctx, "rebuild", why),
    "overwrite": full,
    "differences": lambda ctx, why: _or_in_full(
        ctx, lambda: full_by_differences(ctx, why), "Spark did not compare the stored rows"
    ),
    "changes": _absorb,
    "publish": ModelContext.nothing,
}
