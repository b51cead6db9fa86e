"""A service that dies: `python -m tests.support.killed_service PIPELINE HOME SEED`.

It serves a pipeline, and kills its process without notice at a place and a time that the seed chooses: before or after
a commit of the catalog, or wherever it is after some milliseconds. With the seed -1 it lives until it is told to end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.service.live_service import serve


def main(file: str, home: str, seed: int) -> None:
    """Serve until something ends it."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if seed >= 0:
        _arm(random.Random(seed))
    serve(Lake(LakeConfig(home=Path(home))), Pipeline.load(file), stop)
    os._exit(0)


def _arm(chance: random.Random) -> None:
    place = chance.choice(("before", "after", "anywhere"))
    left = chance.randint(1, 6)
    if place == "anywhere":
        after = chance.uniform(0.05, 2.5)
        threading.Thread(target=lambda: (time.sleep(after), _die()), daemon=True).start()
        return
    commit = SqlCatalog.commit_table

    def committed(self: SqlCatalog, *arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and place == "before":
            _die()
        done = commit(self, *arguments, **more)
        if left == 0:
            _die()
        return done

    SqlCatalog.commit_table = committed


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
