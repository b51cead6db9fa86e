"""The same work by lake_assets and by other tools, on one machine, in one run, with equal results checked.

    make bench-peers
    make bench-peers ARGS="--rows 20000000 --peers lake_assets iceberg delta"

Upserts: a table with scattered keys in 16 files (Paimon: in its buckets); batches with one row per changed key, 60 %
updates, 20 % inserts, 20 % deletes. Timed is one call of the tool, from changes that are stored (as one Parquet file;
for lake_assets in the staging table) to the commit.

Totals: playback events of 14 days; each batch brings those of the next day, 5 % of them up to 14 days late. The tool
keeps two tables: seconds and plays by account and day, and the seconds of an account up to each day. Timed are both
tables, from the events in the table of events to the second commit. Tools without a feed of changes recompute the last
days, 3 or 14: with 3, events that are later than that are missing, which the result says.

"Before" is what was done untimed to have the changes stored: landing and staging in lake_assets' upserts, appending the
events in totals.

Each peer runs in an environment of its own (`benchmarks/peers/requirements`), made on the first run in the user's
cache folder, one process at a time. Peers take turns: in each round, every peer opens its tables in a new process,
absorbs some batches of each size to warm up, then the measured ones; the next round begins with another peer. All
peers get the same files in the same order, and Spark settings for two cores (`DEFAULTS` of lake_assets' sessions).
Figures are medians. CPU seconds are those of the whole process tree. Reading is one query over all columns after the
last batch. At the end, DuckDB computes from the inputs what the tables must hold, and compares every row.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from peers.driver_process import DriverProcess, Reply
from peers.peer_environments import PEERS, TOTALS, UPSERTS, PeerError
from peers.peer_inputs import EventInputs, UpsertInputs, differences

OURS = "lake_assets"


@dataclass
class Result:
    """What was measured of a peer: by kind of batch the replies to its steps; or why it failed."""

    steps: dict[str, list[Reply]] = field(default_factory=lambda: defaultdict(list))
    before: dict[str, list[Reply]] = field(default_factory=lambda: defaultdict(list))
    versions: str = ""
    load: Reply | None = None
    read: Reply | None = None
    differences: list[str] = field(default_factory=list)
    failure: str = ""

    def median(self, kind: str) -> tuple[float, float] | None:
        """Return the medians of seconds and of CPU seconds."""
        replies = self.steps.get(kind)
        if not replies or self.failure:
            return None
        return statistics.median(r.seconds for r in replies), statistics.median(r.cpu for r in replies)


class Comparison:
    """Peers, and the batches of one workload that they absorb in turn."""

    def __init__(
        self, folder: Path, args: argparse.Namespace, workload: str, inputs: UpsertInputs | EventInputs
    ) -> None:
        self.folder, self.args, self.workload, self.inputs = folder, args, workload, inputs
        self.sizes = {f"{n:,} keys": n for n in args.changes}
        if workload == TOTALS:
            self.sizes = {f"{args.events:,} events": args.events}
        self.results = {name: Result() for name in args.peers if workload in PEERS[name].workloads}

    def run(self) -> None:
        """Run all rounds."""
        names = list(self.results)
        for number in range(self.args.rounds):
            warmup, measured = (
                [(kind, self.inputs.batch(n)) for _ in range(repeat) for kind, n in self.sizes.items()]
                for repeat in (self.args.warmup, self.args.batches)
            )
            start = number % len(names)
            for name in names[start:] + names[:start]:
                if self.results[name].failure:
                    continue
                try:
                    self.turn(name, number, warmup, measured)
                except PeerError as error:
                    self.results[name].failure = str(error)
                    say(f"{name}: failed: {error}")

    def turn(self, name: str, number: int, warmup: list[tuple[str, Path]], measured: list[tuple[str, Path]]) -> None:
        """Let a peer absorb a round's batches in a new process; check its tables after the last round."""
        result, home = self.results[name], self.folder / "peers" / self.workload / name
        log = self.folder / f"{self.workload}-{name}.log"
        settings = {"memory": self.args.memory, "rows": self.args.rows}
        with DriverProcess(PEERS[name], self.workload, home, log, **settings) as driver:
            jars = [package.split(":", 1)[1].replace(":", " ") for package in PEERS[name].packages]
            result.versions = ", ".join([*(f"{k} {v}" for k, v in driver.ask("versions").said.items()), *jars])
            if number == 0:
                result.load = driver.ask("load", str(self.inputs.base))
                say(f"{name}: loaded in {result.load.seconds:.1f} s")
            for turn, (kind, batch) in enumerate(warmup + measured):
                before = driver.ask("prepare", str(batch))
                reply = driver.ask("step")
                is_measured = turn >= len(warmup)
                if is_measured:
                    result.steps[kind].append(reply)
                    result.before[kind].append(before)
                what = f"round {number + 1}, {kind}{'' if is_measured else ' (warm-up)'}"
                say(f"{name}: {what}: {reply.seconds:.2f} s, CPU {reply.cpu:.2f} s {reply.said or ''}")
            if number == self.args.rounds - 1:
                result.read = driver.ask("read")
                exported = self.folder / "exported" / name
                driver.ask("export", str(exported))
                result.differences = differences(self.inputs, self.inputs.expected(), exported)
                shutil.rmtree(exported)
                say(f"{name}: {'; '.join(result.differences) or 'equal'}")

    def table(self) -> str:
        """Return the figures as a Markdown table."""
        kinds = list(self.sizes)
        head = [f"{kind}: s, CPU s | times {OURS} | before, s" for kind in kinds]
        lines = [f"| tool | {' | '.join(head)} | reading all: s | result |", "|---" * (3 * len(kinds) + 3) + "|"]
        for name, result in self.results.items():
            if result.failure:
                lines.append(f"| {name} |{' |' * (3 * len(kinds) + 1)} failed: {result.failure} |")
                continue
            cells = [cell for kind in kinds for cell in self.cells(result, kind)]
            read = f"{result.read.seconds:.2f}" if result.read else ""
            outcome = "; ".join(result.differences) or "equal"
            lines.append(f"| {name} | {' | '.join(cells)} | {read} | {outcome} |")
        lines += ["", *(f"- {name}: {result.versions}" for name, result in self.results.items())]
        return "\n".join(lines)

    def cells(self, result: Result, kind: str) -> tuple[str, str, str]:
        """Return seconds, their ratios to lake_assets, and the seconds of what came before."""
        ours = self.results[OURS].median(kind) if OURS in self.results else None
        theirs = result.median(kind)
        if theirs is None:
            return "", "", ""
        ratio = f"{theirs[0] / ours[0]:.1f}, {theirs[1] / ours[1]:.1f}" if ours else ""
        before = statistics.median(reply.seconds for reply in result.before[kind])
        return f"{theirs[0]:.2f}, {theirs[1]:.2f}", ratio, f"{before:.2f}"


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the comparison; exit code 1 if lake_assets failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=[UPSERTS, TOTALS], choices=[UPSERTS, TOTALS])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table at first, or events")
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000, 60_000], help="changed keys of batches")
    parser.add_argument("--events", type=int, default=60_000, help="events of a batch")
    parser.add_argument("--accounts", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=2, help="measured batches of each size in a round")
    parser.add_argument("--warmup", type=int, default=2, help="batches of each size in a round before those")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--memory", default="4g", help="heap of each peer's Spark")
    parser.add_argument("--keep", action="store_true", help="keep the folder with inputs, tables and logs")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    failed = False
    try:
        for workload in args.workloads:
            inputs = (
                UpsertInputs(folder / UPSERTS, args.rows)
                if workload == UPSERTS
                else EventInputs(folder / TOTALS, args.rows, args.accounts)
            )
            comparison = Comparison(folder, args, workload, inputs)
            comparison.run()
            today = datetime.datetime.now(tz=datetime.UTC).date()
            load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
            print(f"{workload}, {today}: {args.rows:,} rows, {args.rounds} rounds of {args.batches} batches each after")
            print(f"{args.warmup}; {os.cpu_count()} cores, load average at the end {load}\n")
            print(comparison.table() + "\n", flush=True)
            ours = comparison.results.get(OURS)
            failed |= bool(ours and (ours.failure or ours.differences))
    finally:
        if args.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
