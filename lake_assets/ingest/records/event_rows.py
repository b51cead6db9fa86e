"""Apply a plan to records in Spark, giving typed change events."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
from lake_assets.formats.types.text_types import let, usual
from lake_assets.lake import quote
from lake_assets.lake.names import literal

BAD = "_lake_assets_bad"
DOES_NOT_FIT = " does not fit "
# Between the reasons of several values of one event.
SEPARATOR = "; "
RECORD = "record_text"
UNREADABLE = "the record cannot be read as its format says"


@dataclass(frozen=True)
class EventReader:
    """Reads the records of one plan as typed change events.

    Attributes:
        plan: how they are read.
        types: Spark types by column of the plan.
        absent: columns of the table that do not occur in these events.
        elsewhere: columns of the table whose value is in another column of the plan, by the index of that column.
        keys: all declared keys; a delete may carry any of them.
        order_by: columns that are declared as the order of changes.
        is_usual: whether values in a rare notation are not read (see `usual`). Then `BAD` is not null for each event
            that has to be read completely, to be rejected or not. The others are the same.
    """

    plan: EventPlan
    types: Mapping[str, str]
    absent: Sequence[str] = ()
    elsewhere: Mapping[str, int] = field(default_factory=dict[str, int])
    keys: Sequence[Sequence[str]] = ()
    order_by: Collection[str] = ()
    is_usual: bool = False

    def rows(self, records: DataFrame) -> DataFrame:
        """Return the events of rows of the raw table; `BAD` holds the reason to reject an event, or null."""
        # SQL text: each call of a PySpark function sends messages to the JVM, and there would be dozens per column.
        plan, is_usual = self.plan, self.is_usual
        fixed = {
            OP: plan.op,
            # Without `no_place`, NULL is a valid place.
            SEQUENCE: usual(plan.sequence) if is_usual and plan.no_place else plan.sequence,
            POSITION: "position",
            INDEX: f"coalesce(CAST({plan.index} AS INT), 0)",
            EVENT_TIME: plan.event_time,
            ARRIVED_AT: "arrived_at",
        }
        columns = list(enumerate(plan.columns))
        record = [RECORD] if self._reads_record else []
        named = {f"n{i}": c.is_named for i, c in columns if c.name in plan.key and c.is_named and not is_usual}
        fixed_columns = [*record, "none", "no_place", *map(quote, fixed)]
        carried = [*fixed_columns, *(f"{part}{i}" for part in "tu" for i, _ in columns), *named]
        texts = [_unless_number(c) if c.is_base64 else c.text for _, c in columns]
        unavailable = [c.unavailable or "" for _, c in columns]
        if is_usual:
            texts, unavailable = [*map(usual, texts)], [*map(usual, unavailable)]
        texts = [f"CASE WHEN NOT ({u}) THEN {t} END" if u else t for u, t in zip(unavailable, texts, strict=True)]
        reads_texts = any(c.left_out for _, c in columns)
        stage = self._events(records).selectExpr(
            *record,
            *(["e"] if reads_texts else []),
            "e IS NULL AS none",
            f"{(not is_usual and plan.no_place) or 'CAST(NULL AS STRING)'} AS no_place",
            *(f"{value} AS {quote(name)}" for name, value in fixed.items()),
            *(f"{text} AS t{i}" for i, text in enumerate(texts)),
            *(f"{u or 'false'} AS u{i}" for i, u in enumerate(unavailable)),
            *([] if reads_texts else [f"{sql} AS {n}" for n, sql in named.items()]),
        )
        if reads_texts:
            left_out = (f"t{i} IS NULL AND ({c.left_out})" if c.left_out else "false" for i, c in columns)
            u = (f"u{i} OR ({condition}) AS u{i}" for i, condition in enumerate(left_out))
            n = (f"CASE WHEN t{name[1:]} IS NULL THEN {sql} END AS {name}" for name, sql in named.items())
            stage = stage.selectExpr(*fixed_columns, *(f"t{i}" for i, _ in columns), *u, *n)
        nulled, bad = self._misfits_and_problems()
        return in_steps(stage, plan, carried, is_usual=is_usual).selectExpr(
            *(f"CAST(v{i} AS {self.types[c.name]}) AS {quote(c.name)}" for i, c in columns),
            *map(quote, fixed),
            f"{_listed(self._absent_names())} AS {quote(UNAVAILABLE)}",
            *([f"{_listed(nulled)} AS {quote(MISFITS)}"] if nulled else []),
            f"{bad} AS {quote(BAD)}",
        )

    @property
    def _reads_record(self) -> bool:
        """Whether numbers in the record's text are looked up: to tell them from base64, or for reasons to reject."""
        return any(c.is_base64 or (c.record_names and c.steps and not self.is_usual) for c in self.plan.columns)

    def _events(self, records: DataFrame) -> DataFrame:
        """Return `position`, `arrived_at`, `e` and, if numbers are compared with it, the record's own text (`RECORD`).

        There is one row per event; `e` is null for a record that cannot be read.
        """
        # Each record has to be parsed once. When Spark pushes conditions down a plan, it copies the expression behind a
        # name to each use of that name, even into lambdas that run for each change of a record. It does not copy lambda
        # variables or the output of a generator, so parsing and splitting are nested in one expression.
        plan = self.plan
        events = f"array({plan.parsed})"
        if plan.split is not None:
            # A record about several tables may hold no event of this one; any other record without one is unreadable.
            unreadable = f"changes IS NULL OR (size(changes) = 0 AND NOT source_table <=> {literal(MANY)})"
            events = (
                f"flatten(transform(transform({events}, e -> {plan.split}), "
                f"changes -> CASE WHEN {unreadable} THEN array(NULL) ELSE changes END))"
            )
        text = [RECORD] if self._reads_record else []
        if text:
            records = records.selectExpr("*", f"record AS {RECORD}")
        for name, sql in plan.before:
            records = records.selectExpr("*", f"{sql} AS {name}")
        if plan.records:
            records = records.where(plan.records)
        rows = records.selectExpr("position", "arrived_at", *text, f"explode({events}) AS e")
        return rows.where(plan.where) if plan.where else rows

    def _misfits_and_problems(self) -> tuple[list[str], str]:
        """Return SQL of the reasons for values that are null since they do not fit, and of the reason to reject."""
        columns = list(enumerate(self.plan.columns))
        if self.is_usual:
            nulled = ["CAST(NULL AS STRING)"] if any(c.steps and c.may_be_null for _, c in columns) else []
            return nulled, self._is_unusual()
        misfits = {c: _misfit(i, c, self.types[c.name]) for i, c in columns if c.steps}
        nulled = [why for c, why in misfits.items() if c.may_be_null]
        return nulled, f"coalesce({', '.join(self._problems(misfits))})"

    def _is_unusual(self) -> str:
        """Return SQL of a text that is not NULL if an event is rejected, or has a value in a rare notation."""
        columns = list(enumerate(self.plan.columns))
        conditions = [
            "none",
            f"{quote(OP)} IS NULL",
            *([f"{quote(SEQUENCE)} IS NULL"] if self.plan.no_place else []),
            *(f"t{i} IS NOT NULL AND v{i} IS NULL" for i, c in columns if c.steps),
            *(f"u{i} IS NULL" for i, c in columns if c.unavailable),
            *(f"{self._lacks_key()} AND v{i} IS NULL" for i, c in columns if c.name in self.plan.key),
        ]
        return f"CASE WHEN {' OR '.join(f'({c})' for c in conditions)} THEN 'unusual' END"

    def _lacks_key(self) -> str:
        """Return SQL of a boolean: an event has to have the plan's key. A delete may have another one of `keys`."""
        index_of, own = {c.name: i for i, c in enumerate(self.plan.columns)}, set(self.plan.key)
        others = [[index_of[c] for c in key] for key in self.keys if set(key) != own and set(key) <= index_of.keys()]
        complete = [" AND ".join(f"v{i} IS NOT NULL" for i in key) for key in others]
        by_other = f"{quote(OP)} = {literal(DELETE)} AND ({' OR '.join(complete)})" if complete else "false"
        return f"{quote(OP)} <> {literal(TRUNCATE)} AND NOT ({by_other})"

    def _problems(self, misfits: Mapping[EventColumn, str]) -> list[str]:
        """Return SQL of the reasons to reject an event, each NULL if it does not apply.

        `misfits`: SQL of the reason by column, for values that do not fit the type.
        """
        plan = self.plan
        # The key identifies the row to delete; the other values of a delete are not used.
        is_delete = "false" if not plan.key else f"{quote(OP)} = {literal(DELETE)}"
        needed = {*plan.key, *self.order_by}
        rejecting = [
            why if c.name in needed else f"CASE WHEN NOT coalesce({is_delete}, false) THEN {why} END"
            for c, why in misfits.items()
            if not c.may_be_null
        ]
        return [
            f"CASE WHEN none THEN {literal(UNREADABLE)} END",
            f"CASE WHEN {quote(OP)} IS NULL THEN {literal(plan.no_op)} END",
            f"CASE WHEN {quote(SEQUENCE)} IS NULL THEN no_place END",
            *([f"nullif(concat_ws({literal(SEPARATOR)}, {', '.join(rejecting)}), '')"] if rejecting else []),
            *(
                f"CASE WHEN {self._lacks_key()} AND v{i} IS NULL THEN {_no_key(i, c)} END"
                for i, c in enumerate(plan.columns)
                if c.name in plan.key
            ),
        ]  # fmt: skip

    def _absent_names(self) -> list[str]:
        """Return SQL of the names of columns that an event leaves out, each NULL if it has a value."""
        columns = self.plan.columns
        names = [f"CASE WHEN u{i} THEN {literal(c.name)} END" for i, c in enumerate(columns) if c.may_be_unavailable]
        names += [f"CASE WHEN {quote(OP)} = {literal(UPDATE)} THEN {literal(name)} END" for name in self.absent]
        names += [
            f"CASE WHEN u{i} THEN {literal(name)} END"
            for name, i in self.elsewhere.items()
            if columns[i].may_be_unavailable
        ]
        return names


def _no_key(i: int, column: EventColumn) -> str:
    """Return SQL of the reason to reject an event without the value of a key column."""
    null, missing, unknown = (
        literal(f"key column {column.name} is {what}") for what in ("null", "missing", "null or missing")
    )
    return (
        f"CASE n{i} WHEN true THEN {null} WHEN false THEN {missing} ELSE {unknown} END" if column.is_named else unknown
    )


def _listed(texts: Sequence[str]) -> str:
    """Return SQL of an array of the texts that are not null; NULL if all are."""
    if not texts:
        return "CAST(NULL AS ARRAY<STRING>)"
    array = f"array_compact(array({', '.join(texts)}))"
    return f"CAST(CASE WHEN size({array}) > 0 THEN {array} END AS ARRAY<STRING>)"


def in_steps(stage: DataFrame, plan: EventPlan, carried: Sequence[str], *, is_usual: bool = False) -> DataFrame:
    """Return values `v0`, ... of the texts `t0`, ... of a plan's columns, and the quoted columns `carried` of `stage`.

    Each step is a projection of its own, so that Spark computes a column once even if later ones use it repeatedly.
    """
    stage = stage.selectExpr("*", *(f"t{i} AS v{i}" for i in range(len(plan.columns))))
    for step in range(max((len(c.steps) for c in plan.columns), default=0)):
        sql = [c.steps[step] if step < len(c.steps) else "{t}" for c in plan.columns]
        values = (f"{(usual(t) if is_usual else t).replace('{t}', f'v{i}')} AS v{i}" for i, t in enumerate(sql))
        stage = stage.selectExpr(*carried, *values)
    return stage


def _misfit(i: int, column: EventColumn, kind: str) -> str:
    value = _own_number(i, column.record_names) if column.record_names else f"CAST(t{i} AS STRING)"
    message = f"concat({literal(f'{column.name}{DOES_NOT_FIT}{kind}: ')}, {_shortened(value)})"
    return f"CASE WHEN t{i} IS NOT NULL AND v{i} IS NULL THEN {message} END"


def _shortened(text: str) -> str:
    return let(text, "m_", "CASE WHEN length(m_) > 100 THEN concat(left(m_, 100), '…') ELSE m_ END")


def _member(names: Sequence[str]) -> str:
    """Return the pattern of one of these names in JSON, up to its value."""
    spelled = dict.fromkeys(json.dumps(n, ensure_ascii=is_ascii) for n in names for is_ascii in (True, False))
    return rf"(?:{'|'.join(map(re.escape, spelled))})\s*+:\s*+"


def _unless_number(column: EventColumn) -> str:
    """Return SQL of a text in base64; of a number in the JSON, which may look like base64, a text that is not."""
    number = f"concat({literal(_member(column.record_names))}, ({column.text}), '[^0-9.eE]')"
    told = "' (a number: its bytes in base64 are expected, as with decimal.format=BASE64)'"
    return (
        f"CASE WHEN ({column.text}) RLIKE '^[0-9]+$' AND {RECORD} RLIKE {number} "
        f"THEN concat(({column.text}), {told}) ELSE {column.text} END"
    )


def _own_number(i: int, names: Sequence[str]) -> str:
    """Return SQL of the number in the record that was read as `t{i}`, as the record spells it; else `t{i}`."""
    number = literal(rf"{_member(names)}(-?[0-9][0-9.eE+-]*+)")
    # A row has a column once, but a record may have several rows: the numbers in them differ.
    is_it = f"try_cast(n AS DOUBLE) <=> try_cast(replace(t{i}, '\"', '') AS DOUBLE)"
    return f"coalesce(get(filter(regexp_extract_all({RECORD}, {number}, 1), n -> {is_it}), 0), t{i})"
