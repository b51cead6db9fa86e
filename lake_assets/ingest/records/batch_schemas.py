"""Schemas and shapes of the records in a batch: found once for all source tables of a stream.

Spark takes longer to plan a query over a small batch than to read it. The steps of a run that read the same window of a
raw table therefore share what its records look like. A window never changes, so what was found stays true; each process
looks for itself.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.formats import EventFormat, SourceTable
from lake_assets.formats.event_model import MANY, Seen
from lake_assets.formats.format_base import decode, schema_key
from lake_assets.lake.names import literal

log = logging.getLogger(__name__)
# Windows whose schemas are remembered: the steps of a run that share one come soon after each other.
_MOST_WINDOWS = 8


@dataclass(frozen=True)
class BatchSchema:
    """A schema in a batch.

    Attributes:
        seen: the schema, and what its records look like where it does not say all.
        last: the last position of a record with it.
        is_short: whether all of its records are there without the schema as well.
    """

    seen: Seen
    last: int
    is_short: bool


BySource = Mapping[str, Sequence[BatchSchema]]
"""By the `source_table` of records, the schemas that they have."""


def find_schemas(records: DataFrame, reader: EventFormat) -> BySource:
    """The schemas of all records, and what the records look like where that is not all."""
    # One look: of a small batch, to plan a query takes Spark longer than to read it. What records without a schema look
    # like is asked for anyway; with one, only where it does not say all.
    by = ["source_table", "schema_key"]
    columns = [*by, "position", "payload", "record AS sample"]
    looks = [
        "max(position) AS last",
        "count(payload) = count(*) AS short",
        # One record tells the schema of all that have the same key.
        "min_by(sample, position) AS sample",
    ]
    if reader.shape:
        columns.append(f"CASE WHEN coalesce(schema_key, '') = {literal(schema_key(''))} THEN record END AS record")
        looks.append(f"{reader.shape} AS shape")
    rows = records.selectExpr(*columns).groupBy(*by).agg(*map(F.expr, looks)).collect()
    schemas = {r["schema_key"]: reader.schema_of(decode(r["sample"])) for r in rows}
    unsaid = [r for r in rows if reader.shape and not reader.says_all(schemas[r["schema_key"]])]
    shapes = {(r["source_table"], r["schema_key"]): r["shape"] for r in unsaid if not r["schema_key"]}
    if asked := sorted({r["schema_key"] for r in unsaid if r["schema_key"]}):
        some = records.where(F.col("schema_key").isin(*asked)) if len(asked) < len(schemas) else records
        of_key = some.groupBy(*by).agg(F.expr(reader.shape or "").alias("shape"))
        shapes |= {(r["source_table"], r["schema_key"]): r["shape"] for r in of_key.collect()}
    found: dict[str, list[BatchSchema]] = {}
    for r in rows:
        seen = Seen(schemas[r["schema_key"]], shapes.get((r["source_table"], r["schema_key"])))
        found.setdefault(r["source_table"], []).append(BatchSchema(seen, r["last"], r["short"]))
    return found


def schemas_of(found: BySource, table: SourceTable) -> list[BatchSchema]:
    """Those of the records about one source table, alone or with others; oldest first."""
    return sorted((*found.get(str(table), ()), *found.get(MANY, ())), key=lambda s: s.last)


@dataclass(frozen=True)
class BatchWindow:
    """A window of a raw table, by what identifies its records for ever."""

    raw: str
    """The raw table's uuid."""
    start: int | None
    end: int
    format: str


class _Look:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_done = False
        self.found: BySource | None = None


_looks: OrderedDict[BatchWindow, _Look] = OrderedDict()
_looks_lock = threading.Lock()


def shared_schemas(window: BatchWindow, find: Callable[[], BySource]) -> BySource | None:
    """What `find` gives for a window, asked once in this process; other threads wait for the one that asks.

    None where it failed: records of one table that Spark cannot look at must not stop the others, so that each then
    looks at its own.
    """
    with _looks_lock:
        look = _looks.setdefault(window, _Look())
        _looks.move_to_end(window)
        while len(_looks) > _MOST_WINDOWS:
            _looks.popitem(last=False)
    with look.lock:
        if not look.is_done:
            try:
                look.found = find()
            except Exception as e:
                log.warning("%s: its tables look at their records one by one: %s", window, e)
            look.is_done = True
        return look.found
