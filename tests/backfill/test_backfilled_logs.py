"""Backfills upstream of rows that cannot be computed again: these absorb the difference, and lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.backfill.backfill_plan import plan, plan_tables
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.row_selection import Selection
from lake_assets.lake import TableId
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, rows_in

SUMS = {"name": "agg.sums", "sql": "SELECT id, sum(n) AS n FROM src.t GROUP BY id"}
LOG = {
    "name": "agg.log",
    "write": "append",
    "sql": "SELECT *, current_timestamp() AS seen FROM {{ feed('agg.sums', 'id') }}",
}
# Reads both.
JOINED = {"name": "agg.joined", "sql": "SELECT s.id, count(*) AS changes FROM agg.sums s JOIN agg.log l ON l.id = s.id GROUP BY s.id"}  # fmt: skip


def declared(lake: Lake, *more: dict[str, Any]) -> Pipeline:
    return Pipeline.load(yaml_of(Path(lake.config.home), [SUMS, LOG, *more]))


@pytest.mark.long
def test_a_log_below_a_backfill_keeps_what_came_and_went_meanwhile(lake: Lake) -> None:
    p = declared(lake, JOINED)
    make(lake, "id INT, n INT", "(1, 1)", "(2, 2)")
    run(lake, p)
    lake.spark().sql("UPDATE agg.sums SET n = 99 WHERE id = 2")
    run(lake, p)
    planned = plan(lake, p, TableId.parse("agg.sums"), Selection())
    assert "absorbs the changes after they are published" in planned.left_out["agg.log"]
    backfill = Backfill.begin(lake, p, planned, publish="manual")
    backfill.build()
    for n in (3, 4):
        insert(lake, f"(3, {n})")
        run(lake, p)
    logged = rows_in(lake, "agg.log")
    assert (3, 3, "update_before") in {row[:3] for row in logged}
    backfill.publish()
    run(lake, p)
    assert logged <= rows_in(lake, "agg.log")
    new = {row[:3] for row in rows_in(lake, "agg.log") - logged}
    assert new == {(2, 99, "update_before"), (2, 2, "update_after")}
    taken_back = undo(lake, p, backfill.record.id)
    taken_back.build()
    taken_back.publish()
    run(lake, p)
    assert logged <= rows_in(lake, "agg.log")
    assert rows_in(lake, "agg.log").total() == logged.total() + 4
    joined = next(s for s in p.specs(lake) if str(s.table) == "agg.joined")
    assert verify(lake, joined).equal  # type: ignore[arg-type]


@pytest.mark.long
def test_an_orchestrator_that_chooses_a_log_leaves_it_to_its_own_step(lake: Lake) -> None:
    p = declared(lake)
    make(lake, "id INT, n INT", "(1, 1)")
    run(lake, p)
    for chosen in ((), None, ["2024-01-01"]):
        planned = plan_tables(lake, p, {TableId.parse("agg.sums"): None, TableId.parse("agg.log"): chosen})
        assert [t.table for t in planned.tables] == ["agg.sums"]
        assert list(planned.left_out) == ["agg.log"]


@pytest.mark.long
def test_a_log_that_was_never_run_is_left_to_the_next_run(lake: Lake) -> None:
    make(lake, "id INT, n INT", "(1, 1)")
    p = declared(lake)
    run(lake, p, ["agg.sums"])
    assert plan(lake, p, TableId.parse("agg.sums"), Selection()).left_out == {
        "agg.log": "was never run: the next run fills it"
    }
