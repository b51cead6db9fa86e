"""A stream that `lake-assets serve` reads from a MariaDB, in processes that tests kill, and what it has landed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from lake_assets import Lake, LakeConfig
from lake_assets.lake import thresholds
from lake_assets.service import service_state
from tests.support.mariadb_server import PASSWORD, USER, Server
from tests.support.processes import started

RAW = "raw.shop"


class Live:
    """The stream `shop` of a pipeline, with its lake."""

    def __init__(self, home: Path, server: Server) -> None:
        self.home, self.server, self.file = home, server, home / "pipeline.yaml"
        self.lake = Lake(LakeConfig(home=home))
        self.log = home / "serve.log"
        # The snapshot of the raw table that was read last, and its rows.
        self.read: tuple[int | None, list[dict[str, Any]]] = (None, [])
        home.mkdir(parents=True, exist_ok=True)

    def declare(self, tables: Sequence[object], **settings: object) -> None:
        """Write the pipeline; `settings` of its source."""
        source = {"port": self.server.port, "user": USER, "max_wait": 0.2, "heartbeat": 0.5, **settings}
        stream = {"name": "shop", "source": {"mariadb": source}, "tables": list(tables)}
        pipeline = {"type": "lake_assets.LakePipeline", "attributes": {"name": "shop", "streams": [stream]}}
        self.file.write_text(json.dumps(pipeline))

    @contextlib.contextmanager
    def serving(self) -> Generator[subprocess.Popen[bytes]]:
        """Run the service; it is killed at the end, at whatever it does."""
        command = [sys.executable, "-m", "lake_assets.cli", "serve", str(self.file)]
        with started(command, self.log, {"LAKE_HOME": str(self.home), "MYSQL_PWD": PASSWORD}) as process:
            yield process

    def state(self, process: subprocess.Popen[bytes]) -> service_state.StreamState | None:
        """What this very process says of itself."""
        state = service_state.read(self.lake, RAW)
        return state if state and state.process[0] == process.pid else None

    def wait(
        self,
        process: subprocess.Popen[bytes],
        done: Callable[[], Any],
        seconds: float = thresholds.LIVE_SNAPSHOT_SECONDS + 120,
        *,
        may_fail: bool = False,
    ) -> Any:
        """Wait until something is true; the end of the service is an error of the test, and so is a failure of its source."""
        deadline = time.monotonic() + seconds
        while not (result := done()):
            state = self.state(process)
            assert process.poll() is None, self.said()
            assert may_fail or state is None or state.state != "failed", state.error
            assert time.monotonic() < deadline, (state, self.said())
            time.sleep(0.3)
        return result

    def failure(self, process: subprocess.Popen[bytes], seconds: float = 180) -> str:
        """The error that the service says."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (state := self.state(process)) and state.state == "failed":
                return state.error
            time.sleep(0.1)
        raise AssertionError(self.said())

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def raw(self) -> Any:
        # Another process writes: nothing that was loaded before counts.
        return Lake(LakeConfig(home=self.home)).table(RAW)

    def records(self) -> list[dict[str, Any]]:
        """The landed records, lines about the schema left out, in their order."""
        return [r for r in self.rows() if r["source_file"] == "live"]

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the raw table."""
        if not Lake(LakeConfig(home=self.home)).exists(RAW):
            return []
        raw = self.raw()
        if raw.metadata.current_snapshot_id != self.read[0]:
            rows = sorted(raw.scan().to_arrow().to_pylist(), key=lambda r: r["position"])
            self.read = (raw.metadata.current_snapshot_id, rows)
        return self.read[1]

    def events(self) -> list[dict[str, Any]]:
        """The changes that are landed."""
        return [e for r in self.records() if "op" in (e := payload(r["record"]))]

    def ops(self, table: str) -> Counter[str]:
        return Counter(e["op"] for e in self.events() if e["source"]["table"] == table)

    def has(self, table: str, **counts: int) -> Callable[[], bool]:
        """Whether so many events of each kind are landed."""
        return lambda: all(self.ops(table)[op] >= n for op, n in counts.items())

    def marked(self, number: int) -> Callable[[], bool]:
        """Whether a row of the table `marks` is landed, which was the last statement."""
        return lambda: any(
            e["source"]["table"] == "marks" and e["op"] in "cr" and e["after"]["id"] == number for e in self.events()
        )


def payload(record: str) -> dict[str, Any]:
    value = json.loads(record).get("value") or {}
    return value.get("payload", value)
