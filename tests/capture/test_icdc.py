"""ICDC tables: any engine reads them, and dropping them touches nothing but their own metadata."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from lake_assets import Lake
from lake_assets.capture import icdc, icdc_metadata
from lake_assets.errors import CaptureWriteError, CatalogUnavailableError
from lake_assets.lake import thresholds
from lake_assets.runtime.processes import owner
from tests.support.capture_oracle import bag


def files_below(location: str) -> set[Path]:
    """Files without checksums and without the versions of the table's own metadata: tags are commits to it."""
    files = (p for p in Path(urlparse(location).path).rglob("*") if p.is_file() and p.suffix != ".crc")
    return {p for p in files if p.parent.name != "metadata" or p.suffix != ".json"}


@pytest.mark.parametrize(("version", "mode"), [(1, "copy-on-write"), (2, "merge-on-read"), (3, "merge-on-read")])
def test_spark_and_pyiceberg_read_the_same(lake: Lake, namespace: str, version: int, mode: str) -> None:
    spark, table = lake.spark(), f"{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} (id INT, v STRING, at DATE) USING iceberg PARTITIONED BY (months(at)) TBLPROPERTIES "
        f"('format-version'='{version}', 'write.delete.mode'='{mode}', 'write.update.mode'='{mode}')"
    )
    insert = f"INSERT INTO {table} SELECT CAST(id AS INT), 'v', DATE '1960-01-31' + CAST(id AS INT) * 20 FROM range(9)"
    spark.sql(insert)
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    start = lake.table(table).current_snapshot()
    assert start is not None
    spark.sql(f"UPDATE {table} SET v = 'w' WHERE id IN (1, 4)")
    spark.sql(insert)
    before = files_below(lake.table(table).location())
    with lake.capture(table, start.snapshot_id) as capture:
        with capture.icdc() as tables:
            assert tables.after
            assert tables.before
            for name in (tables.after, tables.before):
                read = lake.table(name).scan().to_arrow()
                by_spark = spark.table(lake.sql_name(name)).collect()
                assert bag(by_spark) == bag(r.values() for r in read.to_pylist())
                assert len(by_spark) == spark.table(lake.sql_name(name)).count()
            if mode == "copy-on-write":
                path = lake.table(tables.after).metadata_location.removeprefix("file://")
                assert Path(path).is_file()
            paths = {f.path for f in capture.files if f.side == "after"}
            assert {r[0] for r in spark.table(lake.sql_name(tables.after)).select("_file").collect()} <= paths
        assert files_below(lake.table(table).location()) == before
        assert tables.after not in {str(t) for t in lake.tables("icdc")}


def test_dataframes_live_as_long_as_the_capture(lake: Lake, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "LOCAL_FILES", 0)
    spark, table = lake.spark(), f"{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id INT) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
    frame = lake.capture(table).upserts(spark)  # nothing references the capture
    with lake.capture(table) as captured:
        rows = captured.feed(spark)
        assert rows.count() == 2
        names = {str(t) for t in lake.tables("icdc")}
        assert len(names) >= 2
    assert {str(t) for t in lake.tables("icdc")} < names
    assert frame.count() == 2


def test_leftovers_of_killed_runs_are_found_and_swept(
    lake: Lake, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LOCAL_FILES", 0)
    spark, table = lake.spark(), f"{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id INT) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    before = files_below(lake.table(table).location())
    with lake.capture(table) as open_:
        open_.upserts(spark)
        assert icdc.sweep(lake, timedelta(0)) == [], "this process is at work"
    elsewhere, dead = f"{'0' * 8}_1_1", owner((2**22 + 1, 1.0))
    for process, hours in ((elsewhere, 0), (dead, 24)):
        monkeypatch.setattr(icdc_metadata, "owner", lambda process=process: process)
        capture = lake.capture(table)
        capture.upserts(spark)
        if process == elsewhere:
            assert not icdc.leftovers(lake, timedelta(hours=1)), "perhaps at work on another machine"
        assert [x.source for x in icdc.leftovers(lake, timedelta(hours=hours))] == [table]
        assert [x.source for x in icdc.sweep(lake, timedelta(hours=hours))] == [table]
    assert files_below(lake.table(table).location()) == before
    assert spark.table(table).count() == 1
    capture.close()  # an already dropped table is no error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError),
        (PermissionError(errno.EACCES, "Permission denied"), CaptureWriteError),
        (CatalogUnavailableError("database is locked"), CatalogUnavailableError),
        (ValueError("not allowed"), CaptureWriteError),
    ],
)
def test_permissions_are_advised_only_if_they_are_missing(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """A full disk and a locked catalog have separate errors with other advice."""

    def fail(*_: object) -> None:
        raise error

    rows = pa.table({"n": pa.array([1], pa.int64())})
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", rows.schema)
    plain_lake.table("raw.t").append(rows)
    before = files_below(plain_lake.table("raw.t").location())
    if isinstance(error, OSError):
        monkeypatch.setattr(PyArrowFile, "create", fail)
    else:
        monkeypatch.setattr(SqlCatalog, "register_table", fail)
    with pytest.raises(kind), plain_lake.capture("raw.t").icdc():
        raise AssertionError("unreachable")
    assert files_below(plain_lake.table("raw.t").location()) == before
