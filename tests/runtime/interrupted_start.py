"""Interrupts itself while a JVM starts and prints how many child processes are left. Not a test: tests start it."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil

from lake_assets.runtime.jvm_launch import start_jvm


def interrupt():
    while not psutil.Process().children():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


# A shell lets the commands that it starts in the background ignore interrupts, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt, daemon=True).start()
try:
    start_jvm({"spark.master": "local[1]"})
except KeyboardInterrupt:
    print(len([c for c in psutil.Process().children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE]))
