"""The window of a step: its events, and the rows of the table that it reads, merges or replaces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import Refused
from lake_assets.final.declaration import GENERATION
from lake_assets.final.events.key_changes import BASE_POSITION
from lake_assets.final.events.window_stats import Stats, is_late
from lake_assets.final.staging_projection import PARTIAL, TECHNICAL
from lake_assets.final.target import Target
from lake_assets.formats.event_model import ARRIVED_AT, EVENT_TIME, INDEX, OP, POSITION, SEQUENCE, UNAVAILABLE
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.lake.rows_in_memory import no_rows
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.spark_frames import over
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.writing.merge_clauses import Clause, Match
from lake_assets.tables.writing.merge_pairs import HeldRows, frame_of
from lake_assets.tables.writing.table_ddl import key_in
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY, KEY_PROPERTY
from lake_assets.tables.writing.table_writer import TableWriter

_MANY = Refused("the events are many")


@dataclass(frozen=True)
class Batch:
    """The window of a step.

    Attributes:
        before: the table's watermark before the step; None: it has absorbed nothing.
        head: the newest watermark of staging in the window.
        writer: writes the table.
        last: the last event of each key in this process, if the rows follow from these alone.
        details: details for the outcome.
    """

    target: Target
    events: DataFrame
    stats: Stats
    before: Watermark | None
    head: Watermark
    writer: TableWriter
    last: pa.Table | Refused = _MANY
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> Mapping[str, str]:
        """The types of the table's columns as the step writes them."""
        return self.target.all_types if self.target.is_new else self.writer.types

    @property
    def is_emptied(self) -> bool:
        """Whether a truncate in the window deletes all rows from before it."""
        return bool(self.stats.truncated) and self.target.spec.deletes != "ignore"

    @property
    def late_events(self) -> DataFrame:
        """The events that need the history of their keys."""
        return self.events.where(is_late(self.target, self.before))

    def stored_rows(self, keys: DataFrame | None, *, by: Sequence[str] = (), branch: str = "") -> DataFrame:
        """Return the table's rows with these keys (None: all rows), reading only files that can contain them.

        `by` are the columns of `keys`; empty: the table's key. `branch` is the SQL name of a branch to read instead
        of main.
        """
        spark, name, key = self.target.lake.spark(), branch or self.writer.commit.name, list(by or self.target.key)
        if self.target.is_new:
            return no_rows(spark, ", ".join(f"{quote(c)} {t}" for c, t in self.types.items()))
        if keys is None:
            return spark.table(name)
        pruning = self.pruning(keys, key)
        sql = f"SELECT * FROM {name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
        return over(spark, sql, {}, pruning.values).join(keys, key, "left_semi")

    def pruning(self, rows: DataFrame, by: Sequence[str] = (), at_most: int | None = None) -> Pruning:
        """Return conditions that few stored rows with other keys than those of `rows` meet.

        `by` are the columns of the keys; empty: the table's key. `at_most` is the greatest number of keys, if it is
        known.
        """
        types, key = self.types, tuple(by or self.target.key)
        cast = rows.selectExpr(*(f"CAST({quote(k)} AS {types[k]}) AS {quote(k)}" for k in key))
        return prune(cast, key, self.writer.commit.base, at_most=at_most, types=types)

    def merge(self, rows: DataFrame | HeldRows, clauses: Sequence[Clause | str], at_most: int | None = None) -> str:
        """MERGE `rows` as `s` into the table `t`, reading few other rows of `t`; return how they were found.

        `at_most` is the greatest number of rows, if it is known.
        """
        spec, match = self.target.spec, Match(self.target.row_key, nulls_match=False)
        spark = self.target.lake.spark()

        def prune() -> Pruning | None:
            # A truncate leaves nothing to prune: every row that is not in the window is deleted.
            return None if self.is_emptied else self.pruning(frame_of(rows, spark), at_most=at_most)

        with tuned_for(self.target.lake, (spec.staging, spec.table)):
            return self.writer.merge(rows, match, clauses, prune, at_most=at_most)

    def replace(self, rows: DataFrame) -> str:
        """Replace all rows of the table in one commit: readers see the old table or the new one.

        If the table was built with the same declaration, only rows that differ are written.

        Returns:
            Which rows were written, as text for the outcome.
        """
        target, spec = self.target, self.target.spec
        is_replaced = self.writer.all_rows(
            rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in target.all_types.items())),
            target.row_key,
            {KEY_PROPERTY: json.dumps(list(target.key))},
            {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties},
            sort_by=spec.sort_by,
            partitioned_by=spec.partitioned_by,
            is_same=self._has_same_declaration,
        )
        return "all rows are written" if is_replaced else "rows that differ are written"

    @property
    def _has_same_declaration(self) -> bool:
        """Whether the table was built with the current declaration, whatever staging has reread since."""
        if (table := self.writer.commit.base) is None:
            return False
        stored = json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
        return stored | {GENERATION: 0} == self.target.declared | {GENERATION: 0} and key_in(table) == self.target.key


def as_events(target: Target, rows: DataFrame, op: str, index: int | Column = 0, at: Column | None = None) -> DataFrame:
    """Return rows of the table as events that precede all events of staging."""
    technical = {
        OP: F.lit(op),
        SEQUENCE: F.lit(""),
        POSITION: F.lit(BASE_POSITION).cast("bigint"),
        INDEX: (F.lit(index) if isinstance(index, int) else index).cast("int"),
        UNAVAILABLE: F.lit(None).cast("array<string>"),
        EVENT_TIME: (F.lit(None) if at is None else at).cast("timestamp"),
        ARRIVED_AT: F.lit(None).cast("timestamp"),
    }
    columns = (F.expr(f"CAST({quote(c)} AS {kind}) AS {quote(c)}") for c, kind in target.types_of_items.items())
    return rows.select(*columns, *(technical[c].alias(c) for c in TECHNICAL), F.lit(False).alias(PARTIAL))
