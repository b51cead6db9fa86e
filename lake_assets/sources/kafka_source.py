"""Topics of Kafka as a live source: all partitions are read by one consumer, from the offsets in the lake on.

The offsets are committed with the records, in one snapshot of the raw table. The consumer group is only told what has
landed, so that its lag can be watched; it is never asked (docs/decisions/0064-kafka.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lake_assets.errors import SourceError, SourceGapError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.sources.kafka_client import GONE, KafkaClient, settings
from lake_assets.sources.kafka_offsets import Gap, Offsets, Topic
from lake_assets.sources.kafka_spec import KafkaSpec
from lake_assets.sources.kafka_values import KafkaValues
from lake_assets.sources.live_source import Land, Progress

log = logging.getLogger(__name__)


class KafkaSource:
    """See `LiveSource`."""

    def __init__(self, spec: KafkaSpec, name: str) -> None:
        self.spec, self.name = spec, name
        self._client: KafkaClient | None = None
        self._measures: Mapping[str, object] = {"connected": False}

    def check(self, offset: Any) -> None:
        """See `LiveSource`."""
        self._start(offset)

    def run(self, progress: Progress, land: Land, stop: threading.Event) -> None:
        """See `LiveSource`."""
        # The brokers are asked again, since time may have passed.
        client, offsets, topics = self._start(progress.offset)
        reading = _Reading(self, client, offsets, topics, land)
        try:
            if offsets.to_json() != progress.offset:
                # From here on, a restart goes on where this start began, also if it began at the end.
                reading.commit([])
            while not stop.is_set():
                reading.go_on()
        finally:
            self._measures = {**self._measures, "connected": False}
            reading.close()

    def request(self, tables: Sequence[str], begun: Callable[[], None]) -> None:
        """See `LiveSource`: Kafka has no tables to ask for rows."""
        raise SourceError(
            f"{self.name}: rows of {', '.join(tables)} cannot be read again from topics of Kafka. Let their producer "
            "send them again (Debezium: a snapshot by signal), or land the topics from their start into a new stream"
        )

    def measures(self) -> Mapping[str, object]:
        """See `LiveSource`."""
        return self._measures

    def say(self, measures: Mapping[str, object]) -> None:
        """Set what `measures` returns."""
        self._measures = measures

    def topics(self, client: KafkaClient, offsets: Offsets) -> dict[str, Topic]:
        """Return the topics to read, with their ids.

        Raises:
            SourceError, SourceUnavailableError, SourceGapError: see `LiveSource.check`.
        """
        try:
            topics = client.topics()
        except SourceError as e:
            if lost := [n for n in offsets.topics if f"no topic {n}" in str(e) and n in self.spec.topics]:
                raise SourceGapError(
                    f"{self.spec.where}: topic {lost[0]} was deleted, after it was read. Create it again and set "
                    "`on_gap: continue` in the stream's `source`, or take it out of `topics`; what has landed stays"
                ) from e
            raise
        ids = client.ids(list(topics))
        return {name: Topic(ids.get(name, ""), t.partitions) for name, t in topics.items()}

    def follow(self, client: KafkaClient, offsets: Offsets, topics: Mapping[str, Topic]) -> None:
        """Move offsets to where the next records can be read.

        Raises:
            SourceGapError: the brokers no longer have some, and the stream is declared to stop.
        """
        gaps = offsets.follow(self.spec, topics, client.bounds(offsets.partitions(topics)))
        if gaps and self.spec.on_gap == "stop":
            raise self._gap_error(gaps)
        for gap in gaps:
            log.warning("%s: %s. It goes on (`on_gap: continue`)", self.name, gap.text)
        offsets.note(gaps)

    def _start(self, offset: Any) -> tuple[KafkaClient, Offsets, Mapping[str, Topic]]:
        client = self._client = self._client or KafkaClient(self.spec)
        offsets = Offsets.of_json(offset)
        topics = self.topics(client, offsets)
        if registry := KafkaValues(self.spec).registry:
            registry.check()
        self.follow(client, offsets, topics)
        return client, offsets, topics

    def _gap_error(self, gaps: Sequence[Gap]) -> SourceGapError:
        more = f" (and {len(gaps) - 5} more)" if len(gaps) > 5 else ""
        return SourceGapError(
            f"{self.spec.where}: {'; '.join(g.text for g in gaps[:5])}{more}. To go on with what the brokers have, set "
            "`on_gap: continue` in the stream's `source`. If the topic carries changes of a database, let its producer "
            "send the rows again then (Debezium: a snapshot by signal): until then the tables lack these changes"
        )


class _Reading:
    """One run of a source: a consumer, what it has read, and what is committed."""

    def __init__(
        self, source: KafkaSource, client: KafkaClient, offsets: Offsets, topics: Mapping[str, Topic], land: Land
    ) -> None:
        from confluent_kafka import Consumer

        self.source, self.client, self.offsets, self.topics, self.land = source, client, offsets, dict(topics), land
        self.spec = source.spec
        self.values = KafkaValues(self.spec)
        self.records: list[bytes] = []
        self.bytes = 0
        self.read: set[str] = set()
        self.has_moved = False
        self.committed = self.looked = self.told_group = 0.0
        self.newest: dict[str, int] = {}
        self.warned = set[str]()
        with client.told.named("the settings of the consumer"):
            self.consumer: Any = Consumer({**_consumer_settings(self.spec, client), "on_commit": self._group_told})
        self._assign()

    def go_on(self) -> None:
        """Read some records; commit them if that is due.

        Raises:
            SourceError, SourceUnavailableError, SourceGapError, Stopped: see `LiveSource.run`.
        """
        rows = self.spec.rows or thresholds.LIVE_ROWS_A_COMMIT
        wanted = min(rows - len(self.records), thresholds.KAFKA_ROWS_A_POLL)
        with self.client.told.named("records"):
            messages = self.consumer.consume(wanted, timeout=self._patience())
        for message in messages:
            self._take(message)
        now = time.monotonic()
        is_full = len(self.records) >= rows or self.bytes >= thresholds.KAFKA_BYTES_A_COMMIT
        if is_full or (self.records and now - self.committed >= self.spec.wait):
            self.commit(self.records)
        elif self.has_moved and not self.records and now - self.committed >= thresholds.LIVE_QUIET_COMMIT_SECONDS:
            self.commit([])
        if time.monotonic() - self.looked >= thresholds.KAFKA_REFRESH_SECONDS:
            self._look_around()

    def commit(self, records: Sequence[bytes]) -> None:
        """Land records with the offsets after them; tell the consumer group."""
        if not self.offsets.has_records and records:
            self._check_schemas()
            self.offsets.has_records = True
        self._check_ids()
        self.land(records, self.offsets.to_json())
        self.records, self.bytes, self.read, self.has_moved = [], 0, set(), False
        self.committed = time.monotonic()
        self._tell_group()

    def close(self) -> None:
        """End the consumer; one whose broker is away may not end, and nothing depends on it."""
        closing = threading.Thread(target=self.consumer.close, name=f"close {self.source.name}", daemon=True)
        closing.start()
        closing.join(thresholds.KAFKA_ANSWER_SECONDS)

    # --- reading ------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        """Return how long to wait for records: until a commit is due, at most a tenth of a second."""
        due = self.committed + self.spec.wait - time.monotonic() if self.records else 0.1
        return max(0.001, min(0.1, due))

    def _take(self, message: Any) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if (error := message.error()) is not None:
            self._take_error(error, topic, partition, offset)
            return
        known = self.offsets.topics[topic]
        if offset < known.next[partition]:
            return  # read before the consumer was assigned anew
        kind, at = message.timestamp()
        key, value = message.key(), message.value()
        record = self.values.record(topic, partition, offset, at if kind else None, key, value)
        known.next[partition] = offset + 1
        self.records.append(record)
        self.bytes += len(record)
        self.read.add(topic)
        if kind:
            self.newest[topic] = at

    def _take_error(self, error: Any, topic: str | None, partition: int, offset: int) -> None:
        name = error.name()
        if name == "_PARTITION_EOF":
            known = self.offsets.topics[topic or ""]
            if offset > known.next[partition]:
                # Behind the last record are the marks of transactions, or records of aborted ones.
                known.next[partition] = offset
                self.has_moved = True
        elif name in GONE:
            # The next start finds out what is gone.
            raise SourceUnavailableError(f"{self.spec.where}: {topic}, partition {partition}: {error.str()}")
        elif name == "GROUP_AUTHORIZATION_FAILED":
            self._warn_of_group(error.str())
        elif name == "TOPIC_AUTHORIZATION_FAILED":
            raise self.client.told.refused(topic or "")
        elif error.fatal() or not (error.retriable() or name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT")):
            raise self.client.told.error(error, f"{topic or 'records'}")

    # --- topics -------------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Look for new topics and partitions, and tell how far the consumer is."""
        topics = self.source.topics(self.client, self.offsets)
        if topics != self.topics:
            if self.records:
                self.commit(self.records)
            self.source.follow(self.client, self.offsets, topics)
            new = sum(t.partitions for t in topics.values()) - sum(t.partitions for t in self.topics.values())
            log.warning("%s: reads %d more partitions", self.source.name, new)
            self.topics = topics
            self._assign()
            self.commit([])
        self._measure()
        self.looked = time.monotonic()

    def _check_schemas(self) -> None:
        """Check the very first records: if no schema of them is known, the registry is the wrong one, or is missing."""
        values = self.values
        if values.has_decoded or not values.unknown:
            return
        ids = f"ids {', '.join(map(str, sorted(values.unknown)[:5]))}"
        where = f"the first records of {', '.join(sorted(self.read))}"
        if values.registry is None:
            raise SourceError(
                f"{self.spec.where}: {where} are in the form of a schema registry ({ids}), and none is declared. "
                "Nothing has landed. Declare `registry: {url: ...}` in the stream's `source`"
            )
        raise SourceError(
            f"{values.registry.spec.where} knows none of the schemas of {where} ({ids}). Nothing has landed. Give the "
            "address of the registry that their producer writes to: `registry` in the stream's `source`"
        )

    def _check_ids(self) -> None:
        """Check that the records are of the topics that the offsets are of: one could be another by now."""
        known = {n: self.topics[n].id for n in sorted(self.read) if self.topics[n].id}
        now = self.client.ids(list(known))
        if changed := [n for n, of_topic in known.items() if now.get(n) != of_topic]:
            raise SourceUnavailableError(f"{self.spec.where}: topic {changed[0]} was deleted while it was read")

    def _assign(self) -> None:
        from confluent_kafka import TopicPartition

        places = [TopicPartition(n, p, self.offsets.topics[n].next[p]) for n, p in self.offsets.partitions(self.topics)]
        with self.client.told.named("the partitions"):
            self.consumer.assign(places)

    # --- what others are told -----------------------------------------------------------------------------------

    def _measure(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        lag: dict[str, int] = {}
        for name, p in self.offsets.partitions(self.topics):
            try:
                _, high = self.consumer.get_watermark_offsets(TopicPartition(name, p), cached=True)
            except KafkaException:
                continue  # nothing was fetched yet
            lag[name] = lag.get(name, 0) + max(0, high - self.offsets.topics[name].next[p])
        measures: dict[str, object] = {
            "connected": not self.client.told.is_down,
            "partitions": sum(t.partitions for t in self.topics.values()),
            "lag": sum(lag.values()),
            "lag_by_topic": lag,
        }
        behind = [time.time() - self.newest[n] / 1000 for n, left in lag.items() if left and n in self.newest]
        if behind or not any(lag.values()):
            measures["seconds_behind"] = round(max(0.0, *behind), 1) if behind else 0.0
        if self.offsets.gaps:
            measures["gaps"] = list(self.offsets.gaps)
        self.source.say(measures)

    def _tell_group(self) -> None:
        """Commit the offsets to the consumer group, at most once a second: nothing depends on it."""
        from confluent_kafka import KafkaException, TopicPartition

        if time.monotonic() - self.told_group < 1:
            return
        self.told_group = time.monotonic()
        places = [TopicPartition(n, p, self.offsets.topics[n].next[p]) for n, p in self.offsets.partitions(self.topics)]
        try:
            self.consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as e:
            self._warn_of_group(e.args[0].str())

    def _group_told(self, error: Any, places: Any) -> None:
        if error is not None:
            self._warn_of_group(error.str())

    def _warn_of_group(self, text: str) -> None:
        if text in self.warned:
            return
        self.warned.add(text)
        log.warning(
            "%s: the consumer group %s is not told what has landed: %s", self.source.name, self.spec.group, text
        )


def _consumer_settings(spec: KafkaSpec, client: KafkaClient) -> dict[str, Any]:
    return {
        # A partition whose broker is slow does not slow the others down; a full queue is asked for more soon.
        "fetch.queue.backoff.ms": 20,
        "queued.max.messages.kbytes": thresholds.LIVE_QUEUE_BYTES >> 10,
        "max.partition.fetch.bytes": 8 << 20,
        **settings(spec, client.told),
        "group.id": spec.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # While the lake cannot be written to, nothing is asked for.
        "max.poll.interval.ms": 86_400_000,
    }
