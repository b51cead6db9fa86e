"""Costs of past steps, without Spark."""

from __future__ import annotations

import json
import time

import pyarrow as pa

from lake_assets import Lake
from lake_assets.models.steps.cost_estimate import COST, past_costs


def test_a_step_during_which_the_clock_was_set_back_has_no_cost(plain_lake: Lake) -> None:
    rows = pa.table({"n": pa.array([1], pa.int64())})
    plain_lake.ensure_namespace(("agg",))
    plain_lake.catalog.create_table("agg.t", rows.schema)
    for began in (time.time() - 60, time.time() + 3_600):
        cost = json.dumps({"strategy": "keys", "changed": 10, "rows": 100, "began": began})
        plain_lake.table("agg.t").append(rows, snapshot_properties={COST: cost})
    (past,) = past_costs(plain_lake.table("agg.t"))
    assert 60 <= past.seconds < 600
