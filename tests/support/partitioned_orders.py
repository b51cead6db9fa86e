"""A pipeline of partitioned tables under random histories, and a plain model of which partitions each run changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets import Lake, Pipeline
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.verification import verify
from lake_assets.tables.partitioning.table_partitions import Partitions
from tests.support.dagster_harness import Harness
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines

ZONED = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
ORDERS = Table({"id": BIGINT, "at": ZONED, "country": TEXT, "amount": BIGINT}, name="public.orders")
BERLIN = {"by": "at", "every": "day", "timezone": "Europe/Berlin", "start": "2024-10-20"}
# Around the day with 25 hours in Berlin.
FIRST, HOURS = datetime(2024, 10, 24, tzinfo=UTC), 24 * 6
DAY = "CAST(from_utc_timestamp(at, 'Europe/Berlin') AS DATE)"
MODELS: Sequence[Mapping[str, Any]] = [
    {
        "name": "agg.wide",
        "sql": "SELECT id, at, country, 2 * amount AS twice FROM final.orders WHERE amount > 0",
        "partitions": BERLIN,
    },
    {
        "name": "agg.days",
        "sql": f"SELECT {DAY} AS day, count(*) AS n, sum(twice) AS total, max(country) AS most FROM agg.wide GROUP BY {DAY}",
        "partitions": {"by": "day", "every": "day", "timezone": "Europe/Berlin", "start": "2024-10-21"},
    },
    {
        "name": "agg.countries",
        "sql": "SELECT country, count(*) AS n, max(at) AS last FROM agg.wide GROUP BY country",
        "partitions": "country",
    },
    {
        "name": "agg.some",
        "sql": "SELECT id, country, twice FROM agg.wide",
        "partitions": {"by": "country", "values": ["de", "fr"]},
    },
]


@dataclass
class Orders:
    """The source table of a pipeline: its rows, and the events that made them."""

    choose: random.Random
    rows: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    lsn: int = 0
    countries: Sequence[str | None] = ("de", "fr", "it", "us", None)

    def row(self, id_: int) -> dict[str, Any]:
        at = FIRST + timedelta(minutes=self.choose.randrange(60 * HOURS))
        amount = self.choose.randrange(-1, 6)
        return {"id": id_, "at": at.isoformat(), "country": self.choose.choice(self.countries), "amount": amount}

    def change(self, count: int) -> list[Event]:
        """Insert, update (within or across partitions) and delete rows, all of them late."""
        events: list[Event] = []
        for _ in range(count):
            self.lsn += 1
            id_ = self.choose.randrange(40)
            was = self.rows.get(id_)
            if was is None:
                op, new = "c", self.row(id_)
            else:
                op = self.choose.choice(["d", "u", "u", "u"])
                new = self.row(id_)
                if op == "u" and self.choose.random() < 0.6:
                    new = {**was, "amount": self.choose.choice([new["amount"], was["amount"]])}
            if op == "d":
                del self.rows[id_]
                events.append(Event(ORDERS, "d", (self.lsn, self.lsn), {"id": id_}))
                continue
            self.rows[id_] = new
            events.append(Event(ORDERS, op, (self.lsn, self.lsn), new))  # type: ignore[arg-type]
        return events


class Days:
    """The pipeline over a lake and an instance, and the expected marks."""

    def __init__(
        self, lake: Lake, instance: dg.DagsterInstance, seed: int, table: Mapping[str, Any] | None = None,
        models: Sequence[Mapping[str, Any]] = MODELS,
    ) -> None:  # fmt: skip
        tables = [{"table": "public.orders", "partitions": BERLIN, **(table or {})}]
        config = {"name": "p", "streams": [{"name": "events", "tables": tables}], "models": list(models)}
        self.lake = lake
        self.harness = Harness(Pipeline(PipelineConfig.model_validate(config)), lake, instance)
        self.orders = Orders(random.Random(seed))
        self.files = 0

    @property
    def specs(self) -> dict[str, Spec]:
        return {str(s.table): s for s in self.harness.watch.loaded}

    @property
    def partitioned(self) -> dict[str, Partitions]:
        return {name: by for name, s in self.specs.items() if (by := s.partitions)}

    def land(self, count: int) -> None:
        self.files += 1
        folder = self.lake.config.home / "landing" / "events"
        write_lines(folder / f"{self.files:04}.jsonl", to_lines(self.orders.change(count)))

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        if not self.lake.exists(name):
            return Counter()
        return Counter(tuple(r) for r in self.lake.spark().table(self.lake.sql_name(name)).collect())

    def contents(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {name: self.rows(name) for name in self.partitioned}

    def columns(self, name: str) -> list[str]:
        return [f.name for f in self.lake.table(name).schema().fields]

    def changed(self, name: str, before: Counter[tuple[Any, ...]], now: Counter[tuple[Any, ...]]) -> Counter[str]:
        """The plain model: number of changed rows per partition."""
        by, counts = self.partitioned[name], Counter[str]()
        column = self.columns(name).index(by.by)
        for row, n in [*(now - before).items(), *(before - now).items()]:
            value = row[column]
            # Spark returns timestamps in the session's time zone, which is UTC here.
            value = value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
            counts[str(by.key_of(value))] += n
        return counts

    def run(self) -> dg.ExecuteInProcessResult:
        """Run the sensor's request; check each table's marks against the plain model."""
        before = self.contents()
        result = self.harness.run(self.harness.request())
        assert result.success, [e.message for e in result.all_events if e.is_failure]
        marks = self.marks(result)
        for name, now in self.contents().items():
            expected = self.changed(name, before[name], now)
            assert {k: c["rows"] for k, c in marks[name].items()} == dict(expected), name
        return result

    def marks(self, result: dg.ExecuteInProcessResult) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the metadata of a run's marks by table and partition; no partition is marked twice."""
        marks: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in self.partitioned}
        for event in result.get_asset_materialization_events():
            name, key = ".".join(event.asset_key.path) if event.asset_key else "", event.partition
            if name in marks and key is not None:
                assert key not in marks[name], (name, key)
                metadata: dict[str, Any] = {n: v.value for n, v in event.materialization.metadata.items()}
                marks[name][key] = metadata | {
                    "rows": metadata.get("rows_written", 0) + metadata.get("rows_removed", 0)
                }
        return marks

    def check(self) -> None:
        """Check that each table equals a full recompute."""
        expected = Counter(
            (r["id"], datetime.fromisoformat(r["at"]).replace(tzinfo=None), r["country"], r["amount"])
            for r in self.orders.rows.values()
        )
        assert self.rows("final.orders") == expected
        for spec in self.specs.values():
            if isinstance(spec, ModelSpec):
                assert verify(self.lake, spec).equal, spec.table
