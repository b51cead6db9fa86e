"""Reject events whose position cannot be compared: a stream may be ordered by numbers or by moments, not by both.

The first event with a position decides the kind of the table. A later event of the other kind, or without a position,
would sort before or after all others, and its row would never change again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from lake_assets.errors import OrderUnknownError
from lake_assets.formats.event_model import POSITION, SEQUENCE
from lake_assets.formats.sequences import ORDINALS
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.lake import LakeBase
from lake_assets.lake.names import literal
from lake_assets.tables.writing.table_state import ORDER_PROPERTY

# Column of a batch while its kind is checked.
KIND = "_lake_assets_kind"


@dataclass(frozen=True)
class Kind:
    """What a table's events are ordered by.

    Attributes:
        name: `numbers`, `moments` or `versions`; of ordinals, with the snapshot at which they begin.
        since: `position` of the first event of the kind.
    """

    name: str
    since: int


def to_property(kind: Kind | None) -> str:
    """Return the value of the table property."""
    return json.dumps(asdict(kind) if kind else None)


def kind_sql(spec: StagingSpec) -> str | None:
    """Return SQL over `_sequence` that gives the kind of an event; None if the format has one kind only, or `order_by`
    is declared."""
    return None if spec.order_by else spec.reader.kind


def kind_of(lake: LakeBase, spec: StagingSpec, table: Table | None) -> Kind | None:
    """Return the kind of a staging table's events; None if no event has one yet, or the format has one kind only."""
    sql = kind_sql(spec)
    if sql is None or table is None:
        return None
    if stored := table.properties.get(ORDER_PROPERTY):
        return Kind(**fields) if (fields := json.loads(stored)) else None
    # The table was created by an earlier release, or by a run that was killed.
    reader = spec.reader
    rows = lake.spark().table(lake.sql_name(spec.table)).selectExpr(POSITION, f"{reader.stored} AS {SEQUENCE}")
    return first_kind(rows, sql)


def first_kind(rows: DataFrame, sql: str) -> Kind | None:
    """Return the kind of the first event that has one; None if none has."""
    kinds = rows.selectExpr(POSITION, f"{sql} AS kind").where("kind IS NOT NULL")
    first = kinds.agg(F.min_by("kind", POSITION).alias("name"), F.min(POSITION).alias("since")).collect()[0]
    return Kind(first["name"], first["since"]) if first["name"] is not None else None


def with_unplaced(rows: DataFrame, sql: str, kind: Kind) -> DataFrame:
    """Return the events, with a reason in `BAD` for those that cannot be compared with the others."""
    one = kind.name.removesuffix("s")
    other = (
        f"concat({literal('its place in the order of changes is one of the ')}, {sql}, "
        f"{literal(f', and the events before it are ordered by {kind.name}: which came first is unknown')})"
    )
    none = literal(f"no {one} says its place in the order of changes, as events before it have one")
    why = (
        f"CASE WHEN {BAD} IS NOT NULL THEN {BAD} WHEN ({sql}) <> {literal(kind.name)} THEN {other} "
        f"WHEN {SEQUENCE} = '' AND {POSITION} > {kind.since} THEN {none} END"
    )
    return rows.withColumn(BAD, F.expr(why))


def check_one_changelog(rows: DataFrame, sql: str, kind: Kind, spec: StagingSpec) -> None:
    """Refuse a batch that begins another changelog than the one that the events before it are from.

    Raises:
        OrderUnknownError: ordinals begin again, so they do not order the events.
    """
    others = rows.selectExpr(POSITION, f"CASE WHEN {BAD} IS NULL THEN {sql} END AS kind")
    others = others.where(F.col("kind").startswith(ORDINALS) & (F.col("kind") != kind.name))
    first = others.agg(F.min_by("kind", POSITION).alias("name"), F.min(POSITION).alias("since")).collect()[0]
    if first["name"] is not None:
        raise OrderUnknownError(
            f"{spec.table}: record {first['since']} of the raw table begins another changelog, in which "
            f"`_change_ordinal` is 0 again ({first['name']}; before, since record {kind.since}: {kind.name}). Ordinals "
            "count anew with each query of a changelog, so they order the changes of one query only. Nothing was "
            "written. If changelogs arrive in the order in which they were queried, and their rows in the order of "
            "`_change_ordinal`, declare `order_by: _position`"
        )


class Look:
    """Aggregates that check, while a batch is written in one pass, that its events have one kind."""

    def __init__(self, sql: str | None, kind: Kind | None) -> None:
        self.sql, self.kind = sql, kind

    def at(self, rows: DataFrame) -> DataFrame:
        """Return the rows with what `columns` needs."""
        return rows if self.sql is None else rows.withColumn(KIND, F.expr(f"if({BAD} IS NULL, {self.sql}, NULL)"))

    @property
    def columns(self) -> list[Column]:
        """Return the aggregates to observe."""
        if self.sql is None:
            return []
        return [
            F.expr(f"min({KIND}) AS least_kind"),
            F.expr(f"max({KIND}) AS greatest_kind"),
            F.expr(f"count_if({BAD} IS NULL AND {SEQUENCE} = '') AS without_kind"),
            F.expr(f"min(if({KIND} IS NOT NULL, {POSITION}, NULL)) AS first_kind"),
        ]

    def kind_from(self, seen: Observation) -> Kind | None:
        """Return the kind of the observed events and of earlier ones.

        Raises:
            MixedKindsError: there are several kinds, or some events have none.
        """
        if self.sql is None:
            return None
        metrics = seen.get
        kind = metrics["least_kind"]
        if kind is None and (self.kind is None or not metrics["without_kind"]):
            return self.kind
        if kind != metrics["greatest_kind"] or metrics["without_kind"] or (self.kind and kind != self.kind.name):
            raise MixedKindsError
        return self.kind or Kind(str(kind), int(metrics["first_kind"]))


class MixedKindsError(Exception):
    """A batch holds events that cannot be compared with each other. Nothing of it is published."""
