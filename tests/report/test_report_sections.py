"""Each section of a report's page shows what it is for: a page that looks well without one would be missed by nobody."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.health.lake_status import LakeStatus
from lake_assets.health.table_status import Overdue, TableStatus
from lake_assets.health.upkeep_status import UpkeepStatus
from lake_assets.journal.step_costs import step_costs
from lake_assets.lake.disk_space import DiskSpace
from lake_assets.pipeline import PipelineConfig
from lake_assets.report.contents import Period, composed
from lake_assets.report.findings import KINDS
from lake_assets.report.html_page import html_page
from tests.support.declared_tables import store, store_models
from tests.support.html_pages import read_page
from tests.support.step_records import NOW, step

MODEL = {
    "name": "agg.sales",
    "sql": "SELECT shop, sum(amount) AS total FROM final.orders GROUP BY shop",
    "audits": [{"name": "has_shops", "sql": "SELECT * FROM {table} WHERE shop IS NULL"}],
}
# By kind, a table that is found so, and what the page says of it.
FOUND = {
    "failing": (
        {"failure": "failed at 12:00: ModelError: no column x", "retry": "lake-assets run shop.yaml"},
        "failed at 12:00: ModelError: no column x , once that is corrected Do first: lake-assets run shop.yaml",
    ),
    "late": ({"late": "target_lag 60 s cannot be kept"}, "target_lag 60 s cannot be kept"),
    "silent": ({"silent": Overdue(9, 3, "nothing has arrived for 9 s")}, "nothing has arrived for 9 s"),
    "not exact": ({"not_exact": ["values of `note` were left out"]}, "values of were left out"),
    "rejected": ({"rejected": 3, "closed": 2}, "3 records of this stream are rejected; 2 more are closed"),
    "warning": ({"warnings": ("few_nulls",)}, "the audit few_nulls does not pass"),
    "slower": ({"slower": "slower since 12:00"}, "slower since 12:00"),
    "notice": ({"redeclared": "its declaration has changed"}, "its declaration has changed"),
}


def status(table: str, **more: object) -> TableStatus:
    values = {"watermark": {}, "behind": {}, "behind_seconds": 0.0, "last_run": NOW, "upkeep": ()} | more
    return TableStatus(table, "shop", 10, **values)


@pytest.fixture
def sections(plain_lake: Lake) -> dict[str, str]:
    """The texts of a page in which each section has something to show, by their ids; tables have the names of kinds."""
    store(plain_lake, "final.orders", ["shop", "amount"])
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [MODEL]}))
    store_models(plain_lake, pipeline, {"agg.sales": ["shop", "total"]})
    tables = [status(f"raw.{kind.replace(' ', '_')}", **of) for kind, (of, _) in FOUND.items()]
    tables += [
        status("final.orders", watermark={"raw.rejected": 1}, upkeep=("merge_files", "expire")),
        status("agg.sales", watermark={"final.orders": 1}, target_lag=1_800.0),
    ]
    steps = [
        step("raw.rejected", "land", rows_inserted=5, records_rejected=4),
        step("agg.sales", cpu=5.0, lag_seconds=600.0, rows_inserted=1, rows_deleted=1, failed_audits=["has_shops"]),
        step("raw.failing", status="failed", error="ModelError: no column x"),
    ]
    disk = DiskSpace(Path("/lake"), "the lake", free=1, total=1 << 40)
    composition = composed(
        plain_lake,
        LakeStatus(
            tables, {"final.orders": UpkeepStatus()}, ["pipeline hr: no such folder"], [disk], "an erasure waits"
        ),
        {str(s.table): s for s in pipeline.specs(plain_lake)},
        step_costs(steps),
        Period(NOW - timedelta(days=1), NOW),
    )
    page = read_page(html_page(composition))
    return {s.attributes["aria-labelledby"]: s.text for s in page.all("section")}


def test_each_section_shows_what_it_is_for(sections: dict[str, str]) -> None:
    wanted = {
        # Who writes what: the rows and the seconds of the last step on the edge, and the state of a table.
        "graph": ["2 rows, 2.5 s", "agg.sales", "10 rows, failing", "2 arrows"],
        "lag": ["agg.sales", "at most 10 min, last 10 min", "target 30 min"],
        "costs": ["3 steps used 7.0 core-seconds", "agg.sales", "71%", "1 (1 failed)"],
        "health": ["merge_files, expire", "raw.silent", "silent", "final.orders"],
        "audits": ["agg.sales has_shops", "the batch is not published", "failed"],
        "rejected": ["raw.rejected", "3 2 4"],
        "exactness": ["not exact raw.not_exact", "note"],
        "failures": ["still fails raw.failing 1 failed step", "ModelError: no column x"],
        "lineage": ["agg.sales 2 columns", "shop", "final.orders.shop", "final.orders.amount"],
    }
    assert sections.keys() == {"attention", *wanted}
    missing = {name: [t for t in texts if t not in sections[name]] for name, texts in wanted.items()}
    assert {name: (left, sections[name]) for name, left in missing.items() if left} == {}


def test_the_page_tells_each_kind_of_finding(sections: dict[str, str]) -> None:
    assert FOUND.keys() == {*KINDS}
    for kind, (_, text) in FOUND.items():
        shown = sections["exactness" if kind == "not exact" else "attention"]
        assert f"{kind} raw.{kind.replace(' ', '_')} {text}" in shown
    attention = sections["attention"]
    assert "2 tables are stopped. 1 table is late. 1 table is silent. 1 reason why rows are not exact." in attention
    for text in ("of /lake", "an erasure waits", "Whether declarations have changed is not known: pipeline hr"):
        assert text in attention
