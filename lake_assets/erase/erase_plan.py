"""The plan of an erasure: the keys with those that they are connected to, the records, and what each table holds."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import source_tags
from lake_assets.capture.source_tags import PREFIX
from lake_assets.erase.folded_records import folded_records
from lake_assets.erase.key_columns import KeyedTable, KeySource, keyed_tables, not_covered, readers, source_of
from lake_assets.erase.key_values import Key, canonical, frame, in_order
from lake_assets.erase.record_mentions import Mentions
from lake_assets.final.events.key_changes import certain_changes
from lake_assets.final.ordering import Ordering
from lake_assets.formats.event_model import INDEX, MANY, OP, POSITION, SEQUENCE
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import SCHEMA_HISTORY
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.metadata_commits import can_commit
from lake_assets.lake.names import literal
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.pipeline.pending import pending_of
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables import leftovers
from lake_assets.tables.snapshot_retention import consumer_name
from lake_assets.tables.spark_frames import checkpoint, cols
from lake_assets.tables.writing.table_ddl import columns_of

# A row changes its key this often at most, so that the search ends.
_MOST_CHANGES = 100
_LISTED = 10


@dataclass(frozen=True)
class TablePlan:
    """What an erasure touches in one table.

    Attributes:
        rows: its rows that hold a key; None: they cannot be counted, since no column holds the key.
        files: the data files with these rows.
        snapshots: its snapshots before the erasure.
        refs: its branches and tags, without those that the pipeline moves itself.
    """

    table: str
    kind: str
    columns: list[str]
    rows: int | None
    files: int
    snapshots: int
    refs: list[str]
    is_declared: bool = False

    @property
    def name(self) -> TableId:
        """The table."""
        return TableId.parse(self.table)


@dataclass(frozen=True)
class ErasePlan:
    """The plan of an erasure.

    Attributes:
        keys: the keys as texts, those that were asked for first.
        asked: how many of them were asked for; the others are keys that the same rows had before or after.
        positions: positions of the raw records.
        last: the last position in raw when the erasure was planned.
        landed: file and line of each record.
        others: positions of records of other rows that mention a key, as in a column of JSON.
        blocked: what has to be settled before anything is erased.
    """

    id: str
    began: float
    table: str
    columns: list[str]
    staging: str
    raw: str
    keys: list[list[str]]
    asked: int
    positions: list[int]
    last: int
    tables: list[TablePlan]
    not_covered: list[str]
    landed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    others: list[int] = field(default_factory=list[int])
    blocked: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        tables = [TablePlan(**t) for t in stored["tables"]]
        values: dict[str, Any] = {**stored, "tables": tables, "landed": [(f, n) for f, n in stored["landed"]]}
        return cls(**values)

    @property
    def key_tuples(self) -> list[Key]:
        """The keys."""
        return [tuple(k) for k in self.keys]

    @property
    def is_empty(self) -> bool:
        """Whether no table holds a key, as far as rows can be counted."""
        return not self.positions and not any(t.rows for t in self.tables)


def plan(
    lake: LakeBase,
    specs: Sequence[Spec],
    table: TableId,
    given: Sequence[Mapping[str, str]],
    declared: Mapping[TableId, tuple[str, ...]],
) -> ErasePlan:
    """Plan the erasure of keys; reads, and changes nothing.

    Args:
        specs: the tables of all pipelines that read the records, upstream first.
        given: the keys, as columns and values.
        declared: see `keyed_tables`.

    Raises:
        ErasureError: a key does not fit the table, or the table cannot be erased by.
    """
    source = source_of(lake, specs, table)
    asked = asked_keys(lake, source, given)
    events = events_of(lake, source)
    keys = _connected(lake, source, events, asked)
    mentions = Mentions(source.names, keys)
    found, others = _positions(lake, source, events, keys, mentions)
    tables = keyed_tables(lake, specs, source, declared)
    plans = [_table_plan(lake, source, t, keys, found) for t in tables]
    raw = lake.spark().table(lake.sql_name(source.raw.table))
    last = raw.agg(F.max("position")).collect()[0][0]
    return ErasePlan(
        "e" + secrets.token_hex(3),
        time.time(),
        str(table),
        list(source.columns),
        str(source.staging.table),
        str(source.raw.table),
        [list(k) for k in keys],
        len(asked),
        [p for p, _, _ in found],
        -1 if last is None else last,
        plans,
        [*not_covered(lake, specs, source, tables), *_mentioned_by(source, others)],
        [(file, line) for _, file, line in found if file],
        others,
        [*_blocked(lake, specs, source, events, keys, found, tables)],
    )


def asked_keys(lake: LakeBase, source: KeySource, given: Sequence[Mapping[str, str]]) -> list[Key]:
    """Return the keys that were asked for, as Spark writes them.

    Raises:
        ErasureError: a key does not fit the table.
    """
    return canonical(lake.spark(), in_order(given, source.columns, source.table), source.types, source.table)


# --- events and records ---------------------------------------------------------------------------------------------


def events_of(lake: LakeBase, source: KeySource) -> DataFrame:
    """Return the events of staging: columns of the key, position, index, op and sequence."""
    rows = lake.spark().table(lake.sql_name(source.staging.table))
    index = INDEX if INDEX in rows.columns else f"0 AS {INDEX}"
    # Earlier versions stored sequences in another form.
    sequence = f"{source.staging.reader.stored} AS {SEQUENCE}"
    return rows.selectExpr(*(f"{sql} AS {quote(k)}" for k, sql in source.key.items()), POSITION, index, OP, sequence)


def _of_keys(lake: LakeBase, source: KeySource, events: DataFrame, keys: Iterable[Key]) -> DataFrame:
    return events.join(frame(lake.spark(), keys, source.types), [*source.key], "left_semi")


def _connected(lake: LakeBase, source: KeySource, events: DataFrame, asked: Sequence[Key]) -> list[Key]:
    """Return keys, and the keys that their rows had before or after.

    A key change is a delete and an insert that the source logged as one change (see `certain_changes`).
    """
    key = [*source.key]
    rows = events.where(" AND ".join(f"{quote(k)} IS NOT NULL" for k in key))
    pairs = certain_changes(rows, key, Ordering.of(source.staging.reader))
    old, new = (F.array(*(F.col(f"{s}.k{i}").cast("string") for i in range(len(key)))) for s in ("old", "new"))
    changes = checkpoint(pairs.select(old.alias("old"), new.alias("new")).distinct())
    keys = dict.fromkeys(asked)
    at = [*asked]
    for _ in range(_MOST_CHANGES):
        listed = rows_in_memory(lake.spark(), [([*k],) for k in at], "k array<string>")
        ends = {
            tuple(row[0])
            for of, other in (("old", "new"), ("new", "old"))
            for row in changes.join(listed, F.col(of) == F.col("k"), "left_semi").select(other).distinct().collect()
        }
        at = sorted(k for k in ends if k not in keys and None not in k)
        if not at:
            break
        keys |= dict.fromkeys(at)
    return [*keys]


def _positions(
    lake: LakeBase, source: KeySource, events: DataFrame, keys: Sequence[Key], mentions: Mentions
) -> tuple[list[tuple[int, str, int]], list[int]]:
    """Return position, file and line of the records of keys, also of those that gave no event; and the positions of
    records that mention a key, and gave events of other rows alone."""
    spark = lake.spark()
    staged = {r[0] for r in _of_keys(lake, source, events, keys).select(POSITION).distinct().collect()}
    folded, beside = folded_records(lake, source, keys)
    staged |= folded
    raw = spark.table(lake.sql_name(source.raw.table))
    own = (F.col("source_table") == str(source.staging.source_table)) | F.col("source_table").isNull()
    # Lines about a live source's schema name columns, not rows, and the source cannot go on without them.
    own &= F.col("source_file") != SCHEMA_HISTORY
    may = raw.where(own & F.col("record").rlike(mentions.pattern)).select(
        "position", "source_file", "source_line", "record"
    )
    found = {
        r["position"]: (r["source_file"], r["source_line"])
        for r in may.toLocalIterator()
        if mentions.are_in(r["record"])
    }
    unsure = sorted(found.keys() - staged)
    listed = rows_in_memory(spark, [(p,) for p in unsure], f"{POSITION} bigint")
    stored = {r[0] for r in events.join(listed, POSITION, "left_semi").select(POSITION).distinct().collect()}
    others = sorted(found.keys() & (stored | beside) - staged)
    found = {p: at for p, at in found.items() if p not in others}
    rest = sorted(p for p in staged - found.keys() if p is not None and p >= 0)
    if rest:
        listed = rows_in_memory(spark, [(p,) for p in rest], "position bigint")
        rows = raw.join(listed, "position", "left_semi").select("position", "source_file", "source_line").collect()
        found |= {r["position"]: (r["source_file"], r["source_line"]) for r in rows}
    # A position without a record was erased from raw before this process was stopped.
    return [(p, *found.get(p, ("", 0))) for p in sorted({*rest, *found})], others


def _mentioned_by(source: KeySource, others: Sequence[int]) -> Iterator[str]:
    if others:
        some = f"{', '.join(map(str, others[:_LISTED]))}{', ...' if len(others) > _LISTED else ''}"
        yield (
            f"{source.raw.table}: the key is mentioned elsewhere, as in a column of JSON, in "
            f"{plural(len(others), 'record')} of other rows: positions {some}"
        )


def _shared(lake: LakeBase, specs: Sequence[Spec], source: KeySource, events: DataFrame, keys: Sequence[Key],
            positions: Sequence[int]) -> Iterator[str]:  # fmt: skip
    """Yield why some records cannot be removed: they hold events of other rows as well."""
    if not positions:
        return
    spark = lake.spark()
    listed = rows_in_memory(spark, [(p,) for p in positions], f"{POSITION} bigint")
    others = events.join(listed, POSITION, "left_semi").join(
        frame(spark, keys, source.types), [*source.key], "left_anti"
    ).where(f"{OP} <> 'truncate'")  # fmt: skip
    shared = {r[0]: str(source.staging.table) for r in others.select(POSITION).distinct().collect()}
    for spec in specs:
        is_beside = (
            isinstance(spec, StagingSpec) and spec.raw == source.raw.table and spec.table != source.staging.table
        )
        if is_beside and lake.exists(spec.table):
            rows = spark.table(lake.sql_name(spec.table)).join(listed, POSITION, "left_semi").select(POSITION)
            shared |= {r[0]: str(spec.table) for r in rows.distinct().collect()}
    raw = spark.table(lake.sql_name(source.raw.table)).withColumnRenamed("position", POSITION)
    many = raw.where(F.col("source_table") == MANY).join(listed, POSITION, "left_semi").select(POSITION)
    shared = {r[0]: "other source tables" for r in many.collect()} | shared
    if shared:
        some = ", ".join(f"{p} ({shared[p]})" for p in sorted(shared)[:_LISTED])
        yield (
            f"{source.raw.table}: events of other rows would be lost with {plural(len(shared), 'record')} of the keys, "
            f"which also hold{'s' if len(shared) == 1 else ''} them: positions {some}"
            f"{', ...' if len(shared) > _LISTED else ''}. Records are removed as a whole: have the source's connector "
            "write one record for each change (wal2json: format-version=2)"
        )


# --- tables ---------------------------------------------------------------------------------------------------------


def _table_plan(
    lake: LakeBase, source: KeySource, keyed: KeyedTable, keys: Sequence[Key], found: Sequence[tuple[int, str, int]]
) -> TablePlan:
    table, rows, files = lake.table(keyed.table), None, 0
    where = matching(lake, keyed.table, keyed.kind, keyed.columns, source, keys, [p for p, _, _ in found])
    if where is not None and table.current_snapshot() is not None:
        counted = where.agg(F.count("*").alias("n"), F.count_distinct("_file").alias("files")).collect()[0]
        rows, files = counted["n"], counted["files"]
    return TablePlan(
        str(keyed.table), keyed.kind, list(keyed.columns), rows, files, len(table.metadata.snapshots),
        others_refs(lake, table, readers(lake, [keyed.table])), keyed.is_declared,
    )  # fmt: skip


def matching(
    lake: LakeBase,
    table: TableId,
    kind: str,
    columns: Sequence[str],
    source: KeySource,
    keys: Sequence[Key],
    positions: Sequence[int],
) -> DataFrame | None:
    """Return the rows of a table that hold a key, with their `_file`; None if they cannot be told."""
    spark = lake.spark()
    rows = spark.table(lake.sql_name(table))
    rows = rows.select(*cols(rows.columns), F.col("_file"))
    if kind in ("raw", "rejected"):
        return rows.join(rows_in_memory(spark, [(p,) for p in positions], "position bigint"), "position", "left_semi")
    if kind == "dump":
        values = (
            f"try_cast({_value_in_row(n)} AS {source.types[k]})" for k, n in zip(source.key, source.names, strict=True)
        )
        named = rows.selectExpr(
            "_file", "key", "row", *(f"{v} AS {quote(k)}" for k, v in zip(source.key, values, strict=True))
        )
        return named.join(frame(spark, keys, source.types), [*source.key], "left_semi")
    if not columns:
        return None
    if kind == "staging":
        named = rows.selectExpr("_file", *(f"{sql} AS {quote(k)}" for k, sql in source.key.items()))
        return named.join(frame(spark, keys, source.types), [*source.key], "left_semi")
    types = columns_of(lake, table)
    return rows.join(frame(spark, keys, {c: types[c] for c in columns}), [*columns], "left_semi")


def _value_in_row(names: Sequence[str]) -> str:
    """Return SQL of a value of `row`, a JSON object, under one of some names in lower case."""
    members = "map_entries(from_json(row, 'map<string, string>'))"
    return f"get(filter({members}, m -> lower(m.key) IN ({', '.join(map(literal, names))})), 0).value"


def others_refs(lake: LakeBase, table: Table, targets: Mapping[TableId, str]) -> list[str]:
    """Return the branches and tags of a table that this package neither moves nor drops by itself."""
    own = {"main", *(PREFIX + consumer_name(t) for t in targets)}
    over = {*leftovers.step_branches(table), *source_tags.of_dead_captures(table)}
    return sorted(r for r in table.metadata.refs if r not in own | over)


def _blocked(
    lake: LakeBase,
    specs: Sequence[Spec],
    source: KeySource,
    events: DataFrame,
    keys: Sequence[Key],
    found: Sequence[tuple[int, str, int]],
    tables: Sequence[KeyedTable],
) -> Iterator[str]:
    """Yield what has to be settled before anything is erased, without branches and tags."""
    if pending_of(lake, source.staging):
        # Staging tells which records belong to a key, and which records also hold events of other rows.
        yield f"{source.staging.table} has not read all records of {source.raw.table} yet: run the pipeline first"
    yield from _shared(lake, specs, source, events, keys, [p for p, _, _ in found])
    if not can_commit(lake.catalog):
        yield "the catalog lets only Spark commit: an erasure needs a SQL or a REST catalog"
    names = [t.table for t in tables]
    for name in names:
        if lake.table(name).properties.get("gc.enabled", "true").lower() == "false":
            yield f"{name}: `gc.enabled` is false, so its files may be those of another table too: erase there first"
    yield from unknown_readers(lake, specs, names)


def unknown_readers(lake: LakeBase, specs: Sequence[Spec], tables: Collection[TableId]) -> Iterator[str]:
    """Yield the tables of other pipelines that read some tables."""
    known = {s.table for s in specs}
    for reader, pipeline in sorted(readers(lake, tables).items()):
        if reader not in known and reader not in tables:
            yield (
                f"{reader} of pipeline {pipeline!r} reads them, and has to follow: set LAKE_PIPELINES to "
                "a folder with the files of all pipelines, and leave out --pipeline"
            )
