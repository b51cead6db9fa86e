"""Postgres as a live source: what its server must have, its publication and slot, and Debezium's settings for it."""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake_assets.errors import SourceError, SourceGapError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.sources.live_specs import PostgresSpec, SourceTableSpec
from lake_assets.sources.postgres_checks import (
    IDENTITY,
    NUMBERS,
    close_name,
    full_identity,
    problem_of,
    what_slot_waits_for,
    why_not_there,
)
from lake_assets.sources.postgres_connection import connected, drop_slot, quoted
from lake_assets.sources.postgres_load import PostgresLoad, postgres_load
from lake_assets.sources.postgres_positions import is_unfinished

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Table:
    name: str
    schema: str
    table: str
    identity: str
    key: tuple[str, ...]
    is_partitioned: bool
    has_primary_key: bool
    oid: int


class PostgresDatabase:
    """See `Database`."""

    def __init__(self, spec: PostgresSpec, *, prepares: bool = True) -> None:
        """`prepares`: whether a check may create the publication, or extend it."""
        self.spec, self.prepares, self.kind = spec, prepares, "postgres"
        self._found: dict[str, _Table] = {}
        self._starts_over, self._voided = False, list[str]()
        # Tables whose rows are counted, and those that have been dropped and created again.
        self._counted, self._new = set[str](), set[str]()

    def snapshots(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """See `Database`."""
        kinds: dict[str, dict[str, str]] = {}
        for table in (self._found[t] for t in tables if t in self._found):
            # Debezium cannot read the state of an incremental snapshot again if it names such a table.
            is_plain = re.fullmatch(r"\w+\.\w+", table.name, re.ASCII)
            in_pieces = table.has_primary_key and is_plain and table.name not in self._counted
            name = f'"{table.schema}"."{table.table}"'
            kinds.setdefault("INCREMENTAL" if in_pieces else "BLOCKING", {})[table.name] = name
        return kinds

    def wake(self) -> None:
        """See `Database`: after a start, Debezium first searches the log for a transaction that it has not read."""
        # A standby cannot write, and a user may not: then a snapshot waits for somebody else's transaction.
        with suppress(SourceError, SourceUnavailableError), connected(self.spec) as ask:
            ask("SELECT pg_logical_emit_message(true, 'lake_assets', 'rows are read again')")

    def identities(self) -> Mapping[str, object]:
        """See `Database`: a table that is dropped and created again has another number."""
        return {t.name: t.oid for t in self._found.values()}

    def problem(self) -> str:
        """See `Database`."""
        try:
            with connected(self.spec) as ask:
                now = dict(ask(NUMBERS, list(self._found)))
        except (SourceError, SourceUnavailableError):
            return ""  # Debezium says so itself
        new = [t for t, oid in now.items() if oid != self._found[t].oid]
        return f"{', '.join(new)} was dropped and created again, so all of its rows are read" if new else ""

    def load(
        self, tables: Sequence[str], name: str, stop: threading.Event
    ) -> AbstractContextManager[PostgresLoad | None]:
        """See `Database`. Settings of Debezium's may change what it makes of values, so it reads the rows then."""
        if self.spec.snapshot == "none" or self.spec.properties:
            return nullcontext()
        found = [self._found[t] for t in tables]
        return postgres_load(self.spec, [(t.schema, t.table) for t in found], name, stop)

    def needs_history(self) -> bool:
        """See `Database`: the log names the columns of each change."""
        return False

    def check(self, offset: Any) -> Sequence[str]:
        """See `Database`."""
        self._starts_over = False
        unfinished = is_unfinished(offset)
        with connected(self.spec) as ask:
            self._check_server(ask)
            tables = self._matched(ask)
            for declared, found in tables:
                self._check_identity(ask, declared, found)
            self._found = {found.name: found for _, found in tables}
            self._ensure_publication(ask, [found for _, found in tables])
            self._check_rows(ask)
            try:
                self._check_slot(ask, None if unfinished else offset)
            except SourceGapError as e:
                if self.spec.on_gap == "stop":
                    raise
                log.warning("%s. All rows are read again, as declared", e)
                self._starts_over = True
                if self.prepares:
                    drop_slot(ask, self.spec.slot)
            if self.prepares and self.spec.snapshot == "initial" and (unfinished or not offset):
                # Only with a slot of its own, a snapshot and the changes after it fit together.
                drop_slot(ask, self.spec.slot)
            known = (offset or {}).get("identities", {})
            self._new = {f.name for d, f in tables if known.get(f.name, f.oid) != f.oid and not d.appends}
            self._counted = {f.name for d, f in tables if d.by_row}
            self._voided = sorted(self._new)
            if unfinished:
                self._starts_over = True
                self._voided = [f.name for d, f in tables if not d.appends and (d.by_row or d.keys or f.key)]
        return sorted(self._found)

    def properties(self, tables: Sequence[str]) -> Mapping[str, str]:
        """See `Database`."""
        spec = self.spec
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": spec.host,
            "database.port": str(spec.port),
            "database.dbname": spec.database,
            "database.user": spec.user,
            "database.password": spec.password,
            "database.sslmode": spec.sslmode,
            "slot.name": spec.slot,
            # Before Debezium gives up waiting for the task that makes the slot: that would keep its connection.
            "internal.create.slot.command.timeout": str(thresholds.LIVE_SLOT_SECONDS),
            "slot.max.retries": "0",
            "publication.name": spec.publication,
            "publication.autocreate.mode": "disabled",
            "table.include.list": ",".join(re.escape(t).replace(",", r"\x2c") for t in tables),
            "snapshot.mode": "no_data" if spec.snapshot == "none" else "initial",
            # Rows of tables are read again without a table for signals in the database.
            "read.only": "true",
        }

    def measures(self) -> Mapping[str, object]:
        """See `Database`."""
        query = (
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint, wal_status "
            "FROM pg_replication_slots WHERE slot_name = %s"
        )
        try:
            with connected(self.spec) as ask:
                rows = ask(query, self.spec.slot)
        except (SourceError, SourceUnavailableError):
            return {"slot": "not known: the server does not answer"}
        if not rows:
            return {"slot": "there is none"}
        lag, status = rows[0]
        return {"slot_lag_bytes": lag} | ({} if status in ("reserved", "extended", None) else {"slot": status})

    def failure(self, text: str) -> Exception:
        """See `Database`."""
        lost = ("requested WAL segment", "can no longer get changes", "has been invalidated")
        if any(part in text for part in lost):
            return SourceGapError(f"{self.spec.where}: {text}. {self.spec.gap_text}")
        if "Creation of replication slot failed" in text:
            with suppress(SourceError, SourceUnavailableError), connected(self.spec) as ask:
                if why := what_slot_waits_for(ask):
                    return SourceUnavailableError(f"{self.spec.where}: {why}")
        return SourceUnavailableError(f"{self.spec.where} cannot be read any more: {text}")

    def jars(self) -> Sequence[Path]:
        """See `Database`."""
        return ()

    def starts_over(self) -> bool:
        """See `Database`."""
        return self._starts_over

    def counted(self, tables: Sequence[str]) -> set[str]:
        """See `Database`."""
        return (self._counted | self._new).intersection(tables)

    def voids(self) -> Sequence[str]:
        """See `Database`."""
        return self._voided

    # --- checks -------------------------------------------------------------------------------------------------

    def _check_server(self, ask: Any) -> None:
        spec = self.spec
        ((level,),) = ask("SHOW wal_level")
        if level != "logical":
            raise SourceError(
                f"{spec.where} has wal_level {level}, with which its log lacks the changes of rows. As a "
                "superuser: ALTER SYSTEM SET wal_level = logical; then restart the server"
            )
        ((allowed,),) = ask(
            "SELECT rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication' "
            "AND pg_has_role(r.oid, g.oid, 'member')) FROM pg_roles r WHERE rolname = current_user"
        )
        if not allowed:
            raise SourceError(
                f"{spec.where}: user {spec.user} may not read the log. As a superuser: "
                f"ALTER ROLE {quoted(spec.user)} REPLICATION;"
            )

        empty = ask(
            "SELECT n.nspname || '.' || t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE "
            "t.typcategory = 'E' AND n.nspname <> 'pg_catalog' AND NOT EXISTS (SELECT FROM pg_enum WHERE "
            "enumtypid = t.oid) ORDER BY 1"
        )
        if empty:
            raise SourceError(
                f"{spec.where} has types with which Debezium reads no table at all: {', '.join(t for (t,) in empty)} "
                "(an enum without values, or a domain over an enum). Use the enum itself instead of the domain, with a "
                "CHECK on the column, and drop such types"
            )

    def _matched(self, ask: Any) -> list[tuple[SourceTableSpec, _Table]]:
        """Return the declared tables with what the server says of them."""
        rows = ask(
            f"SELECT n.nspname, c.relname, {IDENTITY}, c.relkind, "
            "array(SELECT a.attname FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(n, o), pg_attribute a "
            "WHERE i.indrelid = c.oid AND (CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) "
            "AND a.attrelid = c.oid AND a.attnum = k.n ORDER BY k.o)::text[], "
            "EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), c.oid "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') "
            "AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema') "
            "AND n.nspname NOT LIKE 'pg_toast%' AND c.relpersistence = 'p'"
        )
        there = [_Table(f"{s}.{t}", s, t, i, tuple(k), kind == "p", *more) for s, t, i, kind, k, *more in rows]
        there = [t for t in there if not any(fnmatch.fnmatchcase(t.name, e) for e in self.spec.exclude)]
        exact = {t.name: t for t in there}
        result: list[tuple[SourceTableSpec, _Table]] = []
        for declared in self.spec.tables:
            if declared.is_pattern:
                found = [t for t in there if fnmatch.fnmatchcase(t.name, declared.name)]
            else:
                found = [exact[declared.name]] if declared.name in exact else []
            if not found:
                why = why_not_there(ask, declared.name) or close_name(declared.name, exact)
                raise SourceError(f"{self.spec.where} has no table {declared.name}{why}")
            result += [(declared, t) for t in found]
        return _first_of_each(result)

    def _check_identity(self, ask: Any, declared: SourceTableSpec, found: _Table) -> None:
        """Check that the log holds what identifies a row, also when it is deleted or its key changes."""
        if found.identity == "f":
            return
        full = full_identity(ask, found.schema, found.table)
        if found.identity == "n" or not found.key:
            # As soon as such a table is published, Postgres itself refuses its updates and deletes.
            raise SourceError(
                f"{self.spec.where}: the log does not identify the rows of {found.name} (no replica identity). Once "
                f"it is published, Postgres itself refuses to change its rows. Give it a primary key, or: {full};"
            )
        wanted = [k for k in declared.keys if set(k) <= set(found.key)]
        if declared.by_row or (declared.keys and not wanted):
            key = "all columns" if declared.by_row else " or ".join(", ".join(k) for k in declared.keys)
            raise SourceError(
                f"{self.spec.where}: rows of {found.name} are to be identified by {key}, and of a deleted row the log "
                f"has only {', '.join(found.key)}. Declare this as its `key`, or: {full};"
            )

    def _check_rows(self, ask: Any) -> None:
        """Check that nothing hides rows or values of the tables."""
        spec, reads = self.spec, self.spec.snapshot == "initial"
        for t in self._found.values():
            if problem := problem_of(ask, t.schema, t.table, spec.user, spec.publication, reads_rows=reads):
                raise SourceError(f"{spec.where}: {problem}")

    def _ensure_publication(self, ask: Any, tables: Sequence[_Table]) -> None:
        """Create the publication, or add tables to it."""
        spec = self.spec
        named = ", ".join(quoted(t.schema, t.table) for t in tables)
        rows = ask(
            "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
            "FROM pg_publication WHERE pubname = %s",
            spec.publication,
        )
        if not rows:
            statement = (
                f'CREATE PUBLICATION "{spec.publication}" FOR TABLE {named} WITH (publish_via_partition_root = true)'
            )
            self._do(ask, statement, "there is no publication")
            return
        ((is_all, has_all, via_root),) = rows
        if not has_all:
            raise SourceError(
                f"{spec.where}: publication {spec.publication} leaves out some kinds of changes: "
                f"ALTER PUBLICATION \"{spec.publication}\" SET (publish = 'insert, update, delete, truncate');"
            )
        if not via_root and any(t.is_partitioned for t in tables):
            raise SourceError(
                f"{spec.where}: publication {spec.publication} publishes partitions instead of their tables: "
                f'ALTER PUBLICATION "{spec.publication}" SET (publish_via_partition_root = true);'
            )
        published = {
            f"{s}.{t}"
            for s, t in ask(
                "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", spec.publication
            )
        }
        missing = [t for t in tables if t.name not in published]
        if missing and not is_all:
            named = ", ".join(quoted(t.schema, t.table) for t in missing)
            self._do(ask, f'ALTER PUBLICATION "{spec.publication}" ADD TABLE {named}', "the publication lacks tables")

    def _do(self, ask: Any, statement: str, why: str) -> None:
        import psycopg2

        if not self.prepares:
            raise SourceError(
                f"{self.spec.where}: {why}. `lake-assets serve` runs this if user {self.spec.user} owns the tables: "
                f"{statement};"
            )
        try:
            ask(statement)
        except psycopg2.Error as e:
            text = " ".join(str(e).split())
            raise SourceError(
                f"{self.spec.where}: {why}, and user {self.spec.user} cannot change that ({text}). As the tables' "
                f"owner: {statement};"
            ) from e

    def _check_slot(self, ask: Any, offset: Any) -> None:
        spec = self.spec
        rows = ask(
            "SELECT plugin, database, active_pid, wal_status, pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint "
            "FROM pg_replication_slots WHERE slot_name = %s",
            spec.slot,
        )
        if not rows:
            if offset:
                raise SourceGapError(f"{spec.where}: the replication slot {spec.slot} is gone. {spec.gap_text}")
            ((used, most),) = ask(
                "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
            )
            if used >= most:
                raise SourceError(
                    f"{spec.where}: all {most} replication slots are in use. Drop one that nobody reads (SELECT "
                    "pg_drop_replication_slot('...')), or set max_replication_slots higher and restart the server"
                )
            return
        ((plugin, database, pid, status, confirmed),) = rows
        if plugin != "pgoutput" or database != spec.database:
            raise SourceError(
                f"{spec.where}: the replication slot {spec.slot} belongs to something else (plugin {plugin}, database "
                f"{database}). Choose another name: `slot` in the stream's `source`"
            )
        if pid is not None:
            raise SourceUnavailableError(
                f"{spec.where}: somebody reads the replication slot {spec.slot} already (process {pid} of the server): "
                "another `lake-assets serve` of this stream, or one whose connection has not timed out yet"
            )
        if status == "lost":
            raise SourceGapError(
                f"{spec.where}: the server has removed what the replication slot {spec.slot} had not read "
                f"(max_slot_wal_keep_size). {spec.gap_text}"
            )
        told = [o.get(n) for _, o in (offset or {}).get("offsets", ()) for n in _POSITIONS]
        landed = max(int(n or 0) for n in (*told, *(offset or {}).get("seen", ())[:1], 0))
        if offset and confirmed is not None and confirmed > landed:
            raise SourceGapError(
                f"{spec.where}: the replication slot {spec.slot} is at {confirmed:,}, beyond the last landed change at "
                f"{landed:,}: the raw table was rolled back or restored, or something else has read the slot. "
                f"{spec.gap_text}"
            )


_POSITIONS = ("lsn", "lsn_proc", "lsn_commit")


def _first_of_each(matched: Sequence[tuple[SourceTableSpec, _Table]]) -> list[tuple[SourceTableSpec, _Table]]:
    """Keep, for each table, its exact declaration, else the first pattern."""
    chosen: dict[str, tuple[SourceTableSpec, _Table]] = {}
    for declared, table in sorted(matched, key=lambda m: m[0].is_pattern):
        chosen.setdefault(table.name, (declared, table))
    return list(chosen.values())
