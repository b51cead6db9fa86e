"""Dumps of a whole table: what differs between two of them becomes change events, exactly, each dump once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets import Lake
from lake_assets.errors import (
    ChangedInputError,
    ConcurrentWriteError,
    DumpHeldBackError,
    DuplicateKeyError,
    InputTooLargeError,
    KeyMissingError,
    LakeError,
    LandingFolderError,
    MalformedRecordError,
    UnsupportedEventError,
)
from lake_assets.ingest.raw import dump_landing
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.sources import kept_dumps
from lake_assets.tables.outcome import Outcome
from tests.support.dumps import DumpFeed, touch
from tests.support.kills import Points, killed_everywhere

KEPT = TableId.parse("raw.dumps_dump")
ONE = [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}, {"id": 3, "n": "c"}, {"id": 4, "n": "d"}]
TWO = [{"id": 1, "n": "a"}, {"id": 2, "n": "B"}, {"id": 3, "n": "c"}, {"id": 5, "n": "e"}]
FROM_ONE_TO_TWO = {
    ("delete", '{"id": "4", "n": "d"}'),
    ("update_preimage", '{"id": "2", "n": "b"}'),
    ("update_postimage", '{"id": "2", "n": "B"}'),
    ("insert", '{"id": "5", "n": "e"}'),
}


@pytest.fixture
def feed(plain_lake: Lake) -> DumpFeed:
    """A landing folder of dumps, of which the first is absorbed, by a lake without Spark."""
    feed = DumpFeed(plain_lake)
    feed.dump("2026-11-01", ONE)
    feed.land()
    return feed


def new_events(feed: DumpFeed, act: Callable[[], object]) -> list[tuple[str, str]]:
    """The events that something brings to raw."""
    before = len(feed.events())
    act()
    return feed.events()[before:]


def kept_rows(feed: DumpFeed) -> int:
    return len(feed.lake.table(KEPT).scan().to_arrow())


# --- which dumps are absorbed ---------------------------------------------------------------------------------------


def test_what_differs_between_two_dumps_becomes_events(feed: DumpFeed) -> None:
    assert {kind for kind, _ in feed.events()} == {"insert"}
    feed.dump("2026-11-02", TWO)
    outcome = feed.land()
    assert outcome.details["dumps"] == "2026-11-02: 1 inserted, 1 updated, 1 deleted"
    assert (outcome.status, outcome.inserted) == ("absorbed", 4)
    assert set(feed.events()[4:]) == FROM_ONE_TO_TWO
    assert feed.land().status == "nothing"
    assert not feed.is_due
    # One dump is kept, in one snapshot.
    assert kept_rows(feed) == len(TWO)
    assert len(feed.lake.table(KEPT).metadata.snapshots) == 1


def test_several_dumps_are_absorbed_in_the_order_of_their_names(feed: DumpFeed) -> None:
    feed.dump("2026-11-03", ONE)
    feed.dump("2026-11-02", TWO)
    assert feed.land().details["dumps"].startswith("2026-11-02: 1 inserted, 1 updated, 1 deleted; 2026-11-03: 1")
    assert len(feed.events()) == 4 + 4 + 4


def test_the_same_rows_again_are_no_events(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", ONE[::-1])
    assert new_events(feed, feed.land) == []
    assert not feed.is_due
    # Written again with the same rows, the dump is the same.
    touch(feed.landing / "2026-11-02" / "part-0.parquet", 60)
    assert feed.is_due
    assert new_events(feed, feed.land) == []
    assert not feed.is_due


def test_a_dump_without_its_marker_waits(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", TWO, marker="")
    assert not feed.is_due
    assert feed.land().status == "nothing"
    (feed.landing / "2026-11-02" / "_SUCCESS").touch()
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO


def test_a_dump_is_complete_once_its_files_are_quiet(feed: DumpFeed) -> None:
    feed.declare(complete="10m quiet")
    folder = feed.dump("2026-11-02", TWO, marker="")
    assert feed.land().status == "nothing"
    touch(folder / "part-0.parquet", -601)
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO


def test_a_dump_that_arrives_late_is_skipped_and_named(feed: DumpFeed) -> None:
    feed.dump("2026-10-31", TWO)
    assert not feed.is_due
    outcome = feed.land()
    assert (outcome.status, len(feed.events())) == ("nothing", 4)
    assert outcome.why == "skipped dumps: 2026-10-31: older than 2026-11-01, which has been absorbed"
    feed.dump("2026-11-02", TWO)
    assert "2026-10-31" in str(feed.land().details["skipped_dumps"])


def test_a_dump_that_was_absorbed_must_not_change(feed: DumpFeed) -> None:
    feed.dump("2026-11-01", TWO)
    feed.dump("2026-11-02", TWO)
    with pytest.raises(ChangedInputError, match="2026-11-01 .* was absorbed, and its files hold other rows now"):
        feed.land()
    assert len(feed.events()) == 4
    # The advice works: remove it, and what was delivered under a newer name is absorbed.
    shutil.rmtree(feed.landing / "2026-11-01")
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO


def test_the_last_dump_may_be_removed_file_by_file(feed: DumpFeed) -> None:
    (feed.landing / "2026-11-01" / "part-0.parquet").unlink()
    assert not feed.is_due
    assert feed.land().status == "nothing"


def test_a_stream_may_change_from_a_folder_to_a_table_and_back(feed: DumpFeed) -> None:
    feed.lake.ensure_namespace(("erp",))
    rows = pa.Table.from_pylist(TWO)
    feed.lake.catalog.create_table("erp.t", rows.schema).append(rows)
    feed.declare(source={"table": "erp.t"})
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO
    feed.declare()
    feed.dump("2026-11-02", ONE)
    assert len(new_events(feed, feed.land)) == 4
    assert not feed.is_due


def test_older_dumps_may_be_removed_or_changed(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", TWO)
    feed.land()
    feed.dump("2026-11-01", [])
    assert feed.land().status == "nothing"
    shutil.rmtree(feed.landing / "2026-11-01")
    feed.dump("2026-11-03", ONE)
    assert len(new_events(feed, feed.land)) == 4


# --- held back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["25%", 1])
def test_a_truncated_dump_is_held_back(feed: DumpFeed, limit: str | int) -> None:
    feed.declare(max_deleted=limit)
    folder = feed.dump("2026-11-02", TWO[:2])
    with pytest.raises(DumpHeldBackError, match=r"2026-11-02 is held back: 2 of the 4 rows of 2026-11-01 \(50.0%\)"):
        feed.land()
    assert len(feed.events()) == 4
    assert kept_rows(feed) == 4
    # Delivered again in its place.
    shutil.rmtree(folder)
    feed.dump("2026-11-02", TWO)
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO


def test_a_held_back_dump_is_accepted_by_a_higher_limit(feed: DumpFeed) -> None:
    feed.declare(max_deleted="25%")
    feed.dump("2026-11-02", ONE[:1])
    with pytest.raises(DumpHeldBackError, match="declare a higher limit and run again"):
        feed.land()
    feed.declare(max_deleted="75%")
    assert len(new_events(feed, feed.land)) == 3


def test_a_newer_dump_takes_the_place_of_one_that_is_held_back(feed: DumpFeed) -> None:
    feed.declare(max_deleted="25%")
    feed.dump("2026-11-02", [])
    feed.dump("2026-11-03", TWO)
    outcomes: list[Outcome] = []
    assert set(new_events(feed, lambda: outcomes.append(feed.land()))) == FROM_ONE_TO_TWO
    assert "2026-11-02: 2026-11-03 takes its place, since it could" in str(outcomes[0].details["skipped_dumps"])


def test_an_empty_dump_deletes_all_rows_unless_it_is_held_back(feed: DumpFeed) -> None:
    folder = feed.dump("2026-11-02", [])
    (folder / "part-0.parquet").unlink()
    assert feed.is_due
    assert {kind for kind, _ in new_events(feed, feed.land)} == {"delete"}
    feed.dump("2026-11-03", ONE)
    assert {kind for kind, _ in new_events(feed, feed.land)} == {"insert"}


def test_too_many_changes_are_held_back(feed: DumpFeed) -> None:
    feed.declare(max_changed="25%")
    feed.dump("2026-11-02", TWO)
    with pytest.raises(DumpHeldBackError, match="2 of the 4 rows .* are missing or have other values"):
        feed.land()


def test_of_rows_without_a_key_those_that_are_fewer_count_as_deleted(plain_lake: Lake) -> None:
    feed = DumpFeed(plain_lake, {"key": "*"}, max_deleted=0)
    feed.dump("1", ONE)
    feed.land()
    feed.dump("2", TWO)
    assert [kind for kind, _ in new_events(feed, feed.land)] == ["delete", "delete", "insert", "insert"]
    feed.dump("3", TWO[1:])
    with pytest.raises(DumpHeldBackError, match="1 of the 4 rows"):
        feed.land()


# --- keys and values --------------------------------------------------------------------------------------------------


def test_keys_of_several_rows_are_an_error_of_the_dump(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", [*TWO, {"id": 1, "n": "another"}])
    with pytest.raises(DuplicateKeyError, match=r'the same key \(id\), 1 key in all, such as \["1"\] \(2 rows'):
        feed.land()
    assert len(feed.events()) == 4
    feed.dump("2026-11-03", TWO)
    assert set(new_events(feed, feed.land)) == FROM_ONE_TO_TWO


def test_keys_of_several_rows_are_an_error_of_the_first_dump(plain_lake: Lake) -> None:
    feed = DumpFeed(plain_lake)
    feed.dump("1", [*ONE, ONE[0]])
    with pytest.raises(DuplicateKeyError):
        feed.land()
    feed.declare({"key": "*"})
    assert len(new_events(feed, feed.land)) == 5


def test_rows_whose_key_is_null_are_compared_as_a_whole(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", [*ONE, {"id": None, "n": "x"}, {"id": None, "n": "x"}])
    assert new_events(feed, feed.land) == [("insert", '{"n": "x"}')] * 2
    feed.dump("2026-11-03", [*ONE, {"id": None, "n": "x"}])
    assert new_events(feed, feed.land) == [("delete", '{"n": "x"}')]


def test_a_key_that_is_declared_otherwise_compares_the_kept_rows_by_it(feed: DumpFeed) -> None:
    feed.declare({"key": "n"})
    feed.dump("2026-11-02", [{"id": 9, "n": "a"}, *ONE[1:]])
    assert [kind for kind, _ in new_events(feed, feed.land)] == ["update_preimage", "update_postimage"]
    feed.declare({"key": "*"})
    feed.dump("2026-11-03", ONE)
    assert [kind for kind, _ in new_events(feed, feed.land)] == ["delete", "insert"]


def test_a_key_column_has_its_former_name_too(feed: DumpFeed) -> None:
    feed.declare({"key": "nr", "rename": {"ID": "nr"}})
    feed.dump("2026-11-02", [{**ONE[0], "n": "A"}, *ONE[1:]])
    assert [kind for kind, _ in new_events(feed, feed.land)] == ["update_preimage", "update_postimage"]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_dump_without_the_key_is_refused(plain_lake: Lake, kind: str) -> None:
    feed = DumpFeed(plain_lake, {"key": "nr"})
    feed.dump("1", ONE, kind=kind)
    with pytest.raises(KeyMissingError, match="has no column nr, which the stream's table declares as its key; it has"):
        feed.land()


def table_of(kind: pa.DataType, *numbers: int) -> pa.Table:
    return pa.table({"id": pa.array([1, 2][: len(numbers)]), "n": pa.array(map(Decimal, numbers)).cast(kind)})


def test_wider_types_and_columns_in_another_order_are_no_events(plain_lake: Lake) -> None:
    feed = DumpFeed(plain_lake)
    kinds = [pa.int32(), pa.int64(), pa.decimal128(12, 2), pa.decimal128(20, 4), pa.float64(), pa.string()]
    for n, kind in enumerate(kinds):
        feed.dump(str(n), table_of(kind, 1, -20).select(["n", "id"] if n % 2 else ["id", "n"]))
    assert len(new_events(feed, feed.land)) == 2
    assert len(dict(feed.land().details)) == 0


def test_columns_come_and_go(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", [{**row, "m": None} for row in ONE])
    assert new_events(feed, feed.land) == []
    feed.dump("2026-11-03", [{**row, "m": 1 if row["id"] == 1 else None} for row in ONE])
    assert [row for _, row in new_events(feed, feed.land)] == [
        '{"id": "1", "n": "a"}',
        '{"id": "1", "m": "1", "n": "a"}',
    ]
    feed.dump("2026-11-04", [{"id": row["id"]} for row in ONE])
    assert len(new_events(feed, feed.land)) == 8


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_csv_and_json_lines_are_dumps_as_well(plain_lake: Lake, kind: str) -> None:
    feed = DumpFeed(plain_lake)
    feed.dump("1", ONE, kind=kind)
    feed.dump("2", TWO, kind=kind)
    feed.land()
    assert len(feed.events()) == 8
    assert len({kind for kind, _ in feed.events()}) == 4


def test_numbers_of_json_lines_keep_their_digits(plain_lake: Lake) -> None:
    feed = DumpFeed(plain_lake)
    line = '{"id": 1, "n": 1.50, "big": 12345678901234567890123.10, "e": 1e30, "deep": {"b": 1.0, "a": [1.250]}}\n'
    folder = feed.dump("1", [], kind="jsonl")
    (folder / "part-0.jsonl").write_text(line)
    feed.land()
    record = feed.lake.table("raw.dumps").scan().to_arrow()["record"][0].as_py()
    for digits in ('"n":1.50', '"big":12345678901234567890123.10', '"e":1e30', "1.250"):
        assert digits in record
    # Its members in another order are the same row.
    feed.dump("2", [], kind="jsonl")
    text = '{"deep": {"a": [1.250], "b": 1.0}, "e": 1e30, "n": 1.50, "big": 12345678901234567890123.10, "id": 1}'
    (feed.landing / "2" / "part-0.jsonl").write_text(text)
    assert new_events(feed, feed.land) == []


# --- mistakes ---------------------------------------------------------------------------------------------------------


def broken_parquet(feed: DumpFeed) -> None:
    file = feed.dump("2026-11-02", TWO) / "part-0.parquet"
    file.write_bytes(file.read_bytes()[:-20])


def broken_csv(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO, kind="csv") / "part-0.csv").write_text("id,n\n1,a\n2\n")


def truncated_json(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO, kind="jsonl") / "part-0.jsonl").write_text('{"id": 1}\n{"id": 2')


def no_object(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO, kind="jsonl") / "part-0.jsonl").write_text('{"id": 1}\n[2]\n')


def mixed_files(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO) / "part-1.csv").write_text("id,n\n1,a\n")


def types_without_a_common_one(feed: DumpFeed) -> None:
    pq.write_table(pa.table({"id": [9], "n": [1]}), feed.dump("2026-11-02", TWO) / "part-1.parquet")


def loose_files(feed: DumpFeed) -> None:
    pq.write_table(pa.table({"id": [9]}), feed.landing / "part-0.parquet")


def folders_of_partitions(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO) / "country=DE").mkdir()


def a_column_of_feeds(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", [{"id": 1, "_Change_Type": "insert"}])


def columns_that_differ_in_case(feed: DumpFeed) -> None:
    feed.dump("2026-11-02", [{"id": 1, "ID": 2}])


def a_link_that_leads_nowhere(feed: DumpFeed) -> None:
    (feed.dump("2026-11-02", TWO) / "part-1.parquet").symlink_to(feed.landing / "none")


def a_large_row(feed: DumpFeed) -> None:
    feed.declare(max_record=1_000)
    feed.dump("2026-11-02", [{"id": 1, "n": "x" * 1_001}])


MISTAKES: list[tuple[Callable[[DumpFeed], None], type[LakeError], str]] = [
    (broken_parquet, MalformedRecordError, "part-0.parquet: not a complete Parquet file .* deliver it again"),
    (
        broken_csv,
        MalformedRecordError,
        "part-0.csv, line 3: a row of 1 fields, but the header has 2. A dump is absorbed",
    ),
    (truncated_json, LakeError, "part-0.jsonl, line 2: the file ends in the middle of a record"),
    (no_object, MalformedRecordError, "part-0.jsonl, line 2: expected an object"),
    (mixed_files, UnsupportedEventError, "2026-11-02 .* mixes kinds of files"),
    (types_without_a_common_one, UnsupportedEventError, "n is bigint in part-1.parquet, and string in other files"),
    (loose_files, LandingFolderError, "holds files that belong to no dump, such as part-0.parquet"),
    (folders_of_partitions, LandingFolderError, "country=DE is a folder within a dump"),
    (a_column_of_feeds, UnsupportedEventError, "has the column _Change_Type"),
    (columns_that_differ_in_case, UnsupportedEventError, "has the columns id and ID, which differ in upper and lower"),
    (a_link_that_leads_nowhere, LakeError, "part-1.parquet"),
    (a_large_row, InputTooLargeError, "a row has 1,018 bytes, and `max_record` is 1,000"),
]


@pytest.mark.parametrize(("mistake", "kind", "text"), MISTAKES, ids=lambda m: getattr(m, "__name__", ""))
def test_a_dump_that_cannot_be_read_is_named_and_nothing_of_it_lands(
    feed: DumpFeed, mistake: Callable[[DumpFeed], None], kind: type[LakeError], text: str
) -> None:
    mistake(feed)
    with pytest.raises(kind, match=text):
        feed.land()
    assert len(feed.events()) == 4
    assert kept_rows(feed) == 4


# --- exactly once -----------------------------------------------------------------------------------------------------


def test_a_step_that_is_killed_anywhere_is_continued(feed: DumpFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    points = Points()
    numbered = points.around(SqlCatalog.commit_table, lambda _, table, *__: f"a commit of {table.name()[-1]}")
    monkeypatch.setattr(SqlCatalog, "commit_table", numbered)
    # Parts of this process count as those of a dead one.
    monkeypatch.setattr(kept_dumps, "is_gone", lambda _: True)
    feed.dump("2026-11-02", TWO)
    seen = killed_everywhere(points, feed.land)
    assert {f"{when} a commit of dumps{t}" for when in ("before", "after") for t in ("", "_dump", "_files")} <= set(
        seen
    )
    assert sorted(feed.events()[4:]) == sorted(FROM_ONE_TO_TWO)
    assert feed.land().status == "nothing"
    feed.dump("2026-11-03", ONE)
    assert len(new_events(feed, feed.land)) == 4
    assert kept_rows(feed) == 4


def test_of_two_steps_at_once_one_lands_the_dump(feed: DumpFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    compare, spec = dump_landing.compare, feed.spec
    feed.dump("2026-11-02", TWO)

    def overtaken(*args: object) -> object:
        monkeypatch.setattr(dump_landing, "compare", compare)
        assert land(feed.lake, spec).records == 4
        return compare(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(dump_landing, "compare", overtaken)
    with pytest.raises(ConcurrentWriteError):
        land(feed.lake, spec)
    assert land(feed.lake, spec).records == 0
    assert sorted(feed.events()[4:]) == sorted(FROM_ONE_TO_TWO)
    assert kept_rows(feed) == 4


def test_rows_that_are_kept_no_longer_follow_from_the_records(lake: Lake) -> None:
    feed = DumpFeed(lake)
    feed.dump("1", [*ONE, {"id": None, "n": "x"}])
    feed.land()
    feed.dump("2", TWO)
    feed.land()
    second = len(feed.events())
    before = [s.snapshot_id for s in ancestors(lake.table("raw.dumps"))]
    feed.dump("3", ONE)
    feed.land()
    lake.spark().sql(f"CALL lake.system.rollback_to_snapshot('raw.dumps', {before[0]})")
    assert len(feed.events()) == second
    assert len(new_events(feed, feed.land)) == 4
    # And from a table of kept rows that somebody has dropped.
    lake.catalog.drop_table(KEPT.parts)
    feed.dump("4", TWO)
    assert sorted(new_events(feed, feed.land)) == sorted(FROM_ONE_TO_TWO)
