"""Rows of Postgres's tables as the records of Debezium's `r` events, written by Postgres itself.

A value has its JSON type if that tells it exactly (whole numbers, texts); otherwise it is Postgres's text, and the
schema names Postgres's type. Both are read into the same columns as the values of Debezium's own events. Tables with
a column of another type are left to Debezium.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from lake_assets.formats.types.connect_types import POSTGRES
from lake_assets.sources.live_source import Rows
from lake_assets.sources.postgres_connection import Ask, quoted

# Arrow's functions have no types.
pc: Any = pyarrow.compute
# Older versions cannot read a range of a table's blocks alone.
LEAST_VERSION = 140_000
# Between key and row, where COPY writes them. JSON escapes it, and the character that quotes, so lines are as they are.
DELIMITER = "\x01"

# Connect's types of values that JSON holds exactly, by Postgres's type.
_PLAIN = {
    "smallint": "int16", "integer": "int32", "bigint": "int64", "oid": "int64", "boolean": "boolean", "text": "string",
    "character varying": "string", "character": "string", "bpchar": "string", "name": "string", '"char"': "string",
    "uuid": "string", "inet": "string", "cidr": "string", "macaddr": "string", "int4range": "string",
    "int8range": "string", "numrange": "string", "daterange": "string",
}  # fmt: skip
# The same, if Postgres writes them as text.
_AS_TEXT = {"real": "float", "double precision": "double", "json": "string", "jsonb": "string"}
# Values that the schema describes by Postgres's type.
_NAMED = {
    "date", "timestamp without time zone", "timestamp with time zone", "time without time zone", "bytea", "numeric",
    "smallint[]", "integer[]", "bigint[]", "text[]", "character varying[]", "boolean[]",
}  # fmt: skip

_COLUMNS = """
SELECT a.attname, a.attnotnull, b.typtype::text, CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
    ELSE format_type(a.atttypid, a.atttypmod) END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_KEY = """
SELECT i.indisprimary, array(SELECT a.attname FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(n, o), pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = k.n ORDER BY k.o)::text[]
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid ORDER BY i.indisprimary DESC
"""
# What holds a table's rows: itself, or its partitions at any depth.
_PARTS = """
WITH RECURSIVE parts AS (
    SELECT %s::oid AS oid UNION SELECT i.inhrelid FROM parts p JOIN pg_class c ON c.oid = p.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = p.oid
)
SELECT n.nspname, c.relname, c.relkind = 'r' AND m.amname = 'heap',
    CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) / current_setting('block_size')::int END,
    pg_relation_filenode(c.oid), greatest(c.reltuples, 0)::bigint
FROM parts JOIN pg_class c ON c.oid = parts.oid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_am m ON m.oid = c.relam WHERE c.relkind <> 'p'
"""


@dataclass(frozen=True)
class Part:
    """What holds rows of a table: itself, or a partition.

    Attributes:
        name: its name as an identifier.
        blocks: its size.
        file: the number of its file, which changes when a statement rewrites or removes all rows.
        rows: how many rows the server thinks that it has.
    """

    name: str
    blocks: int
    file: int
    rows: int


@dataclass(frozen=True)
class LoadedTable:
    """A table whose rows Postgres can write.

    Attributes:
        columns: for each column, its name, SQL of its value (of the table `t`) and Connect's type.
        key: the columns of the primary key.
    """

    schema: str
    table: str
    parts: tuple[Part, ...]
    columns: tuple[tuple[str, str, Mapping[str, Any]], ...]
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name at the source."""
        return f"{self.schema}.{self.table}"

    def statement(self, part: Part, first: int | None = None, end: int | None = None) -> str:
        """Return the statement that writes the rows of some blocks, a line of key and row for each."""
        where = [f"t.ctid {op} '({block},0)'::tid" for op, block in ((">=", first), ("<", end)) if block is not None]
        of_key = ", ".join(f"{sql} AS {quoted(name)}" for name, sql, _ in self.columns if name in self.key)
        of_row = ", ".join(f"{sql} AS {quoted(name)}" for name, sql, _ in self.columns)
        key = f"CROSS JOIN LATERAL (SELECT {of_key}) k" if self.key else ""
        select = (
            f"SELECT {'row_to_json(k.*)' if self.key else 'NULL'}, row_to_json(r.*) FROM ONLY {part.name} t {key} "
            f"CROSS JOIN LATERAL (SELECT {of_row}) r{' WHERE ' if where else ''}{' AND '.join(where)}"
        )
        return f"COPY ({select}) TO STDOUT (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02', ENCODING 'UTF8')"


def loaded_table(ask: Ask, schema: str, table: str) -> LoadedTable | None:
    """Return a table as Postgres writes its rows; None: it is left to Debezium."""
    rows = ask("SELECT c.oid FROM pg_class c WHERE c.oid = to_regclass(%s)", quoted(schema, table))
    if not rows:
        return None
    oid = rows[0][0]
    columns: list[tuple[str, str, Mapping[str, Any]]] = []
    for name, is_required, kind, of_type in ask(_COLUMNS, oid):
        read = _value(f"t.{quoted(name)}", "text" if kind == "e" else of_type if kind == "b" or kind == "r" else "")
        if read is None:
            return None
        columns.append((name, read[0], {**read[1], "optional": not is_required, "field": name}))
    keys = ask(_KEY, oid)
    parts = ask(_PARTS, oid)
    # Without a primary key, Debezium may take another unique index for it.
    if not columns or (keys and not keys[0][0]) or not all(part[2] for part in parts):
        return None
    found = tuple(Part(quoted(s, t), blocks, file, rows) for s, t, _, blocks, file, rows in parts)
    return LoadedTable(schema, table, found, tuple(columns), tuple(keys[0][1]) if keys else ())


def _value(sql: str, kind: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return SQL of a value and Connect's type of it; None: Debezium's own events have something else."""
    base = re.sub(r"\(\d+(?:,\d+)?\)", "", kind)
    if base in _PLAIN:
        return sql, {"type": _PLAIN[base]}
    if base in _AS_TEXT:
        return f"{sql}::pg_catalog.text", {"type": _AS_TEXT[base]}
    if base in _NAMED:
        return f"{sql}::pg_catalog.text", {"type": "string", "name": POSTGRES, "parameters": {"type": kind}}
    return None


class RecordTexts:
    """The records of a table's rows, around what Postgres writes of each."""

    def __init__(self, table: LoadedTable, prefix: str, database: str, lsn: int, micros: int) -> None:
        """
        Args:
            prefix: of the names of topics.
            lsn: the place in the log as of which the rows are.
            micros: its time, in microseconds since 1970.
        """
        self.table, self.place = table.name, str(lsn)
        topic = re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{table.schema}.{table.table}")
        source = {
            "version": "lake_assets", "connector": "postgresql", "name": prefix, "ts_ms": micros // 1000,
            "snapshot": "true", "db": database, "sequence": f'[null,"{lsn}"]', "ts_us": micros, "schema": table.schema,
            "table": table.table, "lsn": lsn,
        }  # fmt: skip
        fields = [{"type": "int64" if isinstance(v, int) else "string", "field": n} for n, v in source.items()]
        columns = [field for _, _, field in table.columns]
        value = _struct(
            f"{topic}.Envelope",
            _struct(f"{topic}.Value", *columns) | {"optional": True, "field": "after"},
            _struct("io.debezium.connector.postgresql.Source", *fields) | {"field": "source"},
            {"type": "string", "field": "op"},
            {"type": "int64", "field": "ts_ms"},
        )
        key = _struct(f"{topic}.Key", *(field for name, _, field in table.columns if name in table.key))
        schemas = _text(key), _text(value)
        end = f',"source":{_text(source)},"op":"r","ts_ms":{micros // 1000}}}}}}}'
        self.has_key = bool(table.key)
        self._records, self._payloads = (
            (self._before_key(topic, key), f'"value":{{"schema":{value},"payload":{{"before":null,"after":', end)
            for key, value in (schemas, ("null", "null"))
        )

    def _before_key(self, topic: str, schema: str) -> str:
        key = f'{{"schema":{schema},"payload":' if self.has_key else "null,"
        return f'{{"topic":{_text(topic)},"key":{key}'

    def rows(self, keys: pa.Array[Any], rows: pa.Array[Any]) -> Rows:
        """Return the records of rows, given as JSON texts."""
        both = (_joined(parts, keys, rows, has_key=self.has_key) for parts in (self._records, self._payloads))
        return Rows(self.table, self.place, *both)

    def end(self) -> Rows:
        """Return the end of the table's rows."""
        none = pa.array([], pa.string())
        return Rows(self.table, self.place, none, none)


def _joined(parts: Sequence[str], keys: pa.Array[Any], rows: pa.Array[Any], *, has_key: bool) -> pa.Array[Any]:
    before_key, before_row, end = parts
    start = [before_key, keys, f"}},{before_row}"] if has_key else [f"{before_key}{before_row}"]
    return pc.binary_join_element_wise(*start, rows, end, "")


def _struct(name: str, *fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": False, "name": name}


def _text(value: object) -> str:
    return orjson.dumps(value).decode()
