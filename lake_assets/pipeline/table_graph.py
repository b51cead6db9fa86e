"""Dependencies between tables, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from lake_assets.errors import PipelineError, TableClaimedError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec

Spec = RawSpec | StagingSpec | FinalSpec | ModelSpec | PythonModelSpec | JobSpec
# Tables whose rows can be recomputed from their sources: they can be verified, recomputed and audited separately.
ComputedSpec = FinalSpec | ModelSpec | PythonModelSpec


def lookups_of(spec: Spec) -> tuple[TableId, ...]:
    """Return the tables whose current rows a step reads as a lookup."""
    return spec.lookups if isinstance(spec, PythonModelSpec | JobSpec) else ()


def also_read_by(spec: Spec) -> tuple[TableId, ...]:
    """Return the tables that a step reads without absorbing their changes: by audits, and as lookups; each once."""
    audited = (t for a in spec.audits for t in a.reads)
    return tuple(dict.fromkeys(t for t in (*lookups_of(spec), *audited) if t != spec.table))


def after(specs: Sequence[Spec]) -> dict[TableId, tuple[TableId, ...]]:
    """Return, by table, the tables that run before it: its sources, and tables of the pipeline that it also reads.

    A batch with a new city and its people passes its audits only if the cities run first. If tables read each other in
    this way, the later one by name runs first.
    """
    declared = {spec.table for spec in specs}
    upstream = {
        s.table: list(dict.fromkeys((*s.sources, *(t for t in lookups_of(s) if t not in declared)))) for s in specs
    }
    for spec in sorted(specs, key=lambda s: s.table):
        for other in also_read_by(spec):
            if (
                other in upstream
                and other not in upstream[spec.table]
                and spec.table not in _upstream_of(other, upstream)
            ):
                upstream[spec.table].append(other)
    return {t: tuple(names) for t, names in upstream.items()}


def _upstream_of(table: TableId, graph: Mapping[TableId, Sequence[TableId]]) -> set[TableId]:
    """Return a table and everything that runs before it."""
    visited, stack = set[TableId](), [table]
    while stack:
        current = stack.pop()
        if current not in visited:
            visited.add(current)
            stack += graph.get(current, ())
    return visited


def ordered(specs: Sequence[Spec], pipeline: str) -> list[Spec]:
    """Sort the tables of a pipeline, upstream first.

    Raises:
        TableClaimedError: a table is declared twice.
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
    graph = {t: [s for s in names if s in by_name] for t, names in after(specs).items()}
    order = list(TopologicalSorter(graph).static_order())
    # In the order of declaration as far as dependencies allow, so related tables stay together.
    rank = {t: i for i, t in enumerate(by_name)}
    return [by_name[t] for t in sorted(order, key=lambda t: (_depth(t, graph), rank[t]))]


def _depth(table: TableId, graph: dict[TableId, list[TableId]]) -> int:
    return 1 + max((_depth(s, graph) for s in graph[table]), default=0)
