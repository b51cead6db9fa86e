"""Upkeep in Dagster: a check for each table takes the table's pool, and a sensor requests those that are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.orchestration.asset_names import pool
from lake_assets.orchestration.upkeep_checks import upkeep_tick
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines

T = Table({"id": BIGINT, "n": BIGINT})
CHECKS = {"raw/events", "staging/t", "final/t", "agg/m"}


def harness(lake: Lake, instance: dg.DagsterInstance, **upkeep: object) -> Harness:
    declared = {
        "name": "p",
        "upkeep": {"commits": 3, "keep": "0s", **upkeep},
        "streams": [{"name": "events", "tables": ["public.t"]}],
        "models": [{"name": "agg.m", "sql": "SELECT n, count(*) AS c FROM final.t GROUP BY n"}],
    }
    return Harness(Pipeline(PipelineConfig.model_validate(declared)), lake, instance)


def batches(found: Harness, count: int) -> None:
    folder = found.lake.config.home / "landing" / "events"
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(1, count + 1):
        events = [Event(T, "c", (n * 10 + i, n * 10 + i), {"id": n * 10 + i, "n": i}) for i in range(3)]
        write_lines(folder / f"{n:04}.jsonl", to_lines(events))
        found.pipeline.run(found.lake)


def tick(found: Harness) -> dg.RunRequest | dg.SkipReason:
    with dg.build_sensor_context(instance=found.instance) as context:
        specs = found.pipeline.specs(found.lake)
        return upkeep_tick(context, found.pipeline, specs, found.lake.config, "p_upkeep")


def test_each_table_has_a_check_that_takes_the_pool_of_the_table(plain_lake: Lake) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        found = harness(plain_lake, instance)
        graph = found.defs.resolve_asset_graph()
        assert {k.asset_key.to_user_string() for k in graph.asset_check_keys if k.name == "upkeep"} == CHECKS
        job = found.defs.resolve_job_def("p_upkeep")
        pools = {p for node in job.nodes for p in [node.definition.pool]}  # type: ignore[union-attr]
        assert pools == {pool(s.table) for s in found.pipeline.specs(plain_lake, alone=False)}
        # A micro-batch does not wait for upkeep.
        assert not [n for n in found.defs.resolve_job_def("p").nodes if n.name.endswith("upkeep")]
        sensors = {s.name for s in found.defs.sensors or []}
        assert sensors == {"p_capture_sensor", "p_outside_steps_sensor", "p_upkeep_sensor"}


@pytest.mark.usefixtures("eager")
@pytest.mark.long  # the work itself: test_upkeep_command
def test_the_sensor_requests_what_is_due_and_the_run_does_it(lake: Lake) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        found = harness(lake, instance)
        assert isinstance(tick(found), dg.SkipReason)
        batches(found, 4)
        requested = tick(found)
        assert isinstance(requested, dg.RunRequest)
        keys = {k.asset_key.to_user_string() for k in requested.asset_check_keys or []}
        assert keys >= {"raw/events", "staging/t", "final/t"}
        job = found.defs.resolve_job_def("p_upkeep")
        result = job.get_subset(asset_check_selection=set(requested.asset_check_keys or [])).execute_in_process(
            instance=instance
        )
        assert result.success
        evaluations = {e.asset_key.to_user_string(): e for e in result.get_asset_check_evaluations()}
        assert evaluations.keys() == keys
        assert all(e.passed for e in evaluations.values()), [e.description for e in evaluations.values()]
        assert evaluations["final/t"].metadata["data_files"].value == 1
        assert "final.t: combine, since" in str(evaluations["final/t"].metadata["actions"].value)
        assert found.pipeline.pending(lake) == []
        again = tick(found)
        assert isinstance(again, dg.SkipReason), again


@pytest.mark.long
@pytest.mark.usefixtures("eager")
def test_quiet_hours_and_off_request_nothing(lake: Lake) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        at = datetime.now(UTC)
        hours = f"{at - timedelta(hours=1):%H:%M}-{at + timedelta(hours=1):%H:%M}"
        found = harness(lake, instance, quiet=[hours])
        batches(found, 4)
        assert isinstance(tick(found), dg.SkipReason)
        off = harness(lake, instance, enabled=False)
        assert isinstance(tick(off), dg.SkipReason)
        on = harness(lake, instance, budget="0.001%")
        assert isinstance(tick(on), dg.RunRequest)
