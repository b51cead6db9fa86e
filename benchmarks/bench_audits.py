"""What audits before publishing cost a table: seconds a batch without them, with one, with three.

    make bench-audits

Tables of the same rows and the same changes, which take turns: without audits, with a blocking `not_null` (the
branch, and next to nothing to look at), with a blocking `unique`, and with three blocking ones. The first batch with
audits looks at all rows of its table, later ones at what they wrote: both are shown. Staging is filled beside the
clock.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench_cycle import Table

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.audits.audit_declarations import AcceptedValues, Audit, NotNull, Unique

UNIQUE, FILLED = Unique(name="unique"), NotNull(name="not_null_name", column="name")
LISTED = AcceptedValues(name="accepted_values_n", column="n", values=tuple(map(str, range(1000))))
KINDS: Mapping[str, tuple[Audit, ...]] = {
    "no audits": (),
    "not_null": (FILLED,),
    "unique": (UNIQUE,),
    "three": (UNIQUE, FILLED, LISTED),
}
ALL_ROWS, WRITTEN = "all rows", "rows that the batch wrote"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=3, help="of each kind")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a table")
    parser.add_argument("--changes", type=int, default=200, help="of a batch")
    parser.add_argument("--batches", type=int, default=6, help="after the first one")
    args = parser.parse_args()
    choose = random.Random(1)
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="bench-audits-") as temp:
        lake = Lake(LakeConfig(home=Path(temp), spark=SparkConfig(driver_memory="4g")))
        # One more of each kind than is measured: it warms up what the others then use.
        tables = {
            kind: [Table(lake, n * (args.tables + 1) + i, args.rows) for i in range(args.tables + 1)]
            for n, kind in enumerate(KINDS)
        }
        for batch in range(args.batches + 1):
            seed = choose.random()
            took: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for i in range(args.tables + 1):
                for kind, audits in KINDS.items():
                    tables[kind][i].change(args.changes, random.Random(seed + i))
                    one = absorbed(tables[kind][i], audits, ALL_ROWS if batch == 0 else WRITTEN)
                    if i:
                        took[kind].append(one)
            for kind in KINDS:
                seconds[kind].append(took[kind])
            print(f"batch {batch}: {sum(map(sum, took.values())):.1f} s", file=sys.stderr, flush=True)
        lake.spark().stop()
    first = {kind: statistics.median(found[0]) for kind, found in seconds.items()}
    later = {kind: statistics.median(s for batch in found[1:] for s in batch) for kind, found in seconds.items()}
    print(f"{args.tables} tables of {args.rows:,} rows of each kind, batches of {args.changes:,} changes\n")
    print("| seconds a table (median) | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|")
    for what, found in (("the first batch (audits look at all rows)", first), ("later batches", later)):
        print(f"| {what} | " + " | ".join(f"{found[kind]:.2f}" for kind in KINDS) + " |")
        base = found["no audits"]
        print("| times as long as without | " + " | ".join(f"{found[kind] / base:.2f}" for kind in KINDS) + " |")
    return 0


def absorbed(table: Table, audits: tuple[Audit, ...], checked: str) -> float:
    """Seconds of one batch of a table.

    Raises:
        AssertionError: its audits did not look at what is to be measured.
    """
    began = time.perf_counter()
    outcome = absorb(table.lake, replace(table.spec, audits=audits))
    took = time.perf_counter() - began
    assert outcome.status == "absorbed", outcome
    assert [(f.audit, f.passed, f.checked) for f in outcome.audits] == [(a.name, True, checked) for a in audits]
    return took


if __name__ == "__main__":
    sys.exit(main())
