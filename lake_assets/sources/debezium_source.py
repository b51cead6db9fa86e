"""Debezium's engine in this process: it reads a database's log, and its batches are landed before it goes on.

The engine keeps its offsets in a file. Here, they are committed with the records, and the file is written anew from the
lake at each start; what the engine itself writes there is never read (docs/decisions/0061-live-sources.md).
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from lake_assets.errors import SourceError
from lake_assets.lake import thresholds
from lake_assets.sources.debezium_database import Database, EngineSettings, Load
from lake_assets.sources.debezium_java import bean_of, build, metrics, plain, run, send, start_jvm, write_offsets
from lake_assets.sources.live_source import Land, Progress, Stopped
from lake_assets.sources.postgres_positions import LogPositions, table_read, truncate_like
from lake_assets.sources.schema_history import SchemaHistory
from lake_assets.sources.snapshot_requests import SnapshotRequests, named_tables

log = logging.getLogger(__name__)
_NOTIFICATIONS = "lake_assets_notifications"
# Prefixes of the topics of records that no table needs.
_HEARTBEATS = "__debezium-heartbeat"


class DebeziumSource:
    """A database that Debezium reads; see `LiveSource`."""

    def __init__(self, database: Database, settings: EngineSettings) -> None:
        self.database, self.settings = database, settings
        self.tables: Sequence[str] = ()
        self._engine: Any = None
        self._consumer: _Consumer | None = None
        self._requests = SnapshotRequests()
        self._loading: Load | None = None

    def check(self, offset: Any) -> None:
        """See `LiveSource`."""
        self.tables = self.database.check(offset)

    def run(self, progress: Progress, land: Land, stop: threading.Event) -> None:
        """See `LiveSource`."""
        if not self.tables:
            self.check(progress.offset)
        restarts = self.database.starts_over()
        self._void(progress, None if restarts else progress.offset, land)
        progress = Progress(None if restarts else self._without_new(progress.offset), progress.history)
        if progress.offset is None and (offset := self._load(land, stop)):
            progress = Progress(offset, progress.history)
        start_jvm()
        with tempfile.TemporaryDirectory(prefix="lake-assets-debezium-") as folder:
            history = SchemaHistory(
                Path(folder) / "history", progress, restarts=restarts and self.database.needs_history()
            )
            consumer = _Consumer(self, progress.offset, land, stop, history)
            properties = self._properties(Path(folder), progress.offset, consumer.history)
            ended = threading.Event()
            self._engine, self._consumer = build(properties, consumer, ended, self.database.jars()), consumer
            name = f"debezium {self.settings.name}"
            thread = threading.Thread(target=run, args=(self._engine,), name=name, daemon=True)
            thread.start()
            self._requests.send_again()
            watch = _Watch(self, consumer)
            try:
                while not ended.wait(0.2) and not stop.is_set() and not consumer.message:
                    self._signal(consumer)
                    consumer.message = watch.problem()
            finally:
                self._close()
                thread.join(thresholds.LIVE_CLOSE_SECONDS)
        consumer.raise_error(self.database, is_stopped=stop.is_set())

    def _void(self, progress: Progress, offset: Any, land: Land) -> None:
        """Land a truncate of each table whose rows are read again, and would count twice or not be there any more."""
        if not (voided := self.database.voids()):
            return
        lsn = max(0, *(p.get("lsn") or 0 for _, p in progress.offset["offsets"]), *progress.offset.get("seen", ())[:1])
        if records := [truncate_like(r, lsn) for t, r in sorted(progress.one_of_each().items()) if t in voided]:
            land(records, offset)

    def _without_new(self, offset: Any) -> Any:
        """Return an offset as if tables had not been read yet that have been dropped and created again since."""
        known, now = (offset or {}).get("identities", {}), self.database.identities()
        new = [t for t in (offset or {}).get("tables", ()) if known.get(t, now.get(t)) != now.get(t)]
        return {**offset, "tables": [t for t in offset["tables"] if t not in new]} if new else offset

    def request(self, tables: Sequence[str], begun: Callable[[], None]) -> None:
        """See `LiveSource`."""
        if unknown := [t for t in tables if self.tables and t not in self.tables]:
            raise SourceError(f"{', '.join(unknown)}: not read here. Tables that are: {', '.join(self.tables)}")
        self._requests.add(tables, begun)

    def hear(self) -> None:
        """Take note that the engine works on a snapshot."""
        self._requests.hear()

    def begin(self, tables: Collection[str]) -> None:
        """Take note that snapshots of tables have begun, as the committed offset says."""
        self._requests.begin(tables)

    def known(self, tables: Sequence[str]) -> Mapping[str, object]:
        """Return what an offset says of the tables whose rows have been read."""
        identities = {t: i for t, i in self.database.identities().items() if t in tables}
        return {"tables": list(tables), **({"identities": identities} if identities else {})}

    def measures(self) -> Mapping[str, object]:
        """See `LiveSource`."""
        found: dict[str, object] = {}
        if self._engine is not None:
            found |= metrics(self.database.kind, self.settings.name)
        if (load := self._loading) is not None:
            found["snapshot"] = load.progress
        return {**found, **self.database.measures()}

    def queue_fill(self) -> float:
        """Return the share of Debezium's queue that is in use."""
        streaming = bean_of(self.database.kind, self.settings.name, "streaming")
        total = streaming.get("QueueTotalCapacity")
        return 1 - streaming["QueueRemainingCapacity"] / total if total else 0.0

    def _load(self, land: Land, stop: threading.Event) -> Any:
        """Land all rows in one commit, if the database can be read without Debezium; return the offset after them."""
        with self.database.load(self.tables, self.settings.name, stop) as load:
            if load is None:
                return None
            # Debezium reads rows in pieces only if it knows a transaction, and a quiet database tells of none.
            at = {"lsn": load.lsn, "ts_usec": load.micros, "txId": load.transaction}
            offset = {"offsets": [[{"server": self.settings.name}, at]], **self.known(load.tables)}
            self._loading = load
            try:
                land(load, offset)
            finally:
                self._loading = None
        return offset

    def _signal(self, consumer: _Consumer) -> None:
        """Ask Debezium for the rows of tables that are read for the first time, or that somebody wants again."""
        if not consumer.is_streaming:
            return
        if new := consumer.take_new(self.tables):
            self._requests.add(new)
        if consumer.positions.in_pieces or not (tables := self._requests.waiting()):
            return
        kinds = self.database.snapshots(tables)
        if gone := set(tables).difference(*kinds.values()):  # not read any more
            self._requests.asked(gone)
            self.begin(gone)
        # Rows without a key cannot be read in pieces beside their changes: reading of changes pauses.
        for kind in sorted(kinds)[:1]:
            log.warning("%s: reads all rows of %s", self.settings.name, ", ".join(kinds[kind]))
            consumer.expected.update(kinds[kind])
            self._requests.asked(kinds[kind])
            send(self._engine, "execute-snapshot", {"data-collections": [*kinds[kind].values()], "type": kind})
            self.database.wake()

    def unheard(self) -> str:
        """Return what is wrong if a snapshot does not begin that was asked for; empty: nothing."""
        consumer = self._consumer
        if consumer is None or consumer.is_busy or consumer.positions.in_whole:
            self._requests.hear()
        tables = ", ".join(self._requests.unheard())
        return f"Debezium did not begin to read the rows of {tables}: it is asked again" if tables else ""

    def _properties(self, folder: Path, offset: Any, history: SchemaHistory) -> dict[str, str]:
        offsets = folder / "offsets"
        write_offsets(offsets, self.settings.name, (offset or {}).get("offsets", ()))
        if self.database.needs_history():
            history.write()
        return {
            "max.batch.size": str(self.settings.rows),
            "max.queue.size": str(4 * self.settings.rows),
            "max.queue.size.in.bytes": str(thresholds.LIVE_QUEUE_BYTES),
            "heartbeat.interval.ms": str(round(self.settings.heartbeat * 1000)),
            "tombstones.on.delete": "false",
            # Truncates are left out by default.
            "skipped.operations": "none",
            # Otherwise a null is written as the column's default.
            "converter.replace.null.with.default": "false",
            # The service tries again itself, after it has looked at the server and said what is wrong.
            "errors.max.retries": "0",
            "signal.enabled.channels": "in-process",
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": _NOTIFICATIONS,
            **self.settings.properties,
            **self.database.properties(self.tables),
            "name": self.settings.name,
            "topic.prefix": self.settings.name,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(offsets),
            # The server is told what is done after each batch.
            "offset.flush.interval.ms": "0",
            **(
                {
                    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
                    "schema.history.internal.file.filename": str(history.file),
                }
                if self.database.needs_history()
                else {}
            ),
        }

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        try:
            engine.close()
        except Exception as e:  # Java's: it has ended already, or ends late; both are no failure of the source
            log.info("%s: %s", self.settings.name, e)


class _Watch:
    """Notices what an engine does not: that a table is another one, or a connection is gone.

    The connectors for binary logs do not end when it is. They could connect again by themselves, and would then repeat
    what they have read of a transaction.
    """

    def __init__(self, source: DebeziumSource, consumer: _Consumer) -> None:
        self.source, self.consumer = source, consumer
        self.looked = self.connected = self.asked = time.monotonic()
        self.was_connected = False

    def problem(self) -> str:
        """Return what is wrong; empty: nothing."""
        now = time.monotonic()
        if now - self.asked > thresholds.LIVE_MEASURE_SECONDS:
            self.asked = now
            if text := self.source.database.problem() or self.source.unheard():
                return text
        if not self.source.database.needs_history() or now - self.looked < 1:
            return ""
        self.looked = now
        name, kind = self.source.settings.name, self.source.database.kind
        if bean_of(kind, name, "streaming").get("Connected"):
            self.connected, self.was_connected = now, True
        if self.was_connected and now - self.connected > thresholds.LIVE_LOST_SECONDS:
            return "the connection was lost"
        silent = now - self.consumer.heard
        most = thresholds.LIVE_SILENT_SECONDS + 2 * self.source.settings.heartbeat
        if self.consumer.is_streaming and not self.consumer.is_busy and silent > most:
            return f"the server has not said anything for {silent:.0f} s"
        return ""


class _Consumer:
    """Lands the engine's batches, in a thread of the engine."""

    def __init__(
        self, source: DebeziumSource, offset: Any, land: Land, stop: threading.Event, history: SchemaHistory
    ) -> None:
        self.source, self.land, self.stop, self.history = source, land, stop, history
        offset = offset or {}
        self.positions = LogPositions(offset)
        self.offsets: dict[str, list[Any]] = {json.dumps(o[0], sort_keys=True): o for o in offset.get("offsets", ())}
        # The first snapshot reads all tables of that time.
        self.tables: set[str] = set(offset.get("tables", source.tables))
        self.asked: set[str] = set()
        # Tables of which a snapshot has begun since the last commit.
        self.begun: set[str] = set()
        # Tables of which a snapshot is to read all rows.
        self.expected: set[str] = set()
        # Tables that a snapshot has read in whole, which is not complete yet.
        self.scanned: set[str] = set()
        self.error: BaseException | None = None
        self.message = ""
        self.is_streaming = False
        # When the engine was heard of last, and whether a batch is being landed.
        self.committed = self.heard = time.monotonic()
        self.is_busy = False

    def take_new(self, tables: Sequence[str]) -> list[str]:
        """Return tables whose rows no snapshot has read, once."""
        new = [t for t in tables if t not in self.tables and t not in self.asked]
        self.asked.update(new)
        return new

    def take(self, events: Sequence[Any], committer: Any) -> None:
        """See `Batches`."""
        self.is_busy = True
        try:
            self._take(events, committer)
        finally:
            self.is_busy, self.heard = False, time.monotonic()

    def _take(self, events: Sequence[Any], committer: Any) -> None:
        """Land a batch, and tell the engine; wait for more to come, so that commits are not too many."""
        records, last = list[bytes](), None
        for event in events:
            topic = str(event.destination())
            if topic.startswith(_HEARTBEATS):
                # Streaming, or a snapshot's end; nothing has changed.
                self.is_streaming = True
            elif topic == _NOTIFICATIONS:
                self._note(str(event.value()))
            elif not self.positions.has_landed(event):
                record = _record(event, topic)
                if self.expected and (table := table_read(event)) in self.expected:
                    self.expected.discard(table)
                    before = self.positions.begin_snapshot(event)
                    if before is not None and self.source.database.counted([table]):
                        records.append(truncate_like(record, before))
                records.append(self.positions.ordered(record, event, last))
            last = event
        history, size = self.history.new()
        quiet = time.monotonic() - self.committed < thresholds.LIVE_QUIET_COMMIT_SECONDS
        if not records and not history and quiet:
            # The server is not told either: what it may forget is never ahead of what is committed.
            self.positions.pass_by(last)
            return
        self._follow(events)
        self.land(records, self._offset(), history)
        self.source.begin(self.begun)
        self.begun.clear()
        self.history.done(size)
        self.committed = time.monotonic()
        for event in events:
            committer.markProcessed(event)
        committer.markBatchFinished()
        self._wait()

    def _follow(self, events: Sequence[Any]) -> None:
        partition = plain(events[-1].sourceRecord().sourcePartition())
        offset = self.positions.follow(events)
        self.offsets[json.dumps(partition, sort_keys=True)] = [partition, offset]
        self.is_streaming = self.is_streaming or "snapshot" not in offset

    def _offset(self) -> Any:
        current = [t for t in self.source.tables if t in self.tables]
        return {"offsets": list(self.offsets.values()), **self.source.known(current), **self.positions.committed}

    def _note(self, text: str) -> None:
        """Follow what Debezium says about its snapshots.

        The state of an incremental one is in the offset from its start on. Of another one, all rows have to land; only
        its tables' own ends name them.
        """
        self.source.hear()
        told = orjson.loads(text)
        told = told.get("payload", told)
        more = told.get("additional_data") or {}
        match told.get("aggregate_type"), told.get("type"):
            case "Incremental Snapshot", "STARTED":
                begun = named_tables(str(more.get("data_collections", "")), self.source.tables)
            case "Initial Snapshot", "TABLE_SCAN_COMPLETED":
                self.scanned |= named_tables(str(more.get("scanned_collection", "")), self.source.tables)
                return
            case "Initial Snapshot", "COMPLETED":
                begun, self.scanned = self.scanned, set[str]()
            case _:
                return
        log.info("%s: %s", self.source.settings.name, text)
        self.begun |= begun
        self.tables |= begun

    def _wait(self) -> None:
        """Wait until the next commit is due, or a half-full queue asks for it."""
        due = self.committed + self.source.settings.wait
        while (left := due - time.monotonic()) > 0 and not self.stop.wait(min(left, 0.05)):
            if self.source.queue_fill() >= thresholds.LIVE_QUEUE_SHARE:
                return

    def raise_error(self, database: Database, *, is_stopped: bool) -> None:
        """Raise what ended the engine; nothing if the service ends."""
        if self.error is not None and not isinstance(self.error, Stopped):
            raise self.error
        if is_stopped:
            return
        raise database.failure(self.message or "Debezium ended without saying why")


def _record(event: Any, topic: str) -> bytes:
    """Return an event with its key, as the `debezium` format reads it."""
    key, value = event.key(), event.value()
    parts = [b'{"topic":', orjson.dumps(topic)]
    for name, text in (("key", key), ("value", value)):
        parts += [b',"', name.encode(), b'":', str(text).encode() if text is not None else b"null"]
    return b"".join((*parts, b"}"))
