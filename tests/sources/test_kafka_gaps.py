"""What Kafka's brokers no longer have is never passed over in silence, and nothing else is taken for lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets.errors import SourceGapError
from lake_assets.sources.kafka_source import KafkaSource
from tests.support.kafka import Broker
from tests.support.kafka_streams import Stream, until

pytestmark = pytest.mark.servers


def rows(count: int) -> list[dict[str, Any]]:
    source = {"schema": "public", "table": "orders", "lsn": 1}
    return [{"after": {"id": i}, "source": source, "op": "c"} for i in range(count)]


def test_retention_that_overtakes_stops_the_stream_until_it_may_continue(
    kafka: Broker, topic: str, stream: Callable[..., Stream], tmp_path: Any
) -> None:
    kafka.create(topic, 2)
    kafka.send(topic, *rows(5))
    landed = stream(topic)
    with landed.served():
        landed.landed(5)
    kafka.send(topic, *rows(10))
    kafka.remove_before(topic, 0, 12)
    with landed.served() as service:
        until(lambda: service.state.state == "failed", "the gap")
        error = service.state.error
    assert "begins at offset 12, and the next one to read is 5: up to 7 records" in error
    assert "on_gap: continue" in error
    assert len(landed.rows()) == 5
    landed.declare(tmp_path, kafka, topic, on_gap="continue")
    with landed.served() as service:
        landed.landed(8)
        until(lambda: service.state.measures.get("gaps"), "the note")
    assert [o for _, _, o in landed.places()] == [0, 1, 2, 3, 4, 12, 13, 14]
    assert "up to 7 records" in landed.offset["gaps"][0]
    landed.declare(tmp_path, kafka, topic)
    landed.check()  # the former declaration fits again


def test_retention_between_the_look_at_the_brokers_and_the_first_fetch(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create(topic)
    kafka.send(topic, *rows(5))
    landed = stream(topic)
    with landed.served():
        landed.landed(5)
    kafka.send(topic, *rows(10))
    follow, calls = KafkaSource.follow, list[str]()

    def late(self: KafkaSource, *arguments: Any) -> None:
        follow(self, *arguments)
        calls.append("looked")
        if len(calls) == 2:  # the check has looked, and the run's start
            kafka.remove_before(topic, 0, 12)

    monkeypatch.setattr(KafkaSource, "follow", late)
    with landed.served() as service:
        until(lambda: "begins at offset 12" in service.state.error, "the gap")
    assert len(landed.rows()) == 5


@pytest.mark.long  # the broker removes segments when it sees fit
def test_real_retention_of_a_read_topic_is_no_gap(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic, retention_ms="300", segment_ms="300")
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value=b'{"op":"c","source":{"table":"t"},"after":{}}', partition=0)
    producer.commit_transaction(30)
    landed = stream(topic)
    with landed.served() as service:
        landed.landed(1)
        until(lambda: service.state.measures.get("lag") == 0, "the end, behind the mark of the transaction")
        until(lambda: _low(kafka, topic) == 2, "retention")
        time.sleep(0.5)
        assert service.state.state == "reading"
        kafka.send(topic, *rows(1))
        landed.landed(2)


def test_a_start_after_retention_has_removed_the_mark_of_a_transaction(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: Any
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.LIVE_QUIET_COMMIT_SECONDS", 0.2)
    kafka.create(topic)
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value=b'{"op":"c","source":{"table":"t"},"after":{}}', partition=0)
    producer.commit_transaction(30)
    landed = stream(topic)
    with landed.served():
        until(lambda: landed.offset and landed.offset["topics"][topic]["next"] == [2], "the mark is passed")
    kafka.remove_before(topic, 0, 2)
    landed.check()


def test_a_topic_that_is_deleted_and_created_again(
    kafka: Broker, topic: str, stream: Callable[..., Stream], tmp_path: Any
) -> None:
    kafka.create(topic)
    kafka.send(topic, *rows(5))
    landed = stream(topic)
    with landed.served():
        landed.landed(5)
    kafka.delete(topic)
    with pytest.raises(SourceGapError, match="was deleted, after it was read"):
        until(lambda: landed.check(), "the deletion")
    kafka.create(topic)
    # More records than before, so that the offset alone would fit.
    kafka.send(topic, *rows(9))
    with pytest.raises(SourceGapError, match="deleted and created again"):
        landed.check()
    landed.declare(tmp_path, kafka, topic, on_gap="continue")
    with landed.served():
        landed.landed(14)
    assert [o for _, _, o in landed.places()] == [*range(5), *range(9)]


def test_a_topic_that_is_replaced_while_it_is_read(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic)
    kafka.send(topic, *rows(5))
    landed = stream(topic)
    with landed.served() as service:
        landed.landed(5)
        kafka.delete(topic)
        kafka.create(topic)
        kafka.send(topic, *rows(20))
        until(lambda: "created again" in service.state.error, "the other topic")
    assert len(landed.rows()) == 5


def test_a_topic_of_a_pattern_may_go_if_the_stream_continues(
    kafka: Broker, topic: str, stream: Callable[..., Stream], tmp_path: Any
) -> None:
    for name in ("a", "b"):
        kafka.create(f"{topic}.{name}")
        kafka.send(f"{topic}.{name}", *rows(1))
    landed = stream(f"{topic}.*")
    with landed.served():
        landed.landed(2)
    kafka.delete(f"{topic}.b")

    def error() -> str:
        try:
            landed.check()
        except SourceGapError as e:
            return str(e)
        return ""

    assert f"topic {topic}.b was deleted" in until(error, "the deletion")
    landed.declare(tmp_path, kafka, f"{topic}.*", on_gap="continue")
    kafka.send(f"{topic}.a", *rows(1))
    with landed.served():
        landed.landed(3)
    assert list(landed.offset["topics"]) == [f"{topic}.a"]


def _low(kafka: Broker, topic: str) -> int:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

    (answer,) = kafka.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
    return answer.result(20).offset
