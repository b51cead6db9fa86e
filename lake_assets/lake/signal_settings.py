"""Settings of what a lake tells other systems: events, alerts, freshness. All of it is off by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlparse

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lake_assets.errors import ConfigError
from lake_assets.lake.paths import LocalPath
from lake_assets.lake.redaction import hide, secrets_in
from lake_assets.lake.setting_values import seconds_of, share_of

AlertKind = Literal["failed", "held", "lag", "rejected", "not_exact", "source", "silent", "audit", "disk", "consumer"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
# A path of fewer characters is no secret, and may occur in any text.
_SHORT = 8


def _limits(value: str | float) -> str | float:
    if not seconds_of(value):
        raise ValueError(f"{value!r} is no time at all: write 30s, 5m, 1h or 7d")
    return value


def _shares(value: str | float) -> str | float:
    share_of(value)
    return value


def _flags(value: object) -> object:
    """Read `true` as settings that all have their default, and `false` as none."""
    return {True: {}, False: None}.get(value, value) if isinstance(value, bool) else value


def _place(value: object) -> object:
    if isinstance(value, str):  # which no message may show
        raise ValueError("a secret does not belong here: name its place, as {env: VARIABLE} or {file: PATH}")
    return value


_Seconds = Annotated[str | float, AfterValidator(_limits)]


class _Settings(BaseModel):
    """Settings that reject unknown names."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class SecretPlace(_Settings):
    """Where a secret is, which no setting holds: an environment variable, or a file."""

    env: str | None = Field(default=None, description="name of the environment variable", pattern=r"^\w+$")
    file: LocalPath | None = Field(default=None, description="file that holds nothing else")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("name the place of the secret: {env: VARIABLE} or {file: PATH}")
        return self

    @property
    def found(self) -> str | None:
        """The secret; None: there is none."""
        if self.env is not None:
            return os.environ.get(self.env, "").strip() or None
        assert self.file is not None
        try:
            return self.file.expanduser().read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def value(self, setting: str) -> str:
        """Return the secret.

        Raises:
            ConfigError: there is none; names the setting and the place.
        """
        if (found := self.found) is None:
            where = f"the environment variable {self.env} is not set" if self.env else f"{self.file} cannot be read"
            raise ConfigError(f"{setting}: {where}. Put the value there, where Dagster and `lake-assets` run")
        return found


_Secret = Annotated[SecretPlace, BeforeValidator(_place)]


class OpenLineageSettings(_Settings):
    """Events of steps for a receiver of OpenLineage. Without `url` or `transport`, the client's own settings count."""

    namespace: str | None = Field(default=None, description="namespace of jobs; default: the name of the catalog")
    url: str | None = Field(default=None, description="receiver, such as http://127.0.0.1:5000")
    api_key: _Secret | None = Field(default=None, description="with url: {env: NAME}, the place of the API key")
    timeout: _Seconds = Field(default=2.0, description="with url: how long one event may take (2, 5s)")
    transport: dict[str, Any] | None = Field(
        default=None, description="instead of url: any transport of the client, by its own names"
    )

    @model_validator(mode="after")
    def _one_receiver(self) -> Self:
        if self.url is not None and self.transport is not None:
            raise ValueError("the receiver is `url`, or a `transport` of the client: not both")
        if self.url is not None and urlparse(self.url).scheme not in ("http", "https"):
            raise ValueError("url: write an address such as http://127.0.0.1:5000")
        if self.api_key is not None and self.url is None:
            raise ValueError("`api_key` goes with `url`; the client's own settings have OPENLINEAGE_API_KEY")
        if self.transport is not None and not isinstance(self.transport.get("type"), str):
            raise ValueError("transport: it needs a `type`, such as http, kafka or file")
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the settings without secrets, for `repr` (a hook of pydantic)."""
        return ((name, hide(value, name or "")) for name, value in super().__repr_args__())

    @property
    def seconds(self) -> float:
        """`timeout` in seconds."""
        return seconds_of(self.timeout)


class AlertSettings(_Settings):
    """Messages to a webhook: one when something begins to be wrong, one when it ends."""

    webhook: _Secret = Field(description="{env: NAME}: the place of the address, which is a secret")
    kinds: list[AlertKind] = Field(default=list(ALERT_KINDS), description="what to tell of; default: everything")
    lag: _Seconds | None = Field(
        default=None, description="how old pending changes may be, for tables without a target of their own (15m)"
    )
    rejected: Annotated[str | float, AfterValidator(_shares)] = Field(
        default="1%", description="share of a stream's records of the last day that may be rejected"
    )
    consumer: _Seconds | None = Field(
        default=None,
        description="how long changes may wait for a consumer (1d); default: half of the `dead_after` of upkeep",
    )
    timeout: _Seconds = Field(default=5.0, description="how long one message may take (5, 5s)")

    @property
    def consumer_seconds(self) -> float | None:
        """`consumer` in seconds."""
        return None if self.consumer is None else seconds_of(self.consumer)

    @property
    def lag_seconds(self) -> float | None:
        """`lag` in seconds."""
        return None if self.lag is None else seconds_of(self.lag)

    @property
    def rejected_share(self) -> float:
        """`rejected` as a number up to 1."""
        return share_of(self.rejected)

    @property
    def seconds(self) -> float:
        """`timeout` in seconds."""
        return seconds_of(self.timeout)


class SignalSettings(_Settings):
    """What a lake tells other systems (docs/signals.md)."""

    openlineage: Annotated[OpenLineageSettings | None, BeforeValidator(_flags)] = Field(
        default=None, description="events of steps for a receiver of OpenLineage"
    )
    alerts: AlertSettings | None = Field(default=None, description="messages to a webhook")
    refresh_state: bool = Field(
        default=False,
        description="whether commits of models name the snapshots of their sources as Iceberg's draft for materialized "
        "views does",
    )

    @property
    def secrets(self) -> set[str]:
        """The secret values, with the part of an address that errors show by itself."""
        found: set[str] = set()
        if self.openlineage is not None:
            key = self.openlineage.api_key.found if self.openlineage.api_key else None
            found |= {
                *secrets_in(self.openlineage.transport),
                *secrets_in(self.openlineage.url),
                *([key] if key else []),
            }
        if self.alerts is not None and (url := self.alerts.webhook.found):
            found |= {url, *_secret_part(url)}
        return found


def _secret_part(url: str) -> Iterator[str]:
    """Yield path and parameters of an address, in which webhooks have their secret."""
    try:
        at = urlparse(url)
    except ValueError:
        return
    path = at._replace(scheme="", netloc="", fragment="").geturl()
    yield from (p for p in (path, path.lstrip("/"), at.path.strip("/")) if len(p) >= _SHORT)
