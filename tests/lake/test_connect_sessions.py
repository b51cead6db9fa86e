"""A command over Spark Connect ends when it has printed everything, whatever threads of the client wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from lake_assets.lake import connect_sessions

WAITING = """
import atexit, sys, threading
from lake_assets import cli
from lake_assets.lake import connect_sessions

class Session:
    def stop(self):
        print("stopped", flush=True)
        if {hangs}:
            threading.Event().wait()

connect_sessions.ends_with_process(Session())
connect_sessions.thresholds.CONNECT_END_SECONDS = 0.2
connect_sessions.end_all.__defaults__ = (0.2,)
threading.Thread(target=threading.Event().wait).start()  # as Python's end would wait for it
atexit.register(lambda: print("exit functions", flush=True))
sys.argv = ["lake-assets", *{words}]
cli.main()
"""


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), pytest.param(["no-such-command"], 2, marks=pytest.mark.long)]
)
def test_a_process_ends_although_its_session_and_a_thread_do_not(words: list[str], code: int) -> None:
    text = WAITING.format(hangs=code == 0, words=words)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "stopped" in done.stdout
    assert "exit functions" in done.stdout


def test_sessions_are_stopped_once_and_errors_of_a_server_that_is_gone_do_not_matter() -> None:
    stopped: list[int] = []

    class Session:
        def __init__(self, number: int, *, hangs: bool = False) -> None:
            self.number, self.hangs, self.client = number, hangs, self

        def set_retry_policies(self, policies: list[Any]) -> None:
            assert policies == []

        def stop(self) -> None:
            if self.hangs:
                threading.Event().wait(5)
            stopped.append(self.number)
            raise ConnectionError

    for n in range(2):
        connect_sessions.ends_with_process(Session(n))  # pyright: ignore[reportArgumentType]
    assert connect_sessions.end_all()
    assert connect_sessions.end_all()
    assert stopped == [0, 1]
    connect_sessions.ends_with_process(Session(2, hangs=True))  # pyright: ignore[reportArgumentType]
    began = time.monotonic()
    assert not connect_sessions.end_all(0.05)
    assert time.monotonic() - began < 4
    assert not connect_sessions.are_open()
