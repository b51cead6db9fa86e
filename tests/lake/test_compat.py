"""Private APIs of PySpark and PyIceberg in use."""

from __future__ import annotations

import inspect
import signal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, rest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import functions as F
from pyspark.sql.connect.conversion import proto_to_remote_cached_dataframe
from pyspark.sql.connect.proto import CachedRemoteRelation
from pyspark.sql.connect.session import SparkSession

from lake_assets import Lake
from lake_assets.errors import ConfigError
from lake_assets.lake._compat import active_session, serves
from lake_assets.lake.spark_session import _own_interrupts, adopt_session, check_one_kind


class _Session(SparkSession):
    """A Connect session that was never connected."""

    def __init__(self) -> None:
        pass

    @property
    def is_stopped(self) -> bool:
        return False

    def __del__(self) -> None:
        pass


def test_a_checkpoint_belongs_to_the_session_that_made_it() -> None:
    first, second = _Session(), _Session()
    relation = CachedRemoteRelation(relation_id="x")
    with active_session(first):
        with active_session(second):
            inner = proto_to_remote_cached_dataframe(relation)
        outer = proto_to_remote_cached_dataframe(relation)
    for frame, session in ((inner, second), (outer, first)):
        assert frame.sparkSession is session
        plan: Any = frame._plan
        assert plan._spark_session is session
        plan._spark_session = None  # nothing is to be removed on a server
    assert SparkSession.getActiveSession() is None


def test_pyspark_asks_for_a_java_function_once(spark_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = spark_lake.spark().sparkContext._gateway
    client = gateway._gateway_client
    frame, sent, real = spark_lake.spark().range(1), list[str](), client.send_command

    def recorded(command: str, *args: Any, **named: Any) -> Any:
        sent.append(command)
        return real(command, *args, **named)

    frame.select(F.col("id"), F.lit(1).alias("one"))
    monkeypatch.setattr(client, "send_command", recorded)
    frame.select(F.col("id"), F.lit(2).alias("two"))
    # If PySpark asks for others as well, name them in `remember_java_functions`. `r`: reflection.
    assert [c for c in sent if c.startswith("r")] == []
    assert [c for c in sent if "functions" in c]


def test_the_driver_writes_no_checksum_files(spark_lake: Lake, tmp_path: Path) -> None:
    spark, before = spark_lake.spark(), tmp_path / "before"
    context: Any = spark.sparkContext
    files = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    files.setWriteChecksum(True)
    spark.range(1).write.parquet(str(before))
    assert list(before.glob(".*.crc"))
    adopt_session(spark, spark_lake.config, is_own=True)
    spark.range(1).write.parquet(str(tmp_path / "after"))
    assert not list((tmp_path / "after").glob(".*.crc"))
    assert spark.read.parquet(str(before), str(tmp_path / "after")).count() == 2


def test_one_process_has_one_kind_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    check_one_kind(None)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(ConfigError, match=r"spark.remote is not set, and this process already uses Spark Connect"):
        check_one_kind(None)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", object())
    with pytest.raises(ConfigError, match="this process already runs a local Spark"):
        check_one_kind("sc://127.0.0.1:15002")


def test_the_interrupt_handler_is_restored_after_pyspark_sets_its_own() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _own_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


def test_pyiceberg_loads_tables_by_what_the_caching_catalog_overrides() -> None:
    loads = inspect.getsource(SqlCatalog.load_table)
    assert "_iceberg_type_filter" in loads
    assert "_convert_orm_to_iceberg" in loads
    for name in ("namespace_to_string", "namespace_from", "table_name_from"):
        assert callable(getattr(Catalog, name))


def test_pyiceberg_s_rest_catalog_is_as_our_commits_use_it() -> None:
    catalog = rest.RestCatalog.__new__(rest.RestCatalog)
    catalog._supported_endpoints = {rest.Endpoint.from_string("POST /v1/{prefix}/transactions/commit")}  # pyright: ignore[reportUnhashable]
    assert serves(catalog, "POST", "transactions/commit")
    assert not serves(catalog, "POST", "namespaces")
    assert set(inspect.signature(rest._handle_non_200_response).parameters) == {"exc", "error_handler"}  # pyright: ignore
    catalog.uri, catalog.properties, catalog._namespace_separator = "http://127.0.0.1:1", {"prefix": "p"}, "."
    parts = catalog._split_identifier_for_path(("a", "b", "c/d"))
    path = "namespaces/{namespace}/tables/{table}"
    assert catalog.url(path, **parts) == "http://127.0.0.1:1/v1/p/namespaces/a.b/tables/c%2Fd"
