"""The page of a report: complete in itself, readable by anybody, and text whatever names and errors contain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from markupsafe import Markup, escape

from lake_assets import Lake, LakeConfig
from lake_assets.health.lake_status import LakeStatus
from lake_assets.health.table_status import TableStatus
from lake_assets.journal.step_costs import step_costs
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import thresholds
from lake_assets.lake.config import CostsConfig
from lake_assets.lake.visible_text import visible
from lake_assets.report.contents import Period, Report, composed, report
from lake_assets.report.findings import findings
from lake_assets.report.html_page import breakable, html_page
from tests.support.hostile_names import NAMES, SPELLINGS
from tests.support.html_pages import MARKUP, check_accessible, check_alone, check_text, contrast, read_page
from tests.support.step_records import NOW, step

PERIOD = Period(NOW - timedelta(days=1), NOW)


def status(table: str, rows: int = 10, **more: object) -> TableStatus:
    values = {"watermark": {}, "behind": {}, "behind_seconds": 0.0, "last_run": NOW, "upkeep": ()} | more
    return TableStatus(table, "shop", rows, **values)


def test_a_failure_is_mended_by_the_command_that_its_error_names() -> None:
    replaced = "TableReplacedError: final.p was dropped and created again. Run `lake-assets rebuild agg.p`"
    (first,) = findings([status("agg.p", failure=replaced, retry="lake-assets run shop.yaml")])
    assert first.do == "`lake-assets rebuild agg.p`"
    (other,) = findings([status("agg.p", failure="ModelError: no column x", retry="lake-assets run shop.yaml")])
    assert other.do == "`lake-assets run shop.yaml`, once that is corrected"
    (lost,) = findings([status("agg.p", lost=["its history is lost: `lake-assets rebuild agg.p`"])])
    assert lost.do == "`lake-assets rebuild agg.p`"


def test_advice_names_a_command_that_has_something_to_say_of_the_table() -> None:
    lost = [
        status("agg.p", lost=["its history is lost"]),
        status("raw.p", lost=["its history is lost"]),
        status("staging.p", lost=["records are missing. Land them again"]),
    ]
    assert {f.table: f.do for f in findings(lost)} == {
        "agg.p": "",
        "raw.p": "`lake-assets run` with the pipeline's file: its step says what can be done",
        "staging.p": "",
    }
    slower = [status(t, slower="slower since yesterday") for t in ("agg.p", "final.p")]
    assert [f.do for f in findings(slower)] == [
        "`lake-assets explain agg.p` says how it is computed, `lake-assets costs` says what its steps use",
        "`lake-assets costs` says what its steps use",
    ]


def test_a_table_that_is_gone_comes_before_those_that_read_it() -> None:
    rebuild = "`lake-assets rebuild final.p`"
    found = findings(
        [
            status(
                "final.p",
                lost=[f"staging.p, which was read before, no longer exists: {rebuild}"],
                watermark={"staging.p": 1},
            ),
            status("staging.p", lost=["staging.p no longer exists. The next run computes it again"], is_gone=True),
        ]
    )
    run = "`lake-assets run` with the pipeline's file"
    assert [(f.table, f.do) for f in found] == [
        ("staging.p", run),
        ("final.p", f"{rebuild}, once {run} has computed staging.p again"),
    ]


def made(lake: Lake, tables: Sequence[TableStatus], steps: Sequence[StepRecord] = (), **more: object) -> Report:
    return composed(lake, LakeStatus(tables, {}, ()), {}, step_costs(steps), PERIOD, **more)


def check(page: str) -> str:
    check_alone(page)
    check_accessible(page)
    return read_page(page).text


def test_an_empty_lake(plain_lake: Lake) -> None:
    text = check(html_page(report(plain_lake, [], PERIOD.start)))
    assert "0 tables" in text
    assert "No pipeline has filled a table in this lake yet" in text


def test_one_table(plain_lake: Lake) -> None:
    steps = [step("raw.a", "land", lag_seconds=2.0), step("raw.a", "land", lag_seconds=90.0, rows_inserted=4)]
    text = check(html_page(made(plain_lake, [status("raw.a")], steps)))
    assert "Nothing fails, and no table is late." in text
    assert "at most 90 s, last 90 s; 2 steps" in text
    assert "2 steps used 2.0 core-seconds" in text


def test_what_is_stopped_comes_first_and_says_what_to_do(plain_lake: Lake) -> None:
    tables = [
        status(
            "final.b", failure="failed at 12:00: ModelError: broken\nThen `x` tries again", retry="lake-assets run b"
        ),
        status("final.a", failure="failed at 12:00: ModelError: wrong", retry="lake-assets run a"),
        status("agg.c", behind={"final.a": 2}, behind_seconds=7200.0, rows_behind=9, upstream=("final.a",)),
        status("agg.d", not_exact=["values were left out"], upstream=("final.a",)),
        status("raw.e", rejected=3),
        status("agg.f", behind={"final.b": 1}, behind_seconds=50.0),
    ]
    found = made(plain_lake, tables).findings
    assert [(f.kind, f.table, f.waiting) for f in found] == [
        ("failing", "final.a", 2),
        ("failing", "final.b", 0),
        ("late", "agg.c", 0),
        ("not exact", "agg.d", 0),
        ("rejected", "raw.e", 0),
    ]
    assert found[0].do == "`lake-assets run a`, once that is corrected"
    assert found[1].what == "failed at 12:00: ModelError: broken"
    assert found[2].do == "look at final.a first, for which it waits"
    assert "2 snapshots with 9 rows" in found[2].what
    # A target of its own.
    targets = {"agg.f": 30.0, "agg.c": 9000.0}
    late = made(plain_lake, [replace(t, target_lag=targets.get(t.table)) for t in tables]).findings
    assert [f.table for f in late if f.kind == "late"] == ["agg.f"]
    slow = status("agg.g", late="target_lag 60 s cannot be kept: more cores would help")
    found = made(plain_lake, [slow, replace(slow, table="agg.h", behind={"final.b": 1})]).findings
    # What nothing waits for needs no run.
    assert [("see whether sensor" in f.do, f.do == "") for f in found] == [(False, True), (True, False)]
    text = check(html_page(made(plain_lake, tables)))
    assert "2 tables are stopped." in text
    assert "1 table is late." in text
    assert "Do first:" in text


def test_missed_targets_come_first_and_are_told_although_they_are_kept_now(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "REPORT_LAG_CHARTS", 2)
    lags = {
        "final.free": [9000.0],
        "final.kept": [500.0, 590.0],
        "final.missed": [20.0, 90.0, 70.0],
        "final.late": [70.0],
    }
    targets = {"final.kept": 600.0, "final.missed": 60.0, "final.late": 60.0}
    steps = [step(t, ago=600.0, lag_seconds=lag) for t, of in lags.items() for lag in of]
    late = {"final.late": {"behind": {"final.kept": 1}, "behind_seconds": 100.0}}
    tables = [status(t, target_lag=targets.get(t), **late.get(t, {})) for t in lags]
    found = made(plain_lake, tables, steps)
    # The lag of a table without a target is the greatest of all.
    assert [(c.table, c.later) for c in found.lags] == [("final.missed", 2), ("final.late", 1)]
    assert found.quiet_lags == 2
    assert [(f.kind, f.table) for f in found.findings] == [("late", "final.late"), ("notice", "final.missed")]
    assert found.findings[1].what == f"missed its target of 60 s 2 times since {found.first_step}"
    text = check(html_page(found))
    assert "at most 90 s, last 70 s, target 60 s; 2 of 3 steps later than the target" in text
    assert found.findings[1].what in text


def test_two_hundred_tables(plain_lake: Lake) -> None:
    tables, steps = [], list[StepRecord]()
    for n in range(50):
        for layer, source in (("raw", ""), ("staging", "raw"), ("final", "staging"), ("agg", "final")):
            table = f"{layer}.table_{n}"
            watermark = {f"{source}.table_{n}": 1} if source else {}
            tables.append(status(table, 1000 + n, watermark=watermark, failure="failed: x" if n % 7 == 0 else None))
            steps += [step(table, ago=60.0 + k * 900, lag_seconds=float(k), of=1000) for k in range(4)]
    page = html_page(made(plain_lake, tables, steps))
    text = check(page)
    assert "200 tables" in text
    assert "32 tables are stopped." in text
    assert "22 more that are stopped, late or silent" in text
    assert len(page) < 2_000_000


def page_with(lake: Lake, name: str) -> str:
    """Return a page on which a name is wherever a name, a reason or an error can be."""
    failure = f"failed at 12:00: ModelError: {name}"
    tables = [
        status(f"raw.{name}", failure=failure, retry=name, rejected=2, not_exact=[name], renamed=[name]),
        status(f"final.{name}", watermark={f"raw.{name}": 1}, upkeep=(name,), skipped_dumps={name: name}),
    ]
    steps = [
        step(f"final.{name}", "full", reason=name, failed_audits=[name], lag_seconds=1.0, pipeline=name),
        step(f"final.{name}", status="failed", error=name, pipeline=name),
        step(f"final.{name}", strategy=name, pipeline=name),
    ]
    return html_page(made(lake, tables, steps, unread=[name]))


def test_what_stands_in_backticks_is_code(plain_lake: Lake) -> None:
    page = html_page(made(plain_lake, [status("final.a", failure="failed: `<b>` and `x`")]))
    codes = [e.text for e in read_page(page).all("code")]
    assert codes[:2] == ["<b>", "x"]


@pytest.mark.parametrize("name", [*MARKUP, *NAMES, *SPELLINGS])
def test_names_and_errors_are_text(plain_lake: Lake, name: str) -> None:
    page = page_with(plain_lake, name)
    check(page)
    check_text(page, like=page_with(plain_lake, "x"))


def test_no_value_of_a_row_and_no_secret_is_shown(tmp_path: Path) -> None:
    catalog = {"uri": f"sqlite:///{tmp_path}/c.db", "password": "s3cret-of-it"}
    lake = Lake(LakeConfig(home=tmp_path / "home", catalog=catalog))
    lake.catalog.create_namespace("raw")
    audit = (
        "AuditFailedError: final.a: 1 of 2 audits do not pass, and the batch is not published:\n"
        "- email: 2 rows (all rows): email=jane@example.org\nline two of a value jane\nCorrect the source"
    )
    cast = "ModelError: agg.b: [CAST_INVALID_INPUT] The value 'jane' of type STRING, log in with s3cret-of-it"
    key = "KeyMissingError: agg.c: id is declared as its key, and the query gives 2 rows for ('jane', 3): declare a key"
    tables = [status(f"final.t{n}", failure=f"failed at 1: {e}") for n, e in enumerate((audit, cast, key))]
    steps = [step(f"final.t{n}", status="failed", error=e) for n, e in enumerate((audit, cast, key))]
    failed = "Spark did not accept a part of the query: "
    steps += [step("agg.x", "full", reason=failed + cast.replace("jane", name)) for name in ("jane", "jane doe")]
    page = html_page(made(lake, tables, steps, unread=[cast]))
    assert "2 \u00d7 Spark did not accept a part of the query" in page
    assert "jane" not in page
    assert "s3cret" not in page
    text = check(page)
    assert "1 of 2 audits do not pass, and the batch is not published" in text
    assert "the query gives 2 rows for one key: declare a key" in text


def test_audits_say_how_their_last_evaluation_ended(plain_lake: Lake) -> None:
    steps = [
        step("final.a", ago=300, failed_audits=["unique"], status="failed"),
        step("final.a", ago=200, failed_audits=["warns"], rows_inserted=1),
        step("final.a", ago=100),
        step("final.b", ago=50, failed_audits=["gone"], status="failed"),
    ]
    rows = {(a.table, a.audit): (a.result, a.failures) for a in made(plain_lake, [], steps).audits}
    assert rows == {
        ("final.a", "unique"): ("passed", 1),
        ("final.a", "warns"): ("failed", 1),
        ("final.b", "gone"): ("failed", 1),
    }


def test_prices_are_in_the_currency(plain_lake: Lake) -> None:
    plain_lake.config.costs = CostsConfig(core_hour=3600, currency="CHF")
    text = check(html_page(made(plain_lake, [], [step("final.a", cpu=2)])))
    assert "1 step used 2.0 core-seconds (2.00 CHF)" in text


def test_colours_are_readable_in_both_schemes_and_on_paper(plain_lake: Lake) -> None:
    page = html_page(made(plain_lake, []))
    assert '<meta name="color-scheme" content="light dark">' in page
    schemes = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    assert len(schemes) == 3
    assert "@media (prefers-color-scheme: dark)" in page
    assert "@media print" in page
    colours = [dict(re.findall(r"--([\w-]+): (#\w+)", scheme)) for scheme in schemes]
    for of in colours:
        for text in ("text", "muted", "accent", "bad", "warn", "good"):
            assert contrast(of[text], of["bg"]) >= 4.5, (text, of)
        assert contrast(of["muted"], of["surface"]) >= 4.5
        for kind in ("bad", "warn", "good"):
            assert contrast(of["text"], of[f"{kind}-bg"]) >= 4.5
        # Marks and bars are no text.
        assert contrast(of["used"], of["bg"]) >= 3


def test_long_names_break_after_their_dots_and_underscores() -> None:
    assert breakable("agg.orders_a_day") == Markup("agg.<wbr>orders_<wbr>a_<wbr>day")
    assert breakable("a_<b>.") == Markup("a_&lt;b&gt;.")
    assert breakable("final.users\u202e") == escape(visible("final.users\u202e")).replace(".", Markup(".<wbr>"))
