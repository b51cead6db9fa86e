"""Schemas and shapes of the records in a batch, collected once for all source tables of a stream.

Spark takes longer to plan a query over a small batch than to read it. The steps of a run that read the same window of a
raw table therefore share its schemas. A window never changes, so its schemas stay valid. Each process has its own
cache.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.formats import EventFormat, SourceTable
from lake_assets.formats.event_model import MANY, Seen
from lake_assets.formats.format_base import schema_key
from lake_assets.formats.registry import read_record
from lake_assets.lake.names import literal

log = logging.getLogger(__name__)
# Number of cached windows. The steps of a run that share one follow each other closely.
_MOST_WINDOWS = 8


# SQL of the text that plans read: a payload is an equivalent record.
READABLE = "coalesce(payload, record)"


def with_payloads(records: DataFrame) -> DataFrame:
    """Return records of a raw table with the text that plans read in `record`."""
    return records.withColumn("record", F.expr(READABLE))


@dataclass(frozen=True)
class BatchSchema:
    """A schema that occurs in a batch.

    Attributes:
        seen: the schema, and the shape of its records if the schema is not complete.
        last: the highest position of a record with this schema.
        is_short: whether all of its records have a `payload`: are also stored without their schema, or without JSON
            text inside JSON.
        has_payloads: whether any of them has.
        first: the lowest position of a record with this schema.
    """

    seen: Seen
    last: int
    is_short: bool
    has_payloads: bool = False
    first: int = 0


BySource = Mapping[str, Sequence[BatchSchema]]
"""Schemas of a batch by the `source_table` of their records."""


@dataclass(frozen=True)
class _Group:
    """The records of one source table that have one schema key.

    Attributes:
        last, first: the highest and lowest position.
        short, payloads: whether all, or any, of them have a `payload`.
        sample: the first record. Records with the same schema key have the same schema.
        shape: their shape, where it was found together with the rest.
    """

    source_table: str
    schema_key: str | None
    last: int
    first: int
    short: bool
    payloads: bool
    sample: str
    shape: str | None = None


def find_schemas(records: DataFrame, reader: EventFormat, held: pa.Table | None = None) -> BySource:
    """Return the schemas of all records, and the shapes of records whose schema is missing or not complete.

    Args:
        records: rows of the raw table.
        reader: their format.
        held: the same rows, if this process holds them.
    """
    # One query if possible, or none: planning a query over a small batch takes Spark longer than reading it. The first
    # one returns the shapes of records without a schema; a second one runs only for schemas that are not complete.
    groups = _groups_in(records, reader) if held is None else _groups_held(held)
    schemas = {g.schema_key: reader.schema_of(read_record(reader, g.sample)[0]) for g in groups}
    incomplete = [g for g in groups if reader.shape and not reader.says_all(schemas[g.schema_key])]
    shapes = {(g.source_table, g.schema_key): g.shape for g in incomplete if held is None and not g.schema_key}
    if missing := {g.schema_key for g in incomplete if held is not None or g.schema_key}:
        of_keys = f"coalesce(schema_key, '') IN ({', '.join(literal(k or '') for k in sorted(missing, key=str))})"
        selected = records.where(of_keys) if len(missing) < len(schemas) else records
        by = ["source_table", "schema_key"]
        shape_rows = with_payloads(selected).groupBy(*by).agg(F.expr(reader.shape or "").alias("shape"))
        shapes |= {(r["source_table"], r["schema_key"]): r["shape"] for r in shape_rows.collect()}
    by_source: dict[str, list[BatchSchema]] = {}
    for g in groups:
        seen = Seen(schemas[g.schema_key], shapes.get((g.source_table, g.schema_key)))
        by_source.setdefault(g.source_table, []).append(BatchSchema(seen, g.last, g.short, g.payloads, g.first))
    return by_source


def _groups_in(records: DataFrame, reader: EventFormat) -> list[_Group]:
    by = ["source_table", "schema_key"]
    columns = [*by, "position", "payload", "record AS sample"]
    aggregates = [
        "max(position) AS last",
        "min(position) AS first",
        "count(payload) = count(*) AS short",
        "count(payload) > 0 AS payloads",
        "min_by(sample, position) AS sample",
    ]
    if reader.shape:
        columns.append(f"CASE WHEN coalesce(schema_key, '') = {literal(schema_key(''))} THEN {READABLE} END AS record")
        aggregates.append(f"{reader.shape} AS shape")
    rows = records.selectExpr(*columns).groupBy(*by).agg(*map(F.expr, aggregates)).collect()
    return [_Group(**r.asDict()) for r in rows]


def _groups_held(records: pa.Table) -> list[_Group]:
    has_payload = records["payload"].is_valid()
    by = (*(records[c].to_pylist() for c in ("source_table", "schema_key", "position")), has_payload.to_pylist())
    rows: dict[tuple[str, str | None], list[tuple[int, bool, int]]] = {}
    for n, (table, key, position, is_short) in enumerate(zip(*by, strict=True)):
        if table is not None:
            rows.setdefault((table, key), []).append((position, is_short, n))
    groups: list[_Group] = []
    for (table, key), found in rows.items():
        (first, _, n), (last, _, _), short = min(found), max(found), [is_short for _, is_short, _ in found]
        groups.append(_Group(table, key, last, first, all(short), any(short), records["record"][n].as_py()))
    return groups


def schemas_of(schemas: BySource, table: SourceTable) -> list[BatchSchema]:
    """Return the schemas of one source table's records, and of records about several tables; oldest first."""
    return sorted((*schemas.get(str(table), ()), *schemas.get(MANY, ())), key=lambda s: s.last)


@dataclass(frozen=True)
class BatchWindow:
    """A window of a raw table. Its records never change."""

    raw: str
    """The raw table's uuid."""
    start: int | None
    end: int
    format: str
    """Its format, with the declared columns of a change set."""


class _CachedSchemas:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_done = False
        self.schemas: BySource | None = None


_cache: OrderedDict[BatchWindow, _CachedSchemas] = OrderedDict()
_cache_lock = threading.Lock()


def shared_schemas(window: BatchWindow, find: Callable[[], BySource]) -> BySource | None:
    """Return `find()` for a window, called once in this process; other threads wait for the result.

    Returns:
        None if it failed. Each table then reads the schemas of its own records, so that records of one table that Spark
        cannot read do not stop the others.
    """
    with _cache_lock:
        cached = _cache.setdefault(window, _CachedSchemas())
        _cache.move_to_end(window)
        while len(_cache) > _MOST_WINDOWS:
            _cache.popitem(last=False)
    with cached.lock:
        if not cached.is_done:
            try:
                cached.schemas = find()
            except Exception as e:
                log.warning(
                    "%s: schemas cannot be read for all tables at once, so each table reads its own: %s", window, e
                )
            cached.is_done = True
        return cached.schemas
