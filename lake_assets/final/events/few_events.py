"""The events of a small window in this process: counted, and reduced to the last one of each key, without Spark.

Spark computes what follows from one event alone: its columns, its place in the order, whether it is late. Grouping a
few hundred rows takes it longer than everything else in a step, so that is done here, in the simplest case; what needs
more than the last event of each key is Spark's work, as in larger windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from lake_assets.errors import Refused
from lake_assets.final.events.window_stats import (
    ABSORBED_LOG,
    HAPPENED_AT,
    IS_KEYLESS,
    IS_LATE,
    IS_MOVING,
    IS_OLD,
    IS_SET_BACK,
    LOG,
    TRANSACTION,
    Stats,
    checked,
    looks,
)
from lake_assets.final.staging_projection import PARTIAL, TECHNICAL
from lake_assets.final.target import Target
from lake_assets.formats.event_model import (
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
from lake_assets.formats.event_model import TECHNICAL as TECHNICAL_TYPES
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.lake.rows_in_memory import arrow_rows
from lake_assets.tables.writing.key_lookup import pc

_RANK = "__rank"
# Types whose equal values are one key to Arrow and to Spark, and that Arrow hands back to Spark as they are.
_KEYS = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string", "binary")
_OTHERS = ("float", "double", "decimal(", "array<", "map<", "struct<")
_NOT_HANDED_ON = ("variant", "collate", "interval", "geometry", "geography", "time(", "void")


@dataclass(frozen=True)
class FewEvents:
    """Events, in this process.

    Attributes:
        target: the table that they change.
        rows: the table's columns, the technical columns, and what `looks` computes; in the order of changes.
    """

    target: Target
    rows: pa.Table

    @classmethod
    def of(cls, target: Target, events: DataFrame, before: Watermark | None) -> FewEvents | Refused:
        """Collect the events of a window; a refusal if Arrow does not hold their values as Spark does."""
        kinds = target.types_of_items.values()
        if other := next((k for k in kinds if not _is_handed_on(k)), ""):
            return Refused(f"Arrow does not hold {other} as Spark does")
        every = [*map(quote, target.items), *TECHNICAL, PARTIAL]
        rows = events.selectExpr(*every, *(f"{sql} AS {name}" for name, sql in looks(target, before).items())).toArrow()
        return cls(target, _sorted(rows, SEQUENCE, POSITION, INDEX))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the events as a frame."""
        types = {c: self.target.types_of_items[c] for c in self.target.items}
        technical = {c: TECHNICAL_TYPES[c] for c in TECHNICAL} | {PARTIAL: "boolean"}
        return arrow_rows(spark, self.rows, ", ".join(f"{quote(c)} {t}" for c, t in (types | technical).items()))

    def stats(self) -> Stats:
        """Count the events; see `stats_of` for the errors."""
        rows, last = self.rows, _last
        high = (last(rows[SEQUENCE]), last(rows[POSITION])) if rows.num_rows else None
        op, truncated = rows[OP], self._of_op(TRUNCATE)
        arrived = _sorted(rows, POSITION, INDEX)
        latest, of_high = last(arrived[TRANSACTION]), last(rows[TRANSACTION])
        logs = (*pc.min_max(rows[LOG]).as_py().values(), last(rows[ABSORBED_LOG]))
        return checked(
            self.target,
            Stats(
                events=rows.num_rows,
                high=high,
                latest=pc.min_max(rows[HAPPENED_AT]).as_py()["max"],
                transaction=None if latest == of_high else latest,
                late=_count(rows[IS_LATE]),
                old=_count(rows[IS_OLD]),
                unavailable=rows.num_rows - rows[UNAVAILABLE].null_count,
                partial_inserts=_count(rows[IS_MOVING]),
                inserts=self._of_op(INSERT).num_rows,
                deletes=self._of_op(DELETE).num_rows,
                others=_count(pc.invert(pc.is_in(op, pa.array([INSERT, READ], op.type)))),
                truncated=_place(truncated) if truncated.num_rows else None,
                keyless=_count(rows[IS_KEYLESS]),
                unordered=rows[SEQUENCE].null_count,
                logs=frozenset(filter(None, logs)),
                set_back=_count(rows[IS_SET_BACK]),
            ),
        )

    def last_of_keys(self, stats: Stats, stored: Mapping[str, str]) -> pa.Table | Refused:
        """Return the last event of each key; a refusal if the rows after them do not follow from these alone.

        Args:
            stats: the counts of the events.
            stored: the types of the table's columns, as they are stored.
        """
        target, rows = self.target, self.rows
        if why := self._why_not(stats):
            return Refused(why)
        if any(stored.get(c) != kind for c, kind in target.types_of_items.items()):
            return Refused("values are cast to the types of the table")
        if target.spec.deletes == "ignore":
            rows = rows.filter(pc.not_equal(rows[OP], DELETE))
        ranked = rows.select(list(target.key)).append_column(_RANK, pa.array(np.arange(rows.num_rows)))
        last = ranked.group_by(list(target.key)).aggregate([(_RANK, "max")])
        return rows.take(last[f"{_RANK}_max"])

    def _why_not(self, stats: Stats) -> str:
        target, types = self.target, self.target.types_of_items
        if target.mode != "scd1" or target.is_new or target.spec.by_row or target.spec.write != "merge":
            return "the table's rows are not merged by key"
        if stats.late or stats.partial_inserts or stats.unavailable or stats.truncated or target.own:
            return "rows depend on earlier events, or on stored values"
        if any(types[k] not in _KEYS and not types[k].startswith("decimal(") for k in target.key):
            return "keys of this type are compared by Spark"
        if stats.inserts and stats.deletes and target.ordering.has_transactions and self._are_entangled():
            return "keys were inserted and deleted within one transaction"
        return ""

    def _are_entangled(self) -> bool:
        """Whether a key has an insert and a later delete in one transaction (see `key_changes.entangled`)."""
        rows, rank = self.rows, pa.array(np.arange(self.rows.num_rows))
        by = [*self.target.key, TRANSACTION]
        sides = [pc.if_else(pc.equal(rows[OP], op), rank, None) for op in (INSERT, DELETE)]
        sided = rows.select(by).append_column("came", sides[0]).append_column("went", sides[1])
        sided = sided.filter(pc.is_valid(sided[TRANSACTION]))
        grouped = sided.group_by(by).aggregate([("came", "min"), ("went", "max")])
        return _count(pc.less(grouped["came_min"], grouped["went_max"])) > 0

    def _of_op(self, op: str) -> pa.Table:
        return self.rows.filter(pc.equal(self.rows[OP], op))


def _is_handed_on(kind: str) -> bool:
    return (kind in _KEYS or kind.startswith(_OTHERS)) and not any(other in kind for other in _NOT_HANDED_ON)


def _sorted(rows: pa.Table, *by: str) -> pa.Table:
    """Return rows in the order of some columns, as Spark compares them: null comes first."""
    keys: dict[str, Any] = {}
    for name in by:
        keys |= {f"{name} is known": pc.is_valid(rows[name]), name: rows[name]}
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=[(key, "ascending") for key in keys]))


def _count(flags: Any) -> int:
    return pc.sum(pc.fill_null(flags, False)).as_py() or 0


def _last(values: pa.ChunkedArray) -> Any:
    return values[-1].as_py() if len(values) else None


def _place(rows: pa.Table) -> Row:
    """Return the place of the last of some events, as a query returns it."""
    names: Mapping[str, str] = {"sequence": SEQUENCE, "position": POSITION, "index": INDEX}
    return Row(**{name: _last(rows[column]) for name, column in names.items()})
