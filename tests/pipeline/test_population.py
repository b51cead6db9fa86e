"""The worked example: two feeds, joined, counted by city. One user moves, one is added, one is deleted."""

from __future__ import annotations

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.examples import population
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.verification import verify


@pytest.mark.long
def test_each_step_of_population_has_its_numbers(lake: Lake) -> None:
    pipeline = Pipeline.load(population.PIPELINE)
    numbers: list[dict[str, int]] = []
    for step in population.STEPS:
        assert population.feed(lake.config.home, step) == len(step.feeds)
        outcomes = {o.table: o for o in pipeline.run(lake)}
        assert not [o.error for o in outcomes.values() if o.error]
        assert population.differences(lake, step) == []
        numbers.append(dict(lake.spark().table(population.POPULATION).collect()))
        for spec in pipeline.specs(lake):
            assert not isinstance(spec, ModelSpec) or verify(lake, spec).equal
    # user1 moves from bj to hz and user5 is added in wh; then user2, the last user in bj, is deleted.
    assert numbers == [{"bj": 2, "hz": 1, "wh": 1}, {"bj": 1, "hz": 2, "wh": 2}, {"hz": 2, "wh": 2}]
    assert outcomes[population.POPULATION].changed == 1  # bj is deleted; the count does not depend on a name
    assert population.fed(lake.config.home) == list(population.STEPS)
    assert {o.status for o in pipeline.run(lake)} == {"nothing"}
