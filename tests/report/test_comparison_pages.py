"""The pages of a backfill and of `verify`: complete in themselves, and text whatever names and values contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import thresholds
from lake_assets.lake.config import CostsConfig
from lake_assets.report import table_differences, verification_contents
from lake_assets.report.html_page import html_page
from tests.support.hostile_names import NAMES, SPELLINGS
from tests.support.html_pages import MARKUP, check_accessible, check_alone, check_text, read_page
from tests.support.reports import BEGAN, reported, verified

EACH = pytest.mark.parametrize("report", [reported, verified])


def check(page: str) -> str:
    check_alone(page)
    check_accessible(page)
    return read_page(page).text


@EACH
def test_names_and_values_of_rows_are_text(plain_lake: Lake, report: Callable[..., Any]) -> None:
    plain = html_page(report(plain_lake))
    for name in (*MARKUP, *NAMES[::4], *SPELLINGS[::4]):
        page = html_page(report(plain_lake, name))
        check(page)
        check_text(page, like=plain)


@EACH
def test_each_value_of_a_row_passes_one_function(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, report: Callable[..., Any]
) -> None:
    assert "zebra" in html_page(report(plain_lake, value="zebra"))
    for module in (table_differences, verification_contents):
        monkeypatch.setattr(module, "shown_value", lambda table, column, value: f"masked in {table}")
    page = html_page(report(plain_lake, value="zebra"))
    assert "masked in " in page
    assert "zebra" not in page


def test_a_backfill_that_waits_says_what_it_would_change_and_what_to_do(plain_lake: Lake) -> None:
    page = read_page(html_page(reported(plain_lake)))
    text = check(html_page(reported(plain_lake)))
    assert "It waits for a decision: it would change 6 rows in 2 of 2 tables." in text
    assert [e.text for e in page.all("code")][:3] == [
        f"lake-assets {word} b123456" for word in ("publish", "discard", "compare")
    ]
    assert "the plan expected 8.0 s" in text
    assert "cannot be compared" in text
    changed = [(old.text, new.text) for old, new in zip(page.all("del"), page.all("ins"), strict=True)]
    assert changed == [("x, before", "x")] * 2
    kinds = [e.text for e in page.all("span") if "tag" in e.attributes.get("class", "").split()]
    assert kinds == ["changed", "added", "removed"] * 2, "not by colour alone"


def test_a_published_backfill_says_what_it_did_and_until_when_it_can_be_undone(plain_lake: Lake) -> None:
    published: dict[str, Any] = {"state": "published", "published": BEGAN, "way": "in one commit", "has_news": True}
    unchanged = reported(plain_lake, **published)
    assert "there is nothing to undo" in check(html_page(unchanged)), "no table has a new snapshot"
    tables = tuple(replace(t, before=3, after=4) for t in unchanged.record.tables)
    text = check(html_page(reported(plain_lake, tables=tables, **published)))
    assert "All tables were published in one commit at 2023-11-14 22:13 UTC." in text
    assert "It also published changes that were pending" in text
    assert "possible until 2023-11-21 22:13 UTC" in text
    redefined = (replace(tables[0], redefined=True), tables[1])
    text = check(html_page(reported(plain_lake, tables=redefined, **published)))
    assert "It cannot be undone, because the declaration of final.1x changed with it." in text


def test_a_verification_says_what_differs_and_what_was_not_compared(plain_lake: Lake) -> None:
    report = verified(plain_lake, doubt="")
    text = check(html_page(report))
    assert "7 rows differ: computed again there are 5 rows, the table holds 4 in a sample" in text
    assert [row.what for row in report.rows] == ["as computed", "in the table", "too few"]
    assert [e.text for e in read_page(html_page(report)).all("mark")] == ["x, computed", "x"]
    assert "4 rows more" in text
    assert any("`lake-assets history agg.x --key id=VALUE`" in step for step in report.next_steps)
    assert verified(plain_lake).attention == "warn", "it need not be wrong"


def test_an_equal_table_needs_nothing(plain_lake: Lake) -> None:
    equal: dict[str, Any] = {"different": 0, "differences": (), "doubt": "", "not_compared": {}}
    text = check(html_page(verified(plain_lake, sample=1.0, **equal)))
    assert "Equal: 4 rows." in text
    assert "Nothing: the table holds what its sources give." in text
    assert "Every row and every column was compared" in text
    assert "lake-assets verify agg.x compares all rows" in " ".join(
        step.replace("`", "") for step in verified(plain_lake, **equal).next_steps
    )


def test_long_values_are_shortened_and_prices_are_in_the_currency(plain_lake: Lake) -> None:
    plain_lake.config.costs = CostsConfig(core_hour=3600, currency="CHF")
    long = "é" * (thresholds.PAGE_CHARACTERS + 1)
    page = html_page(reported(plain_lake, value=long))
    assert f"{long[:-1]}… ({len(long)} characters)" in page
    assert "(6.00 CHF)" in check(page)
    assert "(3.00 CHF)" in check(html_page(verified(plain_lake)))
