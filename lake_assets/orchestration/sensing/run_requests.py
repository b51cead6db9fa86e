"""The run that the sensor requests: its steps, tags and configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from lake_assets.lake import LakeConfig
from lake_assets.orchestration.asset_checks import comparisons
from lake_assets.orchestration.asset_names import PIPELINE_TAG, asset_key, new_tables_key, op_name, valid_name
from lake_assets.orchestration.runs import run_history
from lake_assets.orchestration.runs.run_retries import Decision, plan_id, run_key, shortened, with_downstream
from lake_assets.orchestration.sensing.pending_scan import PendingTable, Size
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec, after


def request(
    instance: dg.DagsterInstance,
    watch: Watch,
    specs: Sequence[Spec],
    pending: Sequence[PendingTable],
    decision: Decision,
    size: Size,
) -> dg.RunRequest:
    """Request one run over the due tables and everything downstream of them."""
    name, with_asset = watch.pipeline.name, set(watch.asset_tables)
    sources = {str(table): [str(t) for t in upstream] for table, upstream in after(specs).items()}
    collecting = {str(s.table) for s in specs if s.batch.wait}
    tables = with_downstream([w.table for w in decision.due], sources, collecting)
    selection = [asset_key(s.table) for s in specs if str(s.table) in tables and str(s.table) in with_asset]
    if watch.pipeline.has_patterns and may_add_tables(tables, specs, with_asset):
        selection.append(new_tables_key(watch.pipeline))
    # Downstream tables may be pending without being due: the run counts as an attempt for them too.
    works = [table.work for table in pending if table.work.table in tables]
    plan = plan_id(decision.due)
    attempt = run_history.next_attempt(instance, name, plan)
    tags = {
        PIPELINE_TAG: name,
        run_history.PLAN_TAG: plan,
        run_history.ATTEMPT_TAG: str(attempt),
        run_history.PENDING_TAG: " ".join(w.fingerprint for w in works),
        **_summary_tags(decision, size),
    }
    return dg.RunRequest(run_key(name, plan, attempt), tags=tags, asset_selection=selection)


def checks_of(
    repository: dg.RepositoryDefinition | None, watch: Watch, requested: dg.RunRequest
) -> list[dg.AssetCheckKey] | None:
    """Return the checks of the run's assets without comparisons, which run on schedules; None means all checks."""
    scheduled = {dg.AssetCheckKey(asset_key(s.table), c.name) for s, c in comparisons(watch.loaded)}
    if not scheduled or repository is None:
        return None
    assets = set(requested.asset_selection or [])
    keys = (k for k in repository.asset_graph.asset_check_keys if k.asset_key in assets)
    return sorted((k for k in keys if k not in scheduled), key=str)


def _summary_tags(decision: Decision, size: Size) -> Mapping[str, str]:
    tags = {
        "lake_assets/tables": shortened([w.table for w in decision.due]),
        "lake_assets/windows": shortened([f"{w.table} < {w.what}" for w in decision.due]),
        "lake_assets/captured": f"{size.files} files, {size.bytes:,} bytes",
        "lake_assets/ranges": shortened(size.ranges),
    }
    return {name: value for name, value in tags.items() if value}


@dataclass(frozen=True)
class Watch:
    """The tables that a sensor watches.

    Attributes:
        loaded: the tables with an asset in the loaded definitions.
        since: when these were loaded, in seconds since 1970.
    """

    pipeline: Pipeline
    loaded: tuple[Spec, ...]
    config: LakeConfig
    since: float = field(default_factory=time.time)

    @property
    def job(self) -> str:
        """The pipeline's job."""
        return valid_name(self.pipeline.name)

    @property
    def asset_tables(self) -> list[str]:
        """Names of the tables that have an asset."""
        return [str(s.table) for s in self.loaded]

    @property
    def keys(self) -> frozenset[dg.AssetKey]:
        """The pipeline's assets."""
        tables = [asset_key(s.table) for s in self.loaded]
        return frozenset([*tables, new_tables_key(self.pipeline)])

    @property
    def new_tables_step(self) -> str:
        """The step that absorbs tables without an asset."""
        return op_name(self.pipeline.name, "new_tables")


def may_add_tables(tables: Sequence[str], specs: Sequence[Spec], with_asset: set[str]) -> bool:
    """Whether a landing may bring new tables, or a table without an asset has something to absorb."""
    roots = {str(s.table) for s in specs if not s.sources}
    return any(t in roots or t not in with_asset for t in tables)
