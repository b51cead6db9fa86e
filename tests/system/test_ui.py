"""What a data engineer sees in Dagster's UI, in a browser, against a real web server, daemon and code server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lake_assets import Lake, LakeConfig
from tests.support import ui_shop
from tests.support.browser import Browser, browser
from tests.support.dagster_process import REPOSITORY, wait_for
from tests.support.dagster_services import Services, services
from tests.support.processes import SMALL_SPARK

# `servers`, so that no other target runs it.
pytestmark = [pytest.mark.ui, pytest.mark.servers, pytest.mark.system, pytest.mark.spark]

SECONDS = 900.0
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
PICTURES = REPOSITORY / "build" / "ui"
ORDERS_A_DAY = "/assets/agg/orders_a_day"


def ended(running: Services, count: int) -> list[str]:
    """Wait until so many runs have ended; return their states, the oldest first."""

    def states() -> list[str]:
        runs: list[dict[str, Any]] = running.dagster.runs()
        found = [r["status"] for r in runs if r["status"] in ENDED]
        return found if len(found) >= count else []

    return wait_for(f"the end of {count} runs", states, SECONDS, running.daemon.log)


def test_a_data_engineer_sees_what_happened_to_the_data(tmp_path: Path) -> None:
    home = tmp_path / "lake"
    home.mkdir()
    lake = Lake(LakeConfig(home=home))
    ui_shop.create_regions(lake)
    lake.catalog.close()
    definitions = ui_shop.declare(tmp_path / "code")
    settings = {**SMALL_SPARK, "LAKE_HOME": str(home)}
    with (
        services(tmp_path / "dagster", definitions, **settings) as running,
        browser(running.dagster.port, PICTURES) as at,
    ):
        turn_on(at)
        ui_shop.land(home, "0001", [*ui_shop.users(range(1, 9)), *ui_shop.orders(range(1, 21))])
        assert ended(running, 1) == ["SUCCESS"]
        layers_can_be_told_apart(at)
        metadata_say_what_happened(at)
        backfill_of_three_days(at)
        # One run of the days, and one of the table without partitions.
        assert ended(running, 3) == ["SUCCESS"] * 3
        the_backfill_has_a_page(at, running)
        a_partition_has_its_own_figures(at)
        # Tables downstream absorb that a day is lost; the job brings it back to all of them.
        ui_shop.lose_a_day(home)
        assert ended(running, 4)[-1] == "SUCCESS"
        a_job_redoes_a_range(at)
        assert ended(running, 5)[-1] == "SUCCESS"
        the_job_tells_what_it_plans_and_did(at)
        the_page_of_the_backfill_is_readable(at, home / "orders.html")
        a_micro_batch_by_hand(at)
        assert ended(running, 6)[-1] == "SUCCESS"
        ui_shop.land(home, "0002", ui_shop.orders([100], at=5000, amount=-5000))
        assert "FAILURE" in ended(running, 7)
        a_failed_audit_is_seen(at)
        the_report_is_readable(at, tmp_path / "report.html", settings | {"LAKE_PIPELINES": str(tmp_path / "code")})


def turn_on(at: Browser) -> None:
    at.open("/locations/lake_assets/sensors/shop_capture_sensor", "Compares the watermark")
    switch = at.page.locator("input[type=checkbox]").first
    assert not switch.is_checked()
    switch.locator("xpath=..").click()
    at.page.wait_for_function("document.querySelector('input[type=checkbox]').checked")


def layers_can_be_told_apart(at: Browser) -> None:
    """The lineage of a table shows the boxes of layers, kinds, and the table of others."""
    # A graph that fits into its window only if it is small shows no states.
    at.size(1400, 1100)
    at.open("/assets/agg/users_per_region?view=lineage", "users_per_region", "final", "crm", "regions", "Materialized")
    at.picture("dagster-layers", beside=240, below=205, right=80)
    at.size(1280, 800)
    at.open("/assets/crm/regions", "kept by the sales team", "area of sales", "External Asset")


def metadata_say_what_happened(at: Browser) -> None:
    at.open(ORDERS_A_DAY, "Orders and what they brought in", "column_sources", "final.orders.amount")
    at.shows("partitions_touched", "2024-03-01, 2024-03-02, 2024-03-03, 2024-03-04")
    assert at.text.index("final.orders\tordered_at") < at.text.index("final.orders\tid")
    at.picture("dagster-asset", beside=240)
    # A model that copies columns has their descriptions.
    at.open("/assets/agg/large_orders", "gross, in cents", "when the customer has paid")
    at.open("/assets/final/users", "where the user lives", "preview")
    # The name of a user is text, not an image, and no second column.
    at.shows(ui_shop.HOSTILE)
    assert at.page.locator("img[src='x']").count() == 0
    at.page.get_by_text("preview", exact=True).first.scroll_into_view_if_needed()
    at.picture("dagster-rows")


def backfill_of_three_days(at: Browser) -> None:
    """Select days of a table and everything downstream, as people do."""
    at.open("/assets/final/orders?view=lineage&lineageScope=downstream", "orders_a_day")
    at.page.get_by_role("button", name="Materialize all").first.click()
    days = at.page.get_by_placeholder("ex:").first
    days.fill("[2024-03-01...2024-03-03]")
    days.press("Tab")
    at.shows("3 partitions")
    at.picture("backfill-launch")
    at.page.get_by_role("button", name="Launch backfill").click()


def the_backfill_has_a_page(at: Browser, running: Services) -> None:
    tags = {tag["key"]: tag["value"] for run in running.dagster.runs() for tag in run["tags"]}
    at.open(f"/runs/b/{tags['dagster/backfill']}", "orders_a_day")
    wait_for(
        "the end of the backfill",
        lambda: re.search(r"Status\s+Succeeded", at.text),  # a column of its tables has that name, too
        SECONDS,
        running.daemon.log,
    )
    at.size(1280, 440)
    at.picture("backfill-done", beside=240)
    at.size(1280, 800)


def a_job_redoes_a_range(at: Browser) -> None:
    """Fill in the launchpad and launch, as people do."""
    config = (
        "ops:\n  redo_shop:\n    config: {table: final.orders, range_from: '2024-03-01', range_to: '2024-03-02', "
        "html: orders.html}\n"
    )
    at.open(f"/locations/lake_assets/jobs/shop_backfill/playground/setup?config={quote(config)}")
    at.page.get_by_role("button", name="Launch run").click()


def the_job_tells_what_it_plans_and_did(at: Browser) -> None:
    at.size(1400, 1600)
    at.shows("plan: final.orders", "is published", "5 inserted", "1 inserted", "View Asset")
    at.picture("backfill-plan", beside=240, below=580)
    at.size(1280, 800)


def the_page_of_the_backfill_is_readable(at: Browser, file: Path) -> None:
    at.page.goto(file.as_uri())
    at.shows("Tables before and after", "agg.orders_a_day", "2024-03-02")
    nothing_is_wider_than_its_window(at, "backfill-page")


def nothing_is_wider_than_its_window(at: Browser, picture: str) -> None:
    """On a phone, a tablet and a screen; pictures of each."""
    for width in (390, 768, 1280):
        at.size(width, 1000)
        assert at.page.evaluate("document.documentElement.scrollWidth") <= width
        at.picture(f"{picture}-{width}")
    at.size(1280, 800)


def a_micro_batch_by_hand(at: Browser) -> None:
    """The job that asks for no partitions."""
    at.open("/locations/lake_assets/jobs/shop_micro_batch/playground/setup")
    at.page.get_by_role("button", name="Launch run").click()


def the_report_is_readable(at: Browser, file: Path, settings: dict[str, str]) -> None:
    """The page about this lake."""
    command = [Path(sys.executable).with_name("lake-assets"), "report", "--html", str(file)]
    subprocess.run(command, env=os.environ | settings, check=True, timeout=SECONDS)
    at.page.goto(file.as_uri())
    at.shows("What needs attention", "agg.orders_a_day", "no_negative_day")
    # The pictures are for the documentation, where the folder of this test says nothing.
    without = "folder => document.body.innerHTML = document.body.innerHTML.replaceAll(folder, '')"
    at.page.evaluate(without, f"{settings['LAKE_PIPELINES']}/")
    nothing_is_wider_than_its_window(at, "report")


def a_partition_has_its_own_figures(at: Browser) -> None:
    at.open("/assets/final/orders?view=partitions&partition=2024-03-02", "rows_written", "rows_removed")
    assert "files_captured" not in at.text
    assert "seconds" not in at.text


def a_failed_audit_is_seen(at: Browser) -> None:
    at.open(f"{ORDERS_A_DAY}?view=checks&checkDetail=no_negative_day", "no_negative_day", "Failed", "failing_rows")
    at.picture("dagster-audit")
