"""Runs a pipeline and kills its own process at a given point. Not a test: `test_killed_runs.py` starts it.

usage: killed_run.py HOME STATEMENT WHEN [NTH] [PIPELINE]

STATEMENT is what a SQL statement must contain (or `land`, for the commit of a landing, `publish`, for the commit that
moves main to a branch, or `write NAME`, for that method of a DataFrame's writer); WHEN is `before`, `during` or `after` it; NTH counts the statements that contain it, from 1;
PIPELINE is a YAML file, by default the shop's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.table import Transaction
from pyspark.sql import DataFrameWriterV2, SparkSession

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.examples import shop
from lake_assets.lake import SparkConfig, thresholds
from lake_assets.lake.metadata import refs
from tests.support.lakes import SHORT_JVM, SMALL

# Half a statement's usual time: the JVM is writing files, or about to commit.
DURING_SECONDS = 0.2


def die() -> None:
    """What nobody can catch."""
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(call: Callable[..., Any], matches: Callable[..., bool], when: str, nth: int) -> Callable[..., Any]:
    """`call`, which ends the process at its nth match."""
    seen = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += matches(*args)
        if seen != nth or not matches(*args):
            return call(*args, **kwargs)
        if when == "before":
            die()
        if when == "during":
            threading.Timer(DURING_SECONDS, die).start()
        result = call(*args, **kwargs)
        die()
        return result

    return wrapped


def main() -> None:
    """Run until killed."""
    home, statement, when = sys.argv[1:4]
    nth = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    if statement == "land":
        Transaction.commit_transaction = deadly(Transaction.commit_transaction, lambda *_: True, when, nth)  # type: ignore[method-assign]
    elif statement == "publish":
        refs.publish = deadly(refs.publish, lambda *_: True, when, nth)
    elif statement.startswith("write "):
        name = statement.removeprefix("write ")
        setattr(DataFrameWriterV2, name, deadly(getattr(DataFrameWriterV2, name), lambda *_: True, when, nth))
    else:
        if statement == "MERGE INTO":
            thresholds.POSITION_VALUES = 0  # few rows are merged by position, without a statement
        SparkSession.sql = deadly(SparkSession.sql, lambda _, text: statement in text, when, nth)  # type: ignore[method-assign]
    lake = Lake(
        LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="1g", master="local[2]", conf=SMALL | SHORT_JVM))
    )
    pipeline = sys.argv[5] if len(sys.argv) > 5 else shop.PIPELINE
    for outcome in Pipeline.load(pipeline).run(lake):
        print(outcome.table, outcome.status, outcome.error or "")


if __name__ == "__main__":
    main()
