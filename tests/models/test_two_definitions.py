"""Two definitions of a model at work at the same time: the table has the rows of the one that it names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import TableId, thresholds
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.tables.writing.publication import Commit
from tests.support.model_world import World

QUERIES = {
    "agg.rows": ("SELECT id, v FROM final.t", "SELECT id, v + 100 AS v FROM final.t"),
    "agg.groups": (
        "SELECT v, max(id) AS id FROM final.t GROUP BY v",
        "SELECT v, min(id) AS id FROM final.t GROUP BY v",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("limit", [0, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("table", QUERIES)
@pytest.mark.parametrize("at_base", [True, pytest.param(False, marks=pytest.mark.long)])
def test_rows_of_the_former_definition_are_not_published(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, table: str, limit: int, at_base: bool
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", limit)
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 3 FROM range(6)")
    old, new = ({"name": table, "sql": sql} for sql in QUERIES[table])
    world.run(old)
    before = _head(lake)
    world.sql("UPDATE final.t SET v = 9 WHERE id = 1")
    after = _head(lake)
    begin = Commit.branch

    def run_the_new_one_first(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(Commit, "branch", begin)
        # It may have fixed its snapshots before the source moved: then it leaves the watermarks as they were.
        if at_base:
            world.sql(f"CALL lake.system.rollback_to_snapshot('final.t', {before})")
        world.run(new)
        if at_base:
            world.sql(f"CALL lake.system.set_current_snapshot('final.t', {after})")
        return begin(*args, **more)

    monkeypatch.setattr(Commit, "branch", run_the_new_one_first)
    (spec,) = world.pipeline(old).specs(lake)
    assert isinstance(spec, ModelSpec)
    with pytest.raises(ConcurrentWriteError):
        SqlModelStep(spec).absorb(lake, SnapshotPins())
    version = f" VERSION AS OF {before}" if at_base else ""
    expected = lake.spark().sql(QUERIES[table][1].replace("final.t", f"final.t{version}"))
    assert world.rows(table) == Counter(map(tuple, expected.collect()))
    world.run(new)  # compares the table with its query
    world.run(old)


def _head(lake: Lake) -> int | None:
    return lake.table(TableId.parse("final.t")).metadata.current_snapshot_id
