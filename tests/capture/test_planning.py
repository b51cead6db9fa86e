"""The files that a window captures, and the manifests that planning opens. Metadata only, without Spark."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from lake_assets import Lake
from lake_assets.capture.changed_files import Part
from lake_assets.capture.files.avro_files import AvroKind, Container
from lake_assets.capture.files.column_bounds import of_partition
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.file_partitions import may_hold
from lake_assets.capture.files.manifest_index import ManifestIndex, digest, state
from lake_assets.capture.files.manifest_lists import Summary
from lake_assets.capture.files.manifests import Entry
from lake_assets.capture.files.planned_files import Plan, Side
from lake_assets.errors import CorruptMetadataError, NotAnAncestorError
from lake_assets.lake import thresholds
from lake_assets.lake.limited_cache import LimitedCache
from tests.support.metadata_deletes import (
    commit_deletes,
    commit_miscounted,
    data_files,
    equality_delete,
    position_delete,
)


def make(lake: Lake, kind: IcebergType, values: list[Any], transform: str = "identity") -> list[int]:
    """Create the table `a.t`, partitioned by a column of some type, with one append per value."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", kind))
    how = IdentityTransform() if transform == "identity" else VoidTransform()
    catalog: Catalog = lake.catalog
    table = catalog.create_table("a.t", schema, partition_spec=PartitionSpec(PartitionField(2, 1000, how, "x")))
    for i, value in enumerate(values):
        table.append(pa.table({"id": [i], "x": [value]}, schema=table.schema().as_arrow()))
    return [s.snapshot_id for s in lake.table("a.t").metadata.snapshots]


@pytest.mark.parametrize(
    ("transform", "value", "hidden", "low"),
    [
        (YearTransform(), 0, "1969-06-01 00:00:00", "1969-01-01 00:00:00"),
        (MonthTransform(), -1, "1969-11-30 00:00:00", "1969-11-01 00:00:00"),
        (DayTransform(), 0, "1969-12-31 23:00:00", "1969-12-31 00:00:00"),
        (HourTransform(), -3, "1969-12-31 20:30:00", "1969-12-31 20:00:00"),
        (DayTransform(), 1, "1970-01-02 00:00:00", "1970-01-02 00:00:00"),
    ],
)
def test_times_before_1970_that_were_rounded_up_are_within_their_partition(
    transform: Transform[Any, Any], value: int, hidden: str, low: str
) -> None:
    first, last = of_partition(TimestampType(), PartitionField(1, 1000, transform, "p"), value)
    assert str(first) == low <= hidden <= str(last)


def captured(lake: Lake, start: int) -> set[tuple[str, str]]:
    return {(f.side, f.path) for f in lake.capture("a.t", start).files}


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_deletes_reach_their_partition_as_iceberg_compares_values(cold: Lake, kind: IcebergType) -> None:
    """NaN equals NaN, whatever the object, and -0.0 differs from 0.0."""
    make(cold, kind, [1.0])
    (e,) = data_files(cold, "a.t")

    def file(value: float | None, path: str, **more: Any) -> Entry:
        own = {**e.file, "partition": {"x": value}, "file_path": path, "content": 0, **more}
        return replace(e, raw={**e.raw, "data_file": own, "sequence_number": 1})

    values = [float("nan"), -0.0, 0.0, None, 1.1]
    for value in values:
        equality = file(value, "d", content=2)
        equality = replace(equality, raw={**equality.raw, "sequence_number": 2})
        position = file(value, "d", content=1, lower_bounds=None, upper_bounds=None)
        for delete in (equality, position):
            index = DeleteIndex([delete], frozenset())
            reached = [v for v in map(float, ["nan", "-0.0", "0.0", "1.1"]) if index.applying_to(file(v, "f"))]
            assert list(map(repr, reached)) == [repr(value)] * (value is not None)
            assert bool(index.applying_to(file(None, "f"))) == (value is None)


def test_deletes_reach_a_partition_whose_decimal_was_widened(cold: Lake) -> None:
    make(cold, DecimalType(9, 2), [Decimal("-1.50"), Decimal("2.00")])
    old = data_files(cold, "a.t")
    with cold.table("a.t").update_schema() as change:
        change.update_column("x", DecimalType(20, 2))
    table = cold.table("a.t")
    table.append(pa.table({"id": [9], "x": [Decimal("-1.50")]}, schema=table.schema().as_arrow()))
    (new,) = [e for e in data_files(cold, "a.t") if e.path not in {o.path for o in old}]
    (same,) = [e for e in old if e.partition[0][-1:] == new.partition[0][-1:]]
    start = cold.table("a.t").current_snapshot()
    assert start is not None
    assert same.partition != new.partition
    commit_deletes(cold, "a.t", new, [equality_delete(new, 1)])
    assert {p for _, p in captured(cold, start.snapshot_id)} == {new.path, same.path}


def test_a_spec_of_void_transforms_is_unpartitioned(cold: Lake) -> None:
    """Its equality deletes are global, as under a spec without fields."""
    *_, start = make(cold, LongType(), [1, 2], "void")
    table = cold.table("a.t")
    with table.update_spec() as change:
        change.add_identity("id")
    table = cold.table("a.t")
    table.append(pa.table({"id": [7], "x": [7]}, schema=table.schema().as_arrow()))
    now = table.refresh().current_snapshot()
    assert now is not None
    files = data_files(cold, "a.t")
    void = next(e for e in files if e.spec_id == 0)
    commit_deletes(cold, "a.t", void, [equality_delete(void, 2)])
    assert {p for _, p in captured(cold, now.snapshot_id)} == {e.path for e in files}
    assert start != now.snapshot_id


def test_a_delete_opens_only_manifests_that_may_list_its_files(cold: Lake) -> None:
    make(cold, LongType(), list(range(12)))
    files = data_files(cold, "a.t")
    start = commit_deletes(cold, "a.t", files[3], [position_delete(files[3])])
    commit_deletes(cold, "a.t", files[5], [position_delete(files[5]), equality_delete(files[7], 1)])
    capture = cold.capture("a.t", start)
    # The new manifest of deletes, and of data those with the two partitions.
    assert capture._reader.opened <= 4
    assert {f.path for f in capture.files} == {files[5].path, files[7].path}


def test_a_delete_of_one_file_is_found_without_reading_the_others_again(cold: Lake) -> None:
    make(cold, LongType(), list(range(12)), "void")
    files = data_files(cold, "a.t")
    starts = [commit_deletes(cold, "a.t", e, [position_delete(e)]) for e in files[:4]]
    first = cold.capture("a.t", starts[0], starts[1])
    assert {f.path for f in first.files} == {files[1].path}
    again = cold.capture("a.t", starts[1], starts[2])
    # The two delete manifests, and the data manifest that lists the file: the others are indexed by now.
    assert again._reader.opened <= 4
    assert [(f.path, f.records) for f in again.files] == [(files[2].path, 1)] * 2
    assert again.ranges["id"].low == again.ranges["id"].high is not None


CONTAINER = Container(AvroKind({}, {}, ""), "null", b"")
Listed = list[list[tuple[str, int]]]
LISTED: st.SearchStrategy[Listed] = st.lists(
    st.lists(st.tuples(st.text(max_size=2), st.integers(0, 2)), max_size=4), max_size=6
)


def index_of(blocks: Listed) -> ManifestIndex:
    encoded = [(i, None, [(path.encode(), number) for path, number in files]) for i, files in enumerate(blocks)]
    return ManifestIndex(CONTAINER, encoded, len(blocks))


@given(LISTED, st.lists(st.text(max_size=2), max_size=4), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 2))))
def test_an_index_finds_the_blocks_that_list_a_file(
    blocks: Listed, paths: list[str], states: list[tuple[str, int]]
) -> None:
    index = index_of(blocks)
    assert index.with_paths([digest(p.encode()) for p in paths]) == {
        i for i, files in enumerate(blocks) if {path for path, _ in files} & set(paths)
    }
    wanted = {state(path.encode(), number) for path, number in states}
    assert index.with_states(wanted) == {i for i, files in enumerate(blocks) if set(files) & set(states)}
    listed = Counter(state(path.encode(), number) for files in blocks for path, number in files)
    assert Counter(index.states()) == listed


@given(st.sets(st.integers(0, 20)))
def test_consecutive_blocks_are_read_at_once(numbers: set[int]) -> None:
    found = index_of([[]] * 21).blocks(numbers)
    assert [n for b in found for n in range(b.start, b.end)] == sorted(numbers)
    assert all(b.end < following.start for b, following in pairwise(found))


def test_the_least_recently_used_index_is_dropped_first() -> None:
    indexes = LimitedCache[tuple[str, int], ManifestIndex](thresholds.BYTES_OF_AN_INDEX + 3 * 28, attrgetter("nbytes"))
    for name in ("a", "b", "c"):
        indexes.put((name, 1), index_of([[(f"{name}1", 1), (f"{name}2", 1)]]))
    assert (indexes.get(("a", 1)), indexes.get(("b", 1))) == (None, None)
    assert indexes.get(("c", 1)) is not None
    assert indexes.get(("c", 2)) is None


def test_indexes_of_few_files_are_not_kept_for_ever() -> None:
    indexes = LimitedCache[int, ManifestIndex](10 * thresholds.BYTES_OF_AN_INDEX, attrgetter("nbytes"))
    for n in range(100):
        indexes.put(n, index_of([[]]))
    assert len(indexes) == 10


def test_row_ids_that_contradict_each_other_are_not_used(cold: Lake) -> None:
    ids = make(cold, LongType(), [1, 2])
    one, other = data_files(cold, "a.t")
    window = cold.capture("a.t", ids[0]).window
    assert window.start is not None
    window = replace(window, start=replace(window.start, next_row_id=100))

    def with_ids(e: Entry, first: int | None, *stored: int) -> Entry:
        nulls = [{"key": column, "value": 0} for column in stored]
        return replace(e, raw={**e.raw, "data_file": {**e.file, "first_row_id": first, "null_value_counts": nulls}})

    def is_used(after: list[Entry], before: list[Entry]) -> bool:
        return Part(window, Plan(Side(tuple(after)), Side(tuple(before)))).has_lineage

    assert is_used([with_ids(one, 0)], [with_ids(other, 1)])
    assert is_used([with_ids(one, 0)], [with_ids(one, 0)])
    assert not is_used([with_ids(one, 0)], [with_ids(other, 0)]), "two files have the same ids"
    assert not is_used([with_ids(one, 0)], [with_ids(one, 1)]), "a file has got other ids"
    assert not is_used([with_ids(one, 0)], [with_ids(other, None)]), "a file has none"
    appended = next(e for e in (one, other) if e.snapshot_id == ids[1])
    assert not is_used([with_ids(appended, 0, 2147483540)], []), "an append stored ids"
    assert not is_used([with_ids(appended, 0, 2147483539)], []), "an append stored versions"
    window = replace(window, start=replace(window.start, next_row_id=None))
    window = replace(window, ancestor=window.start)
    assert not is_used([with_ids(one, 0)], [with_ids(other, 1)]), "the start does not say which ids it has assigned"


VALUES: list[tuple[IcebergType, Any, str | None]] = [
    (LongType(), st.integers(-(2**40), 2**40), None),
    (DoubleType(), st.floats(), None),
    (FloatType(), st.floats(width=32), None),
    (StringType(), st.text(max_size=3), None),
    (DecimalType(9, 2), st.decimals(-999, 999, places=2), "decimal"),
]


@pytest.mark.parametrize(("kind", "values", "logical"), VALUES, ids=[str(v[0]) for v in VALUES])
def test_summaries_of_a_manifest_never_rule_out_its_files(kind: IcebergType, values: Any, logical: str | None) -> None:
    @given(st.lists(st.none() | values, min_size=1, max_size=5), st.none() | values)
    def check(listed: list[Any], other: Any) -> None:
        plain = [v for v in listed if v is not None and not (isinstance(v, float) and math.isnan(v))]

        def order(v: Any) -> Any:
            return v.encode() if isinstance(v, str) else v

        low, high = (to_bytes(kind, f(plain, key=order)) if plain else None for f in (min, max))
        has_nan = any(isinstance(v, float) and math.isnan(v) for v in listed)
        summary = Summary(None in listed, has_nan, low, high)

        def stored(v: Any) -> Any:
            return to_bytes(kind, v) if isinstance(v, Decimal) else v

        assert all(may_hold([summary], [(stored(v), logical)]) for v in listed)
        if other is not None and plain and order(other) > max(map(order, plain)):
            assert not may_hold([summary], [(stored(other), logical)])

    check()
    assert may_hold([], [(1, None)])


def test_a_wrong_count_of_entries_is_named(cold: Lake) -> None:
    first, last = make(cold, LongType(), [1, 2])
    miscounted = commit_miscounted(cold, "a.t")
    for start in (None, first, last):
        # Spark skips these manifests, PyIceberg reads them: the capture must not choose either.
        with pytest.raises(CorruptMetadataError, match="the writer of the snapshot reported a wrong count"):
            cold.capture("a.t", start, miscounted)
    assert not cold.capture("a.t", first, last).is_empty


def test_a_start_that_is_not_an_ancestor_is_explained(cold: Lake) -> None:
    ids = make(cold, LongType(), [1, 2, 3])
    table = cold.table("a.t")

    def add(branch: str, **properties: str) -> int:
        row = pa.table({"id": [9], "x": [9]}, schema=cold.table("a.t").schema().as_arrow())
        cold.table("a.t").append(row, branch=branch, snapshot_properties=properties)
        return cold.table("a.t").metadata.refs[branch].snapshot_id

    def refusal(start: int, end: int | str | None = None) -> str:
        with pytest.raises(NotAnAncestorError) as e:
            cold.capture("a.t", start, end, granularity="snapshot")
        return str(e.value)

    table.manage_snapshots().create_branch(ids[1], "audit").create_branch(ids[1], "stage").commit()
    on_branch = add("audit")
    message = refusal(on_branch)
    assert f"is on branch 'audit', the end {ids[2]} is on branch 'main'" in message
    assert "end='audit'" in message
    assert f"the common ancestor {ids[1]}" in message
    assert "is on branch 'main', the end" in refusal(ids[2], "audit")

    staged = add("stage", **{"wap.id": "w1"})
    cold.table("a.t").manage_snapshots().remove_branch("stage").commit()
    message = refusal(staged)
    assert "is staged (wap.id 'w1') and not published" in message
    assert "cherrypick_snapshot" in message
    assert "the end" in refusal(ids[2], staged)
    published = add("main", **{"published-wap-id": "w1"})
    assert f"start from {published}" in refusal(staged)

    cold.table("a.t").manage_snapshots().rollback_to_snapshot(ids[1]).commit()
    other = add("main")
    message = refusal(ids[2], other)
    assert f"snapshot {ids[2]} was rolled back" in message
    assert f"the common ancestor {ids[1]}" in message
