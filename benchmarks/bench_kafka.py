"""Records of Kafka's topics that a service lands, in a second, by how they are written.

    make bench-kafka ARGS="--records 200000"

A topic of six partitions is filled before the service starts: events of Debezium's as JSON without schemas, as JSON
with schemas, and as Avro whose schema is in a registry. Each is landed into a raw table of a new lake, with the default
size of commits. Beside it is what fetching and decoding a record take of it; the rest is landing.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import TableId
from lake_assets.sources.kafka_spec import KafkaSpec, RegistrySpec
from lake_assets.sources.kafka_values import KafkaValues

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.apicurio import Registry, registry
from tests.support.kafka import Broker, broker
from tests.support.kafka_streams import service_of

PARTITIONS = 6
REQUIRED: Mapping[str, Required] = {
    "JSON without schemas: records a second": ("at least", 1_000),
    "JSON with schemas: records a second": ("at least", 1_000),
    "Avro: records a second": ("at least", 1_000),
    "Avro: microseconds of CPU to decode one": ("at most", 100),
}
_MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp", "connect.version": 1}
_MONEY = {
    "type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2,
    "connect.name": "org.apache.kafka.connect.data.Decimal", "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
}  # fmt: skip
ROW = {
    "type": "record", "name": "Value", "connect.name": "shop.public.orders.Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "state", "type": "string"},
        {"name": "amount", "type": _MONEY},
        {"name": "placed_at", "type": _MICROS},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip
SOURCE = {
    "type": "record", "name": "Source", "connect.name": "io.debezium.connector.postgresql.Source",
    "fields": [
        {"name": n, "type": t} for n, t in (
            ("version", "string"), ("connector", "string"), ("name", "string"), ("ts_ms", "long"), ("db", "string"),
            ("schema", "string"), ("table", "string"), ("lsn", ["null", "long"]), ("sequence", ["null", "string"]),
        )
    ],
}  # fmt: skip
ENVELOPE = {
    "type": "record", "name": "Envelope", "namespace": "shop.public.orders",
    "connect.name": "shop.public.orders.Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A way to write records, with some of them."""

    name: str
    topic: str
    values: list[bytes]
    registry: RegistrySpec | None = None


def events(count: int) -> Iterator[dict[str, Any]]:
    """Yield events as Avro has them: decimals as bytes."""
    for i in range(count):
        row = {
            "id": i, "customer": f"customer {i % 997}", "state": ("new", "paid", "sent")[i % 3],
            "amount": (i % 100_000).to_bytes(4, "big", signed=True), "placed_at": 1_700_000_000_000_000 + i,
            "note": None if i % 4 else "leave it at the door, please",
        }  # fmt: skip
        source = {
            "version": "3.6.3.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_700_000_000_000 + i,
            "db": "shop", "schema": "public", "table": "orders", "lsn": 24_000_000 + 8 * i,
            "sequence": f'["{24_000_000 + 8 * i}","{24_000_000 + 8 * i}"]',
        }  # fmt: skip
        yield {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1_700_000_000_000 + i}


def cases(count: int, schemas: Registry) -> list[Case]:
    """Return the same events in each of the ways."""
    number = schemas.register("shop.public.orders-value", json.dumps(ENVELOPE))
    head, parsed = b"\0" + number.to_bytes(4, "big"), fastavro.parse_schema(ENVELOPE)
    where = RegistrySpec(schemas.url)
    of_avro: list[bytes] = []
    for event in events(count):
        out = io.BytesIO(head)
        out.seek(5)
        fastavro.schemaless_writer(out, parsed, event)
        of_avro.append(out.getvalue())
    values = KafkaValues(KafkaSpec("", (), "", registry=where))
    with_schemas = [values._json(v) for v in of_avro]  # pyright: ignore[reportPrivateUsage]
    plain = [json.dumps(json.loads(v)["payload"]).encode() for v in with_schemas]
    return [
        Case("JSON without schemas", "plain", plain),
        Case("JSON with schemas", "with-schemas", with_schemas),
        Case("Avro", "avro", of_avro, where),
    ]


def fill(server: Broker, case: Case) -> None:
    """Send the records."""
    server.create(case.topic, PARTITIONS)
    producer = server.producer(linger_ms=50)
    for i, value in enumerate(case.values):
        while True:
            try:
                producer.produce(case.topic, value=value, key=b'{"id":%d}' % i, partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("the broker does not take the records")


def measured(server: Broker, case: Case, home: Path) -> dict[str, float]:
    """Land the records; return what it took."""
    spec = KafkaSpec(server.servers, (case.topic,), "bench", registry=case.registry)
    raw = RawSpec(TableId.parse("raw.events"), None, "debezium", "bench", live=spec)
    lake, stop = Lake(LakeConfig(home=home)), threading.Event()
    service = service_of(lake, raw, stop)
    count = len(case.values)
    thread = threading.Thread(target=service.run)
    began, cpu = time.monotonic(), cpu_seconds()
    thread.start()
    while service.state.records < count:
        if service.state.error:
            raise SystemExit(service.state.error)
        time.sleep(0.02)
    seconds, cpu = time.monotonic() - began, cpu_seconds() - cpu
    stop.set()
    thread.join()
    fetched, decoded = _fetched(server, case), _decoded(case, spec)
    return {
        f"{case.name}: bytes a record": sum(map(len, case.values)) / count,
        f"{case.name}: records a second": count / seconds,
        f"{case.name}: microseconds of CPU a record, with the broker": cpu / count * 1e6,
        f"{case.name}: microseconds of CPU to fetch one": fetched / count * 1e6,
        f"{case.name}: microseconds of CPU to decode one": decoded / count * 1e6,
        f"{case.name}: records a commit": count / service.state.commits,
    }


def _fetched(server: Broker, case: Case) -> float:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": server.servers, "group.id": "fetch", "enable.auto.commit": False}
    consumer = Consumer({**settings, "max.partition.fetch.bytes": 8 << 20, "fetch.queue.backoff.ms": 20})
    consumer.assign([TopicPartition(case.topic, p, 0) for p in range(PARTITIONS)])
    began, left = time.process_time(), len(case.values)
    while left > 0:
        left -= len(consumer.consume(2_000, timeout=1))
    seconds = time.process_time() - began
    consumer.close()
    return seconds


def _decoded(case: Case, spec: KafkaSpec) -> float:
    values = KafkaValues(spec)
    values.record(case.topic, 0, 0, 1, None, case.values[0])
    began = time.process_time()
    for i, value in enumerate(case.values):
        values.record(case.topic, 0, i, 1, b'{"id":1}', value)
    return time.process_time() - began


def deserializer(case: Case, schemas: Registry) -> dict[str, float]:
    """Return what confluent-kafka's own deserializer takes, which gives values of Python's without Connect's types."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroDeserializer
        from confluent_kafka.serialization import MessageField, SerializationContext
    except ImportError:
        return {}
    decode: Any = AvroDeserializer(SchemaRegistryClient({"url": schemas.url}))  # pyright: ignore[reportCallIssue]
    context = SerializationContext(case.topic, MessageField.VALUE)
    decode(case.values[0], context)
    began = time.process_time()
    for value in case.values:
        decode(value, context)  # pyright: ignore[reportCallIssue]
    seconds = time.process_time() - began
    return {"Avro: microseconds of confluent-kafka's AvroDeserializer": seconds / len(case.values) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description="Records of Kafka's topics that a service lands.")
    parser.add_argument("--records", type=int, default=100_000)
    count = parser.parse_args().records
    figures: dict[str, float | str] = {}
    with broker() as server, registry() as schemas, tempfile.TemporaryDirectory() as folder:
        for case in cases(count, schemas):
            fill(server, case)
            figures |= measured(server, case, Path(folder) / case.topic)
            if case.registry:
                figures |= deserializer(case, schemas)
    if show(figures, REQUIRED):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
