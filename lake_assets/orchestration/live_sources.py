"""Live sources in Dagster: a sensor that keeps their service running, and a check of each that shows how it is."""

import json
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg

from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId
from lake_assets.orchestration.asset_names import asset_key, valid_name
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.service import service_process, service_state
from lake_assets.service.live_service import live_among
from lake_assets.service.service_state import StreamState

SOURCE_CHECK = "live_source"
_INTERVAL_SECONDS = 15
# The state is reported again after so many seconds, also if it is the same.
_REPORT_SECONDS = 600.0


def live_definitions(
    pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, status: dg.DefaultSensorStatus
) -> dg.Definitions:
    """Build the checks of a pipeline's live sources and their sensor; none if it has no live source."""
    raws = live_among(specs)
    if not raws:
        return dg.Definitions()
    return dg.Definitions(
        asset_checks=[_check(str(s.table), asset_key(s.table), config) for s in raws],
        sensors=[_sensor(pipeline, config, status)],
    )


def _check(raw: str, key: dg.AssetKey, config: LakeConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=SOURCE_CHECK,
        description="Whether the source is read live: by `lake-assets serve`, which a sensor keeps running.",
    )
    def check() -> dg.AssetCheckResult:
        state = service_state.read(Lake(config), raw)
        return dg.AssetCheckResult(
            passed=bool(state and state.is_well), metadata=_metadata(state), description=_text(state)
        )

    return check


def _sensor(pipeline: Pipeline, config: LakeConfig, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{valid_name(pipeline.name)}_source_sensor",
        minimum_interval_seconds=_INTERVAL_SECONDS,
        # A second machine that loads the same code must not begin to read by itself.
        default_status=status,
        description=f"Keeps the service running that reads the live sources of {pipeline.name}, and reports how each "
        "of them is. The service ends with the code location's server.",
    )
    def sensor(context):  # type: ignore[no-untyped-def]
        return source_tick(context, pipeline, config)

    return sensor


def source_tick(context: dg.SensorEvaluationContext, pipeline: Pipeline, config: LakeConfig) -> dg.SensorResult:
    """Keep the service running; report states that have changed."""
    lake = Lake(config)
    try:
        done = service_process.ensure_running(lake, pipeline)
        states = [s for s in service_process.states(lake, pipeline) if s is not None]
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()
    told: dict[str, list[Any]] = json.loads(context.cursor) if context.cursor else {}
    events: list[dg.AssetCheckEvaluation] = []
    for state in states:
        said = [state.is_well, state.error]
        before = told.get(state.raw, [None, None, 0.0])
        if before[:2] != said or time.time() - before[2] >= _REPORT_SECONDS:
            events.append(_evaluation(state))
            told[state.raw] = [*said, time.time()]
    texts = [done, *(f"{s.raw}: {s.text}" for s in states)]
    return dg.SensorResult(
        asset_events=events, skip_reason="; ".join(t for t in texts if t) or "starting", cursor=json.dumps(told)
    )


def _evaluation(state: StreamState) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(TableId.parse(state.raw)),
        check_name=SOURCE_CHECK,
        passed=state.is_well,
        metadata=_metadata(state),
        severity=dg.AssetCheckSeverity.ERROR,
        description=state.text,
    )


def _text(state: StreamState | None) -> str:
    return state.text if state else "no service has read this source yet: turn the source sensor on"


def _metadata(state: StreamState | None) -> dict[str, Any]:
    if state is None:
        return {}
    committed = {"last_commit": dg.MetadataValue.timestamp(state.committed)} if state.committed else {}
    measures = {name: value for name, value in state.measures.items() if value is not None}
    return {
        "state": state.state,
        "records": state.records,
        "commits": state.commits,
        "records_a_second": state.records_a_second,
        **committed,
        **measures,
    }
