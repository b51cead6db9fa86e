"""Borrows a JVM, prints its process, and evaluates the lines of its input. Not a test: tests start it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from lake_assets.runtime import warm_jvm

given = json.loads(sys.argv[1])
warm_jvm.keep(warm_jvm.Keeping(**given["keeping"]))
assert not eval(given["before"])
# What is evaluated may name them.
NAMES = {"json": json, "socket": socket, "warm_jvm": warm_jvm}
session = warm_jvm.session(given["conf"], Path(given["log"]))
jvm: Any = session.sparkContext._jvm
print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
