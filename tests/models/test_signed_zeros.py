"""A floating-point column in a key: zeros of both signs are one key, and different values."""

from __future__ import annotations

import math

import pytest

from lake_assets import Lake
from tests.support.model_world import World


@pytest.mark.long
def test_a_key_keeps_the_sign_of_its_zero(lake: Lake) -> None:
    world = World(lake, "t (id BIGINT, x DOUBLE, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id, id FROM range(20)")
    model = {"name": "staging.x", "sql": "SELECT x, id, v FROM final.t", "key": ["x", "id"]}
    world.run(model)

    def sign() -> float:
        (row,) = lake.spark().sql("SELECT x FROM staging.x WHERE id = 100").collect()
        return math.copysign(1, row["x"])

    world.sql("INSERT INTO final.t VALUES (100, -0.0D, 3)")
    world.run(model)
    assert sign() == -1
    world.sql("UPDATE final.t SET x = 0.0D WHERE id = 100")
    world.run(model)
    assert sign() == 1
    world.sql("UPDATE final.t SET x = -0.0D, v = 4 WHERE id = 100")
    world.run(model)
    assert sign() == -1
