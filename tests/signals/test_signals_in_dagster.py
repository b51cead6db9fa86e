"""Runs and ticks of Dagster: a run is the parent of its steps' events, and a tick sends alerts."""

from __future__ import annotations

import dagster as dg
import pytest

from lake_assets import Lake
from lake_assets.journal import step_journal
from lake_assets.lake import TableId
from lake_assets.orchestration.assets import table_asset
from lake_assets.orchestration.runs.resources import PYSPARK, LakePySparkResource
from lake_assets.orchestration.sensing import sensor
from lake_assets.orchestration.sensing.sensor import Watch, capture_sensor
from lake_assets.signals import observers_of
from lake_assets.signals.lineage.lineage_observer import LineageObserver
from lake_assets.tables import standing_failures
from tests.support.http_receiver import Receiver
from tests.support.signalled_shop import Shop, signalled


def test_the_run_of_dagster_is_the_parent_of_its_steps(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(signalled(plain_lake, openlineage={"url": received.url}), monkeypatch)
    asset = table_asset(shop.pipeline, shop.spec, shop.lake.config, [], {shop.spec.table: shop.spec})
    done = dg.materialize([asset], resources={PYSPARK: LakePySparkResource()})
    assert done.success
    (lineage,) = (o for o in observers_of(shop.lake) if isinstance(o, LineageObserver))
    assert lineage.flush(10.0)
    assert [e["run"]["facets"]["parent"]["run"]["runId"] for e in received.bodies] == [done.run_id] * 2
    assert [r.run for r in step_journal.waiting(shop.lake)] == [f"dagster {done.run_id}"]


def test_a_tick_sends_alerts_whatever_becomes_of_it(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", received.url)
    shop = Shop(signalled(plain_lake, alerts={"webhook": {"env": "HOOK"}}), monkeypatch)
    shop.fail(ValueError("broken"))
    monkeypatch.setattr(sensor, "tick", lambda context, watch: (_ for _ in ()).throw(ValueError("no tick")))
    made = capture_sensor(
        shop.pipeline, [shop.spec], shop.lake.config, None, assets=dg.AssetSelection.all(), interval_seconds=30
    )
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(Exception, match="no tick"):
        made.evaluate_tick(dg.build_sensor_context(instance=instance))
    assert [b["table"] for b in received.bodies] == ["agg.cities"]


def test_a_tick_forgets_the_failures_of_tables_that_are_declared_no_longer(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    shop.fail(ValueError("broken"))
    for pipeline in ("shop", "other"):
        standing_failures.note(
            plain_lake, TableId.parse(f"agg.former_of_{pipeline}"), pipeline, None, ValueError("broken")
        )
    with dg.DagsterInstance.ephemeral() as instance:
        sensor.tick(dg.build_sensor_context(instance=instance), Watch(shop.pipeline, (shop.spec,), plain_lake.config))
    assert {*standing_failures.standing(plain_lake)} == {"agg.cities", "agg.former_of_other"}


def test_a_tick_without_alerts_opens_no_lake(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(plain_lake, monkeypatch)
    monkeypatch.setattr(sensor, "Lake", lambda config: pytest.fail("a lake was opened"))
    sensor.tell(Watch(shop.pipeline, (), plain_lake.config))
