"""Invalid windows and lost histories are named errors. PyIceberg only, without Spark."""

from __future__ import annotations

import gzip
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.capture import source_tags
from lake_assets.errors import (
    CaptureWriteError,
    ColumnNotFoundError,
    ConsumerNotFoundError,
    CorruptMetadataError,
    InvalidNameError,
    MissingDataFileError,
    SnapshotExpiredError,
    SnapshotNotFoundError,
    TableNotFoundError,
    TableReplacedError,
    WindowError,
)


def make(lake: Lake, name: str = "a.t", appends: int = 3) -> list[int]:
    table = lake.catalog.create_table(name, pa.schema([("id", pa.int64()), ("v", pa.string())]))
    for i in range(appends):
        table.append(pa.table({"id": [i, i + 100], "v": [f"v{i}", None]}))
    return [s.snapshot_id for s in lake.table(name).metadata.snapshots]


def local(path: str) -> Path:
    return Path(urlparse(path).path)


def first_manifest(table: Table) -> Path:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return local(snapshot.manifests(table.io)[0].manifest_path)


def test_bounds_are_ids_refs_and_times(cold: Lake) -> None:
    ids = make(cold)
    table = cold.table("a.t")
    table.manage_snapshots().create_tag(ids[0], "first").create_branch(ids[1], "side").commit()
    assert cold.capture("a.t").window.end_snapshot_id == ids[2]
    for start in (ids[0], str(ids[0]), "first"):
        capture = cold.capture("a.t", start, "side")
        assert (capture.window.start_snapshot_id, capture.window.end_snapshot_id) == (ids[0], ids[1])
        assert [f.records for f in capture.files] == [2]
    at = cold.capture("a.t", ids[1]).window.start
    assert at is not None
    naive = at.timestamp.replace(tzinfo=None)
    assert cold.capture("a.t", naive).window == cold.capture("a.t", ids[1]).window
    long_ago = at.timestamp - timedelta(days=1)
    assert cold.capture("a.t", long_ago).window.start is None
    assert len(cold.capture("a.t", long_ago).files) == 3
    with pytest.raises(SnapshotNotFoundError, match="had no snapshot at"):
        cold.capture("a.t", end=long_ago)


def test_bad_bounds_are_named(cold: Lake) -> None:
    ids = make(cold)
    other = make(cold, "a.other")
    with pytest.raises(TableNotFoundError, match=r"a\.nothing.*a\.other"):
        cold.capture("a.nothing")
    with pytest.raises(SnapshotNotFoundError, match="another table"):
        cold.capture("a.t", other[0])
    with pytest.raises(SnapshotNotFoundError, match="no tag or branch 'nightly'; it has: main"):
        cold.capture("a.t", "nightly")
    with pytest.raises(WindowError, match="newer than its end"):
        cold.capture("a.t", ids[2], ids[0])
    now = datetime.now(UTC)
    with pytest.raises(WindowError, match="swap"):
        cold.capture("a.t", now, now - timedelta(seconds=1))
    with pytest.raises(ColumnNotFoundError, match="no column 'nope'.*id, v"):
        cold.capture("a.t").keys(None, ["nope"])  # pyright: ignore[reportArgumentType]


def test_a_table_created_again_is_another_table(cold: Lake) -> None:
    ids = make(cold)
    uuid = cold.capture("a.t").window.table_uuid
    assert len(cold.capture("a.t", ids[0], table_uuid=uuid).files) == 2
    cold.catalog.drop_table("a.t")
    make(cold)
    with pytest.raises(TableReplacedError, match="created again"):
        cold.capture("a.t", ids[0], table_uuid=uuid)
    with pytest.raises(SnapshotNotFoundError):
        cold.capture("a.t", ids[0])


def test_an_expired_start_is_named(cold: Lake) -> None:
    ids = make(cold)
    time.sleep(0.002)
    cold.table("a.t").maintenance.expire_snapshots().by_id(ids[0]).commit()
    with pytest.raises(SnapshotExpiredError, match="has expired.*start=None"):
        cold.capture("a.t", ids[0])
    point = cold.table("a.t").metadata.snapshots[0].timestamp_ms
    before = datetime.fromtimestamp(point / 1000, UTC) - timedelta(milliseconds=1)
    with pytest.raises(SnapshotExpiredError, match="the snapshot that was current at"):
        cold.capture("a.t", before)
    # The remaining window can be captured, and a full capture needs no history.
    assert len(cold.capture("a.t", ids[1]).files) == 1
    assert len(cold.capture("a.t").files) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_a_snapshot_known_only_to_older_metadata_has_expired(cold: Lake, packed: bool) -> None:
    ids = make(cold)
    cold.table("a.t").maintenance.expire_snapshots().by_ids(ids[:2]).commit()
    for entry in cold.table("a.t").metadata.metadata_log:
        file = Path(urlparse(entry.metadata_file).path)
        file.write_bytes(gzip.compress(file.read_bytes()) if packed else file.read_bytes())
    with pytest.raises(SnapshotExpiredError, match="has expired"):
        cold.capture("a.t", ids[0])


def test_a_registered_consumer_keeps_its_snapshot(cold: Lake) -> None:
    ids = make(cold)
    consumer = cold.consumers.register("a.t", "final.users", ids[0])
    assert (consumer.snapshot_id, consumer.snapshots_behind) == (ids[0], 2)
    assert consumer.behind > timedelta(0)
    cold.consumers.register("a.t", "other")
    cold.table("a.t").maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert ids[0] in {s.snapshot_id for s in cold.table("a.t").metadata.snapshots}
    # Snapshots in between have expired: the net change does not need them.
    capture = cold.capture("a.t", ids[0])
    assert len(capture.files) == 2
    behind = [(c.name, c.snapshots_behind) for c in cold.consumers.list("a.t")]
    assert behind == [("final.users", None), ("other", 0)]
    assert cold.consumers.advance("a.t", "final.users", ids[2]).snapshots_behind == 0
    cold.consumers.remove("a.t", "final.users")
    assert [c.name for c in cold.consumers.list("a.t")] == ["other"]
    with pytest.raises(ConsumerNotFoundError, match="it has: other"):
        cold.consumers.remove("a.t", "final.users")
    with pytest.raises(InvalidNameError):
        cold.consumers.register("a.t", "no spaces")
    with pytest.raises(SnapshotNotFoundError):
        cold.consumers.register("a.t", "x", 42)


def test_consumers_are_told_from_jobs_and_captures_by_how_long_they_stay(cold: Lake) -> None:
    """Names tell nothing: a table may be called `step`, or be in a namespace called `capture`."""
    ids = make(cold)
    names = ["agg.step", "capture.users", "backfill-loader"]
    for name in names:
        cold.consumers.register("a.t", name, ids[0])
    passing = {f"{source_tags.PREFIX}{name}": ids[0] for name in ("agg.daily.step", "capture.lasting.0", "backfill-b1")}
    source_tags.keep(cold, cold.table("a.t"), passing, 400)
    assert [c.name for c in cold.consumers.list("a.t")] == sorted(names)
    cold.consumers.remove("a.t", "agg.daily.step")  # of a job that was killed
    assert f"{source_tags.PREFIX}agg.daily.step" not in cold.table("a.t").metadata.refs


def test_planning_opens_only_manifests_that_differ(cold: Lake) -> None:
    ids = make(cold, appends=12)
    capture = cold.capture("a.t", ids[8])
    assert capture._reader.opened == 3
    assert len(capture.files) == 3
    assert cold.capture("a.t", ids[-1])._reader.opened == 0


def test_a_broken_manifest_is_named(cold: Lake) -> None:
    make(cold)
    manifest = first_manifest(cold.table("a.t"))
    whole = manifest.read_bytes()
    for broken, message in (
        (whole[:-10], "bytes, but its snapshot says"),
        (b"x" * len(whole), "cannot be read"),
        (whole[:-40] + bytes(40), "cannot be read"),
    ):
        manifest.write_bytes(broken)
        with pytest.raises(CorruptMetadataError, match=message) as e:
            cold.capture("a.t")
        assert manifest.name in str(e.value)
    manifest.unlink()
    with pytest.raises(MissingDataFileError, match=manifest.name):
        cold.capture("a.t")


def test_a_missing_data_file_is_named_before_anything_is_read(cold: Lake) -> None:
    make(cold)
    capture = cold.capture("a.t")
    missing = local(capture.files[1].path)
    missing.unlink()
    with pytest.raises(MissingDataFileError, match=missing.name), capture.icdc():
        pytest.fail("a partial table was opened")
    assert cold.tables("icdc") == []


def test_no_place_for_icdc_metadata(cold: Lake) -> None:
    make(cold)
    location = local(cold.table("a.t").location())
    (location / "icdc").write_text("in the way")
    with pytest.raises(CaptureWriteError, match="Allow writing to"), cold.capture("a.t").icdc():
        pytest.fail("nothing could be written")
    assert cold.tables("icdc") == []
