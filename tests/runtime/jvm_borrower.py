"""Borrows a JVM, prints its process, and evaluates the lines of its input. Not a test: tests start it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from lake_assets.runtime import warm_jvm

given = json.loads(sys.argv[1])
warm_jvm.keep(warm_jvm.KeeperSettings(**given["keeping"]))
names: dict[str, Any] = {"json": json, "socket": socket, "warm_jvm": warm_jvm}
assert not eval(given["before"], names)
session = warm_jvm.session(given["conf"], Path(given["log"]))
names |= {"session": session, "jvm": session.sparkContext._jvm}
jvm: Any = session.sparkContext._jvm
print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line, names)), flush=True)
