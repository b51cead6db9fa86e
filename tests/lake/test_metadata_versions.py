"""Versions of a table's metadata are kept by the hour."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from lake_assets import Lake
from lake_assets.lake.metadata import metadata_versions
from lake_assets.lake.metadata.metadata_versions import DAYS, PROPERTIES, delete_old_versions, versions

ROWS = pa.table({"n": pa.array([1], pa.int64())})
HOUR = 3600


def checksum(location: str) -> Path:
    file = Path(location.removeprefix("file://"))
    return file.with_name(f".{file.name}.crc")


def test_the_newest_versions_and_one_per_hour_are_kept(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("raw",))
    few = {**PROPERTIES, "write.metadata.previous-versions-max": "2"}
    plain_lake.catalog.create_table("raw.t", ROWS.schema, properties=few)
    for _ in range(11):
        plain_lake.table("raw.t").append(ROWS)
    table = plain_lake.table("raw.t")
    listed = versions(table.io, table.metadata_location)
    assert [v.number for v in listed] == list(range(11, -1, -1)), "Iceberg deletes none"
    now = (time.time() // HOUR) * HOUR + HOUR / 2
    # Versions 0 to 8 are not in the metadata log. Age in hours by number:
    ages = {0: DAYS * 24 + 2, 1: DAYS * 24 - 2, 2: 30.2, 3: 30.1, 4: 30, 5: 2.2, 6: 2, 7: 0.9, 8: 0.1}
    for version in listed:
        if version.number in ages:
            written_at = now - ages[version.number] * HOUR
            os.utime(Path(version.location.removeprefix("file://")), (written_at, written_at))
        checksum(version.location).touch()  # as Hadoop writes next to every file
    deleted = {metadata_versions.version_of(f) for f in delete_old_versions(table, now)}
    assert deleted == {0, 2, 3, 5}
    remaining = {v.number for v in versions(table.io, table.metadata_location)}
    assert remaining == set(range(12)) - deleted
    assert {v.number for v in listed if checksum(v.location).exists()} == remaining
    assert delete_old_versions(table, now) == []


def test_a_file_that_may_become_the_next_version_is_kept(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", ROWS.schema, properties=PROPERTIES).append(ROWS)
    table = plain_lake.table("raw.t")
    file = Path(table.metadata_location.removeprefix("file://"))
    for number in ("00001", "00002"):
        other = file.with_name(f"{number}-other.metadata.json")
        other.write_bytes(file.read_bytes())
        os.utime(other, (1, 1))
    assert delete_old_versions(table) == []


def test_only_tables_of_this_package_are_thinned_out(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", ROWS.schema)
    assert not metadata_versions.is_due(plain_lake.table("raw.t"))
    plain_lake.catalog.create_table("raw.own", ROWS.schema, properties=PROPERTIES)
    assert metadata_versions.is_due(plain_lake.table("raw.own"))
