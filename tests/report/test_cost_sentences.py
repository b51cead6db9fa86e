"""Sentences about costs: what stands out, with advice that the model's own plan gives, and none where there is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import PipelineError
from lake_assets.health.lake_status import LakeStatus
from lake_assets.journal.step_costs import cost_lines, step_costs
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import TableId
from lake_assets.lake.config import CostsConfig
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.column_sources import column_sources
from lake_assets.report.contents import Period, composed
from lake_assets.report.cost_sentences import cost_sentences
from lake_assets.report.full_steps import Advisor
from lake_assets.report.period import since_of
from tests.support.step_records import step

EVENTS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.int64())])
RUNNING = "SELECT id, day, sum(amount) OVER (ORDER BY day) AS total FROM src.events"
GROUPS = "SELECT day, count(*) AS n FROM src.events GROUP BY day"


def sentences(lake: Lake, records: list[StepRecord], models: dict[str, Any]) -> list[str]:
    """Return the sentences about some steps, for models of a pipeline over `src.events`."""
    lake.ensure_namespace(("src",))
    lake.ensure_namespace(("agg",))
    lake.catalog.create_table("src.events", EVENTS, lake.location_of(TableId.parse("src.events")))
    declared = [{"name": name, **settings} for name, settings in models.items()]
    specs = Pipeline(PipelineConfig.model_validate({"name": "shop", "models": declared})).specs(lake)
    for spec in specs:
        of = column_sources(lake, spec) or {}
        kinds = {f.name: f.type for f in EVENTS}
        lake.catalog.create_table(
            str(spec.table), pa.schema([(c, kinds.get(c, pa.int64())) for c in of]), lake.location_of(spec.table)
        )
    lines = cost_lines(step_costs(records), "table", CostsConfig())
    return cost_sentences(lines, Advisor(lake, {str(s.table): s for s in specs}))


def test_a_model_that_is_always_computed_in_full_names_the_reason_and_a_range_that_is_accepted(
    plain_lake: Lake,
) -> None:
    why = "window functions without PARTITION BY: any change affects all rows"
    records = [step("agg.a", "full", cpu=4, reason=why, of=10) for _ in range(9)]
    records += [step("agg.a", "none", cpu=0.1), step("agg.b", cpu=54)]
    (of_b, of_a) = sentences(plain_lake, records, {"agg.a": {"sql": RUNNING}, "agg.b": {"sql": GROUPS}})
    assert of_b == "agg.b used 60% of the core time of pipeline shop (54.0 core-seconds)"
    assert of_a == (
        "agg.a used 40% of the core time of pipeline shop (36.1 core-seconds); 9 of 10 steps computed everything: "
        f"{why}; its query is always computed in full ({why}); if each row depends only on rows near its own day, or on "
        "earlier ones, declare `range: {column: day, ...}`"
    )


def test_no_range_is_proposed_where_a_source_lacks_the_column(plain_lake: Lake) -> None:
    why = "window functions without PARTITION BY: any change affects all rows"
    sql = "SELECT max(day) AS day, sum(amount) AS n FROM src.events GROUP BY id"
    query = f"SELECT day, sum(n) OVER (ORDER BY day) AS total FROM ({sql})"
    records = [step("agg.a", "full", cpu=4, reason=why) for _ in range(6)]
    (text,) = sentences(plain_lake, records, {"agg.a": {"sql": query}})
    assert f"its query is always computed in full ({why})" in text
    assert "declare" not in text


def test_few_rows_are_cheaper_in_full(plain_lake: Lake) -> None:
    reason = "few rows: 365 in its sources, 10 in the table"
    records = [step("agg.a", "full", start=None, reason="first run")]
    records += [step("agg.a", "full", reason=reason) for _ in range(5)]
    assert sentences(plain_lake, records, {"agg.a": {"sql": GROUPS}}) == [
        "agg.a: 5 of 6 steps computed everything: few rows: … in its sources, … in the table; that is estimated to cost "
        "less than finding what changed"
    ]


def test_a_first_step_and_even_tables_are_worth_no_sentence(plain_lake: Lake) -> None:
    records = [step(f"agg.t{n}", "full", start=None, reason="first run") for n in range(6)]
    assert sentences(plain_lake, records, {}) == []


@pytest.mark.parametrize("settings", [{}, {"full_above": 0.5}])
def test_changes_that_cost_more_than_everything_are_named(plain_lake: Lake, settings: dict[str, Any]) -> None:
    records = [step("agg.a", "full", cpu=2, of=1000, start=None, reason="first run")]
    records += [step("agg.a", "retract", cpu=10, of=1000) for _ in range(5)]
    found = sentences(plain_lake, records, {"agg.a": {"sql": GROUPS, **settings}})
    assert found == (
        []
        if settings
        else [
            "agg.a: absorbing changes used 52.0 core-seconds, and computing everything each time is estimated at 12.0 "
            "core-seconds: `full_above: 0` does that"
        ]
    )


def test_failures_that_cost_much(plain_lake: Lake) -> None:
    records = [step("agg.a", status="failed", cpu=10) for _ in range(3)] + [step("agg.b", cpu=1)]
    found = sentences(plain_lake, records, {})
    assert found == [
        "agg.a used 97% of the core time of pipeline shop (30.0 core-seconds); 3 of 3 steps failed: "
        "`lake-assets status` says why"
    ]


def test_lineage_of_models_and_an_unknown_declaration(plain_lake: Lake) -> None:
    sentences(plain_lake, [], {"agg.a": {"sql": GROUPS}})
    config = {"name": "shop", "models": [{"name": "agg.a", "sql": GROUPS}]}
    specs = {str(s.table): s for s in Pipeline(PipelineConfig.model_validate(config)).specs(plain_lake)}
    now = datetime.now(UTC)
    made = composed(plain_lake, LakeStatus([], {}, ()), specs, [], Period(now, now))
    (lineage,) = made.lineage
    assert dict(lineage.columns) == {"day": ["src.events.day"], "n": []}
    assert (
        Advisor(plain_lake, {}).on_full_steps(
            cost_lines(step_costs([step("agg.a", "full")]), "table", CostsConfig())[0]
        )
        == ""
    )


def test_periods() -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert since_of("12h", now) == now - timedelta(hours=12)
    assert since_of("7d", now) == now - timedelta(days=7)
    assert since_of("2026-11-01", now) == datetime(2026, 11, 1, tzinfo=UTC)
    assert since_of("2026-11-01T06:00+02:00", now) == datetime(2026, 11, 1, 4, tzinfo=UTC)
    for text in ("yesterday", "-1d", "99999999999d", "2026-13-01"):
        with pytest.raises(PipelineError, match="write how far back"):
            since_of(text, now)
    with pytest.raises(PipelineError, match="is later than now"):
        since_of("2026-12-01", now)
