"""Values whose schemas are in a registry, as Connect's own converters and others write them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from lake_assets.sources.kafka_spec import KafkaSpec, RegistrySpec
from lake_assets.sources.kafka_values import KafkaValues
from lake_assets.sources.live_source import Undecodable
from tests.support.apicurio import Registry
from tests.support.connect_converters import encoded
from tests.support.kafka import Broker
from tests.support.kafka_streams import Stream, until
from tests.support.recorded_events import avro_names, recorded

pytestmark = pytest.mark.servers

# What Connect's converter for JSON, by which the values get into the one for Avro, does not read back.
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def decoder(schemas: Registry, *, is_wrapped: bool = True) -> KafkaValues:
    return KafkaValues(KafkaSpec("127.0.0.1:1", ("t",), "g", is_wrapped=is_wrapped, registry=RegistrySpec(schemas.url)))


@pytest.mark.parametrize(
    ("recording", "share"),
    [
        ("odd/debezium.jsonl.gz", 40),
        pytest.param("odd/debezium.jsonl.gz", 1, marks=pytest.mark.long),
        pytest.param("mariadb/enveloped.jsonl.gz", 3, marks=pytest.mark.long),
    ],
)
def test_debeziums_events_in_avro_are_its_events_in_json(schemas: Registry, recording: str, share: int) -> None:
    """Real recordings, through the converter with which Debezium writes Avro, and back."""
    records = [r for r in recorded(recording) if avro_names(*r[1:])]
    records = records[::share]
    values, compared = decoder(schemas), 0
    for (topic, *parts), (_, *raw) in zip(records, encoded("avro", schemas.url, records), strict=True):
        decoded = values.record(topic, 0, 0, None, *raw)
        assert not isinstance(decoded, Undecodable), decoded.problem
        found = json.loads(decoded)
        for expected, part in zip(parts, (found["key"], found["value"]), strict=True):
            if expected is None:
                assert part is None
                continue
            assert _readable(part["payload"]) == _readable(expected["payload"], is_original=True)
            assert _essence(part["schema"]) == _essence(expected["schema"])
            compared += 1
    assert compared > 100


def test_protobuf_of_connects_converter(schemas: Registry) -> None:
    pytest.importorskip("grpc_tools", reason="there is no grpcio-tools: pip install grpcio-tools")
    # A subject has schemas of one kind, and other tests have this topic in Avro.
    records = [("protobuf", *r[1:]) for r in recorded("odd/debezium.jsonl.gz") if r[0] == "odd.public.by_index"]
    made = encoded("protobuf", schemas.url, records, optional_for_nullables="true")
    values = decoder(schemas)
    assert made
    for (topic, *parts), (_, *raw) in zip(records, made, strict=True):
        found = json.loads(values.record(topic, 0, 0, None, *raw))
        for expected, part in zip(parts, (found["key"], found["value"]), strict=True):
            assert (part and part["payload"]) == (expected and expected["payload"])


@pytest.mark.long
def test_connects_converter_writes_the_default_for_a_null(schemas: Registry) -> None:
    """What docs/kafka.md warns of: nothing in the Avro shows that it was a null."""
    field = {"type": "int32", "optional": True, "default": 7, "field": "a"}
    value = {"schema": {"type": "struct", "name": "s.R", "fields": [field]}, "payload": {"a": None}}
    ((_, _, raw),) = encoded("avro", schemas.url, [("defaults", None, value)])
    decoded = json.loads(decoder(schemas).record("t", 0, 0, None, None, raw))
    assert decoded["value"]["payload"] == {"a": 7}
    assert decoded["value"]["schema"]["fields"][0]["default"] == 7


def test_rows_in_avro_for_a_format_without_schemas(
    kafka: Broker, topic: str, stream: Callable[..., Stream], schemas: Registry
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "FLAG", "type": "string"},
            {"name": "CDC_TIMESTAMP", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }
    number = schemas.register(f"{topic}-value", json.dumps(schema))
    kafka.create(topic)
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, schema, {"FLAG": "I", "CDC_TIMESTAMP": 1_700_000_000_000_001, "amount": b"\x04\xd2"}
    )
    kafka.send(topic, b"\0" + number.to_bytes(4, "big") + out.getvalue())
    landed = stream(topic, {"format": "change-set", "tables": ["public.orders"]}, registry={"url": schemas.url})
    with landed.served():
        landed.landed(1)
    assert landed.records() == [{"FLAG": "I", "CDC_TIMESTAMP": "2023-11-14T22:13:20.000001", "amount": "12.34"}]


def test_ids_that_the_registry_does_not_know(
    kafka: Broker,
    topic: str,
    stream: Callable[..., Stream],
    schemas: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_SCHEMA_SECONDS", 0.1)
    number = schemas.register(f"{topic}-value", '"string"')
    kafka.create(topic)
    kafka.send(topic, b"\0\0\xff\xff\xff\x02a")
    landed = stream(topic, registry={"url": schemas.url})
    with landed.served() as service:
        # Nothing that came first can be decoded: the registry is another one.
        until(lambda: "knows none of the schemas of the first records" in service.state.error, "the error")
        assert landed.rows() == []
    kafka.send(topic, b"\0" + number.to_bytes(4, "big") + b"\x02a")
    with landed.served():
        rows = landed.landed(2)
    assert "has no schema 16777215" in rows[0]["problem"]
    assert '"payload":"a"' in rows[1]["record"]


def test_a_registry_that_goes_away_makes_no_rejects(
    kafka: Broker, topic: str, stream: Callable[..., Stream], schemas: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lake_assets.sources import schema_registry

    number = schemas.register(f"{topic}-value", '"string"')
    kafka.create(topic)
    landed = stream(topic, registry={"url": schemas.url})
    get = schema_registry.SchemaRegistry._get
    away = [True]

    def answer(self: Any, path: str) -> Any:
        if away and "/ids/" in path:
            monkeypatch.setattr(self, "spec", RegistrySpec("http://127.0.0.1:1"))
        return get(self, path)

    monkeypatch.setattr(schema_registry.SchemaRegistry, "_get", answer)
    kafka.send(topic, b"\0" + number.to_bytes(4, "big") + b"\x02a")
    with landed.served() as service:
        until(lambda: "does not answer" in service.state.error, "the error")
        assert landed.rows() == []
        away.clear()
        rows = landed.landed(1)
    assert rows[0]["record"].count("payload") == 1


def _readable(value: Any, *, is_original: bool = False) -> Any:
    if isinstance(value, dict):
        return {n: _readable(v, is_original=is_original) for n, v in value.items()}
    if isinstance(value, list):
        return [_readable(v, is_original=is_original) for v in value]
    return 0.0 if is_original and value in _NO_NUMBERS else value


def _essence(schema: Any) -> Any:
    """Return what a schema says about types."""
    found = {n: v for n, v in schema.items() if n in ("type", "field", "name", "parameters", "default", "version")}
    found["optional"] = schema.get("optional", False)
    for part in ("items", "keys", "values"):
        if part in schema:
            found[part] = _essence(schema[part])
    return {**found, "fields": [_essence(f) for f in schema.get("fields", ())]}
