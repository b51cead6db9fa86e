"""Start of a cold Spark, with a class archive and without: a process that opens a lake and writes its first table.

    make bench-cold_start

The two ways alternate. Seconds are of the whole process, Python's imports included. The archive is written first (in
the cache of jars) if there is none; how long that takes is printed, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Required, show

from lake_assets.lake import LakeConfig
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.class_archive import class_archive, write_class_archive
from lake_assets.runtime.jars import resolve

REQUIRED: dict[str, Required] = {"with archive / without, seconds": ("at most", 0.85)}
# The cold start of `lake-assets run`: one SELECT, and one table with one row.
PROGRAM = """
import sys
from lake_assets.lake import spark_session
if sys.argv[1] == "without":
    spark_session.archive_options = lambda jars: ""
from lake_assets import Lake
lake = Lake.load()
lake.ensure_namespace(("final",))
lake.spark().sql("CREATE TABLE final.t USING iceberg AS SELECT 1 AS id")
"""


def seconds(way: str) -> float:
    """Run the program in a new lake; return its seconds."""
    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        env = {**os.environ, "LAKE_HOME": home}
        subprocess.run([sys.executable, "-c", PROGRAM, way], env=env, check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    """Print medians of both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    figures: dict[str, float | str] = {}
    jars = resolve(packages(LakeConfig(home=Path("lake"))))
    if class_archive(jars) is None:
        began = time.perf_counter()
        write_class_archive(jars)
        figures["writing the archive, seconds"] = time.perf_counter() - began
    pairs = [(seconds("with"), seconds("without")) for _ in range(rounds + 1)][1:]
    figures["without archive, seconds"] = statistics.median(b for _, b in pairs)
    figures["with archive, seconds"] = statistics.median(a for a, _ in pairs)
    figures["with archive / without, seconds"] = statistics.median(a / b for a, b in pairs)
    sys.exit(show(figures, REQUIRED))


if __name__ == "__main__":
    main()
