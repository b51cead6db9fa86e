"""A warehouse like that of TPC-DI: 55 views over staged batches, each maintained against computed in full.

    make bench-tpcdi
    make bench-tpcdi ARGS="--scale 0.1"

The sources (`benchmarks/tpcdi`) are generated: batch 1 holds the history, batches 2 and 3 one day each. Their sizes are
in proportion to the scale, about as in TPC-DI: at scale 3, 390,000 trades, 930,000 states of trades, 1.6 million market
prices, 15,000 customers, 30,000 accounts, 15,000 prospects. A later batch appends 900 new trades with the states that
follow, a price of each security, cash transactions, holdings, watches, customers and accounts (inserts and updates,
with a CDC flag), and replaces Prospect as a whole: 3 % of its rows differ.

It differs from TPC-DI: values are hashes, without its errors in the data. CustomerMgmt is flat instead of XML. Finwire
begins in 2000, market prices in 2015. A new trade's states are days or minutes apart. Keys of dimensions are hashes
instead of numbers. Prospect holds no batch of its first appearance. The views are our own SQL. No result is comparable
with published ones of TPC-DI.

How it is measured, for each of the batches 2 and 3:

- incremental: one run of the pipeline, which absorbs the batch; seconds of a view are those of its step. The total is
  the time of the whole run.
- full: after the run, Spark writes each view's SELECT over the same tables (`CREATE OR REPLACE TABLE ... AS`), one
  after the other. The tables that a view reads are the maintained ones.
- Each is measured once per batch. Before that, both sides have run all batches over a lake of a smaller scale, and
  batch 1 over the measured one (the pipeline builds every view, then Spark writes each in full); these are discarded.

After each batch, `verify` compares every view with its query; a difference ends the benchmark with exit code 1. Rows
read are those of Spark's tasks, bytes read those of both processes (data, metadata, shuffles); written ones are those
of the commit, with deleted positions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import Required, show
from tpcdi.metering import Meter, Volume, written
from tpcdi.sizes import BATCHES, Sizes
from tpcdi.sources import load
from tpcdi.views import KEYS, VIEWS

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig, quote
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import verify
from lake_assets.tables.outcome import Outcome

NOTICEABLE = 0.5  # seconds: views that take less on both sides are not compared
WARM_SCALE = 0.05
WORST = f"worst view of those where a side takes more than {NOTICEABLE} s: incremental / full"
TOTAL = "total: incremental / full"
REQUIRED: dict[str, Required] = {
    **{f"batch {b}, {TOTAL}": ("at most", 0.4) for b in BATCHES[1:]},
    **{f"batch {b}, {WORST}": ("at most", 1.1) for b in BATCHES[1:]},
}


@dataclass(frozen=True)
class Measured:
    """One view in one batch, maintained and in full."""

    outcome: Outcome
    read: Volume
    written: Volume
    full_seconds: float
    full_read: Volume
    full_written: Volume

    @property
    def ratio(self) -> float:
        """Seconds of the step against those in full."""
        return self.outcome.seconds / self.full_seconds

    @property
    def is_noticeable(self) -> bool:
        """Whether a side takes long enough to be compared."""
        return max(self.outcome.seconds, self.full_seconds) > NOTICEABLE


@dataclass(frozen=True)
class Batch:
    """One batch: its views, and the seconds of the pipeline's whole run."""

    views: dict[str, Measured]
    seconds: float


class Warehouse:
    """The views over one lake."""

    def __init__(self, lake: Lake, sizes: Sizes) -> None:
        self.lake, self.sizes = lake, sizes
        models = [{"name": name, "sql": sql, "key": KEYS.get(name, [])} for name, sql in VIEWS.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "tpcdi", "models": models}))
        self.meter = Meter(lake.spark())
        lake.ensure_namespace(("bench_full",))

    def _snapshots(self) -> dict[str, int | None]:
        found = {name: self.lake.find(name) for name in VIEWS}
        return {name: t.metadata.current_snapshot_id if t else None for name, t in found.items()}

    def batch(self, number: int) -> Batch:
        """Load a batch, absorb it, and write every view in full."""
        rows = load(self.lake, self.sizes, number)
        say(f"batch {number}: {sum(rows.values()):,} rows; " + ", ".join(f"{t} {n:,}" for t, n in rows.items() if n))
        before = self._snapshots()
        outcomes, reads, seconds = self._absorb()
        views: dict[str, Measured] = {}
        for name, outcome in outcomes.items():
            new = written(self.lake, name, before[name])
            full, full_read = self._write(name)
            table = f"bench_full.{name.replace('.', '_')}"
            views[name] = Measured(outcome, reads[name], new, full, full_read, written(self.lake, table, None))
        return Batch(views, seconds)

    def _absorb(self) -> tuple[dict[str, Outcome], dict[str, Volume], float]:
        """Run the pipeline; return outcomes, what each step read, and the seconds of the run."""
        outcomes: dict[str, Outcome] = {}
        reads: dict[str, Volume] = {}
        looking = 0.0

        def look(outcome: Outcome) -> None:
            nonlocal looking
            began = time.perf_counter()
            outcomes[outcome.table], reads[outcome.table] = outcome, self.meter.read()
            looking += time.perf_counter() - began

        self.meter.read()
        began = time.perf_counter()
        self.pipeline.run(self.lake, on_outcome=look)
        seconds = time.perf_counter() - began - looking
        for outcome in outcomes.values():
            if outcome.exception:
                raise outcome.exception
        return outcomes, reads, seconds

    def _write(self, name: str) -> tuple[float, Volume]:
        """Write a view in full; return the seconds, and what was read."""
        self.meter.read()
        began = time.perf_counter()
        self.lake.spark().sql(
            f"CREATE OR REPLACE TABLE bench_full.{name.replace('.', '_')} USING iceberg AS {VIEWS[name]}"
        )
        return time.perf_counter() - began, self.meter.read()

    def check(self) -> list[str]:
        """Compare every view with its query; return the differences."""
        differences: list[str] = []
        for spec in (s for s in self.pipeline.specs(self.lake) if isinstance(s, ModelSpec)):
            found = verify(self.lake, spec)
            if not found.equal:
                rows = "\n  ".join(map(str, found.differences[:3]))
                differences.append(f"{spec.table}: {found.different:,} of {found.expected:,} rows differ\n  {rows}")
        return differences


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def lake_at(home: Path, heap: str, conf: dict[str, str]) -> Generator[Lake]:
    """Give a lake in a folder, of which unqualified names are."""
    home.mkdir(parents=True, exist_ok=True)
    lake = Lake(LakeConfig(home=home, spark=SparkConfig(driver_memory=heap, conf=conf)))
    lake.spark().sql(f"USE {quote(lake.config.name)}")
    yield lake


def table_of(batch: Batch) -> Iterator[str]:
    """Yield the lines of the table of a batch."""
    yield (
        "| view | strategy | rows changed | incremental, s | full, s | ratio | rows / MB read | in full "
        "| rows / MB written | in full |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, m in batch.views.items():
        outcome = m.outcome
        how = outcome.strategy if outcome.status == "absorbed" else outcome.status
        mark = " **slower**" if m.is_noticeable and m.ratio > 1 else ""
        yield (
            f"| {name} | {how} | {outcome.changed:,} | {outcome.seconds:.2f} | {m.full_seconds:.2f} "
            f"| {m.ratio:.2f}{mark} | {m.read} | {m.full_read} | {m.written} | {m.full_written} |"
        )


def figures_of(number: int, batch: Batch) -> dict[str, float | str]:
    """Return the figures of a batch."""
    full = sum(m.full_seconds for m in batch.views.values())
    changed = [m for m in batch.views.values() if m.outcome.status == "absorbed"]
    compared = {name: m for name, m in batch.views.items() if m.is_noticeable}
    worst = max(compared, key=lambda name: compared[name].ratio, default="")
    sums = {
        what: sum(volumes, Volume())
        for what, volumes in {
            "rows / MB read, incremental": [m.read for m in batch.views.values()],
            "rows / MB read, full": [m.full_read for m in batch.views.values()],
            "rows / MB written, incremental": [m.written for m in batch.views.values()],
            "rows / MB written, full": [m.full_written for m in batch.views.values()],
        }.items()
    }
    largest = max(batch.views, key=lambda name: batch.views[name].full_seconds)
    others = [m for name, m in batch.views.items() if name != largest]
    without = sum(m.outcome.seconds for m in others) / sum(m.full_seconds for m in others)
    faster = sum(min(m.outcome.seconds, m.full_seconds) for m in batch.views.values())
    of_changed = sum(m.outcome.seconds for m in changed) / max(sum(m.full_seconds for m in changed), 1e-9)
    return {
        f"batch {number}, views with changes to absorb": f"{len(changed)} of {len(batch.views)}",
        f"batch {number}, seconds, incremental": batch.seconds,
        f"batch {number}, seconds, full": full,
        f"batch {number}, {TOTAL}": batch.seconds / full,
        f"batch {number}, views with changes: incremental / full": of_changed,
        f"batch {number}, the faster way of each view / full": faster / full,
        f"batch {number}, without {largest}: incremental / full": without,
        f"batch {number}, worst view": worst or "none takes so long",
        f"batch {number}, {WORST}": compared[worst].ratio if worst else 0.0,
        f"batch {number}, views slower than full by more than 10 %": ", ".join(
            name for name, m in compared.items() if m.ratio > 1.1
        ) or "none",
        **{f"batch {number}, {what}": str(volume) for what, volume in sums.items()},
    }  # fmt: skip


def measure(lake: Lake, sizes: Sizes) -> dict[int, Batch] | None:
    """Run and check all batches; None: a view differs from its query."""
    warehouse = Warehouse(lake, sizes)
    batches: dict[int, Batch] = {}
    for number in BATCHES:
        batches[number] = warehouse.batch(number)
        say(f"batch {number}: {batches[number].seconds:.1f} s, "
            f"in full {sum(m.full_seconds for m in batches[number].views.values()):.1f} s")  # fmt: skip
        for name, m in batches[number].views.items():
            outcome = m.outcome
            say(f"  {name}: {outcome.seconds:.2f} s, full {m.full_seconds:.2f} s; {outcome.strategy}: {outcome.why}")
        if differences := warehouse.check():
            print("\n".join(differences))
            return None
        say(f"batch {number}: every view equals its query")
    return batches


def main() -> int:
    """Print the tables; return 1 if a requirement is missed, or a view differs from its query."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=3.0, help="1: 130,000 trades")
    parser.add_argument("--heap", default="8g", help="heap of Spark's driver")
    parser.add_argument("--conf", type=json.loads, default={}, help="settings of Spark, as JSON")
    parser.add_argument("--keep", type=Path, help="folder for the measured lake, which is kept; default: temporary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tpcdi-") as temp:
        if args.scale > WARM_SCALE:
            with lake_at(Path(temp) / "warm", args.heap, args.conf) as lake:
                say(f"warming up at scale {WARM_SCALE}")
                warm = Warehouse(lake, Sizes(WARM_SCALE))
                for number in BATCHES:
                    warm.batch(number)
        with lake_at(args.keep or Path(temp) / "lake", args.heap, args.conf) as lake:
            batches = measure(lake, Sizes(args.scale))
            lake.spark().stop()
    if batches is None:
        return 1
    figures: dict[str, float | str] = {}
    for number, batch in batches.items():
        if number > 1:
            print(f"batch {number}, scale {args.scale:g}\n\n" + "\n".join(table_of(batch)) + "\n")
            figures |= figures_of(number, batch)
    return int(show(figures, REQUIRED if args.scale >= 3 else {}))


if __name__ == "__main__":
    sys.exit(main())
