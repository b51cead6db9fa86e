"""Runs a pipeline once, in a process of its own. Not a test: tests start it.

usage: run_pipeline.py HOME PIPELINE [START]

HOME is the lake's folder, PIPELINE a YAML file. With START, a file, the run begins when that file is there: so several
runs begin at once. Everything else comes from the environment. Exit code 1, and what failed on stderr, if a table
failed for good.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from lake_assets import Lake, LakeConfig, Pipeline


def main() -> int:
    """Open the lake, wait for the start, run."""
    lake = Lake(LakeConfig(home=Path(sys.argv[1])))
    pipeline = Pipeline.load(sys.argv[2])
    lake.spark().sql("SELECT 1").collect()
    if len(sys.argv) > 3:
        start = Path(sys.argv[3])
        start.with_name(f"{start.name}.ready{os.getpid()}").touch()
        while not start.exists():
            time.sleep(0.01)
    failed = [o for o in pipeline.run(lake) if o.error]
    for outcome in failed:
        print(outcome.table, outcome.error, file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
