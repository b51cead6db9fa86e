"""Streams whose order is numbers or moments, as each record says: what cannot be compared with the rest is rejected.

The kind of the first event that has one is the table's, from that place in the stream on. An event of the other kind,
or, after that place, of none, would stand before or after all others, and its row would stay as it is for ever.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from lake_assets.formats import event_format
from lake_assets.formats.event_model import POSITION, SEQUENCE
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.lake import LakeBase
from lake_assets.lake.names import literal

# Of a staging table: what orders its events, and since which place in the stream.
PROPERTY = "lake-assets.order"


@dataclass(frozen=True)
class Kind:
    """What orders a table's events.

    Attributes:
        name: `numbers`, `moments` or `versions`.
        since: position of the first event that has one.
    """

    name: str
    since: int


def to_property(kind: Kind | None) -> str:
    """The table property that records it."""
    return json.dumps(asdict(kind) if kind else None)


def kind_sql(spec: StagingSpec) -> str | None:
    """SQL over `_sequence` giving the kind of an event's; None: all events of the table are of one, or something else
    orders them."""
    return None if spec.order_by else event_format(spec.format).kind


def kind_of(lake: LakeBase, spec: StagingSpec) -> Kind | None:
    """The kind of a staging table's events; None: it has none yet, or there can be but one."""
    sql, table = kind_sql(spec), lake.find(spec.table)
    if sql is None or table is None:
        return None
    if said := table.properties.get(PROPERTY):
        return Kind(**of) if (of := json.loads(said)) else None
    # Made before kinds were told apart, or by a run that was killed.
    reader = event_format(spec.format)
    rows = lake.spark().table(lake.sql_name(spec.table)).selectExpr(POSITION, f"{reader.stored} AS {SEQUENCE}")
    return first_kind(rows, sql)


def first_kind(rows: DataFrame, sql: str) -> Kind | None:
    """The kind of the first of some events that has one."""
    of = rows.selectExpr(POSITION, f"{sql} AS kind").where("kind IS NOT NULL")
    found = of.agg(F.min_by("kind", POSITION).alias("name"), F.min(POSITION).alias("since")).collect()[0]
    return Kind(found["name"], found["since"]) if found["name"] is not None else None


def with_unplaced(rows: DataFrame, sql: str, kind: Kind) -> DataFrame:
    """The events, those that cannot be compared with the others being bad."""
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


class Look:
    """Whether a batch that is written in one pass holds events of one kind, told while it is written."""

    def __init__(self, sql: str | None, kind: Kind | None) -> None:
        self.sql, self.kind = sql, kind

    @property
    def columns(self) -> list[Column]:
        """What is to be observed of the events."""
        if self.sql is None:
            return []
        good = f"{BAD} IS NULL"
        return [
            F.expr(f"min(if({good}, {self.sql}, NULL)) AS least_kind"),
            F.expr(f"max(if({good}, {self.sql}, NULL)) AS greatest_kind"),
            F.expr(f"count_if({good} AND {SEQUENCE} = '') AS without_kind"),
            F.expr(f"min(if({good} AND ({self.sql}) IS NOT NULL, {POSITION}, NULL)) AS first_kind"),
        ]

    def found(self, seen: Observation) -> Kind | None:
        """The kind of all events that have been written, and of those before.

        Raises:
            MixedKindsError: they have several, or some have none.
        """
        if self.sql is None:
            return None
        look = seen.get
        here = look["least_kind"]
        if here is None and (self.kind is None or not look["without_kind"]):
            return self.kind
        if here != look["greatest_kind"] or look["without_kind"] or (self.kind and here != self.kind.name):
            raise MixedKindsError
        return self.kind or Kind(str(here), int(look["first_kind"]))


class MixedKindsError(Exception):
    """A batch holds events that cannot be compared with each other; nothing of it was published."""
