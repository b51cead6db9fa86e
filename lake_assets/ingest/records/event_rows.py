"""From records to typed change events by one plan, in Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame

from lake_assets.formats import EventColumn, EventPlan
from lake_assets.formats.event_model import (
    ARRIVED_AT,
    DELETE,
    EVENT_TIME,
    INDEX,
    MANY,
    MISFITS,
    OP,
    POSITION,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
    UPDATE,
)
from lake_assets.lake import quote
from lake_assets.lake.names import literal

BAD = "_bad"
UNREADABLE = "the record cannot be read as its format says"


def events_of(records: DataFrame, plan: EventPlan) -> DataFrame:
    """`position`, `arrived_at` and `e`: one row per event of the plan; `e` is null for a record that cannot be read.

    Args:
        records: rows of the raw table.
        plan: how they are read.
    """
    # Each record has to be parsed once. Spark copies the expression behind a name to each place where conditions that
    # it moves down a plan use that name, also into lambdas that run for each change of a record. It does not do so with
    # variables of lambdas and with what a generator gives, so that parsing and splitting are one expression in one.
    events = f"array({plan.parsed})"
    if plan.split is not None:
        # A record about several tables may hold no event of this one; any other record without one is unreadable.
        unreadable = f"found IS NULL OR (size(found) = 0 AND NOT source_table <=> {literal(MANY)})"
        events = (
            f"flatten(transform(transform({events}, e -> {plan.split}), "
            f"found -> CASE WHEN {unreadable} THEN array(NULL) ELSE found END))"
        )
    for name, sql in plan.before:
        records = records.selectExpr("*", f"{sql} AS {name}")
    rows = records.selectExpr("position", "arrived_at", f"explode({events}) AS e")
    return rows.where(plan.where) if plan.where else rows


def rows_of(
    events: DataFrame,
    plan: EventPlan,
    types: Mapping[str, str],
    unsaid: Sequence[str],
    elsewhere: Mapping[str, int],
    keys: Sequence[Sequence[str]] = (),
    order_by: Collection[str] = (),
) -> DataFrame:
    """Typed change events, and what is wrong with an event in `BAD`.

    Args:
        events: of `events_of`.
        plan: how they are read.
        types: Spark's types by column of the plan.
        unsaid: columns of the table that these events say nothing of.
        elsewhere: columns of the table that are left out where one of the plan is, by its place.
        keys: all keys that are declared: a delete may say any of them.
        order_by: columns that the owner declared as the order of changes.
    """
    # As text: each function of PySpark's that is called takes some messages to the JVM, and there are dozens a column.
    fixed = {
        OP: plan.op,
        SEQUENCE: plan.sequence,
        POSITION: "position",
        INDEX: f"coalesce(CAST({plan.index} AS INT), 0)",
        EVENT_TIME: plan.event_time,
        ARRIVED_AT: "arrived_at",
    }
    columns = list(enumerate(plan.columns))
    kept = ["none", "no_place", *map(quote, fixed), *(f"{part}{i}" for part in "tu" for i, _ in columns)]
    texts = [f"CASE WHEN NOT ({c.unavailable}) THEN {c.text} END" if c.unavailable else c.text for _, c in columns]
    stage = events.selectExpr(
        *(["e"] if (asks_texts := any(c.left_out for _, c in columns)) else []),
        "e IS NULL AS none",
        f"{plan.no_place or 'CAST(NULL AS STRING)'} AS no_place",
        *(f"{value} AS {quote(name)}" for name, value in fixed.items()),
        *(f"{text} AS t{i}" for i, text in enumerate(texts)),
        *(f"{c.unavailable or 'false'} AS u{i}" for i, c in columns),
    )
    if asks_texts:
        found = (f"t{i} IS NULL AND ({c.left_out})" if c.left_out else "false" for i, c in columns)
        u = (f"u{i} OR ({left_out}) AS u{i}" for i, left_out in enumerate(found))
        stage = stage.selectExpr("none", "no_place", *map(quote, fixed), *(f"t{i}" for i, _ in columns), *u)
    stage = in_steps(stage, plan, kept)
    misfits = {c: _misfit(i, c.name, types[c.name]) for i, c in columns if c.steps}
    nulled = [why for c, why in misfits.items() if c.may_be_null]
    return stage.selectExpr(
        *(f"CAST(v{i} AS {types[c.name]}) AS {quote(c.name)}" for i, c in columns),
        *map(quote, fixed),
        f"{_listed(_left_out(plan, unsaid, elsewhere))} AS {quote(UNAVAILABLE)}",
        *([f"{_listed(nulled)} AS {quote(MISFITS)}"] if nulled else []),
        f"coalesce({', '.join(_problems(plan, misfits, keys, order_by))}) AS {quote(BAD)}",
    )


def _problems(
    plan: EventPlan, misfits: Mapping[EventColumn, str], keys: Sequence[Sequence[str]], order_by: Collection[str]
) -> list[str]:
    """SQL of what is wrong with an event, each NULL where nothing is.

    Args:
        plan: how the events are read.
        misfits: SQL of a column's value that does not fit its type, as text.
        keys: all keys that are declared.
        order_by: columns that the owner declared as the order of changes.
    """
    columns = list(enumerate(plan.columns))
    at = {c.name: i for i, c in columns}
    others = [[at[c] for c in key] for key in keys if set(key) != set(plan.key) and set(key) <= at.keys()]
    said = [" AND ".join(f"v{i} IS NOT NULL" for i in key) for key in others]
    by_other = f"{quote(OP)} = {literal(DELETE)} AND ({' OR '.join(said)})" if said else "false"
    # Which row a delete takes away its key says: what else it says of the row is used for nothing.
    needless = "false" if not plan.key else f"{quote(OP)} = {literal(DELETE)}"
    needed = {*plan.key, *order_by}
    return [
        f"CASE WHEN none THEN {literal(UNREADABLE)} END",
        f"CASE WHEN {quote(OP)} IS NULL THEN {literal(plan.no_op)} END",
        f"CASE WHEN {quote(SEQUENCE)} IS NULL THEN no_place END",
        *(why if c.name in needed else f"CASE WHEN NOT coalesce({needless}, false) THEN {why} END"
          for c, why in misfits.items() if not c.may_be_null),
        *(
            f"CASE WHEN {quote(OP)} <> {literal(TRUNCATE)} AND v{i} IS NULL AND NOT ({by_other}) "
            f"THEN {literal(f'key column {c.name} is missing')} END"
            for i, c in columns
            if c.name in plan.key
        ),
    ]  # fmt: skip


def _left_out(plan: EventPlan, unsaid: Sequence[str], elsewhere: Mapping[str, int]) -> list[str]:
    """SQL of the names of columns that an event leaves out, each NULL where it says the value; see `rows_of`."""
    gone = [f"CASE WHEN u{i} THEN {literal(c.name)} END" for i, c in enumerate(plan.columns) if c.may_be_unavailable]
    gone += [f"CASE WHEN {quote(OP)} = {literal(UPDATE)} THEN {literal(name)} END" for name in unsaid]
    gone += [
        f"CASE WHEN u{i} THEN {literal(name)} END"
        for name, i in elsewhere.items()
        if plan.columns[i].may_be_unavailable
    ]
    return gone


def _listed(texts: Sequence[str]) -> str:
    """SQL of an array of those texts that are not null; NULL where all are."""
    if not texts:
        return "CAST(NULL AS ARRAY<STRING>)"
    found = f"array_compact(array({', '.join(texts)}))"
    return f"CAST(CASE WHEN size({found}) > 0 THEN {found} END AS ARRAY<STRING>)"


def in_steps(stage: DataFrame, plan: EventPlan, kept: Sequence[str]) -> DataFrame:
    """Values `v0`, ... of the texts `t0`, ... of a plan's columns, beside `kept`, the quoted columns of `stage`.

    One projection a step: Spark computes a column that later ones use more than once only once.
    """
    stage = stage.selectExpr("*", *(f"t{i} AS v{i}" for i in range(len(plan.columns))))
    for step in range(max((len(c.steps) for c in plan.columns), default=0)):
        values = (
            f"{c.steps[step].replace('{t}', f'v{i}') if step < len(c.steps) else f'v{i}'} AS v{i}"
            for i, c in enumerate(plan.columns)
        )
        stage = stage.selectExpr(*kept, *values)
    return stage


def _misfit(i: int, name: str, kind: str) -> str:
    shown = f"concat({literal(f'{name} does not fit {kind}: ')}, left(CAST(t{i} AS STRING), 100))"
    return f"CASE WHEN t{i} IS NOT NULL AND v{i} IS NULL THEN {shown} END"
