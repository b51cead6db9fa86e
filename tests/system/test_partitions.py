"""Partitioned tables under `dagster dev`: a micro-batch of the sensor's marks the partitions that it touched."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import yaml

from lake_assets import Lake
from lake_assets.tables.partitioning.table_partitions import Partitions, read_start
from tests.conftest import small_lake
from tests.orchestration.partitioned import BERLIN, MODELS, Orders
from tests.support.debezium import to_lines, write_lines
from tests.system.dagster_process import Dagster, dagster_dev, wait_for

pytestmark = [pytest.mark.system, pytest.mark.spark]

SECONDS = 600.0
BY = Partitions("at", "day", "Europe/Berlin", read_start("2024-10-20", "day"))


def declare(folder: Path) -> None:
    streams = [{"name": "events", "tables": [{"table": "public.orders", "partitions": BERLIN}]}]
    attributes = {"name": "p", "interval": "2s", "streams": streams, "models": [dict(m) for m in MODELS]}
    folder.mkdir()
    text = yaml.safe_dump({"type": "lake_assets.LakePipeline", "attributes": attributes})
    (folder / "defs.yaml").write_text(text)


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
