"""The step of a SQL model: absorb the changes of its sources in one commit that moves all of its watermarks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

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
from lake_assets.lake.metadata.watermark import PROPERTY, find_property
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Frames, types_of
from lake_assets.models.operators.maintenance import reason_all_rows_change
from lake_assets.models.operators.operator_types import mixed_types_reason
from lake_assets.models.sql.model_plan import Choice, ModelPlan
from lake_assets.models.sql.sql_errors import located
from lake_assets.models.steps.cost_estimate import Estimate, estimate, past_costs
from lake_assets.models.steps.incremental import incremental, tree_with_types
from lake_assets.models.steps.model_context import ModelContext, NotAcceptedError
from lake_assets.models.steps.model_sources import Sources, schema_at
from lake_assets.models.steps.model_step import ComputedModel, DueModel, ModelStep, StepResult
from lake_assets.models.steps.planned_models import needed_columns, planned
from lake_assets.models.steps.recomputed_ranges import absorb_ranges
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.stored_result import full, full_by_differences, make_table
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, known_marks
from lake_assets.tables.specs import BatchSize

log = logging.getLogger(__name__)

# Errors of a step's SQL that the query itself need not have.
_OF_A_PART = (
    NotAcceptedError, AnalysisException, ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException,
    NumberFormatException, ParseException, SparkRuntimeException,
)  # fmt: skip


@dataclass(frozen=True)
class SqlModelStep(ModelStep[ModelSpec]):
    """Maintaining the result of a query."""

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

    def check_due(self, due: DueModel) -> None:
        """Raise DefinitionChangedError if the query has changed, and the model is declared to stop."""
        name, stops = self.spec.table, self.spec.on_query_change == "stop" and not due.rebuild
        if stops and due.table is not None and not self.is_same_definition(due.table) and known_marks(due.table):
            raise DefinitionChangedError(
                f"{name} was built by another query, or with other partitions, and the model declares "
                f"`on_query_change: stop`. Restore them, or run `lake-assets rebuild {name}` to compute the table "
                "again. With `on_query_change: rebuild`, the next run does so"
            )

    def absorb(self, lake: LakeBase, pins: SnapshotPins, *, rebuild: bool = False) -> Outcome:
        """Absorb the changes of all sources; errors name the file and line of the query."""
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
        captures = {
            s: scope.enter_context(_captured(lake, plan, w, begun=due.begun))
            for s, w in due.windows.items()
            if not (due.begun and w.is_absorbed)
        }
        if due.rebuild:
            for captured in captures.values():
                captured.check_files()
        absorbed = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
        frames, needed = Frames(lake.spark(), scope), needed_columns(plan.tree) if plan.tree else {}
        sources = Sources(lake, due.sources, due.windows, captures, frames, needed, spec.table, pins.changes)
        expected = self.expected(plan, due.table, due.sources, due.windows, captures, pins.changes.readers_of)
        ctx = ModelContext(lake, spec, plan, sources, frames, due.table, due.marks, began, expected, gate)
        if spec.audits:
            gate.check(types_of(ctx.query))
        result = _create_or_rebuild(ctx, due, needed) or _absorb(ctx)
        log.info("%s: %s: %s (%s)", spec.table, result.strategy, result.why, expected)
        details: dict[str, object] = {"estimate": str(expected), "key": ", ".join(plan.key) or plan.key_why}
        if plan.warnings:
            details["warning"] = "; ".join(plan.warnings)
        return ComputedModel(result, absorbed, gate, details)

    def expected(
        self,
        plan: ModelPlan,
        table: Table | None,
        sources: Mapping[TableId, Table],
        windows: Mapping[TableId, Window],
        captures: Mapping[TableId, Capture],
        readers: Callable[[TableId], int] = lambda _: 1,
    ) -> Estimate:
        """Return the estimated cost of some captured windows; see `estimate`."""
        return estimate(
            plan.strategy, windows, sources, captures, past_costs(table), self.spec.full_above,
            readers=readers, target=table, operators=plan.operators, is_read=self.spec.is_read,
        )  # fmt: skip


def _create_or_rebuild(
    ctx: ModelContext, due: DueModel, needed: Mapping[TableId, Collection[str]]
) -> StepResult | None:
    """Create or rebuild the table; return None if its query and columns are unchanged."""
    # The types of the result follow from the query and its sources' schemas.
    is_schema_kept = all(_is_schema_kept(table, due.windows[t].start) for t, table in due.sources.items())
    is_schema_kept = is_schema_kept and _has_own_columns(due.table)
    replaced = [] if is_schema_kept or not due.begun else _replaced_columns(due.sources, due.windows, needed)
    if due.begun and not replaced and (is_schema_kept or not ctx.columns_differ()):
        return None
    make_table(ctx)
    if due.table is not None and (due.rebuild or due.lost):
        return StepResult("rebuild", due.rebuild or due.lost)
    if replaced:
        return StepResult("full", f"the name {', '.join(replaced)} now belongs to another column")
    if due.table is None:
        return StepResult("full", "first run")
    return StepResult("full", "the query, its sources or the columns of its table changed")


def _captured(lake: LakeBase, model: ModelPlan, window: Window, *, begun: bool) -> Capture:
    """Capture the changes of a source, or all of it if the changes are unknown and not needed."""
    if begun and model.strategy != "full":
        return capture(lake, window.source, window.start, window.end)
    with contextlib.suppress(HistoryError):
        if begun:
            return capture(lake, window.source, window.start, window.end)
    return capture(lake, window.source, None, window.end)


def _absorb(ctx: ModelContext) -> StepResult:
    """Absorb the captured windows."""
    chosen = choice(ctx.plan, ctx.expected, ctx.sources.captures)
    if chosen is None:
        return ctx.nothing("nothing changed in the sources' rows")
    why, tree = chosen.why, ctx.plan.tree
    if chosen.strategy == "full":
        if ctx.expected.overwrites or not (ctx.expected.has_few_rows or ctx.expected.is_small):
            return full(ctx, why)
        return _or_in_full(ctx, lambda: full_by_differences(ctx, why), "Spark did not compare the stored rows")
    assert tree is not None
    try:
        mixed_types = mixed_types_reason(tree.root, ctx.type_of)
        typed = tree if mixed_types else tree_with_types(ctx, tree)
        if chosen.strategy == "ranges":
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
        log.warning("%s: computed in full: %s", ctx.spec.table, failed, exc_info=True)
        return full(ctx, f"{failed}: {message}")


def _is_schema_kept(table: Table, snapshot: int | None) -> bool:
    """Whether a source still has its schema of a snapshot."""
    entry = table.snapshot_by_id(snapshot) if snapshot is not None else None
    return entry is not None and entry.schema_id == table.metadata.current_schema_id


def _has_own_columns(target: Table | None) -> bool:
    """Whether nobody has changed a table's columns since its last step."""
    stored = find_property(target, PROPERTY) if target else None
    if target is None or stored is None:
        return True
    return stored[1].schema_id in (None, target.metadata.current_schema_id)


def _replaced_columns(
    tables: Mapping[TableId, Table], windows: Mapping[TableId, Window], needed: Mapping[TableId, Collection[str]]
) -> list[str]:
    """Return the query's columns whose names belonged to other columns at the last step (dropped and added again, or
    swapped).

    Changes are read with the current columns, but the stored result was computed from the former ones.
    """
    replaced: list[str] = []
    for name, table in tables.items():
        old_ids = {f.name: f.field_id for f in schema_at(table, windows[name].start).fields}
        new_ids = {f.name: f.field_id for f in table.schema().fields}
        columns = sorted(needed.get(name, new_ids))
        replaced += [f"{name}.{c}" for c in columns if c in old_ids and old_ids[c] != new_ids.get(c)]
    return replaced


def choice(plan: ModelPlan, expected: Estimate, captures: Mapping[TableId, Capture]) -> Choice | None:
    """Return how captured changes are absorbed, and the reason; None if no row changed."""
    changed = {t for t, c in captures.items() if not c.is_empty}
    if not changed:
        return None
    if plan.tree is None or plan.strategy == "full":
        return Choice("full", plan.why)
    if expected.is_small:
        return Choice("full", str(expected))
    if expected.prefers_full and (expected.exact or expected.limit == 0):
        return Choice("full", f"computing everything is estimated to be cheaper: {expected}")
    reason = "" if expected.exact else expected.reason_not_to_compare
    if not reason and plan.strategy != "ranges":
        reason = reason_all_rows_change(plan.tree.root, changed)
    return Choice("full", reason) if reason else Choice(plan.strategy, plan.why)
