"""Postgres to final tables: how fast the first snapshot is, and how soon a change is there.

    make bench-live ARGS="--rows 1000000 --rates 100 1000"

*First load*: a table of so many rows is read by the service until all are in raw, and then absorbed into final. Beside
it, the first `--events` rows as events of Debezium's own snapshot, and, as the limit, all rows by `COPY` into one
Parquet file.

*Changes*: rows are inserted at each rate for some time, each with its time (of the database's clock, as of all
processes), while the service lands and a loop absorbs. Reported is the time to the commit in raw, and in final. Up
to 500 transactions commit in a second; at a higher rate, each of them inserts several rows. A rate that the connection
cannot keep is reported as it was.
"""

from __future__ import annotations

import argparse
import bisect
import io
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
from figures import cpu_seconds, show

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig
from lake_assets.lake.metadata.snapshot_log import ancestors
from tests.support.live_postgres import RAW, Database, Live, live_database

TABLE = """
CREATE TABLE users (
    id bigint PRIMARY KEY, name text, city text, amount numeric(12,2), born date,
    at timestamptz DEFAULT clock_timestamp()
)
"""
ROWS = (
    "INSERT INTO users SELECT i, 'name of ' || i, 'city ' || i %% 1000, i %% 100000 / 100.0, date '1970-01-01' "
    "+ i::int %% 20000, clock_timestamp() FROM generate_series(1, %s) i"
)


def landed(lake: Lake) -> int:
    """Return how many records are in raw."""
    if not lake.exists(RAW):
        return 0
    snapshot = lake.table(RAW).current_snapshot()
    summary = snapshot.summary if snapshot else None
    return int(summary.additional_properties.get("total-records", 0)) if summary else 0


def of_copy(home: Path, database: Database, rows: int) -> tuple[float, dict[str, float | str]]:
    """Return the rows a second of a COPY into Parquet, and its figures."""
    began, cpu = time.perf_counter(), cpu_seconds()
    copied = io.BytesIO()
    with database.connection.cursor() as cursor:
        cursor.copy_expert("COPY users TO STDOUT (FORMAT csv)", copied)
    copied.seek(0)
    pq.write_table(pc.read_csv(copied), home / "copied.parquet")
    return _rates("COPY into Parquet", rows, time.perf_counter() - began, cpu_seconds() - cpu)


def of_load(what: str, live: Live, rows: int) -> tuple[float, dict[str, float | str]]:
    """Return the rows a second to raw, and the figures to raw and to final."""
    began, cpu = time.perf_counter(), cpu_seconds()
    live.start()
    while landed(live.lake) < rows:
        time.sleep(0.2)
    raw, raw_cpu = time.perf_counter() - began, cpu_seconds() - cpu
    began, cpu = time.perf_counter(), cpu_seconds()
    live.pipeline.run(live.lake)
    final, final_cpu = time.perf_counter() - began, cpu_seconds() - cpu
    to_raw = _rates(f"{what} to raw", rows, raw, raw_cpu)
    others = (("raw to final", final, final_cpu), ("to final", raw + final, raw_cpu + final_cpu))
    return to_raw[0], to_raw[1] | dict(f for n, *used in others for f in _rates(f"{what}, {n}", rows, *used)[1].items())


def _rates(what: str, rows: int, seconds: float, cpu: float) -> tuple[float, dict[str, float | str]]:
    return rows / seconds, {f"{what}: rows a second, a CPU second": f"{rows / seconds:,.0f}, {rows / cpu:,.0f}"}


def of_first_rows(live: Live, database: Database, rows: int, events: int) -> dict[str, float | str]:
    """Return figures of the first load, of Debezium's snapshot of some rows, and of a COPY."""
    limit, figures = of_copy(live.home, database, rows)
    loaded, more = of_load("first load", live, rows)
    figures |= more
    database("CREATE TABLE part AS SELECT * FROM users WHERE id <= %s; ALTER TABLE part ADD PRIMARY KEY (id)", events)
    with tempfile.TemporaryDirectory(prefix="bench-live-") as home:
        lake = Lake(LakeConfig(home=Path(home), spark=live.lake.config.spark))
        other = Live(lake, database, ["public.part"], slot="events", properties={"snapshot.fetch.size": "10240"})
        try:
            by_events, more = of_load("Debezium's snapshot", other, events)
        finally:
            other.end()
    return (
        figures | more | {"first load / Debezium's snapshot": loaded / by_events, "COPY / first load": limit / loaded}
    )


class Committed:
    """Rows that are inserted at a rate, in a thread of its own."""

    def __init__(self, database: Database, rate: float, seconds: float, first: int) -> None:
        self.connection, self.rate, self.seconds, self.first = database.connect(), rate, seconds, first
        self.count, self.together = 0, max(1, round(rate / 500))
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Commit until the time is over."""
        began = time.perf_counter()
        with self.connection.cursor() as cursor:
            while (now := time.perf_counter() - began) < self.seconds:
                if self.count > now * self.rate:
                    time.sleep(0.001)
                    continue
                first = self.first + self.count
                cursor.execute(
                    "INSERT INTO users (id, name) SELECT i, 'new' FROM generate_series(%s, %s) i ORDER BY i",
                    (first, first + self.together - 1),
                )
                self.connection.commit()
                self.count += self.together
        self.connection.close()


def of_changes(live: Live, database: Database, rate: float, seconds: float, first: int) -> dict[str, float | str]:
    """Return figures of changes at a rate."""
    work, before, cpu = Committed(database, rate, seconds, first), landed(live.lake), cpu_seconds()
    seen: list[tuple[float, int]] = []
    work.thread.start()
    while work.thread.is_alive() or _greatest(live) < first + work.count - 1:
        live.pipeline.run(live.lake)
        seen.append((time.time(), _greatest(live)))
    work.thread.join()
    at = dict(database("SELECT id, extract(epoch FROM at)::float FROM users WHERE id >= %s ORDER BY id", first))
    raw = _of_raw(live, sorted(at.values()), before)
    seen_at = [greatest for _, greatest in seen]
    final = [seen[bisect.bisect_left(seen_at, i)][0] - when for i, when in at.items()]
    name = f"{rate:,.0f} a second"
    return {
        f"{name}: rows a second": work.count / seconds,
        f"{name}: seconds to raw, median, 95 %": _text(raw),
        f"{name}: seconds to final, median, 95 %": _text(final),
        f"{name}: runs of the pipeline": len(seen),
        f"{name}: CPU seconds for 1,000 changes": (cpu_seconds() - cpu) / work.count * 1000,
    }


def _greatest(live: Live) -> int:
    return live.lake.spark().sql("SELECT max(id) FROM final.users").collect()[0][0]


def _of_raw(live: Live, commits: Sequence[float], before: int) -> list[float]:
    """Return the seconds from each commit to that of its record in raw, where records are in the order of the log."""
    times: list[tuple[int, float]] = []
    for snapshot in ancestors(live.lake.table(RAW)):
        total = int(snapshot.summary.additional_properties["total-records"]) if snapshot.summary else 0
        if total <= before:
            break
        times.append((total, snapshot.timestamp_ms / 1000))
    times.reverse()
    totals = [total for total, _ in times]
    return [times[bisect.bisect_right(totals, before + n)][1] - at for n, at in enumerate(commits)]


def _text(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}, {sorted(seconds)[int(len(seconds) * 0.95)]:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the first load")
    parser.add_argument("--events", type=int, default=100_000, help="rows that Debezium reads")
    parser.add_argument("--rates", type=float, nargs="*", default=[100.0, 1000.0], help="rows inserted a second")
    parser.add_argument("--seconds", type=float, default=60, help="how long changes are committed at each rate")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-live-") as home, live_database(TABLE) as database:
        database(ROWS, args.rows)
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="4g")))
        lake.spark()
        live = Live(lake, database, ["public.users"])
        try:
            figures = of_first_rows(live, database, args.rows, args.events)
            first = args.rows + 1
            for rate in args.rates:
                figures |= of_changes(live, database, rate, args.seconds, first)
                first += 10_000_000
        finally:
            live.end()
            lake.spark().stop()
    return show(figures, {})


if __name__ == "__main__":
    sys.exit(main())
