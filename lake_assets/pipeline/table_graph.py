"""Which tables are made of which, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from lake_assets.errors import PipelineError, TableClaimedError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec

Spec = RawSpec | StagingSpec | FinalSpec | ModelSpec


def audited_by(spec: Spec) -> tuple[TableId, ...]:
    """The other tables that the audits of a table look at, each once."""
    return tuple(dict.fromkeys(t for a in spec.audits for t in a.reads if t != spec.table))


def after(specs: Sequence[Spec]) -> dict[TableId, tuple[TableId, ...]]:
    """By table, those that it is made after: its sources, and those of the same pipeline that its audits look at.

    A batch that brings a new city and people in it passes only when the cities come first. Of tables whose audits look
    at each other, one has to come first: the later one by name.
    """
    found = {spec.table: list(spec.sources) for spec in specs}
    for spec in sorted(specs, key=lambda s: s.table):
        for other in audited_by(spec):
            if other in found and other not in found[spec.table] and spec.table not in _above(other, found):
                found[spec.table].append(other)
    return {t: tuple(names) for t, names in found.items()}


def _above(table: TableId, graph: Mapping[TableId, Sequence[TableId]]) -> set[TableId]:
    """A table and all that it is made after."""
    found, todo = set[TableId](), [table]
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += graph.get(at, ())
    return found


def ordered(specs: Sequence[Spec], pipeline: str) -> list[Spec]:
    """The tables of a pipeline, each after those that it is made of.

    Raises:
        TableClaimedError: one is declared twice.
        PipelineError: models depend on each other in a circle.
    """
    by_name: dict[TableId, Spec] = {}
    for spec in specs:
        if spec.table in by_name:
            raise TableClaimedError(
                f"pipeline {pipeline!r} declares {spec.table} twice: give one of them another `name`"
            )
        by_name[spec.table] = spec
    graph = {t: [s for s in spec.sources if s in by_name] for t, spec in by_name.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as e:
        raise PipelineError(
            f"pipeline {pipeline!r}: models depend on each other in a circle: {' -> '.join(str(t) for t in e.args[1])}"
        ) from e
    graph = {t: [s for s in found if s in by_name] for t, found in after(specs).items()}
    order = list(TopologicalSorter(graph).static_order())
    # In the order of declaration as far as dependencies allow: what belongs together stays together.
    rank = {t: i for i, t in enumerate(by_name)}
    return [by_name[t] for t in sorted(order, key=lambda t: (_depth(t, graph), rank[t]))]


def _depth(table: TableId, graph: dict[TableId, list[TableId]]) -> int:
    return 1 + max((_depth(s, graph) for s in graph[table]), default=0)
