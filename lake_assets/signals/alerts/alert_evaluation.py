"""Look at the tables, and tell what has begun to be wrong, and what has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from lake_assets.errors import ConfigError, LakeError, WebhookError
from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.signal_settings import ALERT_KINDS, AlertSettings
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.observed_steps import ObservedStep, StepEnd
from lake_assets.signals.alerts import alert_memory
from lake_assets.signals.alerts.alert_conditions import (
    Condition,
    Limits,
    conditions,
    conditions_without_tables,
)
from lake_assets.signals.alerts.alert_memory import Alert, Memory
from lake_assets.signals.alerts.webhook import address, message, post

log = logging.getLogger(__name__)
# What is looked for without settings.
_DEFAULTS = Limits(None, 0.01, ALERT_KINDS)


def limits_of(settings: AlertSettings | None) -> Limits:
    """Return the limits of settings, or the default."""
    if settings is None:
        return _DEFAULTS
    return Limits(settings.lag_seconds, settings.rejected_share, settings.kinds, settings.consumer_seconds)


def standing_now(lake: LakeBase, pipelines: Sequence[Pipeline]) -> list[tuple[Condition, float | None]]:
    """Return what is wrong now with all tables, each with the time since which that is remembered; change nothing."""
    found = conditions(lake, pipelines, limits_of(lake.config.signals.alerts), of_all=True)
    since = {a.condition.key: a.began for a in alert_memory.read(lake).alerts if a.ended is None}
    return [(c, since.get(c.key)) for c in found.conditions]


def evaluate(
    lake: LakeBase, pipelines: Sequence[Pipeline], *, every: float = 0.0, wait: float = 0.0, of_all: bool = False
) -> int:
    """Look at the tables of some pipelines, and tell what has changed; return the number of messages received.

    What is not received stays for the next look.

    Args:
        every: do nothing if the last look at all these pipelines is not so many seconds old.
        wait: seconds to wait for another process that is looking.
        of_all: see `conditions`.

    Raises:
        LakeError: the lake cannot be read, or the address is missing.
        WebhookError: a message was not received.
    """
    settings = lake.config.signals.alerts
    if settings is None:
        raise ConfigError("no alerts are declared: write `signals: {alerts: {webhook: {env: NAME}}}` in lake.yaml")
    url = address(settings)
    with alert_memory.locked(lake, wait) as is_held:
        if not is_held:
            log.info("alerts: another process is looking")
            return 0
        memory, now = alert_memory.read(lake), time.time()
        if every and all(0 <= now - memory.looked.get(p.name, 0.0) < every for p in pipelines):
            return 0
        try:
            found = conditions(lake, pipelines, limits_of(settings), of_all=of_all)
        except Exception:
            # On a full disk, a catalog may not be readable either.
            memory = alert_memory.after(memory, conditions_without_tables(lake, pipelines, limits_of(settings)), now)
            _send(lake, memory, url, settings.seconds)
            raise
        memory = alert_memory.after(memory, found, now)
        memory = replace(memory, looked={**memory.looked, **{p.name: now for p in pipelines}})
        alert_memory.write(lake, memory)
        return _send(lake, memory, url, settings.seconds)


def _send(lake: LakeBase, memory: Memory, url: str, seconds: float) -> int:
    """Send what has not been told, the oldest first, and remember each message that is received."""
    sent, until = 0, time.monotonic() + thresholds.ALERT_SENDING_SECONDS
    alerts = list(memory.alerts)
    for alert, event in list(_untold(alerts)):
        if time.monotonic() >= until:
            break
        post(lake, url, message(lake, alert, event), seconds)
        sent += 1
        at = next(n for n, a in enumerate(alerts) if a.id == alert.id)
        if event == "ended":
            del alerts[at]
        else:
            alerts[at] = replace(alerts[at], is_told=True)
        alert_memory.write(lake, replace(memory, alerts=alerts))
    return sent


def _untold(alerts: Sequence[Alert]) -> Iterator[tuple[Alert, Literal["began", "ended"]]]:
    for alert in alerts:
        if not alert.is_told:
            yield alert, "began"
        if alert.ended is not None:
            yield alert, "ended"


def try_evaluate(lake: LakeBase, pipelines: Sequence[Pipeline], *, every: float = 0.0, wait: float = 0.0) -> None:
    """Do what `evaluate` does, if alerts are declared; what fails is logged, and the next look tries again."""
    if lake.config.signals.alerts is None:
        return
    try:
        evaluate(lake, pipelines, every=every, wait=wait)
    except WebhookError as e:
        log.warning("alerts are sent again at the next look: %s", lake.config.hidden(str(e)))
    except LakeError as e:
        log.warning("alerts are not sent: %s", lake.config.hidden(str(e)))
    except Exception as e:  # of any kind: the run, or the tick, has an outcome of its own
        log.warning("alerts are not sent: %s", lake.config.hidden(f"{type(e).__name__}: {e}"))


class AlertObserver:
    """Looks at the tables of a pipeline when its run has ended."""

    def began(self, step: ObservedStep) -> None:
        """Do nothing: a failure is told once the run has ended."""
        del step

    def ended(self, step: ObservedStep, end: StepEnd) -> None:
        """Do nothing; see `began`."""
        del step, end

    def run_ended(self, lake: LakeBase, pipeline: Pipeline) -> None:
        """Look at the tables, and tell what has changed."""
        try_evaluate(lake, [pipeline], wait=thresholds.ALERT_SENDING_SECONDS)


ALERTS = AlertObserver()
