"""Cost of audits before publishing: seconds per batch without audits, with one and with three.

    make bench-audits

Tables with equal rows and equal changes take turns: without audits, with a blocking `not_null` (which costs little more
than the branch), with a blocking `unique`, and with three blocking audits. The first batch with audits checks all rows
of its table, later ones only the rows that they wrote: both are reported. Filling staging is not timed.
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
from lake_assets.tables.audits.audit_kinds import AcceptedValues, Audit, NotNull, Unique

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
    parser.add_argument("--tables", type=int, default=3, help="tables of each kind")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per table")
    parser.add_argument("--changes", type=int, default=200, help="changes per batch")
    parser.add_argument("--batches", type=int, default=6, help="batches after the first one")
    args = parser.parse_args()
    choose = random.Random(1)
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="bench-audits-") as temp:
        lake = Lake(LakeConfig(home=Path(temp), spark=SparkConfig(driver_memory="4g")))
        # The first table of each kind only warms up, and is not measured.
        tables = {
            kind: [Table(lake, n * (args.tables + 1) + i, args.rows) for i in range(args.tables + 1)]
            for n, kind in enumerate(KINDS)
        }
        for batch in range(args.batches + 1):
            seed = choose.random()
            batch_seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for i in range(args.tables + 1):
                for kind, audits in KINDS.items():
                    tables[kind][i].change(args.changes, random.Random(seed + i))
                    step_seconds = absorbed(tables[kind][i], audits, ALL_ROWS if batch == 0 else WRITTEN)
                    if i:
                        batch_seconds[kind].append(step_seconds)
            for kind in KINDS:
                seconds[kind].append(batch_seconds[kind])
            print(f"batch {batch}: {sum(map(sum, batch_seconds.values())):.1f} s", file=sys.stderr, flush=True)
        lake.spark().stop()
    first = {kind: statistics.median(figures[0]) for kind, figures in seconds.items()}
    later = {kind: statistics.median(s for batch in figures[1:] for s in batch) for kind, figures in seconds.items()}
    print(f"{args.tables} tables of {args.rows:,} rows of each kind, batches of {args.changes:,} changes\n")
    print("| seconds per table (median) | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|")
    for what, figures in (("the first batch (audits check all rows)", first), ("later batches", later)):
        print(f"| {what} | " + " | ".join(f"{figures[kind]:.2f}" for kind in KINDS) + " |")
        base = figures["no audits"]
        print("| factor against no audits | " + " | ".join(f"{figures[kind] / base:.2f}" for kind in KINDS) + " |")
    return 0


def absorbed(table: Table, audits: tuple[Audit, ...], checked: str) -> float:
    """Absorb one batch of a table; return the seconds.

    Raises:
        AssertionError: the audits checked other rows than expected.
    """
    began = time.perf_counter()
    outcome = absorb(table.lake, replace(table.spec, audits=audits))
    took = time.perf_counter() - began
    assert outcome.status == "absorbed", outcome
    assert [(f.audit, f.passed, f.checked) for f in outcome.audits] == [(a.name, True, checked) for a in audits]
    return took


if __name__ == "__main__":
    sys.exit(main())
