"""Settings of Kafka topics as a live source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from lake_assets.pipeline.config.live_settings import Environment, LiveSettings
from lake_assets.pipeline.config.setting_types import Names, Strict, combination, seconds_of
from lake_assets.sources.kafka_spec import KafkaSpec, RegistrySpec, Secret

# Set by the product itself: another value would lose records, or repeat them.
_RESERVED = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\.(?!protocol).*|enable\.auto\..*|auto\.(offset|commit)\..*|"
    r"isolation\.level|enable\.partition\.eof|plugin\.library\.paths|.*_cb|stats_cb|logger"
)
_SECRET = re.compile(r".*(password|secret|key\.pem|oauthbearer\.config).*")
_SECRET_ADVICE = "a secret does not belong in a file: write {env: NAME} and set the variable NAME"


def _no_secret(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(_SECRET_ADVICE)
    return value


HiddenValue = Annotated[Environment | None, BeforeValidator(_no_secret)]


class KafkaSecurity(Strict):
    """How the brokers are reached, and who reads."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = Field(
        default=None, description="default: SASL_SSL with `mechanism`, else SSL with `ca` or `certificate`"
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="how `user` signs in; others, such as OAUTHBEARER, by `properties`"
    )
    user: str | None = Field(default=None, description="name under which `mechanism` signs in", min_length=1)
    password: HiddenValue = Field(default=None, description="{env: NAME}: the environment variable with it")
    ca: str | None = Field(default=None, description="file of certificates to trust; default: the system's")
    certificate: str | None = Field(default=None, description="file of the client's certificate")
    key: str | None = Field(default=None, description="file of the client's private key")
    key_password: HiddenValue = Field(default=None, description="{env: NAME}: the environment variable with it")

    @combination
    def _complete(self) -> Iterator[str]:
        if self.mechanism and not (self.user and self.password):
            yield "`mechanism` needs `user` and `password: {env: NAME}`"
        if (self.user or self.password) and not self.mechanism:
            yield "`user` and `password` need a `mechanism`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
        if bool(self.certificate) != bool(self.key):
            yield "`certificate` and `key` belong together"

    @property
    def settings(self) -> dict[str, str | Secret]:
        """The settings of librdkafka."""
        tls = bool(self.ca or self.certificate)
        guessed = "SASL_SSL" if self.mechanism else "SSL" if tls else "PLAINTEXT"
        found: dict[str, str | Secret | None] = {
            "security.protocol": self.protocol or guessed,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": Secret(self.password.env) if self.password else None,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": Secret(self.key_password.env) if self.key_password else None,
        }
        return {n: v for n, v in found.items() if v is not None}


class RegistrySettings(Strict):
    """A schema registry with Confluent's interface, for values in Avro or Protobuf."""

    url: str = Field(description="http(s)://host:port, with the path of that interface, if it has one")
    user: str = Field(default="", description="user of basic authentication")
    password: HiddenValue = Field(default=None, description="{env: NAME}: the environment variable with it")
    token: HiddenValue = Field(
        default=None, description="{env: NAME}: the variable with a bearer token, instead of a user"
    )
    ca: str = Field(default="", description="file of certificates to trust; default: the system's")

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.match(r"https?://[^/\s]+", value):
            raise ValueError(f"{value!r} is no address: write http://host:port or https://host:port")
        if "@" in value.split("/", 3)[2]:
            raise ValueError(_SECRET_ADVICE)
        return value.rstrip("/")

    @combination
    def _one_way(self) -> Iterator[str]:
        if bool(self.user) != bool(self.password):
            yield "`user` and `password: {env: NAME}` belong together"
        if self.user and self.token:
            yield "set `user` or `token`, not both"

    @property
    def spec(self) -> RegistrySpec:
        """The registry as plain values."""
        password, token = (Secret(s.env) if s else None for s in (self.password, self.token))
        return RegistrySpec(self.url, self.user, password, token, self.ca)


class KafkaSettings(LiveSettings):
    """Topics of Kafka, whose records are read as they arrive."""

    servers: Names = Field(
        description="host:port of one or several brokers, by which the others are found", min_length=1
    )
    topics: Names = Field(description="topics to read: names or patterns (shop.*)", min_length=1)
    exclude: Names = Field(default_factory=list, description="topics or patterns to leave out")
    group: str | None = Field(
        default=None,
        description="consumer group that is told what has landed, so that lag can be watched; default: "
        "lake_assets.<pipeline>.<stream>",
        min_length=1,
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="read all records at the first start, or only those that arrive from then on"
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="if the broker no longer has records that were not read: stop, or go on with those it has",
    )
    security: KafkaSecurity = Field(
        default_factory=KafkaSecurity, description="encryption and credentials; default: neither"
    )
    registry: RegistrySettings | None = Field(default=None, description="where the schemas of Avro and Protobuf are")
    properties: dict[str, str | Environment] = Field(
        default_factory=dict, description="more settings for librdkafka; {env: NAME} for secrets"
    )

    @field_validator("servers")
    @classmethod
    def _servers(cls, value: list[str]) -> list[str]:
        if wrong := [v for v in value if not re.fullmatch(r"[^:,\s/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", v)]:
            raise ValueError(f"{', '.join(map(repr, wrong))}: write host:port")
        return value

    @field_validator("topics")
    @classmethod
    def _topics(cls, value: list[str]) -> list[str]:
        if wrong := [v for v in value if not re.fullmatch(r"[\w.\-*?\[\]!]{1,249}", v)]:
            raise ValueError(f"{', '.join(map(repr, wrong))}: no name or pattern of a topic")
        return value

    @field_validator("properties")
    @classmethod
    def _free(cls, value: dict[str, str | Environment]) -> dict[str, str | Environment]:
        if reserved := [n for n in value if _RESERVED.fullmatch(n)]:
            raise ValueError(f"{', '.join(reserved)}: set by lake_assets itself")
        if secrets := [n for n, v in value.items() if _SECRET.fullmatch(n) and isinstance(v, str)]:
            raise ValueError(f"{', '.join(secrets)}: {_SECRET_ADVICE}")
        return value

    def spec(self, group: str, record_format: str, rows: int | None) -> KafkaSpec:
        """Return the declared topics as plain values.

        Args:
            group: the consumer group, if none is declared.
            record_format: the stream's format.
            rows: how many records one commit holds at most.
        """
        more = {n: v if isinstance(v, str) else Secret(v.env) for n, v in self.properties.items()}
        return KafkaSpec(
            servers=",".join(self.servers),
            topics=tuple(self.topics),
            group=self.group or group,
            exclude=tuple(self.exclude),
            start=self.start,
            on_gap=self.on_gap,
            is_wrapped=record_format == "debezium",
            registry=self.registry.spec if self.registry else None,
            settings=tuple(sorted((self.security.settings | more).items(), key=lambda s: s[0])),
            rows=rows,
            wait=seconds_of(self.max_wait),
        )
