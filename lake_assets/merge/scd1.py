"""Final tables: one row a key, as the source holds it now (SCD1), or appended rows where there is no key."""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.capture import Capture, capture
from lake_assets.errors import KeyMissingError, UnsupportedEventError
from lake_assets.events.model import (
    ARRIVED_AT,
    DELETE,
    INDEX,
    INSERT,
    OP,
    POSITION,
    READ,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.watermark import Mark, Marks, read_marks
from lake_assets.merge.commit import append_if_unmoved, commit_marks, committing, counts, snapshot_of
from lake_assets.merge.outcome import Absorbed, Outcome
from lake_assets.merge.pruning import Pruning, prune
from lake_assets.merge.reduce import KEEP, latest, order
from lake_assets.merge.schema import Change, evolve
from lake_assets.merge.small import fitting
from lake_assets.merge.specs import FinalSpec
from lake_assets.merge.staging import projection
from lake_assets.merge.steps import window
from lake_assets.merge.tables import alter, check_owner, columns_of, create, key_of
from lake_assets.merge.views import temp_view

_TECHNICAL = (OP, SEQUENCE, POSITION, INDEX, UNAVAILABLE, ARRIVED_AT)


def absorb_changes(lake: LakeBase, spec: FinalSpec) -> Outcome:
    """Bring the final table to what the staging table has received.

    Raises:
        KeyMissingError: a declared key column is not in the table.
        UnsupportedEventError: updates or deletes of a table without a key.
        ConcurrentWriteError: another run was at it at the same time.
    """
    began = time.monotonic()
    name = str(spec.table)
    if not lake.exists(spec.staging):
        return Outcome(name, "waiting", why=f"{spec.staging} does not exist yet")
    if lake.exists(spec.table):
        check_owner(lake, spec.table, spec.pipeline)
    pending = window(lake, spec.table, spec.staging)
    if pending.is_absorbed or pending.head.snapshot is None:
        return Outcome(name, "nothing")
    step = _Step(lake, spec)
    base = read_marks(lake.table(spec.table)) if lake.exists(spec.table) else {}
    with (
        capture(lake, spec.staging, pending.start, pending.head.snapshot) as captured,
        fitting(lake, (spec.staging, spec.table)),
    ):
        absorbed = Absorbed.of(str(spec.staging), captured)
        events = step.events(captured).persist()
        try:
            stats = _stats(events)
            changes = step.prepare()
            marks = {**base, str(spec.staging): _moved(pending.head, pending.mark, stats)}
            if not stats["events"] and step.key:
                commit_marks(lake, spec.table, marks)
                strategy, why = "none", "the window holds no event"
            elif step.key:
                strategy, why = step.merge(events, stats, pending.mark, pending.head, marks)
            else:
                strategy, why = step.append(events, stats, marks, base)
        finally:
            events.unpersist()
    snapshot = snapshot_of(lake, spec.table, marks)
    inserted, updated, deleted = counts(snapshot)
    return Outcome(
        name, "absorbed", (absorbed,), inserted, updated, deleted, strategy, why, time.monotonic() - began,
        snapshot.snapshot_id if snapshot else None,
        {"events": stats["events"]}
        | ({"schema_changes": [f"{c.kind} {c.column} {c.type}" for c in changes]} if changes else {}),
    )  # fmt: skip


def _stats(events: DataFrame) -> Row:
    return events.agg(
        F.count("*").alias("events"),
        F.min(order()).alias("low"),
        F.max(order()).alias("high"),
        F.count_if(F.col(UNAVAILABLE).isNotNull()).alias("unavailable"),
        F.count_if(F.col(UNAVAILABLE).isNotNull() & F.col(OP).isin(INSERT, READ)).alias("moved"),
        F.count_if(~F.col(OP).isin(INSERT, READ)).alias("not_inserts"),
        F.max(F.when(F.col(OP) == TRUNCATE, order())).alias("truncated"),
    ).collect()[0]


def _moved(head: Mark, before: Mark | None, stats: Row) -> Mark:
    high = (stats["high"]["sequence"], stats["high"]["position"]) if stats["high"] else None
    was = before.high if before else None
    return replace(head, high=max(filter(None, (high, was)), default=None))


class _Step:
    """One final table and what is known of it during a step."""

    def __init__(self, lake: LakeBase, spec: FinalSpec) -> None:
        self.lake, self.spec = lake, spec
        self.columns = projection(lake, spec.staging, spec.rename)
        self.key = spec.key or tuple(spec.rename.get(k, k) for k in key_of(lake, spec.staging))
        if missing := [k for k in self.key if k not in self.columns]:
            raise KeyMissingError(
                f"{spec.table}: no column {', '.join(missing)} in {spec.staging}, which has {', '.join(self.columns)}: "
                "correct `key` in the pipeline"
            )

    def events(self, captured: Capture) -> DataFrame:
        """The window's events.

        Raises:
            UnsupportedEventError: staging was rolled back, and lacks events that are in the final table.
        """
        events = self._project(captured.upserts(self.lake.spark()))
        window_ = captured.window
        if window_.is_forward or window_.start is None or window_.end is None:
            return events
        # Staging was rolled back and has caught up: what it took in again are new rows of the same events.
        place = [POSITION, INDEX]
        known, held = (self._staging(p.snapshot_id).select(*place) for p in (window_.start, window_.end))
        if lost := known.join(held, place, "left_anti").count():
            raise UnsupportedEventError(
                f"{self.spec.table}: {self.spec.staging} was rolled back and has not taken in again {lost} events that "
                f"{self.spec.table} has absorbed: drop {self.spec.table} and run again to rebuild it"
            )
        return events.join(known, place, "left_anti")

    def _staging(self, snapshot: int | None) -> DataFrame:
        rows = self.lake.spark().read.option("versionAsOf", str(snapshot))
        return rows.table(self.lake.sql_name(self.spec.staging))

    def _project(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(F.expr(sql).alias(name) for name, (_, sql) in self.columns.items()), *_TECHNICAL)

    def prepare(self) -> list[Change]:
        """Make the table, or let its columns follow those of the staging table."""
        lake, spec = self.lake, self.spec
        wanted = {name: kind for name, (kind, _) in self.columns.items()}
        create(lake, spec.table, wanted, pipeline=spec.pipeline, key=self.key, properties=spec.properties)
        changes = evolve(str(spec.table), columns_of(lake, spec.table), wanted, spec.rename)
        for change in (c for c in changes if c.kind not in ("replace", "fold")):
            alter(lake, spec.table, change)
        if rewrites := [c for c in changes if c.kind in ("replace", "fold")]:
            self._rewrite(rewrites)
        return changes

    def _rewrite(self, changes: list[Change]) -> None:
        """Convert stored values: the table is replaced in one commit, watermarks carried along.

        Needed where Iceberg cannot promote a type (a decimal's scale); readers see the old table or the new one.
        """
        lake, table = self.lake, self.spec.table
        by_column = {c.column: c for c in changes}
        folded = {c.was for c in changes if c.kind == "fold"}
        # Rows and watermarks of one snapshot: whoever commits meanwhile is replaced together with what it recorded.
        # Such a snapshot is read with the columns that it had then.
        current = lake.table(table)
        snapshot, marks, name = current.current_snapshot(), read_marks(current), lake.sql_name(table)
        at = f"VERSION AS OF {snapshot.snapshot_id}" if snapshot else ""
        then = (
            current.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else current.schema()
        )
        names = {f.field_id: f.name for f in then.fields}
        types = columns_of(lake, table)

        def stored(column: str) -> str:
            was = names.get(current.schema().find_field(column).field_id)
            return quote(was) if was else "NULL"

        select: list[str] = []
        for column, kind in types.items():
            change = by_column.get(column)
            if column in folded:
                continue
            folds = change is not None and change.kind == "fold"
            source = f"coalesce({stored(column)}, {stored(change.was or '')})" if change and folds else stored(column)
            select.append(f"CAST({source} AS {change.type if change else kind}) AS {quote(column)}")
        with committing(lake.spark(), table, marks):
            lake.spark().sql(
                f"CREATE OR REPLACE TABLE {name} USING iceberg AS SELECT {', '.join(select)} FROM {name} {at}"
            )

    # --- with a key ---------------------------------------------------------------------------------------------

    def merge(self, events: DataFrame, stats: Row, before: Mark | None, head: Mark, marks: Marks) -> tuple[str, str]:
        """MERGE the keys of the window; returns strategy and reason."""
        if stats["moved"]:
            raise UnsupportedEventError(
                f"{self.spec.table}: {stats['moved']} rows were inserted with values that their events leave out (a "
                f"key "
                "change of a row with an unchanged TOAST value). Set the source table's REPLICA IDENTITY to FULL"
            )
        why: list[str] = []
        truncated, unavailable = stats["truncated"], bool(stats["unavailable"])
        if before and before.high and (stats["low"]["sequence"], stats["low"]["position"]) <= before.high:
            events, truncated = self._with_history(events, before.high, head, bool(truncated))
            unavailable = True
            why.append("late or repeated events: their keys are computed from all of their history")
        if truncated:
            place = F.struct(*(F.lit(truncated[part]).alias(part) for part in ("sequence", "position", "index")))
            events = events.where(order() > place)
        if stats["truncated"]:
            why.append("the source was truncated")
        names = list(self.columns)
        rows = latest(events, self.key, names, with_unavailable=unavailable).persist()
        try:
            # Before a truncate's deletes there is nothing to prune: every row that is not in the window goes.
            pruning = None if stats["truncated"] else prune(rows, self.key)
            self._merge(rows, pruning, marks)
        finally:
            rows.unpersist()
        return "merge", "; ".join([*why, *([pruning.why] if pruning else [])])

    def _with_history(
        self, events: DataFrame, high: tuple[str, int], head: Mark, truncates: bool
    ) -> tuple[DataFrame, Row | None]:
        """Events of the window, those of late keys replaced by all that staging holds of them; and the last truncate.

        Staging keeps every change, so that the state of a key can always be computed afresh, whatever came when. Where
        the window truncates as well, that goes for every key: rows may have been inserted behind the truncate and
        have arrived before it.
        """
        staging = self._staging(head.snapshot)
        truncated = staging.where(F.col(OP) == TRUNCATE).agg(F.max(order()).alias("last")).collect()[0]["last"]
        history = self._project(staging)
        if truncates:
            return history, truncated
        late = events.where(~_behind(*high))
        keys = late.select(*(F.col(quote(k)) for k in self.key)).distinct()
        rest = events.join(keys, list(self.key), "left_anti")
        return rest.unionByName(history.join(F.broadcast(keys), list(self.key), "left_semi")), truncated

    def _merge(self, rows: DataFrame, pruning: Pruning | None, marks: Marks) -> None:
        """MERGE one row a key; without `pruning` what is not in `rows` goes (a truncate came before them)."""
        types = columns_of(self.lake, self.spec.table)
        rest = [c for c in self.columns if c not in self.key]
        rows = rows.select(*(F.col(quote(c)).cast(types[c]).alias(c) for c in self.columns), OP, KEEP)
        condition, values = (pruning.condition, pruning.values) if pruning else ("", {})
        on = " AND ".join([*(f"t.{quote(k)} = s.{quote(k)}" for k in self.key), *([condition] if condition else [])])
        new = {
            c: f"CASE WHEN array_contains(s.{KEEP}, '{_text(c)}') THEN t.{quote(c)} ELSE s.{quote(c)} END" for c in rest
        }
        # A row that is as it was is not written again: the feed of this table then shows what changed, and no more.
        differs = " OR ".join(f"NOT (t.{quote(c)} <=> {new[c]})" for c in rest)
        sets = ", ".join(f"t.{quote(c)} = {new[c]}" for c in rest)
        names = list(self.columns)
        clauses = [
            f"WHEN MATCHED AND s.{OP} = '{DELETE}' THEN DELETE",
            *([f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets}"] if rest else []),
            f"WHEN NOT MATCHED AND s.{OP} <> '{DELETE}' THEN INSERT ({', '.join(quote(c) for c in names)}) "
            f"VALUES ({', '.join('s.' + quote(c) for c in names)})",
            *(["WHEN NOT MATCHED BY SOURCE THEN DELETE"] if pruning is None else []),
        ]
        spark = self.lake.spark()
        with temp_view(rows) as view, committing(spark, self.spec.table, marks):
            sql = f"MERGE INTO {self.lake.sql_name(self.spec.table)} t USING {view} s ON {on} {' '.join(clauses)}"
            spark.sql(sql, args=values) if values else spark.sql(sql)

    # --- without a key ------------------------------------------------------------------------------------------

    def append(self, events: DataFrame, stats: Row, marks: Marks, base: Marks) -> tuple[str, str]:
        """Append the rows of a table without a key."""
        if stats["not_inserts"]:
            raise UnsupportedEventError(
                f"{self.spec.table}: {self.spec.staging} has no key, and {stats['not_inserts']} of its new events "
                f"are no "
                "inserts: which rows they mean cannot be told. Give the source table a primary key, or declare `key`"
            )
        types = columns_of(self.lake, self.spec.table)
        rows = events.select(*(F.col(quote(c)).cast(types[c]).alias(c) for c in self.columns))
        append_if_unmoved(self.lake, self.spec.table, rows, marks, base)
        return "append", "no key: every insert is a row"


def _behind(sequence: str, position: int) -> Column:
    return (F.col(SEQUENCE) > sequence) | ((F.col(SEQUENCE) == sequence) & (F.col(POSITION) > position))


def _text(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
