"""Declared Kafka topics, as plain values; secrets are named, not held."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import SourceError
from lake_assets.lake import thresholds


@dataclass(frozen=True)
class Secret:
    """The name of the environment variable that holds a secret."""

    env: str

    def value(self, where: str, what: str) -> str:
        """Return the secret.

        Args:
            where: the server that needs it.
            what: what it is: a password, ...

        Raises:
            SourceError: the variable is not set.
        """
        if not (found := os.environ.get(self.env)):
            raise SourceError(
                f"{where}: the {what} is read from the environment variable {self.env}, which is not set. Set it where "
                "`lake-assets serve` starts"
            )
        return found


@dataclass(frozen=True)
class RegistrySpec:
    """A declared schema registry.

    Attributes:
        url: where it answers, with the path, if it has one.
        user, password: of HTTP's basic authentication.
        token: a bearer token, instead of them.
        ca: file of certificates to trust, beside the system's.
    """

    url: str
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    ca: str = ""

    @property
    def where(self) -> str:
        """The registry, for messages."""
        return f"schema registry {self.url}"


@dataclass(frozen=True)
class KafkaSpec:
    """Declared topics.

    Attributes:
        servers: host:port, separated by commas.
        topics, exclude: names and patterns.
        group: the consumer group that is told what is landed.
        start: where the first start begins in topics that exist by then.
        on_gap: what to do if the broker no longer has records that were not read.
        is_wrapped: whether records are landed with topic and key, as `format: debezium` reads them; else the value.
        registry: where the schemas of Avro and Protobuf are.
        settings: more settings for librdkafka, and those for security.
        rows: how many records one commit holds at most; None: the default.
        wait: seconds from one commit to the next, unless many records wait.
    """

    servers: str
    topics: tuple[str, ...]
    group: str
    exclude: tuple[str, ...] = ()
    start: Literal["earliest", "latest"] = "earliest"
    on_gap: Literal["stop", "continue"] = "stop"
    is_wrapped: bool = True
    registry: RegistrySpec | None = None
    settings: tuple[tuple[str, str | Secret], ...] = ()
    rows: int | None = None
    wait: float = thresholds.LIVE_COMMIT_SECONDS

    @property
    def where(self) -> str:
        """The cluster, for messages."""
        return f"Kafka {self.servers}"

    def librdkafka(self) -> Mapping[str, str]:
        """Return the declared settings, with their secrets.

        Raises:
            SourceError: the environment lacks a secret.
        """
        return {n: v.value(self.where, n) if isinstance(v, Secret) else v for n, v in self.settings}

    def names(self, topic: str) -> str | None:
        """Return the declared name or pattern that a topic matches; None if it is not read."""
        return matching(topic, self.topics, self.exclude)


def is_pattern(name: str) -> bool:
    """Whether a declared topic is a pattern."""
    return any(c in name for c in "*?[")


def matching(topic: str, declared: Iterable[str], exclude: Iterable[str] = ()) -> str | None:
    """Return the first declaration that a topic matches. No pattern matches Kafka's internal topics."""
    exact = [d for d in declared if d == topic]
    if exact:
        return exact[0]
    if topic.startswith("__") or any(fnmatch.fnmatchcase(topic, e) for e in exclude):
        return None
    return next((d for d in declared if is_pattern(d) and fnmatch.fnmatchcase(topic, d)), None)
