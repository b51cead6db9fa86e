"""Snapshots of the sources that models read in batches, from metadata, without Spark."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark, to_properties
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.tables.pending_windows import Window, head_of
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from tests.support.upkeep import empty_in_place

ROWS = pa.schema([pa.field("k", pa.int64())])
T, U = TableId.parse("final.t"), TableId.parse("final.u")
A, B = TableId.parse("agg.a"), TableId.parse("agg.b")
ONE = BatchSize(files=1)


def table(lake: Lake, name: TableId, snapshots: int) -> list[Watermark]:
    """Create a foreign table; return its snapshots."""
    return created_table(lake, name, [{}] * snapshots, {})


def model(lake: Lake, name: TableId, history: Sequence[Mapping[TableId, Watermark]]) -> list[Watermark]:
    """Create a model's table with one step per entry of `history`; return its snapshots."""
    commits = [to_properties({str(t): m for t, m in marks.items()}) for marks in history]
    return created_table(lake, name, commits, {FINGERPRINT_PROPERTY: "x"})


def created_table(
    lake: Lake, name: TableId, commits: Sequence[dict[str, str]], properties: dict[str, str]
) -> list[Watermark]:
    lake.ensure_namespace(name.namespace)
    created = lake.catalog.create_table(name.parts, ROWS, properties=properties)
    heads: list[Watermark] = []
    for commit_properties in commits:
        created.append(pa.table({"k": [1]}, schema=ROWS), snapshot_properties=commit_properties)
        heads.append(head_of(created))
    return heads


def pinned_heads(
    lake: Lake, pins: SnapshotPins, starts: Mapping[TableId, Watermark], size: BatchSize
) -> dict[TableId, int | None]:
    tables: dict[TableId, Table] = {t: lake.table(t) for t in starts}
    windows = {t: Window(t, mark, head_of(tables[t])) for t, mark in starts.items()}
    return {t: w.head.snapshot for t, w in pins.pin(lake, windows, tables, size).items()}


def test_a_batch_ends_within_each_source(plain_lake: Lake) -> None:
    t, u = table(plain_lake, T, 4), table(plain_lake, U, 4)
    assert pinned_heads(plain_lake, SnapshotPins(), {T: t[0], U: u[1]}, ONE) == {T: t[1].snapshot, U: u[2].snapshot}


def test_the_first_model_of_a_run_pins_a_source_for_later_ones_whatever_their_limits(plain_lake: Lake) -> None:
    t, pins = table(plain_lake, T, 5), SnapshotPins()
    assert pinned_heads(plain_lake, pins, {T: t[0]}, BatchSize(files=2)) == {T: t[2].snapshot}
    assert pinned_heads(plain_lake, pins, {T: t[0]}, ONE) == {T: t[2].snapshot}
    assert pinned_heads(plain_lake, pins, {T: t[1]}, BatchSize()) == {T: t[2].snapshot}
    # A model that has absorbed the pin waits, a model ahead of it does not.
    assert pinned_heads(plain_lake, pins, {T: t[2]}, BatchSize()) == {T: t[2].snapshot}
    assert pinned_heads(plain_lake, pins, {T: t[3]}, ONE) == {T: t[4].snapshot}


def test_rows_that_arrive_during_a_run_are_for_the_next_one(plain_lake: Lake) -> None:
    t, pins = table(plain_lake, T, 2), SnapshotPins()
    assert pinned_heads(plain_lake, pins, {T: t[1]}, BatchSize()) == {T: t[1].snapshot}
    plain_lake.table(T).append(pa.table({"k": [1]}, schema=ROWS))
    assert pinned_heads(plain_lake, pins, {T: t[0]}, BatchSize()) == {T: t[1].snapshot}
    assert pinned_heads(plain_lake, pins, {T: t[1]}, ONE) == {T: t[1].snapshot}


def test_an_emptied_source_is_pinned_like_any_other_snapshot(plain_lake: Lake) -> None:
    t, pins = table(plain_lake, T, 2), SnapshotPins()
    empty_in_place(plain_lake, str(T))
    assert pinned_heads(plain_lake, pins, {T: t[1]}, BatchSize()) == {T: None}
    plain_lake.table(T).append(pa.table({"k": [1]}, schema=ROWS))
    later = head_of(plain_lake.table(T))
    assert pinned_heads(plain_lake, pins, {T: t[0]}, BatchSize()) == {T: None}
    # A model that has absorbed rows from after the pin does not go back.
    assert pinned_heads(plain_lake, pins, {T: later}, BatchSize()) == {T: later.snapshot}
    assert pinned_heads(plain_lake, SnapshotPins(), {T: replace(later, snapshot=None)}, ONE) == {T: later.snapshot}


def test_a_model_that_fails_pins_nothing(plain_lake: Lake) -> None:
    t, pins = table(plain_lake, T, 4), SnapshotPins()

    def step() -> None:
        with pins.release_on_failure():
            pinned_heads(plain_lake, pins, {T: t[0]}, ONE)
            raise ModelError("wrong")

    with pytest.raises(ModelError):
        step()
    assert pinned_heads(plain_lake, pins, {T: t[1]}, BatchSize()) == {T: t[3].snapshot}


@pytest.mark.parametrize("others", ["reads the same", "reads on", "none", "fails as well"])
def test_a_pin_that_another_model_uses_meanwhile_stays(plain_lake: Lake, others: str) -> None:
    t, pins, both = table(plain_lake, T, 5), SnapshotPins(), threading.Barrier(2, timeout=60)

    def step() -> None:
        with pins.release_on_failure():
            pinned_heads(plain_lake, pins, {T: t[0]}, ONE)
            both.wait()  # now the other one
            both.wait()
            raise ModelError("wrong")

    def fails() -> None:
        with pytest.raises(ModelError):
            step()

    thread = threading.Thread(target=fails)
    thread.start()
    both.wait()
    with contextlib.ExitStack() as scope:
        if others == "fails as well":
            scope.enter_context(pytest.raises(ModelError))
        with pins.release_on_failure():
            if others != "none":
                start = t[2] if others == "reads on" else t[0]
                pinned_heads(plain_lake, pins, {T: start}, ONE)
            both.wait()
            thread.join()
            if others == "fails as well":
                raise ModelError("wrong")
    expected = t[1] if others == "reads the same" else t[4]
    assert pinned_heads(plain_lake, pins, {T: t[0]}, BatchSize()) == {T: expected.snapshot}


def test_a_model_waits_until_both_sources_have_absorbed_one_snapshot(plain_lake: Lake) -> None:
    t = table(plain_lake, T, 4)
    a = model(plain_lake, A, [{T: t[0]}, {T: t[1]}])
    b = model(plain_lake, B, [{T: t[0]}, {T: t[3]}])
    for size in (BatchSize(), ONE):
        assert pinned_heads(plain_lake, SnapshotPins(), {A: a[0], B: b[0]}, size) == {
            A: a[0].snapshot,
            B: b[0].snapshot,
        }
    properties = to_properties({str(T): t[3]})
    created = plain_lake.table(A)
    created.append(pa.table({"k": [1]}, schema=ROWS), snapshot_properties=properties)
    newest = {A: head_of(created).snapshot, B: b[1].snapshot}
    assert pinned_heads(plain_lake, SnapshotPins(), {A: a[0], B: b[0]}, BatchSize()) == newest


@pytest.mark.parametrize("size", [ONE, BatchSize(rows=1)])
def test_if_batches_do_not_agree_larger_ones_are_tried(plain_lake: Lake, size: BatchSize) -> None:
    t, u = table(plain_lake, T, 2), table(plain_lake, U, 2)
    a = model(plain_lake, A, [{T: t[0], U: u[0]}, {T: t[0], U: u[1]}, {T: t[1], U: u[1]}])
    b = model(plain_lake, B, [{T: t[0], U: u[0]}, {T: t[1], U: u[0]}, {T: t[1], U: u[1]}])
    assert pinned_heads(plain_lake, SnapshotPins(), {A: a[0], B: b[0]}, size) == {A: a[2].snapshot, B: b[2].snapshot}


def test_what_agrees_in_one_table_still_agrees_in_another(plain_lake: Lake) -> None:
    t, u = table(plain_lake, T, 2), table(plain_lake, U, 2)
    pairs = [(0, 0), (1, 0), (1, 1)]
    a = model(plain_lake, A, [{T: t[i], U: u[j]} for i, j in pairs])
    b = model(plain_lake, B, [{T: t[i], U: u[j]} for i, j in [(0, 0), (0, 1)]])
    # Each source is behind in another table: they only agree at their starts.
    heads = pinned_heads(plain_lake, SnapshotPins(), {A: a[0], B: b[0]}, BatchSize())
    assert heads == {A: a[0].snapshot, B: b[0].snapshot}


def test_the_end_of_a_batch_agrees_with_what_another_source_has_absorbed(plain_lake: Lake) -> None:
    t = table(plain_lake, T, 3)
    a = model(plain_lake, A, [{T: mark} for mark in t])
    assert pinned_heads(plain_lake, SnapshotPins(), {A: a[0], T: t[0]}, ONE) == {A: a[1].snapshot, T: t[1].snapshot}
    # The table itself is behind: the newest snapshot of the model that agrees is read.
    assert pinned_heads(plain_lake, SnapshotPins(pinned={T: t[1]}), {A: a[0], T: t[0]}, BatchSize()) == {
        A: a[1].snapshot, T: t[1].snapshot,
    }  # fmt: skip
