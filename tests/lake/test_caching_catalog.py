"""The lake's catalog: the same one in Spark and PyIceberg, and settings that neither can use, named."""

from __future__ import annotations

import re
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.memory import InMemoryCatalog

from lake_assets import Lake, LakeConfig
from lake_assets.errors import CatalogUnavailableError, ConfigError, SparkUnavailableError, TableNotFoundError
from lake_assets.ingest.raw_tables import ensure_raw
from lake_assets.lake import SparkConfig, TableId, lake_base
from lake_assets.lake.config import AWS_BUNDLE, ICEBERG_RUNTIME, POSTGRES_JDBC, SQLITE_JDBC
from lake_assets.lake.spark_session import catalog_conf, check_remote, java_options, packages, session_conf

HOME = Path("/h")


def conf(catalog: dict[str, str], **settings: str) -> dict[str, str]:
    """Return Spark's settings of a catalog, without the common ones."""
    prefix = "spark.sql.catalog.lake."
    result = catalog_conf(LakeConfig(home=HOME, catalog=catalog, **settings))
    assert result["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert result["spark.sql.defaultCatalog"] == "lake"
    assert result["spark.sql.session.timeZone"] == "UTC"
    return {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        (
            {},
            {"type": "jdbc", "jdbc.schema-version": "V1", "uri": "jdbc:sqlite:/h/catalog.db",
             "jdbc.busy_timeout": "60000", "warehouse": "file:///h/warehouse", "cache-enabled": "false"},
        ),
        (
            {"type": "sql", "uri": "postgresql+psycopg2://me:secret@db:6543/lake", "warehouse": "s3://w",
             "s3.endpoint": "http://s3", "s3.region": "eu"},
            {"type": "jdbc", "jdbc.schema-version": "V1", "uri": "jdbc:postgresql://db:6543/lake", "jdbc.user": "me",
             "jdbc.password": "secret", "warehouse": "s3://w", "s3.endpoint": "http://s3", "client.region": "eu",
             "s3.path-style-access": "true", "io-impl": "org.apache.iceberg.io.ResolvingFileIO", "cache-enabled": "false"},
        ),
        (
            {"uri": "https://rest/api", "token": "t", "warehouse": "w", "client.access-key-id": "k"},
            {"type": "rest", "uri": "https://rest/api", "token": "t", "warehouse": "w", "s3.access-key-id": "k",
             "cache-enabled": "false"},
        ),
        (
            {"type": "hive", "uri": "thrift://hms:9083"},
            {"type": "hive", "uri": "thrift://hms:9083", "warehouse": "file:///h/warehouse", "cache-enabled": "false"},
        ),
        (
            {"type": "glue", "warehouse": "s3://w"},
            {"type": "glue", "warehouse": "s3://w", "cache-enabled": "false"},
        ),
        (
            {"uri": "thrift://a:9083,thrift://b:9083", "warehouse": "s3://w", "s3.region": "eu",
             "hive.hive2-compatible": "true"},
            {"type": "hive", "uri": "thrift://a:9083,thrift://b:9083", "warehouse": "s3://w", "client.region": "eu",
             "hive.hive2-compatible": "true", "io-impl": "org.apache.iceberg.io.ResolvingFileIO", "cache-enabled": "false"},
        ),
        (
            {"type": "glue", "warehouse": "s3://w", "client.region": "eu", "glue.id": "123456789012",
             "glue.endpoint": "http://glue", "client.assume-role.arn": "arn"},
            {"type": "glue", "warehouse": "s3://w", "client.region": "eu", "glue.id": "123456789012",
             "glue.endpoint": "http://glue", "client.assume-role.arn": "arn", "cache-enabled": "false"},
        ),
    ],
    ids=["embedded", "postgres", "rest", "hive", "glue", "hive in s3", "another account's glue"],
)  # fmt: skip
def test_a_catalog_is_the_same_one_in_spark(catalog: dict[str, str], expected: dict[str, str]) -> None:
    assert conf(catalog) == expected


def test_a_password_with_special_characters_reaches_jdbc_unchanged() -> None:
    result = conf({"type": "sql", "uri": "postgresql://me%40home:p%2Fw%40d@db/lake"})
    assert (result["jdbc.user"], result["jdbc.password"]) == ("me@home", "p/w@d")


def test_parameters_that_both_drivers_know_reach_jdbc() -> None:
    result = conf({"type": "sql", "uri": "postgresql://me@db/lake?sslmode=verify-full&connect_timeout=5&keepalives=1"})
    assert {n: v for n, v in result.items() if n.startswith("jdbc.")} == {
        "jdbc.schema-version": "V1", "jdbc.user": "me", "jdbc.sslmode": "verify-full", "jdbc.connectTimeout": "5"
    }  # fmt: skip


@pytest.mark.parametrize(
    "catalog",
    [{"type": "dynamodb"}, {"type": "sql", "uri": "mysql://x"}, {"type": "sql"}],
    ids=["kind", "database", "no uri"],
)
def test_a_catalog_not_supported_by_both_engines_is_rejected(catalog: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"dynamodb|mysql|uri"):
        conf(catalog)


@pytest.mark.parametrize(
    ("uri", "jdbc"),
    [("sqlite:///c.db", [SQLITE_JDBC]), ("postgresql://db/l", [POSTGRES_JDBC]), ("https://rest", [SQLITE_JDBC])],
)
def test_only_the_jars_that_are_needed_are_loaded(uri: str, jdbc: list[str]) -> None:
    # Beside a server, the side catalogs of backfills are SQLite files.
    config = LakeConfig(catalog={"uri": uri}, spark=SparkConfig(packages=["my:own:1"]))
    assert packages(config) == [ICEBERG_RUNTIME, *jdbc, "my:own:1"]


def test_the_users_own_spark_settings_win() -> None:
    config = LakeConfig(home=HOME, spark=SparkConfig(remote="sc://h:1", conf={"spark.sql.session.timeZone": "CET"}))
    assert session_conf(config)["spark.sql.session.timeZone"] == "CET"
    assert session_conf(config)["spark.remote"] == "sc://h:1"


def test_a_session_over_connect_needs_neither_java_nor_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake_assets.lake.spark_session.resolve", lambda _: pytest.fail("jars were resolved"))
    assert "spark.jars" not in session_conf(LakeConfig(spark=SparkConfig(remote="sc://h:1")))


@pytest.mark.parametrize("remote", ["http://h:1", "127.0.0.1:15002", "sc://"])
def test_an_invalid_remote_is_a_wrong_setting(remote: str) -> None:
    with pytest.raises(ConfigError, match=r"sc://host:port"):
        check_remote(remote)


def test_an_unreachable_server_is_noticed_at_once() -> None:
    with socket.socket() as listener:  # bound, but not listening
        listener.bind(("127.0.0.1", 0))
        with pytest.raises(SparkUnavailableError, match=r"spark-server") as caught:
            Lake(LakeConfig(spark=SparkConfig(remote=f"sc://127.0.0.1:{listener.getsockname()[1]}"))).spark()
    assert not caught.value.permanent


def test_the_embedded_catalog_is_created_if_its_home_can_be(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path / "new"))
    assert lake.tables("final") == []
    with sqlite3.connect(tmp_path / "new" / "catalog.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("uri", ["sqlite:////nowhere/deep/catalog.db", "sqlite:///{home}/no/such/folder/c.db"])
def test_a_catalog_in_a_folder_that_does_not_exist_is_named(tmp_path: Path, uri: str) -> None:
    config = LakeConfig(home=tmp_path, catalog={"type": "sql", "uri": uri.format(home=tmp_path)})
    with pytest.raises(CatalogUnavailableError, match=r"(nowhere/deep|no/such/folder) does not exist: create it"):
        _ = Lake(config).catalog


def test_a_file_that_is_not_a_catalog_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("this is no database" * 100)
    with pytest.raises(CatalogUnavailableError, match=r"catalog\.db cannot be opened"):
        _ = Lake(LakeConfig(home=tmp_path)).catalog


@pytest.mark.parametrize(
    ("catalog", "kind", "extra"),
    [
        (
            {"type": "sql", "uri": "postgresql+pg8000://lake:secret@127.0.0.1/lake"},
            "postgresql+pg8000",
            "pyiceberg[sql-",
        ),
        ({"type": "sql", "uri": "postgresql://lake:secret@127.0.0.1/lake"}, "postgresql", "lake-assets[postgres]"),
        ({"type": "glue"}, "glue", "pyiceberg[glue"),
    ],
)
def test_a_missing_driver_is_named(
    tmp_path: Path, catalog: dict[str, str], kind: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("boto3", "pyiceberg.catalog.glue", "psycopg2"):  # which other tests use
        monkeypatch.setitem(sys.modules, package, None)
    config = LakeConfig(home=tmp_path, warehouse=str(tmp_path / "w"), catalog=catalog)
    with pytest.raises(
        CatalogUnavailableError, match=rf"catalog \({re.escape(kind)}\).*pip install '{re.escape(extra)}"
    ):
        _ = Lake(config).catalog


def test_a_glue_catalog_is_the_same_one_in_pyiceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    settings = {"type": "glue", "client.region": "eu-west-1", "glue.endpoint": "http://127.0.0.1:9"}
    config = LakeConfig(home=tmp_path, warehouse="s3://w", catalog=settings, storage={"s3.endpoint": "http://store"})
    catalog: Any = Lake(config).catalog
    assert isinstance(catalog, GlueCatalog)
    client = catalog.glue.meta
    assert (client.region_name, client.endpoint_url) == ("eu-west-1", "http://127.0.0.1:9")
    assert catalog.properties["warehouse"] == "s3://w"
    assert catalog.properties["s3.endpoint"] == "http://store"
    assert AWS_BUNDLE in packages(config)


def test_the_settings_of_a_hive_catalog_reach_pyiceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[str, str] = {}

    def load(name: str, **properties: str) -> Catalog:
        reached.update(properties, name=name)
        return InMemoryCatalog(name)

    monkeypatch.setattr(lake_base, "load_catalog", load)  # it would ask the metastore
    settings = {"type": "hive", "uri": "thrift://hms:9083", "hive.kerberos-authentication": "true"}
    config = LakeConfig(home=tmp_path, name="shop", warehouse="s3://w", catalog=settings, storage={"s3.region": "eu"})
    _ = Lake(config).catalog
    assert reached == {**settings, "name": "shop", "warehouse": "s3://w", "s3.region": "eu"}


def test_a_missing_table_is_named_with_its_neighbours(plain_lake: Lake) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table raw\.none.*raw holds: no tables"):
        plain_lake.table("raw.none")
    ensure_raw(plain_lake, TableId.parse("raw.events"), "p")
    with pytest.raises(TableNotFoundError, match=r"raw holds: raw\.events"):
        plain_lake.table("raw.none")
    assert plain_lake.exists("raw.events")
    assert not plain_lake.exists("raw.none")
    assert not plain_lake.exists("other.events")


def test_spark_and_pyiceberg_see_each_others_tables(lake: Lake) -> None:
    ensure_raw(lake, TableId.parse("raw.`odd.name`"), "p")
    assert lake.spark().table(lake.sql_name("raw.`odd.name`")).count() == 0
    lake.spark().sql(f"CREATE TABLE {lake.sql_name('raw.made')} (x INT) USING iceberg")
    assert [str(t) for t in lake.tables("raw")] == ["raw.made", "raw.`odd.name`"]


def test_a_namespace_created_concurrently_is_used(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Lake(plain_lake.config)
    exists = type(plain_lake.catalog).namespace_exists
    answers: list[bool] = []

    def slow(catalog: object, namespace: tuple[str, ...]) -> bool:
        answers.append(exists(catalog, namespace))  # type: ignore[arg-type]
        if len(answers) < 3:  # checked by the lake, then by the catalog itself
            monkeypatch.undo()
            other.ensure_namespace(("final",))
            monkeypatch.setattr(type(plain_lake.catalog), "namespace_exists", slow)
        return answers[-1]

    monkeypatch.setattr(type(plain_lake.catalog), "namespace_exists", slow)
    plain_lake.ensure_namespace(("final",))
    monkeypatch.undo()
    assert plain_lake.tables("final") == []
    assert answers[0] is False


def test_scans_are_planned_in_one_thread_only_on_a_local_disk(tmp_path: Path) -> None:
    options = session_conf(LakeConfig(home=tmp_path))["spark.driver.defaultJavaOptions"]
    assert "plan-in-worker-pool=false" in options
    remote = LakeConfig(home=tmp_path, warehouse="s3://bucket/lake")
    assert "plan-in-worker-pool" not in java_options(remote)
    assert "log4j2.configurationFile" in java_options(remote)
