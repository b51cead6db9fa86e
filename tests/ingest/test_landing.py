"""Files become rows of a raw table, each exactly once: catalog and files only, without Spark."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.errors import (
    ChangedInputError,
    ConcurrentWriteError,
    InputError,
    LakeError,
    LandingFolderError,
    MalformedRecordError,
    RejectedLimitError,
    TableClaimedError,
    TruncatedInputError,
)
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger, landing, new_files, record_reading, record_sources
from lake_assets.ingest.raw.landing import Landed, RawStep, land
from lake_assets.ingest.raw_tables import routes
from lake_assets.lake import TableId, thresholds
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.specs import Limit
from tests.support.debezium import BIGINT, Event, to_lines, write_lines
from tests.support.debezium import Table as SourceRows
from tests.support.upkeep import expire

RAW = TableId.parse("raw.events")
USERS = SourceRows({"id": BIGINT}, name="public.users")


def lines(*ids: int, table: SourceRows = USERS) -> list[bytes]:
    return to_lines(Event(table, "c", (1, i), {"id": i}) for i in ids)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def spec(folder: Path, pipeline: str = "p", **more: Any) -> RawSpec:
    return RawSpec(RAW, folder, "debezium", pipeline, **more)


def take_in(lake: Lake, folder: Path) -> Landed:
    return land(lake, spec(folder))


def rows(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    found = lake.table(RAW).scan(selected_fields=("position", *columns)).to_arrow().to_pylist()
    return [tuple(r[c] for c in columns) for r in sorted(found, key=lambda r: r["position"])]


def rejected(lake: Lake) -> list[dict[str, Any]]:
    found = lake.table("raw.events_rejected").scan().to_arrow().to_pylist()
    return sorted(found, key=lambda r: r["position"])


def state(lake: Lake) -> dict[str, int | None]:
    return {str(t): lake.table(t).metadata.current_snapshot_id for t in lake.tables("raw")}


def test_every_line_is_a_row_with_its_place_and_its_text(plain_lake: Lake, folder: Path) -> None:
    one, two = lines(1, 2), lines(3)
    write_lines(folder / "b.jsonl", two)
    write_lines(folder / "a.jsonl.gz", one)
    landed = take_in(plain_lake, folder)
    assert (landed.files, landed.records) == (2, 3)
    assert rows(plain_lake, "position", "source_file", "source_line", "source_table", "record") == [
        (0, "a.jsonl.gz", 1, "public.users", one[0].decode().strip()),
        (1, "a.jsonl.gz", 2, "public.users", one[1].decode().strip()),
        (2, "b.jsonl", 1, "public.users", two[0].decode().strip()),
    ]
    assert len(plain_lake.table(RAW).metadata.snapshots) == 1


def test_a_landing_folder_that_is_a_file_is_named(plain_lake: Lake, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", lines(1))
    for look in (land, lambda lake, raw: RawStep(raw).new_files(lake)):
        with pytest.raises(LandingFolderError, match=r"landing folder .*a\.jsonl cannot be read: it is a file"):
            look(plain_lake, spec(tmp_path / "a.jsonl"))


def test_a_landing_folder_that_does_not_exist_is_waited_for_and_named(plain_lake: Lake, tmp_path: Path) -> None:
    outcome = absorb(plain_lake, spec(tmp_path / "landnig"))
    assert (outcome.status, outcome.why) == ("waiting", f"the folder {tmp_path}/landnig does not exist yet")
    (tmp_path / "landnig").mkdir()
    assert absorb(plain_lake, spec(tmp_path / "landnig")).status == "nothing"


def test_positions_go_on_without_gaps(plain_lake: Lake, folder: Path) -> None:
    for n in range(3):
        write_lines(folder / f"{n}.jsonl", lines(10 * n, 10 * n + 1))
        take_in(plain_lake, folder)
    assert [r[0] for r in rows(plain_lake, "position")] == list(range(6))


def test_taking_in_twice_changes_nothing(plain_lake: Lake, folder: Path) -> None:
    write_lines(folder / "a.jsonl", lines(1, 2))
    take_in(plain_lake, folder)
    before = state(plain_lake)
    assert take_in(plain_lake, folder).files == 0
    assert RawStep(spec(folder)).new_files(plain_lake) == []
    assert state(plain_lake) == before


def test_a_file_that_is_delivered_again_with_the_same_content_is_not_taken_in_again(
    plain_lake: Lake, folder: Path
) -> None:
    write_lines(folder / "a.jsonl", lines(1, 2))
    take_in(plain_lake, folder)
    before = state(plain_lake)
    write_lines(folder / "a.jsonl", lines(1, 2))
    assert take_in(plain_lake, folder).files == 0
    assert state(plain_lake) == before


def test_a_file_that_has_changed_is_named(plain_lake: Lake, folder: Path) -> None:
    file = write_lines(folder / "a.jsonl", lines(1))
    take_in(plain_lake, folder)
    size, before = file.stat().st_size, state(plain_lake)
    write_lines(folder / "a.jsonl", lines(1, 2))
    for look in (take_in, lambda lake, f: RawStep(spec(f)).new_files(lake)):
        with pytest.raises(ChangedInputError, match=rf"a\.jsonl was landed with {size} bytes and has \d+ now"):
            look(plain_lake, folder)
    assert state(plain_lake) == before
    file.unlink()  # what the error advises
    write_lines(folder / "b.jsonl", lines(2))
    assert take_in(plain_lake, folder).files == 1


def cut_gzip(file: Path) -> None:
    file.with_name("b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines(*range(50))))[:-20])


def damaged_gzip(file: Path) -> None:
    content = bytearray(gzip.compress(b"".join(lines(*range(50)))))
    content[len(content) // 2] ^= 0xFF
    file.with_name("b.jsonl.gz").write_bytes(content)


def no_gzip(file: Path) -> None:
    file.with_name("b.jsonl.gz").write_bytes(b"".join(lines(1)))


def empty_gzip(file: Path) -> None:
    file.with_name("b.jsonl.gz").write_bytes(b"")


def cut_line(file: Path) -> None:
    file.write_bytes(b"".join(lines(1, 2))[:-30])


def no_json(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b"this is no JSON\n" + lines(2)[0])


def no_utf8(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b'{"key": "\xff"}\n')


def no_envelope(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b'{"key": null, "value": {"payload": {"id": 1}}}\n')


def no_object(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b"12\n")


def deep(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b"[" * 5_000 + b"]" * 5_000 + b"\n")


def lone_surrogate(file: Path) -> None:
    file.write_bytes(lines(1)[0] + b'{"key": "\\ud800"}\n')


def no_parquet(file: Path) -> None:
    file.with_suffix(".parquet").write_bytes(b"PAR1 and no more")


@pytest.mark.parametrize(
    ("harm", "error", "where"),
    [
        (cut_gzip, TruncatedInputError, r"b\.jsonl\.gz, after line \d+"),
        (damaged_gzip, InputError, r"b\.jsonl\.gz, "),  # what it is depends on the byte
        (no_gzip, TruncatedInputError, r"b\.jsonl\.gz, after line 0"),
        (empty_gzip, TruncatedInputError, r"b\.jsonl\.gz, after line 0"),
        (cut_line, TruncatedInputError, r"b\.jsonl, line 2: .* in the middle of a record"),
        (no_parquet, MalformedRecordError, r"b\.parquet, after row 0: not a complete Parquet file"),
    ],
)
def test_a_bad_file_stops_the_landing_there_and_files_before_it_are_taken_in(
    plain_lake: Lake, folder: Path, harm: Any, error: type[LakeError], where: str
) -> None:
    """What comes after it waits as well: formats without an order of their own have that of the stream."""
    write_lines(folder / "0.jsonl", lines(1))
    take_in(plain_lake, folder)
    write_lines(folder / "a.jsonl", lines(2))
    write_lines(folder / "c.jsonl", lines(3))
    harm(folder / "b.jsonl")
    with pytest.raises(error, match=where):
        take_in(plain_lake, folder)
    assert set(seen(plain_lake)) == {"0.jsonl", "a.jsonl"}
    before = state(plain_lake)
    with pytest.raises(error, match=where):
        take_in(plain_lake, folder)
    assert state(plain_lake) == before
    for bad in folder.glob("b.*"):
        bad.unlink()
    assert take_in(plain_lake, folder).records == 1
    assert [r[0] for r in rows(plain_lake, "position")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (no_json, r"not JSON"),
        (no_utf8, r"not UTF-8"),
        (no_envelope, r"payload\.source\.table is missing"),
        (no_object, r"expected an object"),
        (deep, r"nested deeper than 200 levels"),
        (lone_surrogate, r"not JSON"),
    ],
)
def test_a_bad_record_is_kept_with_the_reason_and_stops_nothing(
    plain_lake: Lake, folder: Path, harm: Any, why: str
) -> None:
    harm(folder / "b.jsonl")
    landed = take_in(plain_lake, folder)
    good = sum(1 for r in rows(plain_lake, "source_table") if r[0])
    assert (landed.records, landed.rejected) == (good + 1, 1)
    bad = [r for r in rows(plain_lake, "source_line", "source_table", "problem", "record") if r[2]]
    assert [r[:2] for r in bad] == [(2, None)]
    found = rejected(plain_lake)
    assert [(r["position"], r["source_line"], r["source_table"], r["record"]) for r in found] == [
        (1, 2, None, bad[0][3])
    ]
    assert re.search(why, found[0]["reason"])
    assert take_in(plain_lake, folder).files == 0
    assert rejected(plain_lake) == found


def test_rejects_are_copied_once_whatever_is_killed_in_between(
    plain_lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(landing.rejects, "catch_up", lambda *_: None)
        no_json(folder / "a.jsonl")
        take_in(plain_lake, folder)
    assert not plain_lake.exists("raw.events_rejected")
    assert take_in(plain_lake, folder).files == 0
    assert [r["position"] for r in rejected(plain_lake)] == [1]
    no_json(folder / "b.jsonl")
    take_in(plain_lake, folder)
    assert [r["position"] for r in rejected(plain_lake)] == [1, 4]
    # Of a raw table that is made again, nothing of before holds.
    for table in (RAW, file_ledger.ledger_of(RAW)):
        plain_lake.catalog.drop_table(table.parts)
    (folder / "a.jsonl").unlink()
    take_in(plain_lake, folder)
    assert [(r["position"], r["source_file"]) for r in rejected(plain_lake)] == [(1, "b.jsonl")]


@pytest.mark.parametrize(("limit", "stops"), [("0", True), ("1", False), ("33%", True), ("34%", False)])
def test_more_rejects_than_declared_stop_the_landing(plain_lake: Lake, folder: Path, limit: str, stops: bool) -> None:
    no_json(folder / "a.jsonl")
    limited = spec(folder, max_rejected=Limit.parse(limit))
    if not stops:
        assert land(plain_lake, limited).rejected == 1
        return
    with pytest.raises(RejectedLimitError, match=r"raw\.events: 1 of 3 records .*a\.jsonl, line 2: not JSON"):
        land(plain_lake, limited)
    assert plain_lake.table(RAW).current_snapshot() is None
    assert land(plain_lake, spec(folder)).rejected == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b'{"destination":"x","key":null,"value":null}\n'],
    ids=["no line", "blank lines", "a tombstone"],
)
def test_a_file_without_an_event_is_taken_in_once(plain_lake: Lake, folder: Path, content: bytes) -> None:
    write_lines(folder / "a.jsonl", [content])
    assert take_in(plain_lake, folder).files == 1
    assert take_in(plain_lake, folder).files == 0


def test_a_last_line_without_its_end_is_whole_when_it_is_json(plain_lake: Lake, folder: Path) -> None:
    write_lines(folder / "a.jsonl", [b"".join(lines(1, 2)).rstrip(b"\n")])
    assert take_in(plain_lake, folder).records == 2


def test_unfinished_and_hidden_files_are_left_alone(plain_lake: Lake, folder: Path) -> None:
    for name in (".hidden", "_marker", "a.jsonl.tmp", "b.jsonl.part"):
        write_lines(folder / name, lines(1)).rename(folder / name)
    (folder / "sub.jsonl").mkdir()
    assert take_in(plain_lake, folder).files == 0


def test_a_folder_that_is_not_there_yet_holds_nothing(plain_lake: Lake, tmp_path: Path) -> None:
    assert take_in(plain_lake, tmp_path / "none").files == 0


def test_what_tables_the_records_were_about_is_known_without_reading_them(plain_lake: Lake, folder: Path) -> None:
    assert routes(plain_lake, RAW) == []
    write_lines(folder / "a.jsonl", lines(1))
    take_in(plain_lake, folder)
    write_lines(folder / "b.jsonl", lines(1, table=SourceRows({"id": BIGINT}, name="public.Order Items")))
    take_in(plain_lake, folder)
    assert routes(plain_lake, RAW) == [SourceTable("public", "Order Items"), SourceTable("public", "users")]


def test_a_message_of_the_source_is_about_no_table(plain_lake: Lake, folder: Path) -> None:
    """A logical decoding message (pg_logical_emit_message) has an empty table in its source block."""
    record = json.loads(lines(1)[0])
    record["value"]["payload"] = {"op": "m", "source": {"schema": "", "table": "", "db": "d", "lsn": 1}}
    write_lines(folder / "a.jsonl", [json.dumps(record).encode() + b"\n", *lines(1)])
    take_in(plain_lake, folder)
    assert routes(plain_lake, RAW) == [SourceTable("public", "users")]
    assert rows(plain_lake, "source_table") == [(None,), ("public.users",)]


def test_many_files_are_several_commits(plain_lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "FILES_A_COMMIT", 2)
    for n in range(5):
        write_lines(folder / f"{n}.jsonl", lines(n))
    assert take_in(plain_lake, folder).files == 5
    assert len(plain_lake.table(RAW).metadata.snapshots) == 3
    assert [r[0] for r in rows(plain_lake, "position")] == list(range(5))


def test_big_files_are_written_in_pieces(plain_lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "ROWS_A_BATCH", 3)
    write_lines(folder / "a.jsonl", lines(*range(10)))
    take_in(plain_lake, folder)
    assert [r[0] for r in rows(plain_lake, "position")] == list(range(10))


def test_a_raw_table_of_another_pipeline_is_not_written_to(plain_lake: Lake, folder: Path) -> None:
    write_lines(folder / "a.jsonl", lines(1))
    take_in(plain_lake, folder)
    before = state(plain_lake)
    write_lines(folder / "b.jsonl", lines(2))
    with pytest.raises(TableClaimedError, match=r"raw\.events belongs to pipeline 'p'"):
        land(plain_lake, spec(folder, "other"))
    assert state(plain_lake) == before


# --- the ledger -------------------------------------------------------------------------------------------------


def seen(lake: Lake) -> Mapping[str, int]:
    return file_ledger.seen(lake, RAW)


def test_a_ledger_that_lags_behind_still_knows_all_files(
    plain_lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(folder / "a.jsonl", lines(1))
    take_in(plain_lake, folder)
    with monkeypatch.context() as patch:  # killed between the landing's commit and the ledger's
        patch.setattr(file_ledger, "catch_up", lambda *_: None)
        write_lines(folder / "b.jsonl", lines(2))
        take_in(plain_lake, folder)
    assert set(seen(plain_lake)) == {"a.jsonl", "b.jsonl"}
    assert take_in(plain_lake, folder).files == 0
    assert plain_lake.table(file_ledger.ledger_of(RAW)).scan().to_arrow().num_rows == 2


def test_a_ledger_that_is_lost_is_made_again(plain_lake: Lake, folder: Path) -> None:
    for n in range(3):
        write_lines(folder / f"{n}.jsonl", lines(n))
        take_in(plain_lake, folder)
    plain_lake.catalog.drop_table(file_ledger.ledger_of(RAW).parts)
    assert take_in(plain_lake, folder).files == 0
    assert seen(plain_lake) == {f"{n}.jsonl": (folder / f"{n}.jsonl").stat().st_size for n in range(3)}


def test_a_ledger_whose_landings_were_expired_holds(plain_lake: Lake, folder: Path) -> None:
    for n in range(3):
        write_lines(folder / f"{n}.jsonl", lines(n))
        take_in(plain_lake, folder)
    expire(plain_lake, RAW)
    assert take_in(plain_lake, folder).files == 0
    plain_lake.catalog.drop_table(file_ledger.ledger_of(RAW).parts)  # now its rows are all there is
    assert take_in(plain_lake, folder).files == 0
    assert set(seen(plain_lake)) == {"0.jsonl", "1.jsonl", "2.jsonl"}


def test_a_raw_table_that_was_rolled_back_takes_in_again_what_it_lost(plain_lake: Lake, folder: Path) -> None:
    snapshots = []
    for n in range(3):
        write_lines(folder / f"{n}.jsonl", lines(n))
        snapshots.append(take_in(plain_lake, folder).snapshot)
    plain_lake.table(RAW).manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    assert [f.name for f in RawStep(spec(folder)).new_files(plain_lake)] == ["1.jsonl", "2.jsonl"]
    assert take_in(plain_lake, folder).files == 2
    assert [r[0] for r in rows(plain_lake, "source_file")] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert take_in(plain_lake, folder).files == 0


def test_a_raw_table_that_was_dropped_takes_in_everything_again(plain_lake: Lake, folder: Path) -> None:
    for n in range(2):
        write_lines(folder / f"{n}.jsonl", lines(n))
        take_in(plain_lake, folder)
    plain_lake.catalog.drop_table(RAW.parts)
    assert take_in(plain_lake, folder).files == 2
    assert take_in(plain_lake, folder).files == 0
    assert plain_lake.table(file_ledger.ledger_of(RAW)).scan().to_arrow().num_rows == 2


def test_another_process_that_lands_the_same_files_in_between_is_noticed(
    plain_lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the moment, between listing the files and committing them: no file is in the table twice."""
    other = Lake(plain_lake.config)
    write_lines(folder / "0.jsonl", lines(0))
    take_in(plain_lake, folder)
    write_lines(folder / "a.jsonl", lines(1, 2))

    def meanwhile(where: Any, name: str) -> None:
        """The other process lands everything right before the first call of a function."""
        original = getattr(where, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            patch.undo()
            take_in(other, folder)
            return original(*args, **kwargs)

        patch.setattr(where, name, call)

    for where, name in (
        (file_ledger, "catch_up"), (new_files, "find"), (new_files, "listing"), (file_ledger, "seen_by"), (new_files, "unseen"),
        (landing, "commit_batch"), (Table, "transaction"), (record_reading.RecordReading, "batches"), (record_sources, "records_of"),
        (file_ledger, "_state"), (file_ledger, "_pending"), (Table, "append"),
    ):  # fmt: skip
        file = write_lines(folder / f"new{name}.jsonl", lines(3)).name
        with monkeypatch.context() as patch:
            meanwhile(where, name)
            with contextlib.suppress(ConcurrentWriteError):
                take_in(plain_lake, folder)
        take_in(plain_lake, folder)
        names = [f for (f,) in rows(plain_lake, "source_file")]
        assert names.count(file) == 1, f"in {name}: {names}"
        assert [p for (p,) in rows(plain_lake, "position")] == list(range(len(names)))
