"""A source's column whose changed ranges or keys a job gets, and whose name comes to belong to another column."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.types import DateType, StringType

from lake_assets import Lake
from lake_assets.errors import TableReplacedError
from tests.support.daily_job import DAILY, PLAYS, append, new_rows, play


def replace_day(lake: Lake) -> None:
    """Drop a column and add it again, with the same type."""
    for change in ("delete_column", "add_column"):
        with lake.table(PLAYS).update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column("day") if change == "delete_column" else schema.add_column("day", DateType())


def step(lake: Lake, **settings: Any) -> bool:
    """Run the job's next step; whether it got everything."""
    with lake.step(DAILY, [PLAYS], **settings) as step:
        append(lake, new_rows(lake, step).select(["account", "seconds"]))
        return step.is_initial


@pytest.mark.parametrize(
    "declared", [{"ranges": ["day"]}, {"ranges": {"of": {PLAYS: "Day"}}}, {"keys": {"month": "date_trunc('MM', day)"}}]
)
def test_the_job_stops_or_gets_everything(media: Lake, declared: dict[str, Any]) -> None:
    assert step(media, **declared)
    replace_day(media)
    assert not step(media, **declared)  # there is nothing to do yet
    play(media, (3, 3, 30))
    with pytest.raises(TableReplacedError, match=r"raw\.playback: the name day now belongs to another column, so the "):
        step(media, **declared)
    assert step(media, **declared, on_replaced="rebuild")
    play(media, (4, 4, 40))
    assert not step(media, **declared)


def test_other_jobs_go_on(media: Lake) -> None:
    assert step(media, ranges=["account"])
    replace_day(media)
    play(media, (3, 3, 30))
    assert not step(media, ranges=["account"])
    with media.table(PLAYS).update_schema() as schema:
        schema.add_column("account_name", StringType())
    play(media, (4, 4, 40))
    assert not step(media, ranges=["account"])
