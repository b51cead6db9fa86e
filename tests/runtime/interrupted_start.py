"""Interrupts itself at moments while a JVM starts, and prints how many other processes are left after each.

Not a test: tests start it, with a TMPDIR of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

from lake_assets.runtime.jvm_launch import start_jvm


def interrupt(delay: float) -> None:
    while not psutil.Process().children():
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)


def others() -> Iterator[psutil.Process]:
    """The running processes that have this one's TMPDIR, other than itself."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            mine = process.pid != os.getpid() and process.environ().get("TMPDIR") == os.environ["TMPDIR"]
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                yield process


# A shell lets the commands that it starts in the background ignore interrupts, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
for delay in (float(d) for d in sys.argv[1:]):
    threading.Thread(target=interrupt, args=(delay,), daemon=True).start()
    try:
        start_jvm({"spark.master": "local[1]"})
    except KeyboardInterrupt:
        left = list(others())
        print(len(left))
        if left:
            print(delay, left, file=sys.stderr)
