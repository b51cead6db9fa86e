"""From the bytes of a record of Kafka to the text that is landed."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable
from typing import Any

import orjson

from lake_assets.lake import thresholds
from lake_assets.sources.avro_values import AvroReader
from lake_assets.sources.connect_nodes import SchemaError, ValueProblem
from lake_assets.sources.kafka_spec import KafkaSpec
from lake_assets.sources.live_source import Undecodable
from lake_assets.sources.protobuf_values import ProtobufReader
from lake_assets.sources.schema_registry import SchemaRegistry, UnknownSchemaError

# What a value begins with whose schema is in a registry: this byte, and an id of 4 bytes.
_MAGIC, _START = 0, 5

# Returns a value as JSON.
_Read = Callable[[bytes], bytes]


class KafkaValues:
    """Decodes records.

    Attributes:
        unknown: ids of schemas that the registry does not have.
        has_decoded: whether a value could be decoded.
    """

    def __init__(self, spec: KafkaSpec) -> None:
        self.spec = spec
        self.registry = SchemaRegistry(spec.registry) if spec.registry else None
        self.unknown = set[int]()
        self.has_decoded = False
        self._readers: dict[int, _Read | str] = {}
        # When unknown ids were last asked for.
        self._asked: dict[int, float] = {}
        self._begins: dict[tuple[str, int], bytes] = {}

    def record(
        self, topic: str, partition: int, offset: int, at: int | None, key: bytes | None, value: bytes | None
    ) -> bytes:
        """Return a record as it is landed; `Undecodable` with the reason if it cannot be read.

        Args:
            at: Kafka's time of it, in milliseconds since 1970; None: unknown.

        Raises:
            SourceUnavailableError: the registry does not answer.
            SourceError: it refuses us.
        """
        try:
            if not self.spec.is_wrapped:
                if value is None:
                    raise ValueProblem("a tombstone (a key without a value), which only `format: debezium` reads")
                found = self._json(value)
                self.has_decoded = True
                return found
            of_key = b"null" if key is None else self._key(key)
            of_value = b"null" if value is None else self._json(value)
        except ValueProblem as e:
            return Undecodable(_kept(topic, partition, offset, key, value), str(e))
        self.has_decoded = self.has_decoded or value is not None
        begin = self._begins.get((topic, partition))
        if begin is None:
            begin = b'{"topic":%b,"partition":%d,"offset":' % (orjson.dumps(topic), partition)
            self._begins[(topic, partition)] = begin
        time_of = b',"timestamp":%d' % at if at is not None else b""
        return b'%b%d%b,"key":%b,"value":%b}' % (begin, offset, time_of, of_key, of_value)

    def _json(self, raw: bytes) -> bytes:
        """Return a value as JSON."""
        if raw[:1] == b"\0":
            return self._registered(raw)
        try:
            # Whether it is one value: other text beside it could pass for parts of the record around it.
            orjson.loads(raw)
        except orjson.JSONDecodeError as e:
            kind = "" if raw.isascii() or _is_text(raw) else ", nor text"
            raise ValueProblem(f"its value is not JSON{kind} ({e}){self._hint(raw)}") from e
        return raw

    def _key(self, raw: bytes) -> bytes:
        """Return a key as JSON: one that is other text, as StringConverter writes it, as a string."""
        if raw[:1] == b"\0" and len(raw) >= _START and self.registry:
            try:
                return self._registered(raw)
            except ValueProblem as e:
                raise ValueProblem(f"its key: {e}") from e
        try:
            orjson.loads(raw)
        except orjson.JSONDecodeError:
            return orjson.dumps(raw.decode("utf-8", "backslashreplace"))
        return raw

    def _hint(self, raw: bytes) -> str:
        return ". Is it in Avro or Protobuf, without the id of a schema?" if raw[:1] not in b'{["' else ""

    # --- schemas of a registry ------------------------------------------------------------------------------------

    def _registered(self, raw: bytes) -> bytes:
        if self.registry is None:
            self.unknown.add(int.from_bytes(raw[1:_START], "big"))
            raise ValueProblem(
                "its value begins with the id of a schema in a registry: declare `registry` in the stream's `source`, "
                "and land the topic again"
            )
        if len(raw) < _START:
            raise ValueProblem(f"its value has {len(raw)} bytes, too few for the id of a schema")
        number = int.from_bytes(raw[1:_START], "big")
        reader = self._readers.get(number)
        if reader is None:
            reader = self._reader(number)
            if number not in self.unknown:
                self._readers[number] = reader
        if isinstance(reader, str):
            raise ValueProblem(reader)
        return reader(raw)

    def _reader(self, number: int) -> _Read | str:
        """Return the reader of a schema's values, or why there is none."""
        assert self.registry is not None
        try:
            schema = self._schema(number)
        except UnknownSchemaError as e:
            self.unknown.add(number)
            if time.monotonic() - self._asked.get(number, -math.inf) >= thresholds.KAFKA_SCHEMA_AGAIN_SECONDS:
                self._asked[number] = time.monotonic()
            return f"{e}, which is that of its value. Is it the registry of the producer?"
        self.unknown.discard(number)
        is_plain = not self.spec.is_wrapped
        where = f"schema {number} of {self.registry.spec.where}"
        try:
            match schema.kind:
                case "AVRO":
                    return _avro(AvroReader(schema.text, schema.references, is_plain=is_plain), is_plain)
                case "PROTOBUF":
                    serialized = None if schema.references else self.registry.serialized(number)
                    of_schema = ProtobufReader(serialized, schema.text, schema.references, is_plain=is_plain)
                    return _protobuf(of_schema, is_plain)
                case "JSON":
                    return _json_after_id
                case other:
                    return f"{where} is of the kind {other}; AVRO, PROTOBUF and JSON can be read"
        except SchemaError as e:
            return f"{where}: {e}"

    def _schema(self, number: int) -> Any:
        """Return a schema; one that is new may not have reached each server of the registry.

        Raises:
            UnknownSchemaError: there is none, or there was none shortly before.
        """
        assert self.registry is not None
        now = time.monotonic()
        if now - self._asked.get(number, -math.inf) < thresholds.KAFKA_SCHEMA_AGAIN_SECONDS:
            raise UnknownSchemaError(f"{self.registry.spec.where} has no schema {number}")
        until = now if number in self._asked else now + thresholds.KAFKA_SCHEMA_SECONDS
        while True:
            try:
                return self.registry.schema(number)
            except UnknownSchemaError:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.5)


def _avro(reader: AvroReader, is_plain: bool) -> _Read:
    begin = b'{"schema":%b,"payload":' % reader.schema

    def read(raw: bytes) -> bytes:
        text = _dumps(reader.read(raw, _START))
        return text if is_plain else b"%b%b}" % (begin, text)

    return read


def _protobuf(reader: ProtobufReader, is_plain: bool) -> _Read:
    def read(raw: bytes) -> bytes:
        try:
            schema, value = reader.read(raw, _START)
        except SchemaError as e:
            raise ValueProblem(str(e)) from e
        return _dumps(value) if is_plain else b'{"schema":%b,"payload":%b}' % (schema, _dumps(value))

    return read


def _json_after_id(raw: bytes) -> bytes:
    try:
        orjson.loads(raw[_START:])
    except orjson.JSONDecodeError as e:
        raise ValueProblem(f"its value is not JSON after the id of its schema ({e})") from e
    return raw[_START:]


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError) as e:  # text that is not UTF-8, numbers beyond 64 bits
        raise ValueProblem(f"its value cannot be written as JSON: {e}") from e


def _kept(topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return what is kept of a record that cannot be read: never JSON, so that no format takes it for a record."""
    return f"Kafka {topic}, partition {partition}, offset {offset}: key {_shown(key)}, value {_shown(value)}".encode()


def _shown(raw: bytes | None) -> str:
    if raw is None:
        return "none"
    if b"\0" not in raw and _is_text(raw):
        return raw.decode()
    return f"base64 {base64.b64encode(raw).decode()}"


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
