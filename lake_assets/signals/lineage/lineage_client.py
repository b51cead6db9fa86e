"""The client of OpenLineage by the lake's settings, or by the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lake_assets.errors import ConfigError, MissingPackageError
from lake_assets.lake.signal_settings import OpenLineageSettings

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from requests import Session

SETTING = "signals.openlineage"


def client_of(settings: OpenLineageSettings) -> OpenLineageClient:
    """Return the client.

    Raises:
        MissingPackageError: the package is not installed.
        ConfigError: the settings name no receiver, or the client refuses them.
    """
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport import get_default_factory
    except ImportError as e:
        raise MissingPackageError(
            f"{SETTING} needs a package that is not installed ({e.name}): `pip install 'lake-assets[openlineage]'`"
        ) from e
    transport = _transport(settings)
    try:
        if transport is not None:
            # Given as an object: the client would mix a declared transport with those of its files and variables.
            return OpenLineageClient(transport=get_default_factory().create(transport))
        client = OpenLineageClient()
    except Exception as e:  # the client and its transports raise errors of many kinds
        raise ConfigError(f"{SETTING}: the client refuses its settings: {type(e).__name__}: {e}") from e
    if client.transport.kind == "console":
        raise ConfigError(
            f"{SETTING} names no receiver: write `url` there, or set OPENLINEAGE_URL or OPENLINEAGE_CONFIG, as for any "
            "program with the client of OpenLineage"
        )
    return client


def _session() -> Session:
    """Return a session for one receiver. It looks up proxies, certificates and headers once: requests does so for each
    request."""
    from requests import PreparedRequest, Request, Session

    class OneReceiver(Session):
        environment: Mapping[str, Any] | None = None
        prepared: tuple[object, PreparedRequest] | None = None

        def merge_environment_settings(self, *args: Any, **named: Any) -> Any:
            if self.environment is None:
                self.environment = super().merge_environment_settings(*args, **named)
            return dict(self.environment)

        def prepare_request(self, request: Request) -> PreparedRequest:
            key = (request.method, request.url, sorted(request.headers.items()))
            if self.prepared is None or self.prepared[0] != key or self.cookies:
                self.prepared = key, super().prepare_request(request)
                return self.prepared[1]
            prepared = self.prepared[1].copy()
            prepared.prepare_body(request.data, None)
            return prepared

    return OneReceiver()


def _transport(settings: OpenLineageSettings) -> dict[str, Any] | None:
    if settings.transport is not None:
        return dict(settings.transport)
    if settings.url is None:
        return None
    # A receiver that is away is not asked again and again: the next event is the next try.
    transport: dict[str, Any] = {
        "type": "http", "url": settings.url, "timeout": settings.seconds,
        "retry": {"total": 0, "connect": 0, "read": 0}, "session": _session(),
    }  # fmt: skip
    if settings.api_key is not None:
        transport["auth"] = {"type": "api_key", "apiKey": settings.api_key.value(f"{SETTING}.api_key")}
    return transport
