"""Find the source table of a record, and route unroutable records again.

A connector may record several databases, or several connectors write into one stream. Tables are told apart by schema
and name, so the rows of tenants with a database each would become one table, and positions in two logs one order:
records about a table of another database are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from pyiceberg.table import Table

from lake_assets.errors import InputError
from lake_assets.formats import EventFormat, SourceTable
from lake_assets.formats.debezium_control import is_signal_table
from lake_assets.formats.event_model import MANY, Boundary, Keyed, SnapshotRow
from lake_assets.formats.files.limited_files import KEPT_IN_PART
from lake_assets.formats.format_base import DEPTH, decode, schema_key
from lake_assets.formats.registry import other_format, without_nested_text
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw_tables import ROUTES_PROPERTY, routes_of, stored
from lake_assets.ingest.records import rejects
from lake_assets.lake import LakeBase
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_writer import TableWriter


class Routed(NamedTuple):
    """The source tables and schema of a record.

    Attributes:
        tables: the source tables that it is about.
        source_table: value of `source_table` in the raw table.
        problem: why it cannot be routed; None if it can.
        key: identifies its schema; None if it is about no table.
        payload: the record without its schema, and without JSON text inside JSON, if it has either.
        boundary: what it says about its transaction.
        snapshot: what it says about the snapshot that its row is part of, if any.
        control: what it is, if it says nothing about a row: a heartbeat, a signal, ...
        keyed: what it says about the row of its key.
        database: the database of its table; None if it does not say.
        is_known: whether records like it were routed before, so that its tables and their database are known.
    """

    tables: tuple[SourceTable, ...] = ()
    source_table: str | None = None
    problem: str | None = None
    key: str | None = None
    payload: str | None = None
    boundary: Boundary | None = None
    control: str | None = None
    snapshot: SnapshotRow | None = None
    keyed: Keyed | None = None
    database: str | None = None
    is_known: bool = False

    @property
    def is_tombstone(self) -> bool:
        """Whether it is a key without a value, whose table is known from the records before it."""
        return self.keyed is not None and self.keyed.kind == "tombstone"


def name_of(tables: Sequence[SourceTable]) -> str | None:
    """Return the value of `source_table` in the raw table for a record about some tables."""
    return MANY if len(tables) > 1 else str(tables[0]) if tables else None


def route(
    event_format: EventFormat,
    text: str,
    table: SourceTable | None,
    depth: int = DEPTH,
    kept: Collection[str] = (),
    decoded: Any = ...,
) -> Routed:
    """Return the source tables and the schema of a record, or the problem with it.

    Args:
        event_format: its format.
        text: the record.
        table: its source table, for records that do not name one.
        depth: maximum nesting.
        kept: source tables whose rows count although they look like signals.
        decoded: the record as `decode` returns it, if it is decoded already.
    """
    try:
        record = decode(text, depth) if decoded is ... else decoded
        record, plain = without_nested_text(event_format, text, record, depth)
        tables = event_format.routes(record, table)
    except InputError as e:
        return Routed(problem=f"{e}{other_format(event_format, text)}")
    boundary, keyed = event_format.boundary(record), event_format.keyed(record)
    is_tombstone = keyed is not None and keyed.kind == "tombstone"
    if not tables and not is_tombstone:
        return Routed(boundary=boundary, control=event_format.control_kind(record))
    is_signal = tables and is_signal_table(tables[0]) and str(tables[0]) not in kept
    if is_signal and (kind := event_format.control_kind(record)):
        return Routed(boundary=boundary, control=kind)
    schema = event_format.schema_of(record)
    payload = event_format.without_schema(plain or text, schema) if schema else None
    snapshot = event_format.snapshot_row(record)
    key, database = schema_key(schema), event_format.database(record)
    return Routed(tables, name_of(tables), None, key, payload or plain, boundary, None, snapshot, keyed, database)


def replay(lake: LakeBase, spec: RawSpec) -> int:
    """Route the raw table's unroutable records again; return how many are routed now, to a table or to none.

    They keep their positions in the stream, and the next step of staging absorbs them. Closed ones do not count.

    Raises:
        ConcurrentWriteError: another process wrote at the same time; nothing is lost, run again.
    """
    if not lake.exists(spec.table) or not rejects.unrouted(lake.table(spec.table)):
        return 0
    rejects.catch_up(lake, spec.table)
    routed = _route_again(lake, spec)
    # Includes records routed by a replay that was killed before this point.
    unroutable = lake.table(spec.table).scan(row_filter="problem IS NOT NULL", selected_fields=("position",)).to_arrow()
    unroutable_positions = set(unroutable["position"].to_pylist())
    if routed_positions := [p for p in rejects.unrouted_positions(lake, spec.table) if p not in unroutable_positions]:
        rejects.forget(lake, spec.table, None, routed_positions)
    return routed


_REPLAYED = ("position", "source_file", "record", "problem")


def _route_again(lake: LakeBase, spec: RawSpec) -> int:
    raw = lake.table(spec.table)
    reader = spec.reader
    rows = raw.scan(row_filter="problem IS NOT NULL", selected_fields=_REPLAYED).to_arrow()
    source_tables = {str(r) for r in routes_of(raw)}
    kept = {*source_tables, *map(str, spec.signal_tables)}
    databases, closed = Databases(raw, spec.databases), rejects.closed_unrouted(lake, spec.table)
    routed: list[tuple[int, str | None, str | None, str | None]] = []
    for row in rows.to_pylist():
        # Only a part of these records is stored (or their bytes were not UTF-8), so they cannot be routed.
        if row["problem"].startswith(KEPT_IN_PART) or closed.get(row["position"]) == row["record"]:
            continue
        routed_record = route(reader, row["record"], spec.about_of(row["source_file"]), spec.limits.depth, kept)
        # A tombstone that may be about several tables when it arrives may be about them afterwards.
        is_foreign = any(databases.problem(t, routed_record.database) for t in routed_record.tables)
        if routed_record.problem is None and not routed_record.is_tombstone and not is_foreign:
            source_tables.update(str(r) for r in routed_record.tables)
            routed.append((row["position"], routed_record.source_table, routed_record.key, routed_record.payload))
    if not routed:
        return 0
    positions = [p for p, *_ in routed]
    properties = {ROUTES_PROPERTY: json.dumps(sorted(source_tables)), **databases.properties()}
    columns = "position BIGINT, source_table STRING, schema_key STRING, payload STRING"
    TableWriter(Commit(lake, spec.table, raw, properties=properties)).merge(
        rows_in_memory(lake.spark(), routed, columns),
        f"t.position = s.position AND t.position BETWEEN {min(positions)} AND {max(positions)} "
        "AND t.problem IS NOT NULL",
        [
            "WHEN MATCHED THEN UPDATE SET t.source_table = s.source_table, t.schema_key = s.schema_key, "
            "t.payload = s.payload, t.problem = NULL"
        ],
    )
    return len(routed)


# Snapshot property of a raw table: the database of each source table.
DATABASES_PROPERTY = "lake-assets.databases"


class Databases:
    """The databases of a stream's tables: as declared, or the first one of each table."""

    def __init__(self, raw: Table, declared: Collection[str]) -> None:
        self._declared = declared
        self._of: dict[str, str] = stored(raw, DATABASES_PROPERTY)

    def problem(self, table: SourceTable, database: str | None) -> str | None:
        """Return why a record is not about the stream's table; None if it is. `database`: None if it does not say."""
        # Where a database is all that tables are in, it is their schema.
        if database in (None, table.schema, *self._declared):
            return None
        if self._declared:
            return f"the record is about {table} of the database {database}, which `databases` does not list"
        first = self._of.setdefault(str(table), database)
        if first == database:
            return None
        return (
            f"the record is about {table} of the database {database}, and earlier ones are about {table} of {first}: "
            "give each database a stream of its own (with a `namespace` or `prefix`), or, if both are one table, "
            f"declare `databases: [{first}, {database}]` in the stream"
        )

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties that the next landing starts from, since older snapshots expire."""
        return {DATABASES_PROPERTY: json.dumps(self._of, sort_keys=True)} if self._of else {}
