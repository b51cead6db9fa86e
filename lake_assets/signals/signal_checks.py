"""Whether what a lake's settings declare as signals can be sent: packages, receivers, secrets. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lake_assets.errors import ConfigError, MissingPackageError
from lake_assets.lake import LakeConfig
from lake_assets.lake.signal_settings import AlertSettings, OpenLineageSettings
from lake_assets.signals.alerts.webhook import address


def signal_checks(config: LakeConfig) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each declared signal, and a function that returns what was found.

    The functions raise ConfigError (MissingPackageError) if something is wrong.
    """
    if (lineage := config.signals.openlineage) is not None:
        yield "signal: openlineage", lambda: _lineage(config, lineage)
    if (alerts := config.signals.alerts) is not None:
        yield "signal: alerts", lambda: _alerts(alerts)


def _lineage(config: LakeConfig, settings: OpenLineageSettings) -> str:
    try:
        from lake_assets.signals.lineage.lineage_client import client_of

        client = client_of(settings)
    except MissingPackageError:
        raise
    except ConfigError as e:
        raise ConfigError(config.hidden(str(e))) from None
    return config.hidden(f"transport {client.transport.kind}{f' to {settings.url}' if settings.url else ''}")


def _alerts(settings: AlertSettings) -> str:
    address(settings)  # which is a secret
    kinds = ", ".join(settings.kinds)
    return f"{kinds} to the webhook in {settings.webhook.env or settings.webhook.file}"
