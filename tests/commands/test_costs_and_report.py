"""`lake-assets costs` and `lake-assets report` as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.journal.step_journal import note
from tests.support.cli import Done
from tests.support.html_pages import check_accessible, check_alone
from tests.support.step_records import step

Call = Callable[..., Done]
HOSTILE = "\x1b[31mred[/red]\u202e"


@pytest.fixture
def home(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    """A lake with some records of steps; the pipelines of this package are not in it."""
    plain_lake.ensure_namespace(("raw",))
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    monkeypatch.setenv("LAKE_COSTS", '{"core_hour": 3600, "currency": "EUR"}')
    for n in range(6):
        note(plain_lake, step("agg.a", "full", cpu=5, reason=f"few rows: {n} in its sources", of=1000))
    note(plain_lake, step(f"final.{HOSTILE}", cpu=2, pipeline=HOSTILE))
    note(plain_lake, step("raw.old", "land", ago=3 * 86_400))
    return plain_lake


def test_costs_as_text_and_json(home: Lake, call: Call) -> None:
    done = call("costs", "--since", "1d")
    assert done.code == 0, done.err
    assert "30.0 s" in done.out
    assert "30.00 EUR" in done.out
    assert "raw.old" not in done.out
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert "6 of 6 steps computed everything: few rows: … in its sources" in done.out
    found = json.loads(call("costs", "--json", "--by", "strategy").out)
    assert {line["name"]: line["steps"] for line in found["lines"]} == {"full": 6, "merge": 1, "land": 1}
    assert (found["currency"], found["total"]["money"]) == ("EUR", 33)
    assert found["lines"][0]["saved"] == 0
    by_reason = call("costs", "--by", "reason").out
    assert by_reason.index("full: few rows") < by_reason.index("merge")
    by_day = json.loads(call("costs", "--json", "--by", "day").out)["lines"]
    assert [line["name"] for line in by_day] == sorted(line["name"] for line in by_day)


def test_what_a_spark_connect_server_used_is_said_not_to_be_counted(
    home: Lake, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Spark Connect" not in call("costs").out
    monkeypatch.setenv("LAKE_SPARK__REMOTE", "sc://127.0.0.1:15002")
    done = call("costs")
    assert done.code == 0, done.err
    assert "What the server used is not counted" in done.out
    assert "What the server used is not counted" in json.loads(call("costs", "--json").out)["not_counted"]


def test_nothing_in_the_period_and_a_wrong_period(home: Lake, call: Call) -> None:
    assert "no step has absorbed anything or failed since" in call("costs", "--since", "1s").out
    done = call("costs", "--since", "soon")
    assert done.code == 1
    assert "--since soon: write how far back (12h, 7d)" in done.err
    assert call("report", "--since", "soon").code == 1


def test_a_report_as_text_and_as_a_page(home: Lake, call: Call, tmp_path: Path) -> None:
    done = call("report")
    assert done.code == 0, done.err
    assert "no pipeline has filled a table" in done.out
    file = tmp_path / "lake.html"
    done = call("report", "--html", file)
    assert done.code == 0, done.err
    assert f"wrote {file}" in done.out
    page = file.read_text("utf-8")
    check_alone(page)
    check_accessible(page)
    assert r"final.\x1b[31mred[/red]\u202e" in page
    done = call("report", "--html", tmp_path / "none" / "lake.html")
    assert done.code == 1
    assert "the folder" in done.err


@pytest.mark.parametrize("words", ["costs", "report"])
def test_reading_a_lake_that_is_not_there_makes_none(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "none"))
    done = call(words)
    assert done.code == 1
    assert "LakeNotFoundError" in done.err
    assert not (tmp_path / "none").exists()
