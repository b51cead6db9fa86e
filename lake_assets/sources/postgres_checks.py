"""What a Postgres server says about itself that would cost rows, or stop the reader, without an error of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from lake_assets.sources.postgres_connection import quoted

_OPEN = """
SELECT 'process ' || l.pid || coalesce(' (since ' || a.xact_start::timestamp(0) || ')', '')
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid IS NOT NULL
UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
"""


def what_slot_waits_for(ask: Any) -> str:
    """Return why a replication slot cannot be made, with what to do; empty: no transaction with changes is open."""
    if not (holders := ", ".join(text for (text,) in ask(_OPEN))):
        return ""
    return (
        "the replication slot cannot be made as long as transactions are open that began before. They belong to "
        f"{holders}. It is tried again; to end one: SELECT pg_terminate_backend(<process>), or ROLLBACK PREPARED "
        "'<name>'"
    )


def close_name(name: str, names: Iterable[str]) -> str:
    """Return a hint at the name that is most like one; empty: none is."""
    close = difflib.get_close_matches(name, list(names), 1, 0.6)
    return f": did you mean {close[0]}?" if close else ""


# The numbers of tables by their names: one that is dropped and created again has another.
NUMBERS = """
SELECT n.nspname || '.' || c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = ANY(%s) AND c.relkind IN ('r', 'p')
"""
# Of a partitioned table, the log has what its partitions are set to.
IDENTITY = """
coalesce(CASE c.relkind WHEN 'p' THEN (
    SELECT CASE WHEN bool_and(l.relreplident = 'f') THEN 'f' WHEN bool_or(l.relreplident = 'n') THEN 'n' ELSE 'd' END
    FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid WHERE t.isleaf AND l.relkind = 'r'
) END, c.relreplident::text)
"""
_PARTITIONS = """
SELECT n.nspname, l.relname FROM pg_partition_tree(%s::regclass) t JOIN pg_class l ON l.oid = t.relid
JOIN pg_namespace n ON n.oid = l.relnamespace
WHERE t.isleaf AND l.relkind = 'r' AND l.relreplident <> 'f' ORDER BY 1, 2
"""


def full_identity(ask: Any, schema: str, table: str) -> str:
    """Return the statements after which the log has whole rows of a table."""
    partitions = ask(_PARTITIONS, quoted(schema, table)) or [(schema, table)]
    return "; ".join(f"ALTER TABLE {quoted(*name)} REPLICA IDENTITY FULL" for name in partitions)


_KINDS = """
SELECT CASE WHEN c.relispartition THEN 'a partition: declare its partitioned table' WHEN c.relkind IN ('v', 'm')
THEN 'a view, of which the log has no changes: declare the tables that it reads' WHEN c.relkind = 'f'
THEN 'a foreign table, whose changes are in the log of another server' WHEN c.relpersistence <> 'p'
THEN 'unlogged: ALTER TABLE ' || c.oid::regclass || ' SET LOGGED;' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""


def why_not_there(ask: Any, name: str) -> str:
    """Return what a name stands for that is no table whose changes are logged; empty: for nothing."""
    return next((f": it is {text}" for (text,) in ask(_KINDS, name) if text), "")


_ROWS = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
    c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_PUBLISHED = """
SELECT to_jsonb(p) ->> 'rowfilter', array(
    SELECT a.attname FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated = '' AND NOT coalesce(to_jsonb(p) -> 'attnames', to_jsonb(array[a.attname])) ? a.attname::text
)::text[]
FROM pg_publication_tables p WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s
"""


def problem_of(ask: Any, schema: str, table: str, user: str, publication: str, *, reads_rows: bool) -> str:
    """Return why rows or values of a table would be missing, with what to do; empty: none would be.

    Args:
        ask: runs a statement, and returns its rows.
        schema, table: the table.
        user: who reads.
        publication: its publication.
        reads_rows: whether a snapshot reads the table.
    """
    name, at, role = f"{schema}.{table}", quoted(schema, table), quoted(user)
    for may_read, is_filtered, has_children in ask(_ROWS, schema, table) if reads_rows else ():
        if not may_read:
            return (
                f"user {user} may not read the rows of {name}. As its owner: GRANT USAGE ON SCHEMA {quoted(schema)} TO "
                f"{role}; GRANT SELECT ON {at} TO {role};"
            )
        if is_filtered:
            return (
                f"user {user} does not see all rows of {name}, because of row-level security. As a superuser: "
                f"ALTER ROLE {role} BYPASSRLS;"
            )
        if has_children:
            return (
                f"other tables inherit from {name}. A snapshot of it has their rows too, of which the log reports "
                "changes as their own: leave it out (`exclude`), and declare the tables that inherit from it"
            )
    for row_filter, missing in ask(_PUBLISHED, at, publication, schema, table):
        if row_filter or missing:
            what = f"columns {', '.join(missing)}" if missing else f"rows that are not {row_filter}"
            change = f"ALTER PUBLICATION {quoted(publication)}"
            again = f"{change} DROP TABLE {at}; {change} ADD TABLE {at};"
            return f"publication {publication} leaves out {what} of {name}: {again}"
    return ""
