"""The service of one stream: it reads the source, lands its records, and starts again whenever that fails."""

from __future__ import annotations

import fcntl
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lake_assets.errors import ConcurrentWriteError, LakeError, RejectedLimitError, SourceError, SourceUnavailableError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.live_landing import LiveLanding
from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.pipeline.sensitive_steps import error_without_values
from lake_assets.service import service_state
from lake_assets.service.service_state import State, StreamState
from lake_assets.sources.live_source import LiveSource, Progress, RowLoad, Stopped

log = logging.getLogger(__name__)


class StreamService:
    """Reads one live source until it is stopped; one at a time per stream and lake."""

    def __init__(
        self,
        lake: LakeBase,
        spec: RawSpec,
        source: LiveSource,
        stop: threading.Event,
        state: StreamState,
        name: str,
    ) -> None:
        self.lake, self.spec, self.source, self.stop, self.state = lake, spec, source, stop, state
        self.landing = LiveLanding(lake, spec, name)
        # When commits were made, and of how many records.
        self._recent: deque[tuple[float, int]] = deque()
        self._requested: set[Path] = set()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Read and land until `stop` is set.

        Raises:
            SourceError: another service of the stream is running in this lake's home.
        """
        with service_state.lock_file(self.lake, str(self.spec.table)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                there = service_state.read(self.lake, str(self.spec.table))
                pid = f" (process {there.process[0]})" if there else ""
                raise SourceError(
                    f"{self.spec.table}: another service{pid} reads its source already. End it first, or leave it"
                ) from None
            writer = threading.Thread(target=self._write_states, name=f"state of {self.spec.table}", daemon=True)
            writer.start()
            try:
                self._read_until_stopped()
            finally:
                self.stop.set()
                writer.join(10)
                self._say("ended")
                self._write()

    def _read_until_stopped(self) -> None:
        pause = thresholds.LIVE_RETRY_SECONDS
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                self._say("starting")
                progress = Progress(self.landing.start(), self.landing.history, self.landing.one_of_each)
                self.source.check(progress.offset)
                self._say("reading")
                self.source.run(progress, self._land, self.stop)
            except Stopped:
                return
            except Exception as e:  # of any kind: a service goes on, and says what is wrong
                told = error_without_values(self.lake, self.spec, e)
                self._say("failed", _text(self.lake, told))
                log.warning("%s: %s", self.spec.table, self.state.error, exc_info=not isinstance(told, LakeError))
            # One that has worked for a while starts again at once.
            if time.monotonic() - began > 2 * thresholds.LIVE_RETRY_MOST_SECONDS:
                pause = thresholds.LIVE_RETRY_SECONDS
            self.stop.wait(pause)
            pause = min(2 * pause, thresholds.LIVE_RETRY_MOST_SECONDS)

    def _land(self, records: Sequence[bytes] | RowLoad, offset: Any, history: Sequence[bytes] = ()) -> None:
        """See `Land`: a lake that cannot be written to is tried again, while the source waits."""
        pause = thresholds.LIVE_RETRY_SECONDS
        while True:
            try:
                with named_errors(self.spec.table):
                    landed = self.landing.land(records, offset, history)
                break
            except (SourceError, SourceUnavailableError, RejectedLimitError, Stopped):
                raise
            except ConcurrentWriteError:  # upkeep, or a replay of rejects: the next try sees their commit
                if self.stop.is_set():
                    raise Stopped from None
                continue
            except Exception as e:  # a full disk, a catalog that is away, ...: of many kinds
                self._say("paused", _text(self.lake, error_without_values(self.lake, self.spec, e)))
                log.warning("%s: %s", self.spec.table, self.state.error)
            if self.stop.wait(pause):
                raise Stopped
            pause = min(2 * pause, thresholds.LIVE_RETRY_MOST_SECONDS)
        with self._lock:
            count = landed.records if landed else 0
            self._recent.append((time.time(), count))
            self.state = replace(
                self.state,
                records=self.state.records + count,
                commits=self.state.commits + 1,
                committed=time.time(),
            )
        self._say("reading")

    def _say(self, state: State, error: str = "") -> None:
        with self._lock:
            if (self.state.state, self.state.error) != (state, error):
                self.state = replace(self.state, state=state, error=error, since=time.time())

    def _write_states(self) -> None:
        while True:
            self._take_requests()
            self._write()
            if self.stop.wait(thresholds.LIVE_STATE_SECONDS):
                return

    def _write(self) -> None:
        try:
            measures = self.source.measures()
        except Exception as e:  # Java's, or a driver's: `status` does without
            log.warning("%s: how its source is cannot be told: %s", self.spec.table, _text(self.lake, e))
            measures: Mapping[str, object] = {"source": "not known"}
        with self._lock:
            now = time.time()
            while self._recent and self._recent[0][0] < now - 60:
                self._recent.popleft()
            rate = sum(n for _, n in self._recent) / 60
            self.state = replace(self.state, at=now, records_a_second=round(rate, 1), measures=measures)
        try:
            service_state.write(self.lake, self.state)
        except OSError as e:  # the disk is full, or the folder is gone: the service does not depend on it
            log.warning("the state of %s cannot be written: %s", self.spec.table, e)

    def _take_requests(self) -> None:
        folder = service_state.requests_folder(self.lake, str(self.spec.table))
        for file in sorted(folder.glob("*.json")) if folder.exists() else ():
            if file in self._requested:
                continue
            self._requested.add(file)
            try:
                # The request stays until its snapshot has begun: a service that is killed earlier makes it again.
                self.source.request(json.loads(file.read_text("utf-8")), partial(file.unlink, missing_ok=True))
            except SourceError as e:
                log.warning("%s: %s", self.spec.table, e)
                file.unlink(missing_ok=True)


def _text(lake: LakeBase, error: Exception) -> str:
    return lake.config.hidden(str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {error}")
