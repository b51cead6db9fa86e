"""What has been told: alerts in a file of the lake's home, so that processes and repeated looks tell each once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lake_assets.lake import LakeBase, thresholds
from lake_assets.runtime.private_files import write_private
from lake_assets.signals import file_lock
from lake_assets.signals.alerts.alert_conditions import Condition, Found

log = logging.getLogger(__name__)
_FOLDER, _FILE = "alerts", "alerts.json"


@dataclass(frozen=True)
class Alert:
    """A condition with its time, and how far it has been told.

    Attributes:
        began: seconds since 1970.
        ended: when it ended; None: it stands.
        is_told: whether the message of its beginning was received.
    """

    condition: Condition
    began: float
    ended: float | None = None
    is_told: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Memory:
    """What is remembered.

    Attributes:
        alerts: those that stand, and those whose end has not been told.
        looked: by pipeline, when its tables were looked at last.
    """

    alerts: Sequence[Alert] = ()
    looked: Mapping[str, float] = field(default_factory=dict[str, float])


def after(memory: Memory, found: Found, now: float) -> Memory:
    """Return what to remember after a look at the tables."""
    holds = {c.key: c for c in found.conditions}
    kept: list[Alert] = []
    for alert in memory.alerts:
        condition = alert.condition
        if alert.ended is None and (still := holds.pop(condition.key, None)) is not None:
            # A table or a disk may be another pipeline's now, whose looks see its end.
            alert = replace(alert, condition=replace(condition, pipeline=still.pipeline))
        elif alert.ended is None and found.has_ended(condition):
            alert = replace(alert, ended=now)
        kept.append(alert)
    return replace(memory, alerts=[*_few(kept), *(Alert(c, now) for c in holds.values())])


def _few(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts without the oldest of those that are over before anybody was told: a receiver may be away for
    ever."""
    over = [a.id for a in alerts if a.ended is not None and not a.is_told]
    dropped = frozenset(over[: -thresholds.SIGNAL_EVENTS])
    if dropped:
        log.warning("alerts: the %d oldest that nobody was told of, and that are over, are dropped", len(dropped))
    return [a for a in alerts if a.id not in dropped]


@contextlib.contextmanager
def locked(lake: LakeBase, seconds: float) -> Generator[bool]:
    """Hold the memory alone; enter with whether that was possible within some seconds.

    Where there can be no lock, as on a full disk, nobody is waited for: an alert is rather told twice than never.
    """
    with contextlib.ExitStack() as stack:
        try:
            is_held = stack.enter_context(file_lock.locked(_folder(lake), seconds))
        except OSError as e:
            log.warning("alerts: other processes may tell the same: %s", e)
            is_held = True
        yield is_held


def read(lake: LakeBase) -> Memory:
    """Return what is remembered; a file that cannot be read is put aside, and what stands is told again."""
    file = _folder(lake) / _FILE
    if file in _unwritten:
        return _unwritten[file]
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Memory([_alert(a) for a in stored["alerts"]], dict(stored["looked"]))
    except FileNotFoundError:
        return Memory()
    except (ValueError, TypeError, KeyError, AttributeError) as e:  # of another version, or cut by a full disk
        log.warning("%s cannot be read, and alerts that stand are sent again: %s", file, e)
        with contextlib.suppress(OSError):
            file.replace(file.with_suffix(".broken"))
        return Memory()


def write(lake: LakeBase, memory: Memory) -> None:
    """Remember; readers see what was remembered before, or this. What cannot be written, this process remembers."""
    file = _folder(lake) / _FILE
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    content = {"alerts": [asdict(a) for a in memory.alerts], "looked": dict(memory.looked)}
    try:
        write_private(partial, json.dumps(content))
        partial.replace(file)
    except OSError as e:
        log.warning("%s is not written, so other processes may tell the same again: %s", file, e)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        _unwritten[file] = memory
    else:
        _unwritten.pop(file, None)


def forget_unwritten() -> None:
    """Forget what could not be written, as a new process does."""
    _unwritten.clear()


# What could not be written, by file.
_unwritten: dict[Path, Memory] = {}


def _alert(stored: dict[str, Any]) -> Alert:
    condition = Condition(**stored.pop("condition"))
    return Alert(condition, **stored)


def _folder(lake: LakeBase) -> Path:
    return Path(lake.config.home) / _FOLDER
