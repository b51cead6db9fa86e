"""A declared report is an asset with a schedule in Dagster, which writes the page."""

from __future__ import annotations

import dagster as dg
import pytest
from pydantic import ValidationError

from lake_assets import Lake, Pipeline
from lake_assets.orchestration.build import build_definitions
from lake_assets.pipeline import PipelineConfig
from tests.support.html_pages import check_accessible, check_alone

REPORT = {"file": "reports/lake.html", "cron": "0 7 * * *", "timezone": "Europe/Berlin"}


def definitions(lake: Lake, **more: object) -> dg.Definitions:
    return build_definitions(Pipeline(PipelineConfig.model_validate({"name": "shop", **more})), lake)


def test_the_job_writes_the_page_into_the_lakes_home(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("raw",))
    found = definitions(plain_lake, report=REPORT)
    (schedule,) = found.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 7 * * *", "Europe/Berlin")
    result = found.resolve_job_def("shop_report").execute_in_process()
    assert result.success
    (made,) = result.asset_materializations_for_node("shop__report")
    assert made.asset_key == dg.AssetKey(["shop", "report"])
    assert made.metadata["findings"].value == 0
    folder = plain_lake.config.home / "reports"
    assert [p.name for p in folder.iterdir()] == ["lake.html"]
    page = (folder / "lake.html").read_text("utf-8")
    check_alone(page)
    check_accessible(page)


def test_without_a_declaration_there_is_no_job(plain_lake: Lake) -> None:
    found = definitions(plain_lake)
    assert not list(found.schedules or [])
    assert "shop_report" not in {j.name for j in found.jobs or []}
    assert dg.AssetKey(["shop", "report"]) not in found.resolve_all_asset_keys()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cron": "daily"}, "'daily' is not a cron expression"),
        ({"timezone": "Berlin"}, "timezone"),
        ({"since": "soon"}, "'soon' is not a duration"),
        ({"file": "s3://bucket/x.html"}, "file"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PipelineConfig.model_validate({"name": "shop", "report": {**REPORT, **wrong}})
