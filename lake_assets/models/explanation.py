"""Explain how a model is maintained and what is pending, from metadata alone, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from lake_assets.capture import capture
from lake_assets.errors import HistoryError
from lake_assets.lake import LakeBase, TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.maintenance import describe, maintained
from lake_assets.models.operators.query_tree import Node, Project, Scan, Tree, definitions, refs
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.python.python_model_step import PythonModelStep
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.models.steps.cost_estimate import Estimate
from lake_assets.models.steps.model_sources import read_in
from lake_assets.models.steps.model_step import DueModel
from lake_assets.models.steps.planned_models import planned
from lake_assets.models.steps.recomputed_ranges import tables_without_column
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.models.steps.stages import Stage, stages
from lake_assets.tables.outcome import Absorbed
from lake_assets.tables.pending_windows import continues


@dataclass(frozen=True)
class Operator:
    """One operator of a query, with its inputs."""

    what: str
    how: str
    below: tuple[Operator, ...]


@dataclass(frozen=True)
class Explanation:
    """How a model is maintained.

    Attributes:
        strategy, why: the strategy for a change of any source, and the reason.
        state: `new`, `changed` (another query), `current` (nothing pending) or `pending`.
        now, now_why: the strategy for the pending changes, and the reason; empty if nothing is pending.
        windows: the pending change of each source.
        estimate: estimated cost of the pending changes; None if nothing is pending, or the table is rebuilt anyway.
        operators: the query's operators; None if the query can only be computed as a whole.
        lineage: the source columns of each column of the result.
        stages: what a step over all pending changes would do, in this order; empty if nothing is pending.
    """

    table: str
    strategy: str
    why: str
    key: tuple[str, ...]
    key_why: str
    state: str
    now: str
    now_why: str
    sources: tuple[str, ...]
    windows: tuple[Absorbed, ...]
    estimate: Estimate | None
    operators: Operator | None
    lineage: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...] = field(default=())
    stages: tuple[Stage, ...] = ()


def explain(lake: LakeBase, spec: ModelSpec) -> Explanation:
    """Explain how a model is maintained, and how pending changes would be absorbed.

    Raises:
        TableNotFoundError: a source does not exist.
        ModelError: the query is wrong for its sources.
    """
    tables = {s: lake.table(s) for s in spec.sources}
    target = lake.find(spec.table)
    model, step = planned(spec, tables), SqlModelStep(spec)
    windows = step.windows_of(target, tables)
    is_same = step.is_same_definition(target)
    due = DueModel(target, read_in(tables, windows), windows, is_same and continues(windows.values()), rebuild="")
    with contextlib.ExitStack() as scope:
        captures = step.captures(lake, due, model, scope) if due.begun else {}
        absorbed = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
        expected = step.expected(model, due, captures)
        decided = stages(step, due, model, expected, captures)
    if target is not None and not is_same:
        state = "changed"
    else:
        state = "current" if not decided else "pending" if due.begun or due.lost else "new"
    now = next((s for s in decided if s.strategy), None)
    why = model.why
    if spec.span and model.tree and (untraceable := tables_without_column(model.tree, spec.span.column)):
        why += f"; a change of {', '.join(map(str, untraceable))} recomputes everything: it has no such column"
    return Explanation(
        str(spec.table), model.strategy, why, model.key, model.key_why, state,
        now.strategy if now else "", now.why if now else "", tuple(map(str, spec.sources)), absorbed,
        expected if absorbed else None,
        _operator(model.tree.root, model) if model.tree else None,
        lineage(model.tree) if model.tree else {}, model.warnings, decided,
    )  # fmt: skip


def explain_code(lake: LakeBase, spec: PythonModelSpec) -> tuple[str, tuple[Absorbed, ...]]:
    """Return what the next step of a Python model does, and the pending change of each input. Reads metadata only.

    Raises:
        TableNotFoundError: an input does not exist.
    """
    step, target = PythonModelStep(spec), lake.find(spec.table)
    sources = {s: lake.table(s) for s in spec.sources}
    if target is None:
        return "computes everything: first run", ()
    if text := step.after_redeclaration(lake, target, sources):
        return text, ()
    try:
        windows = {s: w for s, w in step.windows_of(target, sources).items() if not w.is_absorbed}
    except HistoryError as e:
        return f"stops: {e}", ()
    if lost := [w.lost.why for w in windows.values() if w.lost]:
        return f"computes everything: {'; '.join(lost)}", ()
    due = DueModel(target, read_in(sources, windows), windows, step.is_begun(target, windows), rebuild="")
    if why := step.why_stopped(due):
        return f"stops: {why}", ()
    with contextlib.ExitStack() as scope:
        captures = {s: scope.enter_context(capture(lake, s, w.start, w.end)) for s, w in windows.items()}
        pending = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
        if all(c.is_empty for c in captures.values()):
            return "moves the watermarks: no row of its inputs changed" if windows else "nothing is pending", pending
    return f"calls its code with the changes of {', '.join(map(str, windows))}; {spec.model.write}", pending


def _operator(node: Node, model: ModelPlan) -> Operator:
    # Projections add no information.
    if isinstance(node, Project):
        return _operator(node.input, model)
    how = maintained(node)
    if model.strategy == "ranges" and node.inputs:
        how = "over the rows of the affected ranges"
    elif model.retraction and node is model.retraction.aggregate:
        how = "inserted rows are added to the stored groups, deleted rows subtracted; a group in doubt is recomputed"
    return Operator(describe(node), how, tuple(_operator(i, model) for i in node.inputs))


def lineage(tree: Tree) -> dict[str, tuple[str, ...]]:
    """Return the source columns that each column of the result depends on."""
    return {o: tuple(f"{t}.{c}" for t, c in _origins(tree.root, n)) for o, n in tree.outputs.items()}


def _origins(node: Node, name: str) -> dict[tuple[TableId, str], None]:
    """Return the columns of tables that a column of an operator is computed from."""
    if isinstance(node, Scan):
        return {(node.table, node.fields[name]): None} if name in node.fields else {}
    return {o: None for below, e in definitions(node, name) for r in sorted(refs(e)) for o in _origins(below, r)}
