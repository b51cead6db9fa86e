"""The capture sensor: compares watermarks with the sources' heads and requests one run over the pending tables.

The sensor keeps no state and has no cursor. It finds pending changes in the lake, and past attempts in Dagster's run
history.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from lake_assets.backfill.publishing import settle_all
from lake_assets.facade import Lake
from lake_assets.journal import step_journal
from lake_assets.lake import LakeConfig, thresholds
from lake_assets.lake.counts import plural
from lake_assets.orchestration.asset_checks import comparisons
from lake_assets.orchestration.asset_names import (
    PIPELINE_TAG,
    asset_key,
    micro_batch_name,
    new_tables_key,
    op_name,
    pool,
    valid_name,
)
from lake_assets.orchestration.dagster_partitions import step_key
from lake_assets.orchestration.partition_backfill import discard_cancelled
from lake_assets.orchestration.partition_marks import has_unmarked
from lake_assets.orchestration.runs import run_history
from lake_assets.orchestration.runs.instance_settings import UNMONITORED, config_warnings, missing_file
from lake_assets.orchestration.runs.run_retries import (
    Decision,
    Work,
    decide,
    fingerprint,
    plan_id,
    run_key,
    shortened,
    with_downstream,
)
from lake_assets.orchestration.runs.zombie_runs import end_if_dead
from lake_assets.orchestration.sensing.pending_scan import (
    PendingTable,
    Size,
    batches,
    held_back,
    measure,
    missing_sources,
    scan,
)
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.upkeep_settings import UPKEEP_CHECK
from lake_assets.pipeline.table_graph import Spec, after
from lake_assets.signals.alerts.alert_evaluation import try_evaluate


def capture_sensor(
    pipeline: Pipeline,
    specs: Sequence[Spec],
    config: LakeConfig,
    job: dg.ExecutableDefinition | None,
    *,
    assets: dg.AssetSelection | None = None,
    interval_seconds: int,
    status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Build the sensor of a pipeline; see the module.

    Args:
        job: the job to request; None if the pipeline has none, see `assets`.
        assets: the assets to request in Dagster's job over all assets.
        interval_seconds: shortest time between two ticks.
        status: whether the sensor is on from the start.
    """
    watch = Watch(pipeline, tuple(specs), config, interval=interval_seconds)

    @dg.sensor(
        name=f"{valid_name(pipeline.name)}_capture_sensor",
        job=job,
        asset_selection=assets,
        # Dagster's daemon checks sensors every five seconds. If the interval were a multiple of that, a check would be
        # a few milliseconds early, and the sensor would wait for the next one.
        minimum_interval_seconds=max(1, interval_seconds - 1),
        default_status=status,
        description=(
            f"Compares the watermark of each table of {pipeline.name} with its sources' current snapshots, and "
            "requests one run over the tables that are behind and their downstream tables. Reads metadata only."
        ),
    )
    def sensor(context):  # type: ignore[no-untyped-def]
        try:
            return tick(context, watch)
        finally:
            # Also while a run is active, and if the lake cannot be read.
            tell(watch)

    return sensor


def tick(context: dg.SensorEvaluationContext, watch: Watch, now: float | None = None) -> dg.RunRequest | dg.SkipReason:
    """Check the lake once, and request a run or skip.

    Args:
        context: for Dagster's instance and the tick's log.
        now: seconds since 1970, to measure how long a failed table has waited; default: the clock.

    Raises:
        CatalogUnavailableError: the lake cannot be read. Nothing is lost: the next tick tries again.
    """
    busy: dg.DagsterRun | None = None
    for run in run_history.active_runs(context.instance, watch.jobs, watch.keys):
        if dead := end_if_dead(context.instance, run):
            context.log.warning(dead)
        elif not run_history.redoes_history(run):  # built aside, or one table after the other in its own pool
            busy = busy or run
    if busy:
        stale = ""
        if not context.instance.run_monitoring_enabled:
            stale = f". But {UNMONITORED}: {missing_file() or 'set `run_monitoring.enabled: true` in dagster.yaml'}"
        return dg.SkipReason(
            f"run {busy.run_id[:8]} is {busy.status.value.lower()}: changes that arrive meanwhile are absorbed after "
            f"it{stale}"
        )
    lake = Lake(watch.config)
    try:
        settle_all(lake)
        step_journal.try_flush(lake)
        discard_cancelled(context, lake, watch.pipeline)
        specs = watch.pipeline.specs(lake, alone=False)
        # Tables with an asset are absorbed even if the streams no longer contain them.
        specs += [s for s in watch.loaded if s.table not in {t.table for t in specs}]
        watch.pipeline.forget_former(lake, specs)
        now = time.time() if now is None else now
        pending = scan(lake, specs, _steps(watch, specs), now)
        pending += _unmarked(context.instance, lake, watch, {table.work.table for table in pending})
        pending, left_out = held_back(lake, specs, pending, now, watch.interval)
        ready = [table for table in pending if not table.wait]
        fingerprints = frozenset(table.work.fingerprint for table in ready)
        runs = run_history.past_runs(context.instance, watch.pipeline.name, fingerprints) if ready else []
        decision = decide([table.work for table in ready], runs, now, watch.since)
        for text in _held_back(decision):
            context.log.warning(text)
        if not decision.due:
            reasons = [*_held_back(decision), *_collecting(pending), *missing_sources(lake, specs)]
            current = f"{plural(len(specs), 'table')} {'is' if len(specs) == 1 else 'are'} up to date"
            return dg.SkipReason("; ".join(reasons) or f"nothing new: {current}")
        for text in config_warnings(context.instance, [pool(s.table) for s in watch.loaded]):
            context.log.warning(text)
        due = {w.table for w in decision.due}
        batched = batches(lake, specs, [table for table in ready if table.work.table in due])
        decision = replace(decision, due=tuple(table.work for table in batched))
        size = measure(lake, batched)
        requested = request(context.instance, watch, specs, ready, decision, size, left_out)
        return requested.with_replaced_attrs(asset_check_keys=checks_of(context.repository_def, watch, requested))
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def tell(watch: Watch) -> None:
    """Send alerts of the pipeline's tables, if they are declared; never fails."""
    if watch.config.signals.alerts is None:
        return
    lake = Lake(watch.config)
    try:
        try_evaluate(lake, [watch.pipeline], every=thresholds.ALERT_SECONDS)
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def _steps(watch: Watch, specs: Sequence[Spec]) -> dict[str, str]:
    with_asset = set(watch.asset_tables)
    return {str(s.table): step_key(s) if str(s.table) in with_asset else watch.new_tables_step for s in specs}


def _unmarked(instance: dg.DagsterInstance, lake: Lake, watch: Watch, others: Collection[str]) -> list[PendingTable]:
    """Return tables with nothing to absorb whose changed partitions are not all marked."""
    tables: list[PendingTable] = []
    for spec in watch.loaded:
        if spec.partitions is None or str(spec.table) in others or not has_unmarked(instance, lake, spec):
            continue
        head = lake.table(spec.table).metadata.current_snapshot_id
        mark_fingerprint = fingerprint(spec, "marks", head)
        tables.append(PendingTable(Work(str(spec.table), step_key(spec), mark_fingerprint, "unmarked partitions"), ()))
    return tables


def _collecting(pending: Sequence[PendingTable]) -> list[str]:
    return [f"{table.work.table} collects changes for up to {table.wait:.0f} s more" for table in pending if table.wait]


def _held_back(decision: Decision) -> list[str]:
    given_up = [
        f"gave up on {table} after {tries.count} attempts, the last in run {tries.last_run[:8]}: it is retried when "
        "its sources or its declaration change. After any other correction, materialize it by hand: one attempt"
        for table, tries in decision.given_up.items()
    ]
    waiting = [f"{table} failed and is retried in {remaining:.0f} s" for table, remaining in decision.waiting.items()]
    outdated = [
        f"run {run[:8]} found no asset of {table}: the pipeline's files have changed since this code location was "
        "loaded. Reload it"
        for table, run in decision.outdated.items()
    ]
    return [*given_up, *waiting, *outdated]


def request(
    instance: dg.DagsterInstance,
    watch: Watch,
    specs: Sequence[Spec],
    pending: Sequence[PendingTable],
    decision: Decision,
    size: Size,
    left_out: Collection[str] = (),
) -> dg.RunRequest:
    """Request one run over the due tables and everything downstream of them.

    Args:
        left_out: tables that have no part in the run, because their target lag lets them wait.
    """
    name, with_asset = watch.pipeline.name, set(watch.asset_tables)
    sources = {str(table): [str(t) for t in upstream] for table, upstream in after(specs).items()}
    collecting = {*left_out, *(str(s.table) for s in specs if s.batch.wait)}
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
        run_history.PENDING_TAG: " ".join(w.fingerprint for w in works),
        **_summary_tags(decision, size),
    }
    if attempt > 1:
        tags[run_history.ATTEMPT_TAG] = str(attempt)
    return dg.RunRequest(run_key(name, plan, attempt), tags=tags, asset_selection=selection)


def checks_of(
    repository: dg.RepositoryDefinition | None, watch: Watch, requested: dg.RunRequest
) -> list[dg.AssetCheckKey] | None:
    """Return the checks of the run's assets without comparisons and upkeep, which run on their own; None means all."""
    if repository is None:
        return None
    scheduled = {dg.AssetCheckKey(asset_key(s.table), c.name) for s, c in comparisons(watch.loaded)}
    scheduled |= {dg.AssetCheckKey(asset_key(s.table), UPKEEP_CHECK) for s in watch.loaded}
    assets = set(requested.asset_selection or [])
    keys = (k for k in repository.asset_graph.asset_check_keys if k.asset_key in assets)
    return sorted((k for k in keys if k not in scheduled), key=str)


def _summary_tags(decision: Decision, size: Size) -> Mapping[str, str]:
    captured = f"{plural(size.files, 'file')}, {size.bytes:,} bytes"
    return {
        "lake_assets/tables": shortened([w.table for w in decision.due]),
        "lake_assets/windows": shortened([f"{w.table} < {w.what}" for w in decision.due]),
        "lake_assets/captured": f"{captured}: {shortened(size.ranges)}" if size.ranges else captured,
    }


@dataclass(frozen=True)
class Watch:
    """The tables that a sensor watches.

    Attributes:
        loaded: the tables with an asset in the loaded definitions.
        since: when these were loaded, in seconds since 1970.
        interval: seconds from one tick to the next.
    """

    pipeline: Pipeline
    loaded: tuple[Spec, ...]
    config: LakeConfig
    since: float = field(default_factory=time.time)
    interval: float = 30.0

    @property
    def jobs(self) -> frozenset[str]:
        """The pipeline's jobs that absorb what is pending."""
        return frozenset({valid_name(self.pipeline.name), micro_batch_name(self.pipeline.name)})

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
