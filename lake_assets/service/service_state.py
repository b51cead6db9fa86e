"""The state of a service by stream, in files that `status` and Dagster read."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.counts import plural
from lake_assets.runtime.private_files import make_private
from lake_assets.runtime.processes import here, identity, is_there

_FOLDER = "live"
# starting: it looks at the server; reading: it is connected; paused: the lake cannot be written to; failed: the source
# cannot be read, and is tried again; ended: the service was told to end.
State = Literal["starting", "reading", "paused", "failed", "ended"]


@dataclass(frozen=True)
class StreamState:
    """How the service of a stream is.

    Attributes:
        raw: the raw table.
        state: what it is doing.
        since: when this state began, in seconds since 1970.
        at: when this was written.
        error: what went wrong, if it is paused or has failed.
        process: identity of the service's process.
        host: where the process is visible.
        records, commits: landed since the service started.
        records_a_second: over the last minute.
        committed: when the last commit was made; None: none yet.
        measures: what the source says.
        declared: fingerprint of what the service does.
        owner: the process with which the service ends; None: it was started by hand.
    """

    raw: str
    state: State
    since: float
    at: float
    error: str = ""
    process: tuple[int, float] = (0, 0.0)
    host: str = ""
    records: int = 0
    commits: int = 0
    records_a_second: float = 0.0
    committed: float | None = None
    measures: Mapping[str, object] = field(default_factory=dict[str, object])
    declared: str = ""
    owner: tuple[int, float] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the service is there: its process is, or another machine's has just written this."""
        if self.state == "ended":
            return False
        if self.host == here():
            return is_there(self.process)
        return time.time() - self.at < thresholds.LIVE_STATE_OLD_SECONDS

    @property
    def is_hanging(self) -> bool:
        """Whether the process is there, and has not written for long."""
        return self.is_alive and time.time() - self.at > thresholds.LIVE_STATE_OLD_SECONDS

    @property
    def is_well(self) -> bool:
        """Whether the source is read."""
        return self.is_alive and not self.is_hanging and self.state in ("starting", "reading")

    @property
    def text(self) -> str:
        """The state in one line."""
        if not self.is_alive:
            return "no service is running" if self.state == "ended" else "the service was killed, and none is running"
        if self.is_hanging:
            return f"the service (process {self.process[0]}) has not said anything for {time.time() - self.at:.0f} s"
        if self.error:
            return f"{self.state}: {self.error}"
        facts = [f"{self.records_a_second:,.0f} records/s"] if self.records_a_second >= 1 else []
        if snapshot := self.measures.get("snapshot"):
            facts.append(f"snapshot: {snapshot}")
        if isinstance(behind := self.measures.get("seconds_behind"), int | float) and behind >= 1:
            facts.append(f"{behind:,.0f} s behind")
        if isinstance(lag := self.measures.get("slot_lag_bytes"), int) and lag >= 1 << 20:
            facts.append(f"{lag / 2**20:,.0f} MiB of the log unread")
        if isinstance(lag := self.measures.get("lag"), int) and lag:
            facts.append(f"{plural(lag, 'record')} unread")
        if gaps := self.measures.get("gaps"):
            facts.append(f"records were lost, at last: {list(gaps)[-1] if isinstance(gaps, list) else gaps}")
        return ", ".join([self.state, *facts])


_JSON = TypeAdapter(StreamState)


def write(lake: LakeBase, state: StreamState) -> None:
    """Write a state; readers see the old one or the new one."""
    file = _file(lake, state.raw)
    make_private(file.parent)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(_JSON.dump_json(state))
    temporary.replace(file)


def of_this_process(raw: str, declared: str, owner: tuple[int, float] | None) -> StreamState:
    """Return the state of a service in this process, which starts."""
    now = time.time()
    return StreamState(raw, "starting", now, now, process=identity(), host=here(), declared=declared, owner=owner)


def read(lake: LakeBase, raw: str) -> StreamState | None:
    """Return the state of a stream's service; None: none has ever run in this lake's home."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # a file of another version is written anew
        return _JSON.validate_json(_file(lake, raw).read_bytes())
    return None


def of_all(lake: LakeBase) -> dict[str, StreamState]:
    """Return the states of all services that have ever run in this lake's home, by raw table."""
    folder = lake.config.home / _FOLDER
    names = sorted(f.stem for f in folder.glob("*.json")) if folder.exists() else []
    return {name: state for name in names if (state := read(lake, name)) is not None}


def request_snapshot(lake: LakeBase, raw: str, tables: Sequence[str]) -> None:
    """Ask the service of a stream, now or when it runs next, to read all rows of tables again."""
    folder = requests_folder(lake, raw)
    make_private(folder)
    name = f"{time.time_ns()}"
    temporary = folder / f".{name}"
    temporary.write_text(json.dumps(list(tables)), encoding="utf-8")
    temporary.rename(folder / f"{name}.json")


def lock_file(lake: LakeBase, raw: str) -> Path:
    """Return the file that the service of a stream locks."""
    file = _file(lake, raw).with_suffix(".lock")
    make_private(file.parent)
    return file


def requests_folder(lake: LakeBase, raw: str) -> Path:
    """Return the folder of requests to read tables again."""
    return _file(lake, raw).with_suffix(".requests")


def _file(lake: LakeBase, raw: str) -> Path:
    return lake.config.home / _FOLDER / f"{raw}.json"
