"""Records of Kafka's topics are landed once each, in the order of their partition, with the offsets after them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kafka import Broker
from tests.support.kafka_streams import Stream, until


def test_each_record_of_each_partition_lands_once_in_order(
    kafka: Broker, topic: str, stream: Callable[..., Stream]
) -> None:
    kafka.create(topic, 5)
    for p in range(5):
        kafka.send(topic, *[event(i) for i in range(40)], partition=p)
    landed = stream(topic)
    with landed.served():
        landed.landed(200)
    for p in range(5):
        assert [o for _, at, o in landed.places() if at == p] == list(range(40))
    kafka.send(topic, *[event(i) for i in range(40, 50)], partition=3)
    with landed.served():
        landed.landed(210)
        time.sleep(0.5)  # whatever would land twice has landed
    assert sorted(landed.places()) == [(topic, p, o) for p in range(5) for o in range(50 if p == 3 else 40)]
    assert landed.offset["topics"][topic]["next"] == [40, 40, 40, 50, 40]


def test_a_record_is_wrapped_with_its_key_and_routed(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic)
    kafka.send(topic, ({"id": 1}, event(1)), ("text key", event(2)), (None, event(3)), (b"\xff\x00", event(4)))
    landed = stream(topic)
    with landed.served():
        rows = landed.landed(4)
    assert [r["source_table"] for r in rows] == ["public.orders"] * 4
    assert [r["problem"] for r in rows] == [None] * 4
    assert [r["key"] for r in landed.records()] == [{"id": 1}, "text key", None, "\\xff\x00"]


def test_a_tombstone_keeps_its_key_and_time(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic, cleanup_policy="compact")
    before = int(time.time() * 1000)
    kafka.send(topic, ({"id": 1}, event(1)), ({"id": 1}, None))
    landed = stream(topic)
    with landed.served():
        rows = landed.landed(2)
    tombstone = landed.records()[1]
    assert (tombstone["key"], tombstone["value"]) == ({"id": 1}, None)
    assert before <= tombstone["timestamp"] <= time.time() * 1000
    assert rows[1]["source_table"] == "public.orders"


@pytest.mark.long  # transactions of a broker take seconds to be given up
def test_only_committed_transactions_land_and_none_is_waited_for_in_vain(
    kafka: Broker, topic: str, stream: Callable[..., Stream]
) -> None:
    kafka.create(topic)
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, value=json.dumps(event(number)).encode(), partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    landed = stream(topic)
    with landed.served() as service:
        landed.landed(3)
        until(lambda: service.state.measures.get("lag") == 0, "no lag behind marks of transactions")
        producer.begin_transaction()
        producer.produce(topic, value=json.dumps(event(9)).encode(), partition=0)
        producer.flush(30)
        time.sleep(0.5)
        assert len(landed.rows()) == 3
        producer.commit_transaction(30)
        landed.landed(4)
    assert [r["value"]["after"]["id"] for r in landed.records()] == [0, 2, 4, 9]


def test_what_cannot_be_decoded_is_a_reject_with_the_reason(
    kafka: Broker, topic: str, stream: Callable[..., Stream]
) -> None:
    kafka.create(topic)
    # A value that would be two fields of the record around it, bytes, text, and the form of a registry without one.
    kafka.send(topic, event(1), '{},"topic":{}', b"\xff\xfe", "plain text", b"\0\0\0\0\x01abc", event(2))
    landed = stream(topic)
    with landed.served():
        rows = landed.landed(6)
    assert [bool(r["problem"]) for r in rows] == [False, True, True, True, True, False]
    problems = [r["problem"] for r in rows[1:5]]
    assert "not JSON" in problems[0]
    assert "nor text" in problems[1]
    assert "not JSON" in problems[2]
    assert "declare `registry`" in problems[3]
    assert rows[1]["record"].endswith('offset 1: key none, value {},"topic":{}')
    assert rows[4]["record"].endswith("value base64 AAAAAAFhYmM=")


def test_too_many_rejects_stop_the_stream(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic)
    kafka.send(topic, *["no event"] * 5)
    landed = stream(topic, {"max_rejected": 3})
    with landed.served() as service:
        until(lambda: service.state.state == "failed", "the limit")
        assert "not JSON" in service.state.error
    assert landed.rows() == []


def test_formats_without_keys_get_the_value_alone(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic)
    row = {"FLAG": "I", "CDC_TIMESTAMP": "2024-01-01T00:00:00Z", "id": 1}
    kafka.send(topic, ("k", row), ("k", None))
    landed = stream(topic, {"format": "change-set", "tables": ["public.orders"]})
    with landed.served():
        rows = landed.landed(2)
    assert json.loads(rows[0]["record"]) == row
    assert rows[0]["source_table"] == "public.orders"
    assert "tombstone" in rows[1]["problem"]


def test_new_partitions_and_new_topics_of_a_pattern_are_read_from_their_beginning(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: Any
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_REFRESH_SECONDS", 0.3)
    kafka.create(f"{topic}.a")
    kafka.send(f"{topic}.a", event(1))
    landed = stream(f"{topic}.*", exclude=f"{topic}.not*", start="latest")
    with landed.served():
        until(lambda: landed.offset, "the start")
        kafka.create(f"{topic}.not_this")
        kafka.send(f"{topic}.not_this", event(2))
        kafka.add_partitions(f"{topic}.a", 3)
        kafka.send(f"{topic}.a", event(3), partition=2)
        kafka.create(f"{topic}.b")
        kafka.send(f"{topic}.b", event(4))
        landed.landed(2)
    assert sorted(landed.places()) == [(f"{topic}.a", 2, 0), (f"{topic}.b", 0, 0)]
    # One that came while no service ran is new as well.
    kafka.create(f"{topic}.c")
    kafka.send(f"{topic}.c", event(5))
    with landed.served():
        landed.landed(3)
    assert landed.places()[2] == (f"{topic}.c", 0, 0)


def test_a_pattern_that_matches_nothing_yet_waits(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: Any
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_REFRESH_SECONDS", 0.3)
    landed = stream(f"{topic}.*", start="latest")
    with landed.served() as service:
        until(lambda: service.state.measures.get("partitions") == 0, "the start")
        kafka.create(f"{topic}.late")
        kafka.send(f"{topic}.late", event(1))
        landed.landed(1)
        assert service.state.error == ""


def test_a_start_at_the_end_is_kept_before_anything_lands(
    kafka: Broker, topic: str, stream: Callable[..., Stream]
) -> None:
    kafka.create(topic, 2)
    kafka.send(topic, event(1), event(2))
    landed = stream(topic, start="latest")
    with landed.served():
        until(lambda: landed.offset, "the start")
    assert landed.offset["topics"][topic]["next"] == [2, 0]
    kafka.send(topic, event(3))
    with landed.served():
        landed.landed(1)
    assert landed.places() == [(topic, 0, 2)]


def test_large_records_land(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic, max_message_bytes=str(32 << 20))
    kafka.send(topic, event(1, "x" * (20 << 20)), event(2), event(3, "y" * (9 << 20)))
    landed = stream(topic, {"max_record": "10MiB"})
    with landed.served():
        rows = landed.landed(3)
    assert [bool(r["problem"]) for r in rows] == [True, False, False]


def test_the_consumer_group_is_told_after_the_commit(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    kafka.create(topic, 2)
    kafka.send(topic, event(1), event(2), partition=1)
    landed = stream(topic, group=f"group-{topic}")

    def told() -> dict[int, int]:
        asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"group-{topic}")])
        (answer,) = asked.values()
        return {tp.partition: tp.offset for tp in answer.result(20).topic_partitions if tp.topic == topic}

    with landed.served():
        landed.landed(2)
        kafka.send(topic, event(3))
        landed.landed(3)
        time.sleep(1.1)
        kafka.send(topic, event(4))
        landed.landed(4)
        until(lambda: told() == {0: 2, 1: 2}, "the group's offsets")


def test_a_second_service_of_another_home_is_noticed(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: Any
) -> None:
    from lake_assets.ingest.raw.live_landing import LiveLanding
    from lake_assets.service.live_service import NAME

    kafka.create(topic)
    kafka.send(topic, event(1))
    landed = stream(topic)
    with landed.served() as service:
        landed.landed(1)
        other = LiveLanding(landed.lake, landed.spec, NAME)
        other.land([], other.start())
        kafka.send(topic, event(2))
        until(lambda: "another service" in service.state.error or len(landed.rows()) == 2, "the other one")
        landed.landed(2)
    assert landed.places() == [(topic, 0, 0), (topic, 0, 1)]


def event(number: int, text: str = "") -> dict[str, Any]:
    """An event of Debezium's without schemas."""
    after = {"id": number, "text": text}
    source = {"connector": "postgresql", "schema": "public", "table": "orders", "lsn": number}
    return {"before": None, "after": after, "source": source, "op": "c", "ts_ms": 1_700_000_000_000}
