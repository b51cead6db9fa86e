"""The stages of a SQL model's step, from metadata alone: what a step runs is what `explain` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType

from lake_assets import Lake
from lake_assets.commands import explain as command
from lake_assets.errors import DefinitionChangedError, SnapshotExpiredError
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.models.explanation import Explanation, explain
from lake_assets.models.model_spec import ModelSpec, Span, declared
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.tables.audits.audit_kinds import Unique
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from tests.support.cli import invoke

SOURCE, TARGET = TableId.parse("final.t"), TableId.parse("agg.m")
ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "v": pa.array([n % 7 for n in range(100)], pa.int64())})
MODEL = ModelSpec(TARGET, "SELECT v, count(*) AS n FROM final.t GROUP BY v", (SOURCE,), "p", full_above=0.5)
PUBLISH = "publish the rows with the watermarks of final.t"
OR_FULL = "everything if Spark does not accept a part of the query"


@pytest.fixture
def source(plain_lake: Lake) -> Table:
    """The source, with one snapshot."""
    plain_lake.ensure_namespace(SOURCE.namespace)
    table = plain_lake.catalog.create_table(SOURCE.parts, ROWS.schema)
    table.append(ROWS)
    return table


def build(lake: Lake, model: ModelSpec, source: Table) -> None:
    """Create the model's table, as of now."""
    lake.ensure_namespace(TARGET.namespace)
    properties = {FINGERPRINT_PROPERTY: model.definition, PIPELINE_PROPERTY: "p", **declared(model)}
    rows = pa.table({"v": pa.array(range(7), pa.int64()), "n": pa.array([14] * 7, pa.int64())})
    table = lake.catalog.create_table(TARGET.parts, rows.schema, properties=properties)
    table.append(rows, snapshot_properties=to_properties({str(SOURCE): head_of(source)}))


def names(explanation: Explanation) -> list[str]:
    return [s.name for s in explanation.stages]


def decision(explanation: Explanation) -> tuple[str, str]:
    """Return what decides, which `now` repeats, and check that it is one stage."""
    (stage,) = (s for s in explanation.stages if s.strategy)
    assert (explanation.now, explanation.now_why) == (stage.strategy, stage.why)
    return stage.what, stage.why


def test_a_new_table_is_computed_in_full(plain_lake: Lake, source: Table) -> None:
    explanation = explain(plain_lake, MODEL)
    what = ["read all of final.t", "compute everything; create the table", PUBLISH]
    assert [s.what for s in explanation.stages] == what
    assert decision(explanation) == (what[1], "first run")
    assert (explanation.state, explanation.now, explanation.windows, explanation.estimate) == ("new", "full", (), None)
    audited = explain(plain_lake, replace(MODEL, audits=(Unique(name="one", of=("v",)),)))
    assert names(audited) == ["audits", "read", "create", "publish"]
    assert audited.stages[-1].what == f"{PUBLISH} if the audits pass"


def test_another_query_replaces_the_table_or_stops_as_declared(plain_lake: Lake, source: Table) -> None:
    build(plain_lake, MODEL, source)
    other = replace(MODEL, sql="SELECT v, max(id) AS n FROM final.t GROUP BY v")
    explanation = explain(plain_lake, other)
    assert names(explanation) == ["read", "create", "publish"]
    assert decision(explanation)[1] == "the table was built by another query"
    stopped = replace(other, on_query_change="stop")
    explanation = explain(plain_lake, stopped)
    assert (explanation.state, explanation.now, names(explanation)) == ("changed", "stop", ["stop"])
    with pytest.raises(DefinitionChangedError):
        SqlModelStep(stopped).due(plain_lake, SnapshotPins(), "")
    assert not isinstance(SqlModelStep(stopped).due(plain_lake, SnapshotPins(), "requested"), Outcome)


def test_lost_history_rebuilds_the_table_where_that_is_declared(plain_lake: Lake, source: Table) -> None:
    build(plain_lake, MODEL, source)
    absorbed = source.metadata.current_snapshot_id
    source.append(ROWS)
    source.maintenance.expire_snapshots().by_id(absorbed or 0).commit()
    with pytest.raises(SnapshotExpiredError):
        explain(plain_lake, MODEL)
    explanation = explain(plain_lake, replace(MODEL, on_gap="rebuild"))
    assert names(explanation) == ["read", "rebuild", "publish"]
    assert (explanation.state, explanation.now) == ("pending", "full")
    assert "has expired" in decision(explanation)[1]


def test_without_a_new_snapshot_there_is_no_stage(plain_lake: Lake, source: Table) -> None:
    build(plain_lake, MODEL, source)
    explanation = explain(plain_lake, MODEL)
    assert (explanation.state, explanation.now, explanation.stages) == ("current", "", ())
    assert isinstance(SqlModelStep(MODEL).due(plain_lake, SnapshotPins(), ""), Outcome)


def test_a_snapshot_that_changes_no_row_moves_the_watermarks(plain_lake: Lake, source: Table) -> None:
    build(plain_lake, MODEL, source)
    source.append(ROWS.slice(0, 0))
    explanation = explain(plain_lake, MODEL)
    assert names(explanation) == ["publish"]
    assert decision(explanation) == ("publish only the watermarks of final.t", "no row of its sources changed")
    assert (explanation.state, explanation.now) == ("pending", "none")


@pytest.mark.parametrize(
    ("model", "strategy", "what"),
    [
        (MODEL, "retract", f"adjust the groups of changed rows; recompute those in doubt; {OR_FULL}"),
        (
            replace(MODEL, sql="SELECT v, id AS n FROM final.t WHERE v > 2"),
            "retract",
            f"insert and delete the rows that follow from changed rows; {OR_FULL}",
        ),
        (
            replace(MODEL, sql="SELECT v, max(id) AS n FROM final.t GROUP BY v"),
            "keys",
            f"recompute the rows that share a key with changed rows; {OR_FULL}",
        ),
        (
            replace(MODEL, span=Span("v")),
            "ranges",
            "recompute the ranges that changed rows affect; everything if any row may be affected",
        ),
    ],
)
def test_a_small_change_is_absorbed_by_the_strategy_of_the_query(
    plain_lake: Lake, source: Table, model: ModelSpec, strategy: str, what: str
) -> None:
    build(plain_lake, model, source)
    source.append(ROWS.slice(0, 1))
    explanation = explain(plain_lake, model)
    assert names(explanation) == ["read", "changes", "publish"]
    assert explanation.stages[0].what.startswith("read the changes of final.t (1 file, ")
    assert (explanation.now, decision(explanation)[0]) == (strategy, what)


def test_changes_are_counted_where_the_estimate_is_a_bound(plain_lake: Lake, source: Table) -> None:
    build(plain_lake, MODEL, source)
    source.delete("id = 1")  # rewrites the only file
    what, _ = decision(explain(plain_lake, replace(MODEL, full_above=0.2)))
    assert "everything if that is cheaper once they are counted, or Spark does not accept" in what


@pytest.mark.parametrize(
    ("full_above", "is_read", "name", "why"),
    [
        (0.2, True, "overwrite", "computing everything is estimated to be cheaper: at most 100 of 200 rows changed"),
        (None, True, "differences", "few rows: 200 in its sources, 7 in the table"),
        (None, False, "overwrite", "few rows: 200 in its sources, 7 in the table"),
    ],
)
def test_everything_is_computed_where_that_is_cheaper(
    plain_lake: Lake,
    source: Table,
    monkeypatch: pytest.MonkeyPatch,
    full_above: float | None,
    is_read: bool,
    name: str,
    why: str,
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 0 if full_above else 100_000)
    model = replace(MODEL, full_above=full_above, is_read=is_read)
    build(plain_lake, model, source)
    source.append(ROWS)
    explanation = explain(plain_lake, model)
    assert names(explanation) == ["read", name, "publish"]
    assert explanation.stages[0].what == "read all of final.t"
    assert decision(explanation)[1].startswith(why)


def added(source: Table) -> None:
    with source.update_schema() as change:
        change.add_column("x", LongType())


def replaced(source: Table) -> None:
    with source.update_schema() as change:
        change.delete_column("v")
    with source.update_schema() as change:
        change.add_column("v", LongType())


@pytest.mark.parametrize(
    ("change", "stages", "why"),
    [
        (added, ["columns", "read", "changes", "publish"], ""),
        (replaced, ["read", "create", "publish"], "the name final.t.v now belongs to another column"),
    ],
)
def test_columns_of_a_source_that_changed_are_compared_with_the_table_s(
    plain_lake: Lake, source: Table, change: Callable[[Table], None], stages: list[str], why: str
) -> None:
    build(plain_lake, MODEL, source)
    change(source)
    source.append(ROWS.slice(0, 1))
    explanation = explain(plain_lake, MODEL)
    assert names(explanation) == stages
    assert why in decision(explanation)[1]


def test_the_command_prints_the_stages_as_a_list(
    plain_lake: Lake, source: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(plain_lake, MODEL, source)
    source.append(ROWS.slice(0, 1))
    monkeypatch.setattr(command.Lake, "load_existing", classmethod(lambda *_: plain_lake))
    printed = invoke("explain", "agg.m").output
    for line in ("1. read the changes of final.t (1 file, ", "2. adjust the groups of changed rows; ", f"3. {PUBLISH}"):
        assert line in printed
    listed = json.loads(invoke("explain", "agg.m", "--json").output)["stages"]
    assert [s["name"] for s in listed] == ["read", "changes", "publish"]
