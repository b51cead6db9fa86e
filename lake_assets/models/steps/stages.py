"""The stages of a SQL model's step, decided from metadata alone: a step runs them in order, and `explain` prints them.

What only Spark can tell (numbers of changed rows, types of columns) is left to the stage that finds it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.capture import Capture
from lake_assets.capture.renamed_columns import reused_names, schema_at
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.watermark import PROPERTY, find_property
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.maintenance import reason_all_rows_change
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.models.steps.cost_estimate import Estimate
from lake_assets.models.steps.model_step import DueModel, ModelStep
from lake_assets.models.steps.planned_models import needed_columns
from lake_assets.tables.pending_windows import known_marks

OTHER_QUERY = "the table was built by another query"
OTHER_COLUMNS = "the query, its sources or the columns of its table changed"
_CHANGES = {
    "adjust": "adjust the groups of changed rows; recompute those in doubt",
    "retract": "insert and delete the rows that follow from changed rows",
    "keys": "recompute the rows that share a key with changed rows",
    "ranges": "recompute the ranges that changed rows affect; everything if any row may be affected",
}


@dataclass(frozen=True)
class Stage:
    """One stage of a step.

    Attributes:
        what: for people; also what it does instead if the rows turn out otherwise.
        strategy, why: of the stage that decides what is written; empty for the others.
    """

    name: Literal[
        "stop", "audits", "columns", "read", "create", "rebuild", "overwrite", "differences", "changes", "publish"
    ]
    what: str
    strategy: str = ""
    why: str = ""


def stages(
    step: ModelStep[ModelSpec], due: DueModel, plan: ModelPlan, expected: Estimate, captures: Mapping[TableId, Capture]
) -> tuple[Stage, ...]:
    """Return the stages of a step, in their order; none if nothing is pending. Reads loaded metadata only.

    Args:
        expected, captures: the cost and the captures of the pending changes; unused if the table is created or rebuilt.
    """
    if due.is_absorbed:
        return ()
    if is_stopped(step, due):
        return (Stage("stop", "stop", "stop", f"{OTHER_QUERY}, and the model declares `on_query_change: stop`"),)
    if why := step.why_stopped(due):
        return (Stage("stop", "stop", "stop", why),)
    audits, names = step.spec.audits, ", ".join(map(str, due.windows))
    fit = "the audit fits" if len(audits) == 1 else f"the {len(audits)} audits fit"
    first = [Stage("audits", f"check that {fit} the columns of the query")] if audits else []
    changed = {s: c for s, c in captures.items() if not c.is_empty}
    write = _creation(step, due, plan)
    if write is None and not _are_columns_kept(due):
        first.append(Stage("columns", "replace the table if the query has other columns"))
    if write is None and not changed:
        what = f"publish only the watermarks of {names}"
        return (*first, Stage("publish", what, "none", "no row of its sources changed"))
    write = write or _application(plan, expected, changed)
    if names:
        changes = "the changes of " + ", ".join(f"{s} ({_size(c)})" for s, c in changed.items())
        first.append(Stage("read", f"read {f'all of {names}' if write.strategy == 'full' else changes}"))
    passed = " if the audits pass" if any(a.is_blocking for a in audits) else ""
    return (*first, write, Stage("publish", f"publish the rows with the watermarks of {names}{passed}"))


def is_stopped(step: ModelStep[ModelSpec], due: DueModel) -> bool:
    """Whether the query has changed, and the model is declared to stop."""
    table, stops = due.table, step.spec.on_query_change == "stop" and not due.rebuild
    return stops and table is not None and not step.is_same_definition(table) and bool(known_marks(table))


def _size(captured: Capture) -> str:
    after = [f for f in captured.files if f.side == "after"]
    return f"{plural(len(after), 'file')}, {sum(f.bytes for f in after):,} bytes"


def _creation(step: ModelStep[ModelSpec], due: DueModel, plan: ModelPlan) -> Stage | None:
    """Return the stage that creates or rebuilds the table; None if the step continues from its contents."""
    if due.table is None:
        return Stage("create", "compute everything; create the table", "full", "first run")
    what = "compute everything; replace the table, or only the rows that differ"
    if why := due.rebuild or due.lost:
        return Stage("rebuild", what, "full", why)
    if not due.begun:
        return Stage("create", what, "full", OTHER_COLUMNS if step.is_same_definition(due.table) else OTHER_QUERY)
    if replaced := [] if _are_columns_kept(due) else _replaced_columns(due, plan):
        return Stage("create", what, "full", f"the name {', '.join(replaced)} now belongs to another column")
    return None


def _application(plan: ModelPlan, expected: Estimate, changed: Mapping[TableId, Capture]) -> Stage:
    """Return the stage that applies captured changes to the table."""
    if why := _reason_for_full(plan, expected, changed):
        if expected.overwrites or not (expected.has_few_rows or expected.is_small):
            return Stage("overwrite", "compute everything; write all rows", "full", why)
        what = "compute everything; write the rows that differ, or all rows if they cannot be compared"
        return Stage("differences", what, "full", why)
    what = _CHANGES["adjust" if plan.retraction else plan.strategy]
    if plan.strategy != "ranges":
        counted = "that is cheaper once they are counted, or " if expected.prefers_full else ""
        what += f"; everything if {counted}Spark does not accept a part of the query"
    return Stage("changes", what, plan.strategy, plan.why)


def _reason_for_full(plan: ModelPlan, expected: Estimate, changed: Mapping[TableId, Capture]) -> str:
    """Return why everything is computed; empty if changes are absorbed by the plan's strategy."""
    if plan.tree is None or plan.strategy == "full":
        return plan.why
    if expected.is_small:
        return str(expected)
    if expected.prefers_full and (expected.exact or expected.limit == 0):
        return f"computing everything is estimated to be cheaper: {expected}"
    reason = "" if expected.exact else expected.reason_not_to_compare
    return reason if reason or plan.strategy == "ranges" else reason_all_rows_change(plan.tree.root, set(changed))


def _are_columns_kept(due: DueModel) -> bool:
    """Whether the result has the columns of its table: they follow from the query and its sources' schemas."""
    stored = find_property(due.table, PROPERTY) if due.table else None
    if due.table and stored and stored[1].schema_id not in (None, due.table.metadata.current_schema_id):
        return False
    starts = {t: table.snapshot_by_id(due.windows[t].start or -1) for t, table in due.sources.items()}
    return all(e and e.schema_id == due.sources[t].metadata.current_schema_id for t, e in starts.items())


def _replaced_columns(due: DueModel, plan: ModelPlan) -> list[str]:
    """Return the query's columns whose names, or those of fields within them, belonged to others at the last step
    (dropped and added again, or swapped).

    Changes are read with the current columns, but the stored result was computed from the former ones.
    """
    needed, replaced = needed_columns(plan.tree) if plan.tree else {}, list[str]()
    for name, table in due.sources.items():
        reused = reused_names(schema_at(table, due.windows[name].start), table.schema())
        replaced += [f"{name}.{t.name}" for t in reused if name not in needed or t.column in needed[name]]
    return sorted(replaced)
