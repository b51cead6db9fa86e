"""When main moved, to what, by whom, and under which declaration; without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.history.history_document import HistoryRequest, RowHistory
from lake_assets.history.row_history import row_history
from lake_assets.history.timeline import timeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark, to_properties
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY, FINGERPRINT_PROPERTY
from tests.support.upkeep import empty_in_place, expire

NAME = TableId.parse("shop.people")


@pytest.fixture
def table(plain_lake: Lake) -> Table:
    plain_lake.ensure_namespace(NAME.namespace)
    return plain_lake.catalog.create_table(NAME.parts, pa.schema([("id", pa.int64()), ("n", pa.int64())]))


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"id": [i for i, _ in pairs], "n": [n for _, n in pairs]})


def of(lake: Lake, number: int = 1) -> RowHistory:
    return row_history(lake, [], HistoryRequest(NAME, [f"id={number}"]))


def whats(found: RowHistory) -> list[tuple[str, Any]]:
    return [(c.what, (c.after or {}).get("n")) for v in found.versions for c in v.changes]


def test_a_rollback_is_a_version_of_its_own(plain_lake: Lake, table: Table) -> None:
    table.append(rows((2, 0)))
    first = table.metadata.current_snapshot_id
    table.append(rows((1, 0)))
    assert first is not None
    table.manage_snapshots().set_current_snapshot(first).commit()
    found = of(plain_lake)
    assert whats(found) == [("inserted", 0), ("deleted", None)]
    assert [v.made_by.split(";")[0] for v in found.versions][1] == "a rollback"


def test_snapshots_that_nobody_saw_are_no_versions(plain_lake: Lake, table: Table) -> None:
    table.append(rows((1, 0), (2, 0)))
    table.overwrite(rows((1, 1)), "id = 1")  # a delete and an append, in one commit
    assert len(plain_lake.table(NAME).metadata.snapshots) == 3
    assert whats(of(plain_lake)) == [("inserted", 0), ("updated", 1)]


def test_a_changed_declaration_is_told_with_the_commit_that_brought_it(plain_lake: Lake, table: Table) -> None:
    def commit(mode: str, query: str, number: int) -> None:
        with plain_lake.table(NAME).transaction() as transaction:
            settings = {DECLARATION_PROPERTY: json.dumps({"mode": mode, "track": None}), FINGERPRINT_PROPERTY: query}
            transaction.set_properties(settings)
            transaction.overwrite(rows((1, number)), "id = 1")

    commit("scd1", "a", 0)
    commit("scd1", "a", 1)
    commit("scd2", "b", 2)
    found = of(plain_lake)
    assert [sorted(v.declaration) for v in found.versions] == [
        [], [], ["mode: scd1 -> scd2", "the query or code of the model changed"]
    ]  # fmt: skip


def test_the_state_before_a_table_was_replaced_is_part_of_its_history(plain_lake: Lake, table: Table) -> None:
    table.append(rows((1, 0)))
    empty_in_place(plain_lake, str(NAME))
    plain_lake.table(NAME).append(rows((1, 5)))
    assert len(plain_lake.table(NAME).metadata.snapshot_log) == 1
    found = of(plain_lake)
    assert whats(found) == [("inserted", 0), ("updated", 5)]
    assert "all snapshots" in found.begins


def test_marks_and_the_beginning_of_what_is_kept(plain_lake: Lake, table: Table) -> None:
    mark = Watermark("u", 7)
    table.append(rows((1, 0)), snapshot_properties=to_properties({"staging.people": mark}))
    table.append(rows((2, 0)))  # another program, whose commit carries no watermark
    line = timeline(plain_lake.table(NAME))
    assert [m.marks for m in line.moments] == [{"staging.people": mark}] * 2
    assert [m.made_by.startswith("a step") for m in line.moments] == [True, False]
    expire(plain_lake, NAME)
    found = of(plain_lake)
    assert whats(found) == [("found", 0)]
    assert "older ones have expired" in found.begins


def test_what_expired_between_two_kept_snapshots_is_told_with_the_later_one(plain_lake: Lake, table: Table) -> None:
    """As where another program expires all snapshots but those that the tags of consumers keep."""
    for number in range(4):
        plain_lake.table(NAME).overwrite(rows((1, number), (2, 0)))
        if number == 1:
            head = plain_lake.table(NAME).metadata.current_snapshot_id
            assert head is not None
            plain_lake.table(NAME).manage_snapshots().create_tag(head, "consumer").commit()
    assert not any(v.notes for v in of(plain_lake).versions)
    expire(plain_lake, NAME)
    plain_lake.table(NAME).overwrite(rows((1, 9)))
    found = of(plain_lake)
    assert whats(found) == [("found", 1), ("updated", 3), ("updated", 9)]
    assert "older ones have expired" in found.begins
    assert [bool(v.notes) for v in found.versions] == [False, True, False]
    assert "may be the work of several commits" in found.versions[1].notes[0]
    # It says so of no row that did not change there.
    assert [n for v in of(plain_lake, 2).versions[:1] for n in v.notes] == []
