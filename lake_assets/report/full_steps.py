"""Why steps of a table computed everything, and what can be declared so that they need not.

The advice is that of the model's own plan: what the plan says of the query, and settings that the plan accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from lake_assets.errors import LakeError
from lake_assets.journal.step_costs import FIRST_STEP, CostLine
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.models.model_spec import ModelSpec, Span
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.models.steps.planned_models import planned
from lake_assets.models.steps.recomputed_ranges import tables_without_column
from lake_assets.pipeline.table_graph import Spec
from lake_assets.report.amounts import core_time

# What the reasons of steps begin with that computed everything because that takes less (`cost_estimate.Estimate`).
_CHEAPER = ("few rows", "computing everything is estimated")
_FIRST = (FIRST_STEP, "first run")
_TIMES = (DateType, TimestampType, TimestamptzType)


@dataclass(frozen=True)
class Advisor:
    """Advice about the steps of tables.

    Attributes:
        specs: the declared tables, by name.
    """

    lake: LakeBase
    specs: Mapping[str, Spec]

    def on_full_steps(self, line: CostLine) -> str:
        """Return what to think of, and to do about, the steps that computed everything; empty: nothing is known."""
        if not (reasons := again(line)):
            return ""
        if all(reason.startswith(_CHEAPER) for reason in reasons):
            return "that is estimated to cost less than finding what changed"
        spec = self.specs.get(line.name)
        if not isinstance(spec, ModelSpec):
            return ""
        try:
            sources = {s: self.lake.table(s) for s in spec.sources}
            plan = planned(spec, sources)
        except LakeError:
            return ""  # `status` and `check` say what is wrong with the model
        if plan.strategy != "full":
            return _of_sources(sources, line)
        why = f"its query is always computed in full ({plan.why})"
        return "; ".join(filter(None, (why, _range(self.lake, spec, sources))))

    def on_dear_changes(self, line: CostLine) -> str:
        """Return what to do if absorbing the changes of a model used clearly more than computing everything would.

        That is only said if steps of the same table tell so, and the declaration leaves the choice to the estimate.
        """
        spec, dear = self.specs.get(line.name), thresholds.COSTS_DEARER * line.in_full
        if line.bases.get("table", 0) < thresholds.COSTS_STEPS or not 0 < dear < line.used_by_estimated:
            return ""
        if not isinstance(spec, ModelSpec) or spec.full_above is not None or spec.span:
            return ""
        return (
            f"absorbing changes used {core_time(line.used_by_estimated)}, and computing everything each time is "
            f"estimated at {core_time(line.in_full)}: `full_above: 0` does that"
        )


def again(line: CostLine) -> Mapping[str, int]:
    """Return why steps computed everything that were not the first of their table, with their numbers."""
    return {reason: count for reason, count in line.reasons.items() if reason not in _FIRST}


def _of_sources(sources: Mapping[TableId, Table], line: CostLine) -> str:
    """Return advice about files that were rewritten in tables without row ids."""
    old = [str(t) for t, table in sources.items() if table.metadata.format_version < 3]
    if old and any("were rewritten: comparing" in reason for reason in line.reasons):
        return f"in tables of format v3, changed rows are found by their ids: {', '.join(old)} has an older format"
    return ""


def _range(lake: LakeBase, spec: ModelSpec, sources: Mapping[TableId, Table]) -> str:
    """Return the range that would make a step recompute only a part of the rows; empty if there is none."""
    stored = lake.find(spec.table)
    if stored is None or spec.span:
        return ""
    for field in stored.schema().fields:
        if isinstance(field.field_type, _TIMES) and _is_accepted(spec, sources, field.name):
            return (
                f"if each row depends only on rows near its own {field.name}, or on earlier ones, declare "
                f"`range: {{column: {field.name}, ...}}`"
            )
    return ""


def _is_accepted(spec: ModelSpec, sources: Mapping[TableId, Table], column: str) -> bool:
    """Whether the plan recomputes ranges of a column that each source has."""
    try:
        plan: ModelPlan = planned(replace(spec, span=Span(column, cumulative=True)), sources)
    except LakeError:
        return False
    return plan.strategy == "ranges" and plan.tree is not None and not tables_without_column(plan.tree, column)
