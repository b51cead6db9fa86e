"""What a job or an open capture still reads is kept from expiring, also in tables of other programs; without Spark."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets import Lake, LakeConfig
from lake_assets.capture import icdc, source_tags
from lake_assets.capture.icdc_session import OpenTables
from lake_assets.errors import ConcurrentWriteError, MissingDataFileError, SnapshotExpiredError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.runtime.processes import owner
from lake_assets.tables.leftovers import FILES_AFTER, sweep
from lake_assets.tables.writing.arrow_writes import write_arrow
from tests.support.cli import invoke
from tests.support.daily_job import DAILY, PLAYS, append, job, new_rows, play, rows_of, rows_of_play
from tests.support.upkeep import expire

# A process that cannot exist.
GONE = owner((2**22 + 1, 1.0))


def tags(lake: Lake, table: str = PLAYS) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in lake.table(table).metadata.refs.items() if name != "main"}


def head(lake: Lake, table: str = PLAYS) -> int:
    found = lake.table(table).metadata.current_snapshot_id
    assert found is not None
    return found


def files_of(lake: Lake, table: str) -> set[Path]:
    folder = Path(lake.table(table).location().removeprefix("file://"))
    return {f for f in folder.rglob("*") if f.is_file() and f.suffix not in (".json", ".crc")}


def fail_after_writing(lake: Lake, step: CapturedStep) -> None:
    """A job whose commit has no watermark: what it wrote is unknown."""
    append(lake, new_rows(lake, step))
    raise RuntimeError("out of luck")


def test_both_ends_of_a_window_stay_while_a_job_runs(media: Lake) -> None:
    job(media)
    absorbed = head(media)
    play(media, (3, 3, 3))
    end = head(media)
    with media.step(DAILY, [PLAYS]) as step:
        play(media, (4, 4, 4))
        expire(media, PLAYS)
        assert {absorbed, end} <= {s.snapshot_id for s in media.table(PLAYS).snapshots()}
        append(media, new_rows(media, step), step.properties)
    assert read_marks(media.table(DAILY))[PLAYS].snapshot == end
    assert tags(media) == {f"consumer.{DAILY}": end}, "the end's own tag is gone"
    expire(media, PLAYS)
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_failed_job_leaves_no_tag_of_its_window(media: Lake) -> None:
    job(media)
    play(media, (3, 3, 3))
    before = tags(media)
    with pytest.raises(RuntimeError), media.step(DAILY, [PLAYS]):
        raise RuntimeError("before anything was written")
    assert tags(media) == before


def test_an_interrupted_job_keeps_the_window_that_is_run_again(media: Lake) -> None:
    job(media)
    play(media, (3, 3, 3))
    end = head(media)
    with pytest.raises(RuntimeError), media.step(DAILY, [PLAYS]) as step:
        fail_after_writing(media, step)
    play(media, (4, 4, 4))
    expire(media, PLAYS)
    with media.step(DAILY, [PLAYS], on_unknown="rerun") as step:
        assert step.windows[PLAYS].head.snapshot == end
        assert new_rows(media, step).num_rows == 1


@pytest.mark.parametrize("way", ["configuration", "property"])
def test_whoever_does_not_want_tags_declares_it(media: Lake, way: str) -> None:
    lake = media
    if way == "configuration":
        lake = Lake(LakeConfig(home=media.config.home, protect=False))
    else:
        with media.table(PLAYS).transaction() as change:
            change.set_properties({source_tags.PROTECT_PROPERTY: "false"})
    job(lake)
    play(lake, (3, 3, 3))
    assert tags(lake) == {}
    expire(lake, PLAYS)
    with pytest.raises(SnapshotExpiredError, match="has expired"), lake.step(DAILY, [PLAYS]):
        pass


def test_a_catalog_that_refuses_is_told_of_once_and_stops_nothing(
    media: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("only its owner may")

    monkeypatch.setattr(refs, "set_tags", refuse)
    monkeypatch.setattr(source_tags, "_refused", set())
    with caplog.at_level(logging.WARNING):
        for n in range(3, 5):
            job(media)
            play(media, (n, n, n))
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)
    assert len([r for r in caplog.records if "belongs to another program" in r.getMessage()]) == 1
    assert "protect: false" in caplog.text


def test_an_open_capture_keeps_its_snapshots(media: Lake) -> None:
    first = head(media)
    play(media, (3, 3, 3))
    with media.capture(PLAYS, first) as captured:
        assert tags(media) == {}, "it only reads metadata"
        with captured.icdc() as tables:
            assert sorted(tags(media).values()) == sorted([first, head(media)])
            play(media, (4, 4, 4))
            expire(media, PLAYS)
            assert media.table(tables.after or "").scan().to_arrow().num_rows == 1
        assert tags(media) == {}


def test_a_capture_whose_snapshot_expired_says_so_and_can_be_made_again(media: Lake) -> None:
    first = head(media)
    play(media, (3, 3, 3))
    table = media.table(PLAYS)
    captured = media.capture(PLAYS, first)
    table.overwrite(rows_of_play(4, 4, 4))
    expire(media, PLAYS)
    for file in captured.files:
        Path(file.path.removeprefix("file://")).unlink()
    with pytest.raises(MissingDataFileError, match="has expired since this capture was planned") as caught:
        captured.icdc().__enter__()
    assert "orphan" not in str(caught.value)
    with media.capture(PLAYS) as again, again.icdc() as tables:  # as the error advises
        assert media.table(tables.after or "").scan().to_arrow().num_rows == 1


def test_a_capture_of_a_table_that_was_replaced_says_so(media: Lake) -> None:
    captured = media.capture(PLAYS)
    for file in captured.files:
        Path(file.path.removeprefix("file://")).unlink()
    media.catalog.drop_table(PLAYS)
    play(media, (1, 1, 1))
    with pytest.raises(MissingDataFileError, match="was dropped and created again since this capture was planned"):
        captured.icdc().__enter__()


# --- what lost races and kills leave ----------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_lost_race_leaves_no_files(media: Lake, overwrite: bool) -> None:
    before = media.table(PLAYS)
    play(media, (3, 3, 3))
    files = files_of(media, PLAYS)
    with pytest.raises(ConcurrentWriteError):
        write_arrow(TableId.parse(PLAYS), before, rows_of_play(4, 4, 4), {}, overwrite=overwrite)
    assert files_of(media, PLAYS) == files
    write_arrow(TableId.parse(PLAYS), media.table(PLAYS), rows_of_play(4, 4, 4), {})
    assert rows_of(media, PLAYS)[tuple(rows_of_play(4, 4, 4).to_pylist()[0].values())] == 1


def test_rows_that_cannot_be_read_leave_no_files(media: Lake) -> None:
    def rows() -> Any:
        yield from rows_of_play(4, 4, 4).to_batches()
        raise ValueError("a broken file")

    files, schema = files_of(media, PLAYS), rows_of_play(4, 4, 4).schema
    with pytest.raises(ValueError, match="a broken file"):
        write_arrow(TableId.parse(PLAYS), media.table(PLAYS), pa.RecordBatchReader.from_batches(schema, rows()), {})
    assert files_of(media, PLAYS) == files


def test_a_capture_that_is_killed_before_its_table_is_registered_leaves_nothing(
    media: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    files = files_of(media, PLAYS)
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "register_table", kill)
        patch.setattr(OpenTables, "close", lambda _: None)
        for module in (icdc, source_tags):
            patch.setattr(module, "owner", lambda: GONE)
        with pytest.raises(Killed):
            media.capture(PLAYS).icdc().__enter__()
    assert files_of(media, PLAYS) > files
    assert list(tags(media).values()) == [head(media)]
    assert media.consumers.list(PLAYS) == [], "no consumer is behind"
    assert [left.source for left in icdc.leftovers(media)] == [PLAYS]
    assert sweep(media, FILES_AFTER)
    assert files_of(media, PLAYS) == files
    assert icdc.leftovers(media) == []
    assert tags(media) == {}
    assert not list((media.config.home / "at-work").glob("*"))


def test_the_end_that_was_settled_by_hand_stays(media: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOME", str(media.config.home))
    job(media)
    play(media, (3, 3, 3))
    end = head(media)
    with pytest.raises(RuntimeError), media.step(DAILY, [PLAYS]) as step:
        fail_after_writing(media, step)
    assert invoke("step", DAILY, "--done").exit_code == 0
    assert tags(media)[f"consumer.{DAILY}"] == end


def test_tables_for_other_processes_keep_their_snapshots_as_long_as_they_are_declared_to_last(media: Lake) -> None:
    job(media)
    start = head(media)
    play(media, (3, 3, 3))
    end = head(media)
    with media.step(DAILY, [PLAYS], lifetime=timedelta(days=9)) as step:
        append(media, new_rows(media, step), step.properties)
    play(media, (4, 4, 4))
    job(media)
    kept = {s: r for r in media.table(PLAYS).metadata.refs.values() if (s := r.snapshot_id) in (start, end)}
    assert {*kept} == {start, end}
    assert all((r.max_ref_age_ms or 0) >= timedelta(days=9).total_seconds() * 1000 for r in kept.values())


def test_a_snapshot_that_is_old_is_tagged_for_the_days_from_now(media: Lake) -> None:
    """Iceberg counts the age of a tag from its snapshot."""
    table = media.table(PLAYS)
    made = table.current_snapshot()
    assert made is not None
    ten_days = timedelta(days=10).total_seconds() * 1000
    commit(
        table,
        lambda m: {
            **m,
            "snapshots": [{**s, "timestamp-ms": int(made.timestamp_ms - ten_days)} for s in m["snapshots"]],
        },
    )
    source_tags.keep(media, media.table(PLAYS), {"consumer.x.step": made.snapshot_id}, 7)
    age = media.table(PLAYS).metadata.refs["consumer.x.step"].max_ref_age_ms
    assert age == timedelta(days=18).total_seconds() * 1000 or age == timedelta(days=17).total_seconds() * 1000
    at = media.table(PLAYS).metadata_location
    source_tags.keep(media, media.table(PLAYS), {"consumer.x.step": made.snapshot_id}, 7)
    assert media.table(PLAYS).metadata_location == at, "it is kept for long enough"
