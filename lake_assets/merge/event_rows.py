"""From records to typed change events by one plan, in Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.events import EventPlan
from lake_assets.events.model import (
    ARRIVED_AT,
    EVENT_TIME,
    INDEX,
    MANY,
    OP,
    POSITION,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
    UPDATE,
)

BAD = "_bad"
UNREADABLE = "the record cannot be read as its format says"


def events_of(records: DataFrame, plan: EventPlan, alone: bool) -> DataFrame:
    """`position`, `arrived_at` and `e`, a row an event; `e` is null for a record that gives none and should.

    Args:
        records: rows of the raw table.
        plan: how they are read.
        alone: whether no other plan reads the same records.
    """
    parsed = records.select("position", "arrived_at", "source_table", F.expr(plan.parsed).alias("e"))
    if plan.split is None:
        return parsed.select("position", "arrived_at", "e")
    split = parsed.select("position", "arrived_at", "source_table", F.expr(plan.split).alias("all"))
    if not alone:
        return split.select("position", "arrived_at", F.explode("all").alias("e"))
    # A record about several tables may hold none for this one; one that cannot be read at all gives NULL.
    is_none = (F.col("source_table") == MANY) & F.col("all").isNotNull() & (F.size("all") == 0)
    return split.where(~F.coalesce(is_none, F.lit(False))).select(
        "position", "arrived_at", F.explode_outer("all").alias("e")
    )


def rows_of(
    events: DataFrame, plan: EventPlan, types: Mapping[str, str], unsaid: Sequence[str], elsewhere: Mapping[str, int]
) -> DataFrame:
    """Typed change events, and what is wrong with an event in `BAD`.

    Args:
        events: of `events_of`.
        plan: how they are read.
        types: Spark's types by column of the plan.
        unsaid: columns of the table that these events say nothing of.
        elsewhere: columns of the table that are left out where one of the plan is, by its place.
    """
    fixed = {
        OP: F.expr(plan.op),
        SEQUENCE: F.coalesce(F.expr(plan.sequence), F.lit("")),
        POSITION: F.col("position"),
        INDEX: F.coalesce(F.expr(plan.index).cast("int"), F.lit(0)),
        EVENT_TIME: F.expr(plan.event_time),
        ARRIVED_AT: F.col("arrived_at"),
    }
    absent = [F.expr(c.unavailable) if c.unavailable else F.lit(False) for c in plan.columns]
    stage = events.select(
        F.col("e").isNull().alias("none"),
        *(value.alias(name) for name, value in fixed.items()),
        *(
            F.when(~gone, F.expr(c.text)).alias(f"t{i}")
            for i, (c, gone) in enumerate(zip(plan.columns, absent, strict=True))
        ),
        *(gone.alias(f"u{i}") for i, gone in enumerate(absent)),
    )
    stage = in_steps(stage, plan)
    bad = [
        F.when(F.col("none"), F.lit(UNREADABLE)),
        F.when(F.col(OP).isNull(), F.lit(plan.no_op)),
        *(_misfit(i, c.name, types[c.name]) for i, c in enumerate(plan.columns) if c.steps),
        *(
            F.when((F.col(OP) != TRUNCATE) & F.col(f"v{i}").isNull(), F.lit(f"key column {c.name} is missing"))
            for i, c in enumerate(plan.columns)
            if c.name in plan.key
        ),
    ]
    gone = [F.when(F.col(f"u{i}"), F.lit(c.name)) for i, c in enumerate(plan.columns) if c.unavailable]
    gone += [F.when(F.col(OP) == UPDATE, F.lit(name)) for name in unsaid]
    gone += [F.when(F.col(f"u{i}"), F.lit(name)) for name, i in elsewhere.items() if plan.columns[i].unavailable]
    unavailable = F.array_compact(F.array(*gone)) if gone else F.array().cast("array<string>")
    return stage.select(
        *(F.col(f"v{i}").cast(types[c.name]).alias(c.name) for i, c in enumerate(plan.columns)),
        *(F.col(name) for name in fixed),
        F.when(F.size(unavailable) > 0, unavailable).alias(UNAVAILABLE),
        F.coalesce(*bad).alias(BAD),
    )


def in_steps(stage: DataFrame, plan: EventPlan) -> DataFrame:
    """Values `v0`, ... of the texts `t0`, ... of a plan's columns.

    One projection a step: Spark computes a column that later ones use more than once only once.
    """
    stage = stage.select("*", *(F.col(f"t{i}").alias(f"v{i}") for i in range(len(plan.columns))))
    for step in range(max((len(c.steps) for c in plan.columns), default=0)):
        stage = stage.withColumns(
            {
                f"v{i}": F.expr(c.steps[step].replace("{t}", f"v{i}"))
                for i, c in enumerate(plan.columns)
                if step < len(c.steps)
            }
        )
    return stage


def _misfit(i: int, name: str, kind: str) -> Column:
    text = F.col(f"t{i}")
    shown = F.concat(F.lit(f"{name} does not fit {kind}: "), F.left(text.cast("string"), F.lit(100)))
    return F.when(text.isNotNull() & F.col(f"v{i}").isNull(), shown)
