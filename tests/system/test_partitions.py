"""Partitioned tables under `dagster dev`: a micro-batch of the sensor's marks the partitions that it touched."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_record import Records
from lake_assets.tables.partitioning.table_partitions import Partitions, read_start
from tests.support.dagster_process import Dagster, dagster_dev, wait_for
from tests.support.debezium import to_lines, write_lines
from tests.support.lakes import small_lake
from tests.support.partitioned_orders import BERLIN, MODELS, Orders
from tests.support.pipeline_files import write_pipeline

pytestmark = [pytest.mark.system, pytest.mark.spark]

SECONDS = 600.0
BY = Partitions("at", "day", "Europe/Berlin", read_start("2024-10-20", "day"))


def declare(folder: Path) -> None:
    streams = [{"name": "events", "tables": [{"table": "public.orders", "partitions": BERLIN}]}]
    attributes = {"name": "p", "interval": "2s", "streams": streams, "models": [dict(m) for m in MODELS]}
    folder.mkdir()
    write_pipeline(folder / "defs.yaml", attributes)


# Follows the days; while it is asked to, its next call waits until it may go on.
SLOW = """
import time
from pathlib import Path

from lake_assets import Changes, model

HERE = Path(__file__).parent


@model("agg.slow", write="replace-keys", key=["id"], replace={"id": "id"}, inputs={"orders": "final.orders"})
def slow(orders: Changes):
    if (HERE / "wait").exists():
        (HERE / "wait").rename(HERE / "waits")
        while not (HERE / "go").exists():
            time.sleep(0.2)
    return orders.affected().select("id", "amount")
"""


def over(dagster: Dagster, after: int) -> list[dict[str, Any]]:
    runs = dagster.runs()[after:]
    return runs if runs and all(r["status"] in ("SUCCESS", "FAILURE", "CANCELED") for r in runs) else []


def materialized(dagster: Dagster, *key: str) -> int:
    reply = dagster.ask(
        "query($k: AssetKeyInput!){assetNodeOrError(assetKey:$k){... on AssetNode{partitionStats{numMaterialized}}}}",
        k={"path": list(key)},
    )
    return reply["assetNodeOrError"]["partitionStats"]["numMaterialized"]


def days_of(lake: Lake) -> Counter[str | None]:
    return Counter(BY.key_of(r.at.replace(tzinfo=UTC)) for r in lake.spark().table("final.orders").collect())


@pytest.mark.long
def test_the_sensors_run_marks_the_partitions_that_it_touched(tmp_path: Path) -> None:
    home, pipelines, orders = tmp_path / "lake", tmp_path / "pipelines", Orders(random.Random(5))
    home.mkdir()
    declare(pipelines)
    settings = {"LAKE_HOME": str(home), "LAKE_PIPELINES": str(pipelines), "LAKE_SPARK__DRIVER_MEMORY": "2g"}
    with dagster_dev(tmp_path, **settings) as dagster:
        dagster.start_sensor("p_capture_sensor")
        write_lines(home / "landing" / "events" / "1.jsonl", to_lines(orders.change(40)))
        runs = wait_for("the micro-batch", lambda: over(dagster, 0), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        lake = small_lake(home)
        days = days_of(lake)
        assert materialized(dagster, "final", "orders") == len(days)
        wide = {BY.key_of(r.at.replace(tzinfo=UTC)) for r in lake.spark().table("agg.wide").collect()}
        assert materialized(dagster, "agg", "wide") == len(wide)
        assert materialized(dagster, "agg", "days") == len(wide)


@pytest.mark.long
def test_micro_batches_run_while_a_backfill_of_partitions_is_built(tmp_path: Path) -> None:
    home, pipelines, orders = tmp_path / "lake", tmp_path / "pipelines", Orders(random.Random(5))
    home.mkdir()
    declare(pipelines)
    (pipelines / "models.py").write_text(SLOW)
    landing = home / "landing" / "events"
    settings = {"LAKE_HOME": str(home), "LAKE_PIPELINES": str(pipelines), "LAKE_SPARK__DRIVER_MEMORY": "2g"}
    with dagster_dev(tmp_path, **settings) as dagster:
        dagster.start_sensor("p_capture_sensor")
        write_lines(landing / "1.jsonl", to_lines(orders.change(40)))
        runs = wait_for("the micro-batch", lambda: over(dagster, 0), SECONDS, dagster.log)
        lake = small_lake(home)
        day, _ = days_of(lake).most_common(1)[0]
        lake.spark().sql("UPDATE final.orders SET amount = 77")
        runs = wait_for("the second micro-batch", lambda: over(dagster, len(runs)), SECONDS, dagster.log)
        done = len(dagster.runs())

        (pipelines / "wait").touch()
        launch(dagster, [day], ["final", "orders"], ["agg", "slow"])
        wait_for("the backfill", (pipelines / "waits").exists, SECONDS, dagster.log)
        write_lines(landing / "2.jsonl", to_lines(orders.change(40)))
        wait_for(
            "a micro-batch beside the backfill",
            lambda: [r["status"] for r in dagster.runs()[done:]] == ["STARTED", "SUCCESS"],
            SECONDS,
            dagster.log,
        )
        (pipelines / "go").touch()
        runs = wait_for("the end of all runs", lambda: over(dagster, done), SECONDS, dagster.log)
        assert {r["status"] for r in runs} == {"SUCCESS"}
        (record,) = Records(lake).all()
        assert record.state == "published"
        damaged = {i for i, row in orders.rows.items() if amounts(lake, "final.orders")[i] != row["amount"]}
        days = {BY.key_of(datetime.fromisoformat(orders.rows[i]["at"])) for i in damaged}
        assert day not in days
        wait_for(
            "the last micro-batch", lambda: amounts(lake, "agg.slow") == amounts(lake, "final.orders"), 60, dagster.log
        )


def launch(dagster: Dagster, partitions: list[Any], *assets: list[str]) -> None:
    """Launch a backfill as the UI does."""
    reply = dagster.ask(
        "mutation($p: LaunchBackfillParams!){launchPartitionBackfill(backfillParams:$p){__typename "
        "... on PythonError{message}}}",
        p={"partitionNames": partitions, "assetSelection": [{"path": path} for path in assets]},
    )
    assert reply["launchPartitionBackfill"]["__typename"] == "LaunchBackfillSuccess", reply


def amounts(lake: Lake, table: str) -> dict[int, int]:
    return {r.id: r.amount for r in lake.spark().table(table).collect()}
