"""Whatever dies, and wherever: each record is in the raw table once."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import Broker, broker
from tests.support.kafka_streams import Stream, until
from tests.support.processes import python, started
from tests.support.seeds import long_seeds

pytestmark = pytest.mark.servers

PARTITIONS = 3


class Producing:
    """A producer that sends records to all partitions until the context ends."""

    def __init__(self, server: Broker, topic: str, pause: float = 0.002) -> None:
        self.server, self.topic, self.pause, self.sent = server, topic, pause, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # Idempotent: what is sent again, since its answer was lost with the broker, is stored once.
        producer = self.server.producer(enable_idempotence=True)
        for number in itertools.count():
            source = {"schema": "public", "table": "orders", "lsn": number}
            value = json.dumps({"after": {"id": number}, "source": source, "op": "c"})
            producer.produce(self.topic, value=value.encode(), partition=number % PARTITIONS)
            producer.poll(0)
            self.sent = number + 1
            if self._stop.wait(self.pause):
                break
        assert producer.flush(60) == 0


def assert_once(landed: Stream, sent: int) -> None:
    ids = [r["value"]["after"]["id"] for r in landed.records()]
    assert sorted(ids) == list(range(sent))
    places = landed.places()
    assert len(set(places)) == len(places)
    for p in range(PARTITIONS):
        of_partition = [o for _, at, o in places if at == p]
        assert of_partition == sorted(of_partition)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 6)])
def test_a_service_that_is_killed_lands_each_record_once(
    kafka: Broker, topic: str, stream: Callable[..., Stream], tmp_path: Path, seed: int
) -> None:
    name = f"{topic}-{seed}"
    kafka.create(name, PARTITIONS)
    landed = stream(name, {"max_rows": 400})
    home, log = str(landed.lake.config.home), tmp_path / "log"
    killed = 0
    with Producing(kafka, name, 0.02) as producing:
        for number in range(3 if seed == 0 else 8):
            command = python("tests.support.killed_service", landed.file, home, str(1000 * seed + number))
            with started(command, log) as process:
                assert process.wait(120) == -signal.SIGKILL, log.read_text()[-3000:]
                killed += 1
    with started(python("tests.support.killed_service", landed.file, home, "-1"), log) as process:
        landed.landed(producing.sent)
        process.terminate()
        assert process.wait(60) == 0
    assert killed >= 3
    assert_once(landed, producing.sent)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_goes_and_comes_back(tmp_path: Path, kill: bool) -> None:
    with broker(log_flush_interval_messages="1") as server:
        server.create("t", PARTITIONS)
        landed = Stream(tmp_path, server, "t")
        with landed.served() as service:
            with Producing(server, "t", 0.01) as producing:
                landed.landed(50)
                server.stop(kill=kill)
                until(lambda: service.state.state == "failed", "the loss", 90)
                assert "does not answer" in service.state.error
                server.start()
                there = len(landed.rows())
                until(lambda: len(landed.rows()) > there + 50, "more records", 120)
            landed.landed(producing.sent)
            assert service.state.state == "reading"
        assert_once(landed, producing.sent)


@pytest.mark.system
def test_the_command_serves_and_ends_when_it_is_told(
    kafka: Broker, topic: str, stream: Callable[..., Stream], tmp_path: Path
) -> None:
    kafka.create(topic)
    kafka.send(topic, *[{"after": {"id": i}, "source": {"table": "t"}, "op": "c"} for i in range(5)])
    landed, log = stream(topic), tmp_path / "log"
    command = python("lake_assets.cli", "serve", landed.file)
    with started(command, log, {"LAKE_HOME": str(landed.lake.config.home)}) as process:
        landed.landed(5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    text = log.read_text()
    assert f"raw.events: reads Kafka {kafka.servers}" in text
    assert "ended" in text


def test_a_lake_that_cannot_be_written_to_for_a_while(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lake_assets.ingest.raw import live_landing

    monkeypatch.setattr("lake_assets.lake.thresholds.LIVE_RETRY_SECONDS", 0.05)
    kafka.create(topic, PARTITIONS)
    commit, left = live_landing.commit_batch, [3]

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] in (0, 1):
            done = commit(*arguments) if left[0] else None  # once the commit is made, and its answer is lost
            raise OSError(28, f"No space left on device {done and ''}")
        return commit(*arguments)

    monkeypatch.setattr(live_landing, "commit_batch", failing)
    landed = stream(topic)
    with landed.served(), Producing(kafka, topic) as producing:
        until(lambda: len(landed.rows()) > 100, "records")
    with landed.served():
        landed.landed(producing.sent)
    assert_once(landed, producing.sent)
