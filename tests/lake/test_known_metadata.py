"""Each metadata file is read once, and a table's current location is requested every time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile

from lake_assets import Lake, LakeConfig
from lake_assets.errors import TableNotFoundError
from lake_assets.lake import caching_catalog
from lake_assets.lake.caching_catalog import MetadataCache, with_cache

ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Record the metadata files of this test's lakes that are read, starting with an empty cache."""
    files: list[str] = []
    real = FromInputFile.table_metadata

    def noted(file: Any, *more: Any) -> Any:
        if str(tmp_path) in file.location:
            files.append(file.location)
        return real(file, *more)

    monkeypatch.setattr(caching_catalog, "_cache", MetadataCache())
    monkeypatch.setattr(FromInputFile, "table_metadata", noted)
    return files


def lake_at(home: Path) -> Lake:
    home.mkdir(exist_ok=True)
    lake = Lake(LakeConfig(home=home))
    lake.ensure_namespace(("raw",))
    return lake


def rows(table: Any) -> int:
    return table.scan().to_arrow().num_rows


def test_commits_of_other_processes_are_seen_and_files_are_read_once(tmp_path: Path, read: list[str]) -> None:
    one, other = lake_at(tmp_path), lake_at(tmp_path)
    one.catalog.create_table(("raw", "t"), ROWS.schema)
    dice, expected = random.Random(3), 0
    for _ in range(20):
        if dice.random() < 0.5:
            dice.choice((one, other)).table("raw.t").append(ROWS)
            expected += 1
        for lake in (one, other):
            assert rows(lake.table("raw.t")) == expected
            assert lake.exists("raw.t")
    assert len(read) == len(set(read))
    assert len(read) <= expected + 1


def test_a_table_dropped_and_created_again_is_another_table(tmp_path: Path, read: list[str]) -> None:
    lake = lake_at(tmp_path)
    first = lake.catalog.create_table(("raw", "t"), ROWS.schema)
    first.append(ROWS)
    lake.catalog.drop_table(("raw", "t"))
    with pytest.raises(TableNotFoundError):
        lake.table("raw.t")
    assert lake.find("raw.t") is None
    lake.catalog.create_table(("raw", "t"), ROWS.schema)
    again = lake.table("raw.t")
    assert again.metadata.table_uuid != first.metadata.table_uuid
    assert rows(again) == 0
    assert again.name() == first.name() == ("raw", "t")


def test_properties_set_by_a_writer_are_not_seen_by_others(tmp_path: Path, read: list[str]) -> None:
    lake = lake_at(tmp_path)
    lake.catalog.create_table(("raw", "t"), ROWS.schema, properties={"a": "1"})
    for _ in range(2):
        mine = lake.table("raw.t")
        mine.metadata.properties["commit.retry.num-retries"] = "0"
    assert lake.table("raw.t").properties == {"a": "1"}


def test_a_commit_from_an_older_state_still_fails_or_is_retried(tmp_path: Path, read: list[str]) -> None:
    lake = lake_at(tmp_path)
    lake.catalog.create_table(("raw", "t"), ROWS.schema)
    one, other = lake.table("raw.t"), lake.table("raw.t")
    one.append(ROWS)
    other.append(ROWS)
    assert rows(lake.table("raw.t")) == 2


def test_the_cache_is_limited(tmp_path: Path, read: list[str]) -> None:
    lake = lake_at(tmp_path)
    cache = MetadataCache(most=5)
    for n in range(4):
        table = lake.catalog.create_table(("raw", f"t{n}"), ROWS.schema)
        table.append(ROWS)
        cache.put(table.metadata_location, table.metadata)
        cache.put(table.metadata_location, table.metadata)
    # Each file counts twice: itself and its snapshot.
    assert len(cache) == 2
    assert cache.get(lake.table("raw.t3").metadata_location) is not None
    assert cache.get(lake.table("raw.t0").metadata_location) is None


def test_other_catalogs_are_not_changed(tmp_path: Path) -> None:
    class Own(SqlCatalog):
        pass

    own = Own("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    assert type(with_cache(own)) is Own
    assert isinstance(lake_at(tmp_path / "embedded").catalog, SqlCatalog)
