"""A pipeline that absorbs micro-batches for as long as one likes, with its upkeep always at work beside it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lake_assets import Lake, Pipeline
from lake_assets.examples.event_generator import Source, Transaction, Workload, delivered
from lake_assets.examples.stream_writers import encoder
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import TableId
from lake_assets.pipeline import ModelSpec
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.verification import verify
from lake_assets.upkeep.attend import attend, look, needs_a_look
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.table_health import TableHealth
from lake_assets.upkeep.upkept_tables import policies
from tests.support.generated_rows import replay

SOURCES = ("a", "b", "c", "d", "e")
# About this many changes of each source table per batch.
CHANGES = 5
# Columns compared with the generator's rows.
COMPARED = ("id", "name", "quantity", "amount", "born", "active", "note")
# Upkeep looks again after so many seconds; Dagster's sensor does once a minute.
PAUSE = 5.0


def config(upkeep: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Return the declarations: a raw table, five staging tables, five final tables, and a model over one of them."""
    return {
        "name": "soak",
        "upkeep": upkeep,
        "streams": [
            {
                "name": "events",
                "format": "debezium",
                "landing": "landing/events",
                "tables": [{"table": f"public.{s}"} for s in SOURCES],
            }
        ],
        "models": [
            {
                "name": "agg.totals",
                "sql": "SELECT name, count(*) AS n, sum(amount) AS amount, sum(quantity) AS quantity FROM final.a "
                "GROUP BY name",
            }
        ],
    }


class Soak:
    """The pipeline in a lake, and its endless sources: events may be late, and come twice."""

    def __init__(self, lake: Lake, upkeep: Mapping[str, Any] | bool = True, *, keys: int = 500, seed: int = 0) -> None:
        self.lake = lake
        self.pipeline = Pipeline(PipelineConfig.model_validate(config(upkeep)))
        self.landing = lake.config.home / "landing" / "events"
        self.landing.mkdir(parents=True)
        self.workloads = [
            Workload(seed=seed + i, events=10**9, keys=keys, late=0.05, duplicates=0.05, table=("public", s))
            for i, s in enumerate(SOURCES)
        ]
        self.streams = [delivered(w, Source(w)) for w in self.workloads]
        self.arrived: list[list[Transaction]] = [[] for _ in SOURCES]
        self.encode = encoder("debezium")
        self.landed = 0
        self.attended: list[Attended] = []

    def land(self, changes: int = CHANGES) -> None:
        """Put the next file into the landing folder, with so many changes of each source table."""
        lines: list[str] = []
        for workload, stream, arrived in zip(self.workloads, self.streams, self.arrived, strict=True):
            count = 0
            while count < changes:
                transaction = next(stream)
                arrived.append(transaction)
                lines.extend(self.encode(transaction, workload))
                count += len(transaction.changes)
        self.landed += 1
        name = self.landing / f"{self.landed:06}.jsonl"
        temporary = name.with_suffix(".partial")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.rename(name)

    def run(self) -> float:
        """Absorb what is pending; return the seconds.

        Raises:
            AssertionError: a step failed, or nothing was pending of a table whose events have landed.
        """
        began = time.perf_counter()
        outcomes = self.pipeline.run(self.lake)
        took = time.perf_counter() - began
        assert [o for o in outcomes if o.status != "absorbed"] == []
        return took

    def assert_idle(self) -> None:
        """Check that nothing is pending for any table, whatever upkeep has committed; and that a run finds nothing.

        A run that somebody asks for moves the watermarks over commits of upkeep alone; it reads and writes no row.
        """
        pending = self.pipeline.pending(self.lake)
        assert pending == [], pending
        outcomes = [o for o in self.pipeline.run(self.lake) if o.status != "nothing"]
        wrong = [o for o in outcomes if o.status != "absorbed" or o.inserted or o.updated or o.deleted]
        wrong += [o for o in outcomes if any(w.files for w in o.windows)]
        assert wrong == [], wrong

    @contextlib.contextmanager
    def upkeep(self) -> Generator[None]:
        """Do whatever is due, all the time, beside what the block does.

        Raises:
            AssertionError: an action failed.
        """
        is_over = threading.Event()

        def attend_tables() -> None:
            while not is_over.is_set():
                wanted = policies(self.pipeline, self.lake)
                worth = needs_a_look(self.lake, wanted)
                self.attended += attend(self.lake, {t: wanted[t] for t in worth}, beside=wanted.keys())
                is_over.wait(PAUSE)

        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(attend_tables)
            try:
                yield
            finally:
                is_over.set()
        result.result()
        assert [a.text for a in self.attended if a.done and a.done.error] == []

    def health(self) -> dict[TableId, TableHealth]:
        """Return how each table is."""
        return {t: look(self.lake, t, p).health for t, p in policies(self.pipeline, self.lake).items()}

    def check(self) -> None:
        """Check every table against its sources, and the final tables against the generator."""
        for spec in self.pipeline.specs(self.lake):
            if isinstance(spec, FinalSpec | ModelSpec):
                verification = verify(self.lake, spec)
                assert verification.equal, verification
        for source, arrived in zip(SOURCES, self.arrived, strict=True):
            rows = self.lake.spark().table(self.lake.sql_name(TableId(("final",), source))).select(*COMPARED).collect()
            expected = {tuple(row[c] for c in COMPARED) for row in replay(arrived).values()}
            assert {tuple(row) for row in rows} == expected, source
            assert len(rows) == len(expected), source
