"""Questions to the brokers of Kafka, and errors that say what to do."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from lake_assets.errors import SourceError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.sources.kafka_offsets import Bounds, Topic
from lake_assets.sources.kafka_spec import KafkaSpec, Secret, is_pattern, matching

log = logging.getLogger(__name__)
_NO_ID = ("", "AAAAAAAAAAAAAAAAAAAAAA")


def require() -> None:
    """Check that the client is installed.

    Raises:
        SourceError: it is not.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SourceError("confluent-kafka is not installed: pip install 'lake-assets[kafka]'")


class KafkaClient:
    """Asks the brokers what they have."""

    def __init__(self, spec: KafkaSpec) -> None:
        """Prepare a connection.

        Raises:
            SourceError: the client is not installed, a secret or a file is missing, or a setting is wrong.
        """
        require()
        from confluent_kafka.admin import AdminClient

        self.spec = spec
        self.told = Told(spec)
        with self.told.named("the settings"):
            self._admin = AdminClient(settings(spec, self.told))

    def topics(self) -> dict[str, Topic]:
        """Return the topics to read, without their ids.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: they refuse us, or have no such topic.
        """
        with self.told.named("the list of topics"):
            try:
                listed = self._admin.list_topics(timeout=thresholds.KAFKA_ANSWER_SECONDS)
            finally:
                self._admin.poll(0)  # what went wrong is told here
        there: Mapping[str, Any] = listed.topics
        found = {name: t for name, t in there.items() if self.spec.names(name)}
        for name, topic in found.items():
            if topic.error is not None and topic.error.name() == "TOPIC_AUTHORIZATION_FAILED":
                raise self.told.refused(name)
        self._check_declared(found, there)
        return {name: Topic("", len(t.partitions)) for name, t in sorted(found.items())}

    def _check_declared(self, found: Iterable[str], there: Iterable[str]) -> None:
        names = [n for n in there if not n.startswith("__")]
        for declared in self.spec.topics:
            if is_pattern(declared):
                if not any(matching(n, [declared]) for n in found):
                    log.warning("%s has no topic %s yet", self.spec.where, declared)
            elif declared not in found:
                close = difflib.get_close_matches(declared, names, 1, 0.6)
                hint = (
                    f": did you mean {close[0]}?"
                    if close
                    else f". There are: {', '.join(sorted(names)[:10]) or 'none'}"
                )
                raise SourceError(f"{self.spec.where} has no topic {declared}{hint}")

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of topics; those that brokers do not tell, or that are gone, are missing."""
        from confluent_kafka import KafkaException, TopicCollection

        if not topics:
            return {}
        found: dict[str, str] = {}
        with self.told.named("the topics"):
            asked = self._admin.describe_topics(
                TopicCollection(list(topics)), request_timeout=thresholds.KAFKA_ANSWER_SECONDS
            )
            for name, answer in asked.items():
                try:
                    described = answer.result(2 * thresholds.KAFKA_ANSWER_SECONDS)
                except KafkaException as e:
                    if e.args[0].name() in _GONE:
                        continue
                    raise
                text = str(described.topic_id) if described.topic_id is not None else ""
                if text not in _NO_ID:
                    found[name] = text
        return found

    def bounds(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Bounds]:
        """Return what the brokers have of partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        sides: list[dict[tuple[str, int], int]] = []
        specs: list[Any] = [OffsetSpec.earliest(), OffsetSpec.latest()]
        if not partitions:
            return {}
        with self.told.named("the offsets"):
            asked = [
                self._admin.list_offsets(
                    {TopicPartition(t, p): spec for t, p in partitions},
                    request_timeout=thresholds.KAFKA_ANSWER_SECONDS,
                )
                for spec in specs
            ]
            for answers in asked:
                sides.append(
                    {
                        (tp.topic, tp.partition): a.result(2 * thresholds.KAFKA_ANSWER_SECONDS).offset
                        for tp, a in answers.items()
                    }
                )
        return {tp: Bounds(low, sides[1][tp]) for tp, low in sides[0].items()}


_GONE = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
GONE = (*_GONE, "OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "INCONSISTENT_TOPIC_ID", "_LOG_TRUNCATION")
_SIGNED_IN = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")
_REFUSED = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED")


class Told:
    """What librdkafka says beside its answers, and the errors of it all.

    Attributes:
        last: the last of it, by kind.
        is_down: whether no broker could be reached when it last spoke.
    """

    def __init__(self, spec: KafkaSpec) -> None:
        self.spec = spec
        self.last: dict[str, str] = {}
        self.is_down = False

    def take(self, error: Any) -> None:
        """Take an error that belongs to no call."""
        self.last[error.name()] = error.str()
        self.is_down = self.is_down or error.name() == "_ALL_BROKERS_DOWN"

    @contextlib.contextmanager
    def named(self, what: str) -> Generator[None]:
        """Raise errors of librdkafka as ours, within the context.

        Args:
            what: what is asked for.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as e:
            raise self.error(e.args[0], what) from e
        except TimeoutError as e:  # a broker that went away in between may never be answered for
            raise SourceUnavailableError(f"{self.spec.where} does not answer about {what}. It is tried again") from e
        # What was told before belongs to a time when it did not answer.
        self.is_down = False
        self.last.clear()

    def error(self, error: Any, what: str) -> Exception:
        """Return the error for one of librdkafka's."""
        where, name, text = self.spec.where, error.name(), error.str()
        if signing := next((self.last[n] for n in _SIGNED_IN if n in self.last), text if name in _SIGNED_IN else ""):
            return SourceError(f"{where} refuses {self._who()}: {signing}")
        if name in _REFUSED:
            return SourceError(f"{where} does not let {self._who()} read {what}: {text}")
        if name in ("_INVALID_ARG", "_NOT_IMPLEMENTED", "_CRIT_SYS_RESOURCE", "_FAIL"):
            return SourceError(f"{where}: {what}: {text}. Check the source's `security` and `properties`")
        reasons = [self.last[n] for n in ("_SSL", "_RESOLVE", "_TRANSPORT", "_ALL_BROKERS_DOWN") if n in self.last]
        reason = f" ({reasons[0]})" if reasons else ""
        advice = self._protocol_advice()
        return SourceUnavailableError(f"{where} does not answer: {text}{reason}{advice}. It is tried again")

    def refused(self, topic: str) -> SourceError:
        """Return the error for a topic that may not be read."""
        return SourceError(
            f"{self.spec.where} does not let {self._who()} read topic {topic}, which takes the rights to DESCRIBE and "
            "READ it"
        )

    def _who(self) -> str:
        given = dict(self.spec.settings)
        user, password = given.get("sasl.username"), given.get("sasl.password")
        if not user:
            return "a reader without a user (declare `security` in the stream's `source`)"
        is_secret = isinstance(password, Secret)
        source = f", whose password is read from the environment variable {password.env}" if is_secret else ""
        return f"user {user}{source}"

    def _protocol_advice(self) -> str:
        """Return a hint: a broker that expects another protocol only hangs up."""
        if not any("isconnected" in t or "protocol" in t for t in self.last.values()):
            return ""
        protocol = dict(self.spec.settings).get("security.protocol", "PLAINTEXT")
        return f" (it may expect another `security.protocol` than {protocol})"


def settings(spec: KafkaSpec, told: Told) -> dict[str, Any]:
    """Return librdkafka's settings of a connection.

    Raises:
        SourceError: the environment lacks a secret.
    """
    return {
        "client.id": "lake_assets",
        "socket.keepalive.enable": True,
        "socket.connection.setup.timeout.ms": round(thresholds.KAFKA_ANSWER_SECONDS * 1000),
        # A broker that is back is found within a second.
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.interval.ms": round(thresholds.KAFKA_REFRESH_SECONDS * 1000),
        # It would write to the process's output; what matters is told as errors.
        "log_level": 0,
        **spec.librdkafka(),
        "bootstrap.servers": spec.servers,
        "error_cb": told.take,
    }
