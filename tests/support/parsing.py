"""Records of any format as typed events, through Spark: what staging does with a plan, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.formats import EventFormat
from lake_assets.formats.event_model import EventPlan, Hints, Seen, SourceTable
from lake_assets.formats.format_base import decode
from lake_assets.ingest.records.event_rows import in_steps


@dataclass(frozen=True)
class Parsed:
    """One event as Spark read it; `bad` is what is wrong with it."""

    position: int
    index: int
    op: str | None
    sequence: str
    event_time: datetime | None
    row: dict[str, Any]
    unavailable: frozenset[str]
    bad: str | None

    @property
    def image(self) -> tuple[str | None, dict[str, Any]]:
        return self.op, self.row


def parse(spark: SparkSession, event_format: EventFormat, lines: Iterable[str], hints: Hints) -> list[Parsed]:
    """The events of the hinted table (of all records, where it names none) in the order of the stream."""
    numbered = [(i, line) for i, line in enumerate(lines) if is_about(event_format, line, hints.table)]
    # Through Arrow: rows of Python would go through a Python process, again for each action.
    columns = {
        "position": pa.array([i for i, _ in numbered], pa.int64()),
        "record": pa.array([line for _, line in numbered], pa.string()),
        "schema": pa.array([event_format.schema_of(decode(line)) for _, line in numbered], pa.string()),
    }
    records = spark.createDataFrame(pa.table(columns))
    found: list[Parsed] = []
    for plan, part in planned(records, event_format, hints):
        found += _collected(plan, part)
    return sorted(found, key=lambda e: (e.position, e.index))


def is_about(event_format: EventFormat, line: str, table: SourceTable | None) -> bool:
    routes = event_format.routes(decode(line), table)
    return bool(routes) if table is None else table in routes


def planned(records: DataFrame, event_format: EventFormat, hints: Hints) -> list[tuple[EventPlan, DataFrame]]:
    """Each plan with its records."""
    records = records if "schema" in records.columns else records.withColumn("schema", F.lit(""))
    collected = F.expr(event_format.shape) if event_format.shape else F.lit(None).cast("string")
    rows = records.groupBy("schema").agg(collected.alias("h")).collect()
    seen = [Seen(r["schema"], None if event_format.says_all(r["schema"]) else r["h"]) for r in rows]
    return (
        [(p.plan, records.where(F.col("schema").isin(*p.schemas))) for p in event_format.plans(seen, hints)]
        if seen
        else []
    )


def events_of(plan: EventPlan, records: DataFrame) -> DataFrame:
    """`position`, `_index` and `e`, one row an event."""
    for name, sql in plan.before:
        records = records.withColumn(name, F.expr(sql))
    if plan.records:
        records = records.where(plan.records)
    parsed = records.select("position", F.expr(plan.parsed).alias("e"))
    if plan.split is not None:
        split = parsed.select("position", F.expr(plan.split).alias("all"))
        # None is an event that cannot be read; an empty array is none at all.
        some = split.where(F.col("all").isNull() | (F.size("all") > 0))
        parsed = some.select("position", F.explode_outer("all").alias("e"))
    parsed = parsed.where(plan.where) if plan.where else parsed
    return parsed.select("position", F.expr(plan.index).alias("_index"), "e")


def _collected(plan: EventPlan, records: DataFrame) -> list[Parsed]:
    gone = [F.expr(c.is_unavailable(c.text)) for c in plan.columns]
    stage = events_of(plan, records).select(
        "position", "_index",
        F.expr(plan.op).alias("op"), F.expr(plan.sequence).alias("sequence"),
        F.expr(plan.event_time).alias("time"),
        *(F.expr(c.text).alias(f"t{i}") for i, c in enumerate(plan.columns)),
        *(c.alias(f"u{i}") for i, c in enumerate(gone)),
    )  # fmt: skip
    stage = in_steps(stage, plan, stage.columns)
    types = {c.name: c.type for c in plan.columns}
    # Moments as microseconds: Python would turn them into the time zone of whoever runs the tests.
    shown = [
        (F.unix_micros(F.col(f"v{i}").cast(c.type)) if c.type == "timestamp" else F.col(f"v{i}").cast(c.type)).alias(
            f"v{i}"
        )
        for i, c in enumerate(plan.columns)
    ]
    unread = [F.col(f"t{i}").isNotNull() & F.col(f"v{i}").isNull() for i in range(len(plan.columns))]
    rows = stage.select("position", "_index", "op", "sequence", F.unix_micros("time").alias("time"), *shown,
                        *(b.alias(f"b{i}") for i, b in enumerate(unread)),
                        *(f"u{i}" for i in range(len(plan.columns)))).collect()  # fmt: skip
    found: list[Parsed] = []
    for row in rows:
        gone = frozenset(c.name for i, c in enumerate(plan.columns) if row[f"u{i}"])
        bad = "no such op" if row["op"] is None else None
        for i, c in enumerate(plan.columns):
            if c.name not in gone and row[f"b{i}"]:
                bad = bad or f"{c.name} does not fit {c.type}"
        values = {c.name: _shown(row[f"v{i}"], types[c.name]) for i, c in enumerate(plan.columns) if c.name not in gone}
        time = moment(row["time"]) if row["time"] is not None else None
        found.append(Parsed(row["position"], row["_index"], row["op"], row["sequence"], time, values, gone, bad))
    return found


def moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _shown(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "timestamp":
        return moment(value)
    return bytes(value) if isinstance(value, bytearray) else value


def plain(value: Any) -> Any:
    """Values for comparisons and messages: equal numbers are equal, whatever their digits."""
    if isinstance(value, Decimal):
        return value.normalize()
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else value


def lines_of(*records: Any) -> list[str]:
    return [json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in records]
