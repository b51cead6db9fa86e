"""Messages of alerts, and their way to a webhook."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlparse

from lake_assets.errors import ConfigError, WebhookError
from lake_assets.lake import LakeBase
from lake_assets.lake.durations import in_words
from lake_assets.lake.signal_settings import AlertSettings
from lake_assets.signals.alerts.alert_memory import Alert

SETTING = "signals.alerts.webhook"
_TITLES = {
    "failed": "failed",
    "held": "a batch is held back",
    "lag": "is late",
    "rejected": "has too many rejects",
    "not_exact": "is not exact",
    "source": "is not fed",
    "silent": "is silent",
    "audit": "an audit warns",
    "disk": "has little room",
    "consumer": "a consumer has stopped",
}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address would be given what is meant for the declared one."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Refuse; see `HTTPRedirectHandler`."""
        del args, kwargs


_opener = urllib.request.build_opener(_NoRedirects)


def message(lake: LakeBase, alert: Alert, event: Literal["began", "ended"]) -> dict[str, Any]:
    """Return the message of an alert; docs/signals.md describes it."""
    condition = alert.condition
    ended = alert.ended if event == "ended" else None
    lasted = None if ended is None else max(0.0, ended - alert.began)
    colon = ":" if condition.kind in ("held", "audit", "consumer") else ""
    title = f"{condition.table}{colon} {_TITLES[condition.kind]}"
    over = "" if lasted is None else f"over after {in_words(lasted)}: "
    host, home = socket.gethostname(), str(lake.config.home)
    where = f"pipeline {condition.pipeline}; {host}:{home}" if condition.pipeline else f"{host}:{home}"
    text = f"{over}{title}: {condition.text} ({where})"
    return {
        "schema": 1,
        "text": lake.config.hidden(text),
        "event": event,
        "id": alert.id,
        "kind": condition.kind,
        "lake": lake.config.name,
        "host": host,
        "home": home,
        "pipeline": condition.pipeline,
        "table": condition.table,
        "consumer": condition.consumer,
        "detail": lake.config.hidden(condition.text),
        "value": condition.value,
        "limit": condition.limit,
        "began_at": _time(alert.began),
        "ended_at": None if ended is None else _time(ended),
        "seconds": lasted,
    }


def address(settings: AlertSettings) -> str:
    """Return the address of the webhook.

    Raises:
        ConfigError: it is missing, or no address of HTTP.
    """
    url = settings.webhook.value(SETTING)
    try:
        at = urlparse(url)
    except ValueError:
        at = urlparse("")
    if at.scheme not in ("http", "https") or not at.netloc:
        raise ConfigError(f"{SETTING}: what is there is no address that begins with https:// or http://")
    return url


def post(lake: LakeBase, url: str, content: dict[str, Any], seconds: float) -> None:
    """Send a message.

    Raises:
        WebhookError: it was not received.
    """
    request = urllib.request.Request(
        url,
        json.dumps(content).encode(),
        {"Content-Type": "application/json", "User-Agent": "lake-assets"},
        method="POST",
    )
    try:
        with _opener.open(request, timeout=seconds) as response:
            response.read(1)
    except urllib.error.HTTPError as e:
        with e:
            raise WebhookError(f"the receiver answers {e.code} {e.reason}") from None
    # The network; an address that cannot be one, whose error quotes it; an answer that is not HTTP.
    except (OSError, ValueError, http.client.HTTPException) as e:
        raise WebhookError(lake.config.hidden(f"the receiver is not reached: {e}")) from None


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
