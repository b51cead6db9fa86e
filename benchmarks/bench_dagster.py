"""Cost of micro-batches in Dagster: ticks of the capture sensor, latency, and a cycle of many tables.

    make bench-dagster

1. A tick of the capture sensor over many unchanged tables: seconds, in this process.
2. From a commit in `raw` to the commit in the last `agg` table: `dagster dev` with daemon, web server and code server,
   a sensor interval of 5 seconds, each run in a separate process. With local Spark, including the first run, which
   starts it; and with a warm Spark Connect server (after the cycles of 3.). A change goes through staging, final and
   two models, one downstream of the other.
3. Many tables with as many changes each, through the sensor: from the commit in `raw` to the last one in `final`, warm.
4. The small change of 2. in this process, warm: the share of time in which any thread executes this package's code,
   sampled every two milliseconds; time in C libraries counts for their caller.

At the end each final table is compared with the rows of its generated source.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import dagster as dg
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import Required, show

import lake_assets
from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.examples.event_generator import KEY, Source, Transaction, Workload
from lake_assets.examples.stream_writers import encoder
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import SparkConfig, connect_server
from lake_assets.orchestration.sensing.sensor import Watch, tick
from lake_assets.pipeline.config.pipeline_config import seconds_of
from lake_assets.pipeline.step_retries import absorb
from tests.support.dagster_process import Dagster, dagster_dev, wait_for

FORMAT, STREAM, PIPELINE = "simplified-typed", "bench", "bench"
TICKS, INTERVAL = 7, "5s"
SAMPLE_SECONDS = 0.002
# The tables downstream of the first source table.
DOWNSTREAM_OF_FIRST = ("staging.t00", "final.t00", "agg.by_name", "agg.by_count")
OWN = str(Path(lake_assets.__file__).parent)
REQUIRED: dict[str, Required] = {
    "a tick over unchanged tables: seconds": ("at most", 0.5),
    "raw to the last agg, local Spark: median seconds": ("at most", 15.0),
    "raw to the last agg, Spark Connect: median seconds": ("at most", 8.0),
    "a cycle through the sensor, local Spark: seconds": ("at most", 90.0),
    "a cycle through the sensor, Spark Connect: seconds": ("at most", 90.0),
    "a micro-batch, warm: percent in own code": ("at most", 10.0),
}


class Tables:
    """Generated source tables whose changes land as files."""

    def __init__(self, home: Path, count: int) -> None:
        self.home, self.landed = home, 0
        loads = [Workload(seed=i, events=10**9, keys=2_000, table=("public", f"t{i:02}")) for i in range(count)]
        self.sources = [Source(w) for w in loads]
        self.streams: list[Iterator[Transaction]] = [iter(s) for s in self.sources]

    def land(self, changes: int, tables: int | None = None) -> None:
        """Land one file with about `changes` changes of each of the first `tables` tables."""
        encode, lines = encoder(FORMAT), list[str]()
        for source, stream in itertools.islice(zip(self.sources, self.streams, strict=True), tables):
            count = 0
            while count < changes:
                transaction = next(stream)
                count += len(transaction.changes)
                lines += encode(transaction, source.workload)
        folder = self.home / "landing" / STREAM
        folder.mkdir(parents=True, exist_ok=True)
        self.landed += 1
        hidden = folder / f".{self.landed:05}.jsonl"
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        hidden.rename(folder / f"{self.landed:05}.jsonl")

    def compare(self, lake: Lake) -> None:
        """Check that each final table has its source's rows."""
        for source in self.sources:
            name = source.workload.table[1]
            rows = lake.table(f"final.{name}").scan(selected_fields=(KEY, "quantity")).to_arrow().to_pylist()
            actual = sorted((r[KEY], r["quantity"]) for r in rows)
            expected = sorted((k, r["quantity"]) for k, r in source.rows.items())
            assert actual == expected, f"final.{name} has {len(actual)} rows, its source {len(expected)}"


def declared(count: int) -> dict[str, object]:
    """Return the pipeline's YAML as a mapping."""
    return {
        "name": PIPELINE,
        "interval": INTERVAL,
        "streams": [
            {"name": STREAM, "format": "simplified", "tables": [f"public.t{i:02}" for i in range(count)]},
        ],
        "models": [
            {
                "name": "agg.by_name",
                "sql": "SELECT name, count(*) AS n, sum(quantity) AS q FROM final.t00 GROUP BY name",
            },
            {"name": "agg.by_count", "sql": "SELECT n, count(*) AS names FROM agg.by_name GROUP BY n"},
        ],
    }


def ticks(lake: Lake, pipeline: Pipeline) -> float:
    """Return the median seconds of a tick that finds nothing, without the first one, which imports modules."""
    watch = Watch(pipeline, tuple(pipeline.specs(lake)), lake.config)
    seconds: list[float] = []
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(TICKS + 1):
            began = time.perf_counter()
            skip = tick(dg.build_sensor_context(instance=instance), watch)
            seconds.append(time.perf_counter() - began)
            assert isinstance(skip, dg.SkipReason), skip
            assert "nothing new" in (skip.skip_message or ""), skip.skip_message
    return statistics.median(seconds[1:])


def commit_raw(lake: Lake, pipeline: Pipeline) -> float:
    """Absorb the landed files, as another writer would; return the time of the commit (seconds since 1970)."""
    raw = next(s for s in pipeline.specs(lake) if isinstance(s, RawSpec))
    assert absorb(lake, raw).status == "absorbed"
    return committed(lake, "raw." + STREAM)


def committed(lake: Lake, table: str) -> float:
    """Return the time of a table's newest commit (seconds since 1970)."""
    snapshot = lake.table(table).current_snapshot()
    assert snapshot is not None
    return snapshot.timestamp_ms / 1000


def settled(lake: Lake, pipeline: Pipeline) -> bool:
    """Whether nothing is pending."""
    return not pipeline.pending(lake)


def latency(dagster: Dagster, lake: Lake, pipeline: Pipeline, tables: Tables, rounds: int) -> list[float]:
    """Return the seconds from a commit in raw to the commit in the last model, per round."""
    seconds: list[float] = []
    last = DOWNSTREAM_OF_FIRST[-1]
    for n in range(rounds):
        time.sleep(seconds_of(INTERVAL) * (n + 0.5) / rounds)
        before = committed(lake, last)
        tables.land(50, 1)
        began = commit_raw(lake, pipeline)
        # Only one table is polled: checking all of them for pending changes would keep a core busy.
        wait_for(last, lambda then=before: committed(lake, last) > then, 300, dagster.log)
        seconds.append(committed(lake, last) - began)
        assert settled(lake, pipeline)
        print(f"raw to the last agg: {seconds[-1]:.1f} s", file=sys.stderr, flush=True)
        wait_for("the run's end", lambda: all(r["status"] == "SUCCESS" for r in dagster.runs()), 120, dagster.log)
    return seconds


def own_share(lake: Lake, pipeline: Pipeline, tables: Tables, rounds: int) -> float:
    """Return the percentage of a micro-batch's time spent in this package's code."""
    percents: list[float] = []
    for _ in range(rounds + 1):
        tables.land(50, 1)
        commit_raw(lake, pipeline)
        samples, done = Counter[bool](), threading.Event()
        looking = threading.Thread(target=sample, args=(samples, done))
        looking.start()
        outcomes = pipeline.run(lake, DOWNSTREAM_OF_FIRST)
        done.set()
        looking.join()
        assert not [o for o in outcomes if o.status == "failed"]
        percents.append(100 * samples[True] / samples.total())
    return statistics.median(percents[1:])


def sample(samples: Counter[bool], done: threading.Event) -> None:
    """Sample until `done` whether the innermost Python frame of any thread is in this package, and not importing."""
    while not done.wait(SAMPLE_SECONDS):
        codes = [frame.f_code for frame in sys._current_frames().values()]
        samples[any(c.co_filename.startswith(OWN) and c.co_name != "<module>" for c in codes)] += 1


def cycle(dagster: Dagster, lake: Lake, pipeline: Pipeline, tables: Tables, changes: int) -> float:
    """Return the seconds from a commit in raw until all tables have absorbed it."""
    before = len(dagster.runs())
    tables.land(changes)
    began = commit_raw(lake, pipeline)

    def is_over() -> bool:
        # Checking all tables for pending changes keeps a core busy, so not while a run is in progress.
        runs = dagster.runs()
        return len(runs) > before and all(r["status"] == "SUCCESS" for r in runs) and settled(lake, pipeline)

    wait_for("all tables", is_over, 1_200, dagster.log)
    return max(committed(lake, str(s.table)) for s in pipeline.specs(lake)) - began


@contextlib.contextmanager
def spark_server(home: Path) -> Generator[str]:
    """Run a Spark Connect server; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command, env = connect_server.command(LakeConfig(home=home, spark=SparkConfig(driver_memory="6g")), port)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        while True:
            assert process.poll() is None, (home / "server.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def running(folder: Path, home: Path, pipelines: Path, **settings: str) -> Generator[Dagster]:
    """Run `dagster dev` with the sensor on."""
    folder.mkdir()
    with dagster_dev(folder, LAKE_HOME=str(home), LAKE_PIPELINES=str(pipelines), **settings) as dagster:
        dagster.start_sensor(f"{PIPELINE}_capture_sensor")
        yield dagster


def main() -> int:
    """Run the benchmarks; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=65)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["tick", "local", "warm", "own"], action="append")
    args = parser.parse_args()
    parts = args.only or ["tick", "local", "warm", "own"]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-dagster-") as temp:
        home, pipelines = Path(temp) / "lake", Path(temp) / "pipelines"
        home.mkdir()
        pipelines.mkdir()
        attributes = declared(args.tables)
        text = yaml.safe_dump({"type": "lake_assets.LakePipeline", "attributes": attributes})
        (pipelines / "defs.yaml").write_text(text)
        pipeline, tables = Pipeline.load(pipelines / "defs.yaml"), Tables(home, args.tables)
        lake = Lake(LakeConfig(home=home, spark=SparkConfig(driver_memory="4g")))
        began = time.perf_counter()
        tables.land(args.changes)
        failed = [o for o in pipeline.run(lake) if o.status == "failed"]
        assert not failed, failed[0].error
        took = time.perf_counter() - began
        print(f"{args.tables} tables made in {took:.0f} s", file=sys.stderr, flush=True)
        lake.spark().stop()
        lake = Lake(lake.config)
        if "tick" in parts:
            figures["a tick over unchanged tables: seconds"] = ticks(lake, pipeline)
        if "local" in parts:
            with running(Path(temp) / "local", home, pipelines) as dagster:
                seconds = latency(dagster, lake, pipeline, tables, args.rounds)
                cycle(dagster, lake, pipeline, tables, args.changes)  # warms up
                took = cycle(dagster, lake, pipeline, tables, args.changes)
            figures["raw to the last agg, local Spark: median seconds"] = statistics.median(seconds)
            figures["a cycle through the sensor, local Spark: seconds"] = took
        if "warm" in parts:
            with (
                spark_server(home) as remote,
                running(Path(temp) / "warm", home, pipelines, LAKE_SPARK__REMOTE=remote) as dagster,
            ):
                latency(dagster, lake, pipeline, tables, 1)  # warms up
                cycle(dagster, lake, pipeline, tables, args.changes)  # warms up
                took = cycle(dagster, lake, pipeline, tables, args.changes)
                seconds = latency(dagster, lake, pipeline, tables, args.rounds)
            figures["raw to the last agg, Spark Connect: median seconds"] = statistics.median(seconds)
            figures["a cycle through the sensor, Spark Connect: seconds"] = took
        if "own" in parts:
            figures["a micro-batch, warm: percent in own code"] = own_share(lake, pipeline, tables, args.rounds)
        tables.compare(lake)
    missed = show(figures, REQUIRED)
    print(f"\n{args.tables} tables, {args.changes:,} changes of each, {args.rounds} rounds.")
    return missed


if __name__ == "__main__":
    sys.exit(main())
