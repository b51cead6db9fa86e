"""A broker of Kafka, and a schema registry, of the tests' own, on ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lake_assets.runtime.java import find_java
from tests.support.ivy_jars import dependency, files_of
from tests.support.processes import free_port

_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_PASSWORD = "secret-of-the-tests"


class Broker:
    """One broker, which is its own controller; it can be ended and started again."""

    def __init__(self, folder: Path, jars: Sequence[Path], settings: Mapping[str, str]) -> None:
        """Prepare a broker with an empty disk."""
        self.folder, self.port = folder, free_port()
        self.sasl_port, controller = free_port(), free_port()
        self._java = [str(find_java() / "bin" / "java"), *_JVM, "-cp", ":".join(map(str, jars))]
        self._process: subprocess.Popen[bytes] | None = None
        jaas = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="admin" password="admin" user_admin="admin" user_reader="{_PASSWORD}";'
        )
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SASL://127.0.0.1:{self.sasl_port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": jaas,
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.retention.check.interval.ms": "200",
            "log.initial.task.delay.ms": "200",
            "message.max.bytes": str(32 << 20),
            "socket.request.max.bytes": str(64 << 20),
            **settings,
        }
        self.config = folder / "server.properties"
        self.config.write_text("".join(f"{n}={v}\n" for n, v in properties.items()))
        self._run(
            "kafka.tools.StorageTool", "format", "-t", "bGFrZWFzc2V0czAwMDAwMQ", "-c", str(self.config), "--standalone"
        )

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def password(self) -> str:
        return _PASSWORD

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, f"-Dlog4j2.configurationFile={_log4j(self.folder)}", "kafka.Kafka", str(self.config)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 90
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < until, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.2)

    def stop(self, *, kill: bool = False) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    # --- what tests do to it --------------------------------------------------------------------------------------

    @cached_property
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.admin import NewTopic  # pyright: ignore[reportPrivateImportUsage]

        settings = {name.replace("_", "."): value for name, value in config.items()}
        until = time.monotonic() + 20
        while True:
            (done,) = self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
            try:
                done.result(20)
                break
            except Exception as e:  # one of the same name is being deleted
                if "already exists" not in str(e) or time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def delete(self, topic: str) -> None:
        (done,) = self.admin.delete_topics([topic]).values()
        done.result(20)

    def add_partitions(self, topic: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions  # pyright: ignore[reportPrivateImportUsage]

        (done,) = self.admin.create_partitions([NewPartitions(topic, total)]).values()
        done.result(20)

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Remove records, as retention does."""
        from confluent_kafka import TopicPartition

        (done,) = self.admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        done.result(20)

    def producer(self, **settings: Any) -> Any:
        from confluent_kafka import Producer

        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 5, "message.max.bytes": 32 << 20, "log_level": 0, **named}
        )

    def send(self, topic: str, *records: Any, partition: int = 0) -> None:
        """Send values, or pairs of key and value: bytes, text or what becomes JSON."""
        producer = self.producer()
        for record in records:
            key, value = record if isinstance(record, tuple) else (None, record)
            producer.produce(topic, key=_bytes(key), value=_bytes(value), partition=partition)
        assert producer.flush(30) == 0

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self.admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _run(self, *command: str) -> None:
        done = subprocess.run([*self._java, *command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _log4j(folder: Path) -> Path:
    file = folder / "log4j2.properties"
    file.write_text(
        "appender.out.type=Console\nappender.out.name=out\nappender.out.layout.type=PatternLayout\n"
        "appender.out.layout.pattern=%d %p %m (%c)%n\nrootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\n"
    )
    return file


@contextlib.contextmanager
def broker(**settings: str) -> Generator[Broker]:
    """Run a broker within the context.

    Args:
        settings: the broker's settings, with _ for dots.
    """
    pytest.importorskip("confluent_kafka", reason="there is no confluent-kafka: pip install 'lake-assets[kafka]'")
    folder = Path(tempfile.mkdtemp(prefix="kafka-"))
    server = Broker(
        folder,
        files_of("kafka", dependency("org.apache.kafka", "kafka_2.13", "4.3.1")),
        {n.replace("_", "."): v for n, v in settings.items()},
    )
    try:
        server.start()
        yield server
    finally:
        server.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
