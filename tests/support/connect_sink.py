"""Iceberg's sink for Kafka Connect, in a worker of the tests' own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Generator
from pathlib import Path

from lake_assets import Lake
from lake_assets.runtime.jars import spark_home
from lake_assets.runtime.java import find_java
from tests.support.ivy_jars import dependency, files_of
from tests.support.kafka import Broker
from tests.support.processes import started

_ICEBERG, _KAFKA = "1.12.0", "4.3.1"


@contextlib.contextmanager
def sink(lake: Lake, server: Broker, topic: str, table: str, folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """Append the values of a topic, as text, with their places, to a table of a lake, within the context."""
    home = lake.config.home
    iceberg = [
        dependency("org.apache.iceberg", n, _ICEBERG)
        for n in ("iceberg-kafka-connect", "iceberg-parquet", "iceberg-orc")
    ]
    kafka = [
        dependency("org.apache.kafka", n, _KAFKA) for n in ("connect-runtime", "connect-json", "connect-transforms")
    ]
    jars = files_of("kafka-connect-sink", *iceberg, *kafka, dependency("org.xerial", "sqlite-jdbc", "3.50.3.0"))
    # Iceberg's Parquet needs Hadoop's classes, which come with Spark.
    of_spark = ("hadoop-client-*.jar", "commons-logging-*.jar", "log4j-core-*.jar", "log4j-api-*.jar")
    jars = [*jars, *(j for n in of_spark for j in (spark_home() / "jars").glob(n))]
    _write(
        folder / "worker.properties",
        {
            "bootstrap.servers": server.servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(folder / "offsets"),
            "plugin.discovery": "only_scan",
            "listeners": "HTTP://127.0.0.1:0",
        },
    )
    _write(
        folder / "sink.properties",
        {
            "name": f"sink-{topic}",
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": "1",
            "topics": topic,
            "iceberg.tables": table,
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.control.topic": f"control-{topic}",
            "iceberg.control.commit.interval-ms": "1000",
            "iceberg.catalog": lake.config.name,
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": f"jdbc:sqlite:{home}/catalog.db",
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.warehouse": (home / "warehouse").as_uri(),
            "transforms": "value,place",
            "transforms.value.type": "org.apache.kafka.connect.transforms.HoistField$Value",
            "transforms.value.field": "value",
            "transforms.place.type": "org.apache.kafka.connect.transforms.InsertField$Value",
            "transforms.place.partition.field": "partition",
            "transforms.place.offset.field": "offset",
        },
    )
    command = [
        str(find_java() / "bin" / "java"),
        *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, jars))),
        "org.apache.kafka.connect.cli.ConnectStandalone",
        *(str(folder / n) for n in ("worker.properties", "sink.properties")),
    ]
    with started(command, folder / "connect.log") as process:
        yield process


def _write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{n}={v}\n" for n, v in properties.items()))
