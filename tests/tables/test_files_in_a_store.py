"""Tables in an object store, as far as PyIceberg and this package touch their files themselves: no Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import LakeError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import LakeConfig, TableId
from lake_assets.lake.metadata import metadata_versions
from lake_assets.lake.metadata.lost_files import lost_file
from lake_assets.lake.spark_session import catalog_conf, packages
from lake_assets.tables import leftovers
from tests.support.object_store import SECRET, Bucket

RAW = TableId.parse("raw.s")


def landed(bucket: Bucket, home: Path, files: int = 4) -> Lake:
    lake = bucket.lake(home, warehouse=f"{bucket.url}/tables with space")
    spec = RawSpec(RAW, Landing.parse(f"{bucket.url}/in/{{table}}", schema="x", by_name=True), "change-set", "p")
    for n in range(files):
        bucket.put(f"in/a/{n}.jsonl", json.dumps({"FLAG": "I", "id": n}).encode() + b"\n")
        assert land(lake, spec).files == 1
    return lake


def test_files_that_no_snapshot_names_are_found_and_all_others_stay(bucket: Bucket, tmp_path: Path) -> None:
    lake = landed(bucket, tmp_path)
    before = bucket.all_keys()
    folder = lake.table(RAW).location().removeprefix(f"{bucket.url}/")
    for name in ("data/orphan.parquet", "metadata/orphan-m0.avro", "data/part=a%2Fb/orphan.parquet"):
        bucket.put(f"{folder}/{name}", b"left by a killed writer")
    assert leftovers.remove_unnamed_files(lake, RAW, 3600) == []
    removed = leftovers.remove_unnamed_files(lake, RAW, 0)
    assert sorted(p.rpartition("/")[2] for p in removed) == ["orphan-m0.avro", "orphan.parquet", "orphan.parquet"]
    # PyArrow leaves an empty object in the place of a folder of which it deleted a file.
    assert [k for k in bucket.all_keys() if not k.endswith("/")] == before
    for table in (RAW, file_ledger.ledger_of(RAW)):
        assert leftovers.remove_unnamed_files(lake, table, 0) == []
    assert lake.table(RAW).scan().to_arrow().num_rows == 4
    assert list(leftovers.sweep(lake, timedelta(0))) == []


def test_old_metadata_files_are_listed_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    lake = landed(bucket, tmp_path)
    table = lake.table(RAW)
    found = metadata_versions.versions(table.io, table.metadata_location)
    assert found[0].location == table.metadata_location
    assert {v.location.removeprefix(f"{bucket.url}/") for v in found} <= set(bucket.all_keys())
    deleted = metadata_versions.delete_old_versions(table, now=found[0].written_at + 30 * 86_400)
    assert not {d.removeprefix(f"{bucket.url}/") for d in deleted} & set(bucket.all_keys())
    assert lake.table(RAW).scan().to_arrow().num_rows == 4


def test_a_lost_file_is_named(bucket: Bucket, tmp_path: Path) -> None:
    lake = landed(bucket, tmp_path, files=1)
    assert lost_file(lake.table(RAW)) is None
    (file,) = [k for k in bucket.all_keys() if "/data/" in k and "s_files" not in k]
    bucket.delete(file)
    assert f"{bucket.url}/{file}" in str(lost_file(lake.table(RAW)))


def test_secrets_are_in_no_file_of_the_lake(bucket: Bucket, tmp_path: Path) -> None:
    landed(bucket, tmp_path)
    contents = [bucket.server.client.get_object(Bucket=bucket.name, Key=k)["Body"].read() for k in bucket.all_keys()]
    contents += [f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()]
    assert len(contents) > 20
    assert not [c for c in contents if SECRET.encode() in c]


@pytest.mark.parametrize("catalog", [{}, {"type": "rest", "uri": "http://127.0.0.1:1"}])
def test_spark_gets_the_options_of_the_store_and_the_jar_for_it(tmp_path: Path, catalog: dict[str, str]) -> None:
    storage = {"s3.endpoint": "http://127.0.0.1:2", "s3.region": "eu", "s3.access-key-id": "k"}
    config = LakeConfig(home=tmp_path, catalog=catalog, warehouse="s3://b/w", storage=storage)
    conf = {k.removeprefix("spark.sql.catalog.lake."): v for k, v in catalog_conf(config).items()}
    assert conf["s3.endpoint"] == "http://127.0.0.1:2"
    assert (conf["client.region"], conf["s3.path-style-access"], conf["s3.access-key-id"]) == ("eu", "true", "k")
    assert conf.get("io-impl") == (None if catalog else "org.apache.iceberg.io.ResolvingFileIO")
    assert any("iceberg-aws-bundle" in p for p in packages(config))
    local = LakeConfig(home=tmp_path, storage=storage)
    assert not any("iceberg-aws-bundle" in p for p in packages(local))
    assert "io-impl" not in str(catalog_conf(local))


def test_the_home_stays_local(tmp_path: Path) -> None:
    with pytest.raises(
        (ValueError, LakeError), match=r"s3://b/home is a URL, but only folders and files of this machine"
    ):
        LakeConfig(home="s3://b/home")
