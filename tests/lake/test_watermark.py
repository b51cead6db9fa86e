"""Watermarks: written into commits, and read back from the newest ancestor."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from lake_assets import Lake
from lake_assets.errors import CorruptMetadataError, SnapshotExpiredError
from lake_assets.lake.metadata.watermark import (
    PIPELINE_PROPERTY,
    PROPERTY,
    Watermark,
    find_property,
    read_marks,
    to_properties,
)

ROWS = pa.table({"x": pa.array([1], pa.int64())})
MARKS = {
    "raw.a": Watermark("u-1", 2**62),
    "raw.`b.c`": Watermark("u-2", None),
    "staging.d": Watermark("u-3", 7, ("00000000000000000012/00000000000000000034", 99)),
}


@pytest.fixture
def table(plain_lake: Lake) -> Table:
    plain_lake.ensure_namespace(("final",))
    schema = Schema(NestedField(1, "x", LongType()))
    return plain_lake.catalog.create_table("final.t", schema, properties={PIPELINE_PROPERTY: "p"})


def commit(table: Table, properties: dict[str, str] | None = None) -> int:
    table.append(ROWS, snapshot_properties=properties or {})
    snapshot = table.metadata.current_snapshot_id
    assert snapshot is not None
    return snapshot


def test_a_table_that_has_absorbed_nothing_has_no_watermarks(table: Table) -> None:
    assert read_marks(table) == {}


def test_watermarks_are_read_back(table: Table) -> None:
    commit(table, to_properties(MARKS))
    assert read_marks(table) == MARKS


def test_the_same_watermarks_are_the_same_text(table: Table) -> None:
    assert to_properties(MARKS) == to_properties(dict(reversed(MARKS.items())))


def test_the_newest_ancestor_with_the_property_counts(table: Table) -> None:
    commit(table, to_properties({"raw.a": Watermark("u", 1)}))
    second = commit(table, to_properties({"raw.a": Watermark("u", 2)}))
    commit(table)  # maintenance by another program
    assert read_marks(table)["raw.a"].snapshot == 2
    stored = find_property(table, PROPERTY)
    assert stored is not None
    assert stored[1].snapshot_id == second


def test_a_rollback_takes_the_watermark_back(table: Table) -> None:
    first = commit(table, to_properties({"raw.a": Watermark("u", 1)}))
    commit(table, to_properties({"raw.a": Watermark("u", 2)}))
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert read_marks(table)["raw.a"].snapshot == 1


def test_an_expired_watermark_is_an_error(table: Table) -> None:
    first = commit(table, to_properties({"raw.a": Watermark("u", 1)}))
    commit(table)
    table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(SnapshotExpiredError, match=r"final\.t.*has expired.*Rebuild"):
        read_marks(table)


@pytest.mark.parametrize(
    "text", ["no json", "[]", '{"a": 1}', '{"a": {"uuid": "u"}}', '{"a": {"uuid":"u","snapshot":1,"high":[1]}}']
)
def test_an_invalid_watermark_is_named(table: Table, text: str) -> None:
    snapshot = commit(table, {PROPERTY: text})
    with pytest.raises(CorruptMetadataError, match=rf"final\.t.*{snapshot}"):
        read_marks(table)
