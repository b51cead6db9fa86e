"""Before anything is read, a mistake in the declaration or at a server is named: what, where, and what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets.errors import PipelineError, SourceError, SourceUnavailableError
from lake_assets.pipeline import Pipeline
from lake_assets.sources.kafka_spec import KafkaSpec, RegistrySpec, matching
from lake_assets.sources.schema_registry import SchemaRegistry
from tests.support.kafka import Broker
from tests.support.kafka_streams import Stream
from tests.support.pipeline_files import write_pipeline
from tests.support.processes import free_port


@pytest.mark.servers
def test_an_unknown_topic(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    kafka.create(topic)
    with pytest.raises(SourceError, match=f"has no topic {topic}x: did you mean {topic}"):
        stream(f"{topic}x").check()


def test_a_broker_that_is_away(stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_ANSWER_SECONDS", 1.0)
    port = free_port()
    with pytest.raises(SourceUnavailableError, match=f"127.0.0.1:{port} does not answer: .*refused"):
        stream("t", servers=f"127.0.0.1:{port}").check()


@pytest.mark.servers
@pytest.mark.parametrize(
    ("password", "error", "text"),
    [
        (None, SourceError, "environment variable KAFKA_TEST_PASSWORD, which is not set"),
        (
            "wrong-password",
            SourceError,
            "refuses user reader, whose password .* KAFKA_TEST_PASSWORD: .*Invalid username",
        ),
        ("right", None, ""),
    ],
)
def test_signing_in(
    kafka: Broker,
    topic: str,
    stream: Callable[..., Stream],
    monkeypatch: pytest.MonkeyPatch,
    password: str | None,
    error: type[Exception] | None,
    text: str,
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_ANSWER_SECONDS", 3.0)
    kafka.create(topic)
    given = kafka.password if password == "right" else password
    if given:
        monkeypatch.setenv("KAFKA_TEST_PASSWORD", given)
    security = {
        "mechanism": "PLAIN",
        "protocol": "SASL_PLAINTEXT",
        "user": "reader",
        "password": {"env": "KAFKA_TEST_PASSWORD"},
    }
    read = stream(topic, servers=kafka.sasl_servers, security=security)
    if error is None:
        kafka.send(topic, {"op": "c", "source": {"table": "t"}, "after": {}})
        with read.served():
            read.landed(1)
        # Nowhere in the lake: neither in tables, nor in metadata, nor in the service's state.
        files = [f for f in (read.lake.config.home).rglob("*") if f.is_file()]
        assert files
        assert not [f for f in files if kafka.password.encode() in f.read_bytes()]
        assert kafka.password not in repr(read.spec)
        return
    with pytest.raises(error, match=text) as caught:
        read.check()
    assert not given or given not in str(caught.value)


@pytest.mark.servers
def test_a_listener_that_expects_a_user(
    kafka: Broker, topic: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake_assets.lake.thresholds.KAFKA_ANSWER_SECONDS", 1.0)
    with pytest.raises(SourceUnavailableError, match="does not answer"):
        stream(topic, servers=kafka.sasl_servers).check()


@pytest.mark.servers
def test_wrong_settings(kafka: Broker, topic: str, stream: Callable[..., Stream]) -> None:
    with pytest.raises(SourceError, match='No such configuration property: "no.such"'):
        stream(topic, properties={"no.such": "1"}).check()
    with pytest.raises(SourceError, match=r"ssl\.ca\.location.*Check the source's `security`"):
        stream(topic, security={"ca": "/no/such/file"}).check()


@pytest.mark.servers
def test_a_registry_that_is_away_or_none(
    kafka: Broker, topic: str, stream: Callable[..., Stream], schemas: Any, tmp_path: Path
) -> None:
    kafka.create(topic)
    port = free_port()
    with pytest.raises(
        SourceUnavailableError, match=f"schema registry http://127.0.0.1:{port} does not answer: .*refused"
    ):
        stream(topic, registry={"url": f"http://127.0.0.1:{port}"}).check()
    elsewhere = schemas.url.rsplit("/apis/", 1)[0]
    with pytest.raises(SourceError, match="does not answer like a schema registry.*Check `url`"):
        stream(topic, registry={"url": elsewhere}).check()
    stream(topic, registry={"url": schemas.url}).check()


def test_what_refuses_a_registrys_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that wants another user than the one that is sent."""
    import base64
    import http.server
    import threading

    seen: list[str] = []

    class Guarded(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(200 if seen[-1].endswith(base64.b64encode(b"reader:right").decode()) else 401)
            self.end_headers()
            self.wfile.write(b'["AVRO"]')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    from lake_assets.sources.kafka_spec import Secret

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        spec = RegistrySpec(f"http://127.0.0.1:{server.server_port}", "reader", Secret("REGISTRY_TEST_PASSWORD"))
        with pytest.raises(SourceError, match="environment variable REGISTRY_TEST_PASSWORD, which is not set"):
            SchemaRegistry(spec).check()
        monkeypatch.setenv("REGISTRY_TEST_PASSWORD", "wrong")
        with pytest.raises(SourceError, match="refuses user reader, .* REGISTRY_TEST_PASSWORD: HTTP 401"):
            SchemaRegistry(spec).check()
        monkeypatch.setenv("REGISTRY_TEST_PASSWORD", "right")
        SchemaRegistry(spec).check()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_client_is_not_installed(
    stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "confluent_kafka" else found(name, *a)
    )
    from lake_assets.sources.kafka_source import KafkaSource

    with pytest.raises(SourceError, match=r"pip install 'lake-assets\[kafka\]'"):
        KafkaSource(KafkaSpec("127.0.0.1:1", ("t",), "g"), "raw.t").check(None)


@pytest.mark.parametrize(
    ("kafka_settings", "text"),
    [
        ({"servers": "localhost"}, "write host:port"),
        ({"topics": "a b"}, "no name or pattern of a topic"),
        ({"security": {"mechanism": "PLAIN"}}, "`mechanism` needs `user` and `password"),
        ({"security": {"mechanism": "PLAIN", "user": "u", "password": "p4ss"}}, "a secret does not belong in a file"),
        ({"properties": {"sasl.oauthbearer.client.secret": "p4ss"}}, "a secret does not belong in a file"),
        ({"properties": {"isolation.level": "read_uncommitted"}}, "set by lake_assets itself"),
        ({"registry": {"url": "localhost:8081"}}, "is no address"),
        ({"registry": {"url": "http://u:p4ss@localhost"}}, "a secret does not belong in a file"),
        ({"registry": {"url": "http://localhost", "user": "u"}}, "belong together"),
        ({"start": "middle"}, "earliest"),
    ],
)
def test_mistakes_in_the_declaration_are_named_with_their_line(
    tmp_path: Path, kafka_settings: dict[str, Any], text: str
) -> None:
    kafka = {"servers": "localhost:9092", "topics": ["shop.*"], **kafka_settings}
    file = write_pipeline(
        tmp_path / "p.yaml", {"name": "shop", "streams": [{"name": "events", "source": {"kafka": kafka}}]}
    )
    with pytest.raises(PipelineError) as caught:
        Pipeline.load(file)
    assert text in str(caught.value)
    assert "line " in str(caught.value)
    assert "p4ss" not in str(caught.value)


def test_patterns() -> None:
    assert matching("shop.orders", ["shop.*"]) == "shop.*"
    assert matching("shop.orders", ["shop.*"], ["shop.o*"]) is None
    # An exact name is meant, whatever is excluded.
    assert matching("shop.orders", ["shop.*", "shop.orders"], ["shop.o*"]) == "shop.orders"
    assert matching("__consumer_offsets", ["*"]) is None
    assert matching("__consumer_offsets", ["__consumer_offsets"]) == "__consumer_offsets"
