"""A lake and its pipeline, as an earlier version left them: the next run continues from there."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, read_marks
from lake_assets.models.model_spec import ModelSpec, spec_of
from lake_assets.models.steps.cost_estimate import past_costs
from lake_assets.pipeline.verification import verify
from lake_assets.tables.audits.audit_gate import FAILED_BRANCH
from lake_assets.tables.outcome import Outcome
from tests.older_lake.deliver import land_files, visits_of
from tests.older_lake.expected import COLUMNS, tables_after
from tests.older_lake.history import ABSORBED, HALF_ABSORBED, LATER, PENDING, Arrival
from tests.older_lake.unpacking import unpack
from tests.support.cli import Done, caller
from tests.support.oracle import Rows

# Tables that the first run rebuilds, with the source that they are rebuilt from (CHANGELOG.md): tables with `key: "*"`,
# and those of simplified events, whose order was that of texts.
REBUILT = {"staging.notes": "raw.shop_events", "final.notes": "staging.notes", "final.visits": "staging.visits"}
# How tables absorb: in both runs, in the first one only, and in the second one only.
BOTH = {
    "raw.shop_events": "land", "staging.customers": "append", "final.customers": "merge", "agg.cities": "retract",
    "agg.oldest": "keys",
}  # fmt: skip
FIRST = {
    "raw.readings": "land", "raw.payments": "land",
    **dict.fromkeys((f"staging.{t}" for t in ("addresses", "clicks", "orders", "readings", "payments")), "append"),
    "final.addresses": "merge", "final.clicks": "append", "final.orders": "merge", "final.readings": "merge",
    "agg.days": "ranges", "agg.running": "ranges", "agg.ranked": "full", **dict.fromkeys(REBUILT, "rebuild"),
}  # fmt: skip
SECOND = {"staging.notes": "append", "staging.visits": "append", "final.notes": "merge", "final.visits": "merge"}
# What a model's table stores of its declaration.
DECLARED = ("sql", "sources", "pipeline", "key", "on_query_change", "full_above", "span", "partitions")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return caller(monkeypatch, capsys)


@pytest.fixture
def older(tmp_path: Path, new_lake: Callable[[str], Lake]) -> Lake:
    """The lake, in a folder of the test."""
    unpack(tmp_path / "older")
    return new_lake("older")


@pytest.mark.long
def test_a_lake_of_an_earlier_version_continues_where_it_stopped(
    older: Lake, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = older.config.home
    monkeypatch.setenv("LAKE_HOME", str(home))
    pipeline = Pipeline.load(home / "pipeline.yaml")
    earlier = json.loads((home / "found.json").read_text())
    assert _pending(older, pipeline) == _with_rebuilds(earlier)
    _check_what_is_stored(older, pipeline, call, earlier)

    outcomes = {o.table: o for o in pipeline.run(older)}
    assert _strategies(outcomes) == BOTH | FIRST
    _check_audits(outcomes)
    _check(older, pipeline, [*ABSORBED, HALF_ABSORBED, PENDING])
    _check_history(older, earlier["tables"])

    land_files(home, 9, LATER)
    landed = pipeline.land(older, "visits", visits_of(LATER))
    assert landed.records == len(LATER.visits), "read after the last visit that the earlier version had landed"
    assert _strategies({o.table: o for o in pipeline.run(older)}) == BOTH | SECOND
    _check(older, pipeline, [*ABSORBED, HALF_ABSORBED, PENDING, LATER])
    _check_history(older, earlier["tables"])
    # One of each kind: all were compared with what the events say.
    for spec in pipeline.specs(older):
        if isinstance(spec, FinalSpec | ModelSpec) and str(spec.table) in ("final.orders", "agg.cities", "agg.running"):
            assert verify(older, spec).equal, spec.table


def _strategies(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {table: o.strategy for table, o in outcomes.items() if o.status == "absorbed"}


def _pending(lake: Lake, pipeline: Pipeline) -> list[Any]:
    home = str(lake.config.home)
    rows = [[p.table, p.source.removeprefix(home), p.start or 0, p.end or 0, p.files] for p in pipeline.pending(lake)]
    return sorted(rows)


def _with_rebuilds(earlier: dict[str, Any]) -> list[Any]:
    """The pending work that the earlier version reported, and the tables to be rebuilt."""
    again = [[t, source, 0, earlier["tables"][source]["refs"]["main"], 0] for t, source in REBUILT.items()]
    return sorted([p for p in earlier["pending"] if p[0] not in REBUILT] + again)


def _check_what_is_stored(lake: Lake, pipeline: Pipeline, call: Callable[..., Done], earlier: dict[str, Any]) -> None:
    """Offsets, refs, rejected records, costs and watermarks are read as they were written."""
    assert pipeline.offset(lake, "visits") == {"next": sum(len(a.visits) for a in ABSORBED)}
    assert lake.table("final.orders").metadata.refs.keys() > {FAILED_BRANCH}
    assert {c.name for c in lake.consumers.list("staging.orders")} == {"final.orders"}
    assert past_costs(lake.table("agg.cities"))
    for spec in (s for s in pipeline.specs(lake) if isinstance(s, ModelSpec)):
        stored = spec_of(spec.table, lake.table(spec.table))
        assert [getattr(stored, n) for n in DECLARED] == [getattr(spec, n) for n in DECLARED], spec.table
    rejected = {(r["raw"], r["source_table"]): r for r in json.loads(call("rejected", "list", "--json").out)}
    assert rejected.keys() == {("raw.shop_events", None), ("raw.visits", "web.visits")}
    assert rejected["raw.visits", "web.visits"]["reason"].startswith("score does not fit")
    status = {s["table"]: s for s in json.loads(call("status", "--json").out)}
    assert status.keys() == {t for t, of in earlier["tables"].items() if PIPELINE_PROPERTY in of["properties"]}
    assert [t for t, s in status.items() if s["error"]] == []
    behind = {t for t, s in status.items() if any(s["behind"].values())}
    # The earlier version did not store a raw table's landing folder: `status` knows it after the next landing.
    assert behind == {t for t, _, _, end, _ in earlier["pending"] if end}


def _check_audits(outcomes: dict[str, Outcome]) -> None:
    """Audits that a table has passed look at new rows only."""
    checked = {t: {f.audit: f.checked for f in o.audits if f.blocking} for t, o in outcomes.items() if o.audits}
    new = "rows that the batch wrote"
    assert checked == {
        "final.customers": {"unique": new, "not_null_city": new, "never_in_debt": "all rows"},
        "final.orders": {"accepted_values_status": new},
        "agg.days": {"unique": new},
    }


def _check(lake: Lake, pipeline: Pipeline, arrivals: list[Arrival]) -> None:
    """Nothing is pending, and every table holds what the events say."""
    assert pipeline.pending(lake) == []
    for table, rows in tables_after(arrivals).items():
        assert _rows(lake, table, COLUMNS[table]) == rows, table


def _rows(lake: Lake, table: str, columns: Sequence[str]) -> Rows:
    """The rows of a table; times in UTC without a zone."""
    rows = lake.table(table).scan(selected_fields=tuple(columns)).to_arrow().select(list(columns))
    return Counter(tuple(map(_plain, row.values())) for row in rows.to_pylist())


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(value, dt.datetime) and value.tzinfo else value


def _check_history(lake: Lake, tables: dict[str, Any]) -> None:
    """Each table is still the one that the earlier version made, with its history; consumers' tags have moved."""
    for name, was in tables.items():
        table = lake.table(name)
        assert str(table.metadata.table_uuid) == was["uuid"], name
        assert name in REBUILT or was["refs"]["main"] in {s.snapshot_id for s in ancestors(table)}, name
        is_consumer = name.split(".")[0] in ("staging", "final", "agg")
        for source, mark in (read_marks(table) if is_consumer else {}).items():
            assert lake.table(source).metadata.refs[f"consumer.{name}"].snapshot_id == mark.snapshot, name
    assert FAILED_BRANCH not in lake.table("final.orders").metadata.refs
