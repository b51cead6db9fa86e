"""Two lakes in one process over one Spark Connect server. Not a test: tests start it.

usage: two_lakes.py FOLDER PIPELINE

FOLDER holds the lakes `a` and `b`, each with its landing folder; PIPELINE is a YAML file. The lakes are run in turn, in
this thread and in one that has no session of its own. Exit code 1, and what failed on stderr, if a table failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.tables.spark_frames import checkpoint


def main() -> int:
    """Run both lakes, and keep rows of both at once."""
    folder, pipeline = Path(sys.argv[1]), Pipeline.load(sys.argv[2])
    lakes = [Lake(LakeConfig(home=folder / name)) for name in ("a", "b")]
    failed: list[str] = []

    def run(some: Sequence[Lake]) -> None:
        kept = [(lake, checkpoint(lake.spark().range(n, n + 3).toDF("n"))) for n, lake in enumerate(some)]
        for lake in some:
            failed.extend(f"{o.table} {o.error}" for o in pipeline.run(lake) if o.error)
        for n, (_, frame) in enumerate(kept):
            rows = [row.n for row in frame.collect()]
            failed.extend([f"kept rows of lake {n}: {rows}"] if rows != [n, n + 1, n + 2] else [])

    run(lakes)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, list(reversed(lakes))).result()
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
