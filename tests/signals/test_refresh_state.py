"""Commits of models name the snapshots of their sources as Iceberg's draft for materialized views does, if asked."""

from __future__ import annotations

import contextlib
import json
import time
from typing import cast

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.refresh_state import PROPERTY, carried, refresh_state
from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.tables.upkeep_policy import DEFAULT_POLICY
from lake_assets.upkeep.attend import look
from lake_assets.upkeep.services import carry_out
from lake_assets.upkeep.upkeep_actions import Action, Kind
from tests.support.people import AGES, CITIES, People
from tests.support.refresh_states import represents, state_of, with_refresh_states
from tests.support.signalled_shop import newest, signalled
from tests.support.upkeep import compact

SEEN = {"name": "agg.seen", "sql": "SELECT id FROM {{ changes('final.people') }}", "write": "merge", "key": "id"}
MARKS = {"final.b": Watermark("u2", 2**62), "final.nested.a": Watermark("u1", 7)}


def test_it_has_the_form_of_the_draft(plain_lake: Lake) -> None:
    lake = signalled(plain_lake, refresh_state=True)
    found = refresh_state(lake, MARKS, "definition", 1_573_518_435.25)
    state = json.loads(found.pop(PROPERTY))
    assert found == {}
    version = state.pop("view-version-id")
    assert state == {
        "refresh-start-timestamp-ms": 1_573_518_435_250,
        "source-states": [
            {"type": "table", "namespace": ["final"], "name": "b", "uuid": "u2", "snapshot-id": 2**62},
            {"type": "table", "namespace": ["final", "nested"], "name": "a", "uuid": "u1", "snapshot-id": 7},
        ],
    }
    assert 0 <= version < 2**31
    other = json.loads(refresh_state(lake, MARKS, "another definition", 1.0)[PROPERTY])
    assert other["view-version-id"] != version


def test_it_is_not_written_unless_it_is_declared_and_complete(plain_lake: Lake) -> None:
    assert refresh_state(plain_lake, MARKS, "definition", 1.0) == {}
    lake = signalled(plain_lake, refresh_state=True)
    assert refresh_state(lake, {**MARKS, "final.empty": Watermark("u3", None)}, "definition", 1.0) == {}
    assert refresh_state(lake, {}, "definition", 1.0) == {}


@pytest.mark.long
def test_each_commit_of_a_model_has_it(lake: Lake) -> None:
    with_refresh_states(lake)
    people, began = People(lake, CITIES, AGES, SEEN), time.time()
    models = ("agg.cities", "agg.ages", "agg.seen")
    for _ in range(2):
        _batch(people, began, *models)
    assert state_of(lake, "agg.cities")["view-version-id"] != state_of(lake, "agg.ages")["view-version-id"]
    assert PROPERTY not in summary_of(newest(lake, "final.people"))
    people.check()
    _check_upkeep(lake, *models)
    _check_another_compaction(lake, "agg.cities")
    compact(lake, "final.people")
    _batch(people, began, *models)


def _batch(people: People, began: float, *models: str) -> None:
    """After a batch, the newest snapshot of a model names that of its source."""
    people.land(12)
    people.run()
    for model in models:
        assert represents(people.lake, model, "final.people")
        refreshed = state_of(people.lake, model)["refresh-start-timestamp-ms"]
        assert began * 1000 - 1 <= refreshed <= time.time() * 1000


def _check_another_compaction(lake: Lake, model: str) -> None:
    """What another program has only compacted has the state of its rows again after any upkeep, also one that fails."""
    for kinds in (("manifests",), ("unknown",)):
        state = state_of(lake, model)
        compact(lake, model)
        assert PROPERTY not in summary_of(newest(lake, model))
        with contextlib.suppress(KeyError):
            _attend(lake, TableId.parse(model), *cast("tuple[Kind, ...]", kinds))
        assert state_of(lake, model) == state


def _check_upkeep(lake: Lake, *models: str) -> None:
    """After upkeep, the newest snapshot has the state of its rows."""
    for model in models:
        name, before, state = TableId.parse(model), newest(lake, model), state_of(lake, model)
        _attend(lake, name, "manifests", "deletes")
        assert newest(lake, model).snapshot_id != before.snapshot_id
        assert state_of(lake, model) == state
    lake.spark().sql(f"INSERT INTO {lake.sql_name('agg.seen')} VALUES (-1)")
    _attend(lake, TableId.parse("agg.seen"), "manifests")
    assert PROPERTY not in summary_of(newest(lake, "agg.seen"))  # rows of another program are of no snapshot


def _attend(lake: Lake, name: TableId, *kinds: Kind) -> None:
    for kind in kinds:
        health = look(lake, name, DEFAULT_POLICY).health
        carry_out(lake, name, Action(str(name), kind, "asked for", 1, 1), health, DEFAULT_POLICY)


def test_it_follows_watermarks_that_move_over_commits_without_meaning(plain_lake: Lake) -> None:
    lake = signalled(plain_lake, refresh_state=True)
    lake.ensure_namespace(("agg",))
    table = lake.catalog.create_table("agg.t", pa.schema([("n", pa.int64())]))
    assert carried(table) == {}
    table.append(pa.table({"n": [1]}), snapshot_properties=refresh_state(lake, MARKS, "definition", 1.0))
    assert carried(table) == refresh_state(lake, MARKS, "definition", 1.0)
    moved = {**MARKS, "final.b": Watermark("u2", 8), "final.nested.a": Watermark("another", 9)}
    expected = {**MARKS, "final.b": Watermark("u2", 8)}
    assert carried(table, moved) == refresh_state(lake, expected, "definition", 1.0)
    table.append(pa.table({"n": [2]}))
    assert carried(table) == {}


def test_another_form_of_the_draft_stops_no_step(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("agg",))
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = plain_lake.catalog.create_table(("agg", "t"), rows.schema)
    for text in ("no JSON", "[]", '{"sources": []}', '{"source-states": [{"name": "b"}]}'):
        table.append(rows, snapshot_properties={PROPERTY: text})
        assert carried(table, MARKS) == {}
        assert carried(table) == {PROPERTY: text}
