"""What a MariaDB or MySQL server must have before its log is read: settings, rights, tables with their keys."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lake_assets.errors import SourceError
from lake_assets.sources.binlog_positions import Ask
from lake_assets.sources.live_specs import MysqlSpec, SourceTableSpec

log = logging.getLogger(__name__)
_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
# Columns of these types stop Debezium's connector for MariaDB as soon as it reads their definition.
_UNREADABLE_TYPES = ("inet4", "inet6")

_CASCADE = re.compile(r"FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


@dataclass
class FoundTable:
    """A table of the server that is declared.

    Attributes:
        name: database.table.
        key: columns of its primary key, or of its first unique index whose columns cannot be null.
        columns: its columns with their types.
    """

    name: str
    declared: SourceTableSpec
    key: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def sql(self) -> str:
        """Its quoted name."""
        database, _, table = self.name.partition(".")
        return f"{quoted(database)}.{quoted(table)}"


def quoted(name: str) -> str:
    """Return a name as MySQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def check_product(ask: Ask, spec: MysqlSpec) -> None:
    """Check that the server is the declared one of both products.

    Raises:
        SourceError: it is the other one.
    """
    ((version,),) = ask("SELECT VERSION()")
    found = "mariadb" if "mariadb" in str(version).lower() else "mysql"
    if found != spec.product:
        raise SourceError(
            f"{spec.where} is {version}. Its log needs another connector: declare `source: {{{found}: ...}}` instead "
            f"of `{spec.product}`"
        )


def check_settings(ask: Ask, spec: MysqlSpec) -> None:
    """Check that the log is on, and holds whole rows.

    Raises:
        SourceError: a setting loses changes, or the reader's number is the server's.
    """
    found = {str(n).lower(): str(v) for n, v in ask("SHOW GLOBAL VARIABLES")}
    if found.get("log_bin", "OFF").upper() not in ("ON", "1"):
        raise SourceError(
            f"{spec.where} writes no binary log (log_bin is OFF). In the server's configuration: "
            "[mysqld] log_bin = binlog, binlog_format = ROW, and a server_id; then restart it"
        )
    wanted = [
        ("binlog_format", "ROW", "the log has statements instead of rows"),
        ("binlog_row_image", "FULL", "the log leaves out columns"),
        ("log_bin_compress", "OFF", "Debezium does not read compressed changes of rows, and would leave them out"),
        ("binlog_row_value_options", "", "the log has only parts of JSON values"),
    ]
    for name, value, why in wanted:
        if (current := found.get(name, value)).upper() != value:
            sql = f"SET GLOBAL {name} = {value or chr(39) * 2}"
            raise SourceError(
                f"{spec.where} has {name} {current}: {why}. As an administrator: {sql}; then let the sessions that "
                "write connect again, and set it in the server's configuration as well"
            )
    if found.get("server_id") == str(spec.server_id):
        raise SourceError(
            f"{spec.where} has the server_id {spec.server_id} itself, under which this stream is to read. Declare "
            "another one: `server_id` in the stream's `source`"
        )


def check_log_rights(ask: Ask, spec: MysqlSpec, *, is_snapshot: bool) -> None:
    """Check the rights on the server as a whole; `is_snapshot`: whether tables are about to be read.

    Raises:
        SourceError: one is missing.
    """
    import pymysql

    monitor = "REPLICATION CLIENT"
    try:
        ask("SHOW BINARY LOGS")
        has_monitor = True
    except pymysql.err.MySQLError:
        has_monitor = False
    lines = (str(row[0]).split(" IDENTIFIED")[0] for row in ask(_grants_statement(ask, spec)))
    granted = " ".join(line for line in lines if " ON *.*" in line).upper()
    is_all = "ALL PRIVILEGES ON *.*" in granted
    needed = [] if has_monitor else [monitor]
    needed += [] if is_all or "REPLICATION SLAVE" in granted else ["REPLICATION SLAVE"]
    locks = any(right in granted for right in ("RELOAD", "FLUSH_TABLES", "LOCK TABLES"))
    needed += ["RELOAD"] if is_snapshot and not is_all and not locks else []
    if needed:
        ((who,),) = ask("SELECT CURRENT_USER()")
        user, _, host = str(who).rpartition("@")
        raise SourceError(
            f"{spec.where}: user {spec.user} lacks {' and '.join(needed)}. As an administrator: "
            f"GRANT {', '.join(needed)} ON *.* TO '{user}'@'{host}'"
        )


def _grants_statement(ask: Ask, spec: MysqlSpec) -> str:
    """Return what shows the rights, also those of the roles that are active. MariaDB shows these anyway."""
    if spec.product == "mariadb":
        return "SHOW GRANTS"
    ((roles,),) = ask("SELECT CURRENT_ROLE()")
    return "SHOW GRANTS" if str(roles) == "NONE" else f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"


def check_filters(ask: Ask, spec: MysqlSpec, databases: Iterable[str]) -> None:
    """Check that no database is kept out of the log.

    Raises:
        SourceError: one is.
    """
    for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
        if rows := _try(ask, statement):
            only, without = ({d for d in str(v or "").split(",") if d} for v in rows[0][2:4])
            if out := [d for d in databases if d in without or (only and d not in only)]:
                raise SourceError(
                    f"{spec.where}: changes in the database {out[0]} are not in the log (binlog_do_db or "
                    "binlog_ignore_db). Remove this setting from the server's configuration, and restart it"
                )
            return


def _try(ask: Ask, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement that not every version knows."""
    import pymysql

    try:
        return ask(statement)
    except pymysql.err.MySQLError as e:
        log.debug("%s: %s", statement, e)
        return []


def find_tables(ask: Ask, spec: MysqlSpec) -> list[FoundTable]:
    """Return the declared tables, each with its exact declaration, else the first pattern that fits.

    Raises:
        SourceError: a declaration fits none.
    """
    there = _tables(ask, spec)
    bases = {n for n, kind in there.items() if kind == "BASE TABLE"}
    left = sorted(n for n in bases if not any(fnmatch.fnmatchcase(n, e) for e in spec.exclude))
    chosen: dict[str, FoundTable] = {}
    for declared in sorted(spec.tables, key=lambda t: t.is_pattern):
        of_database = [n for n in left if not spec.database or n.startswith(f"{spec.database}.")]
        found = (
            [n for n in of_database if fnmatch.fnmatchcase(n, declared.name)]
            if declared.is_pattern
            else [declared.name] * (declared.name in bases)
        )
        if not found:
            raise SourceError(f"{spec.where} has no table {declared.name}{_hint(declared.name, there, spec)}")
        for name in found:
            chosen.setdefault(name, FoundTable(name, declared))
    tables = list(chosen.values())
    _describe(ask, tables)
    return tables


def _tables(ask: Ask, spec: MysqlSpec) -> dict[str, str]:
    databases = [d for (d,) in ask("SELECT schema_name FROM information_schema.schemata") if d not in _SYSTEM]
    rows: list[tuple[Any, ...]] = []
    for database in databases:
        rows += ask(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema = %s",
            database,
        )
    return {f"{d}.{t}": str(kind) for d, t, kind in rows}


def _hint(name: str, there: Mapping[str, str], spec: MysqlSpec) -> str:
    if kind := there.get(name):
        return f": it is a {kind.lower()}, whose changes are not in the log"
    if "." not in name:
        return f": write database.table, such as {spec.database or 'shop'}.{name}"
    close = difflib.get_close_matches(name, list(there), 1, 0.6)
    hint = f": did you mean {close[0]}?" if close else "."
    return f"{hint} Or user {spec.user} may not see it: GRANT SELECT ON {_on(name)} TO '{spec.user}'@'...'"


def _on(name: str) -> str:
    database, _, table = name.partition(".")
    return f"{quoted(database)}.{'*' if any(c in table for c in '*?[') else quoted(table)}"


def _describe(ask: Ask, tables: Sequence[FoundTable]) -> None:
    """Add columns and keys."""
    columns, keys = defaultdict[str, dict[str, str]](dict), defaultdict[str, dict[str, list[str]]](dict)
    nullable = set[tuple[str, str]]()
    for database in sorted({t.name.partition(".")[0] for t in tables}):
        for table, column, kind, null in ask(
            "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
            database,
        ):
            columns[f"{database}.{table}"][column] = str(kind).lower()
            if null == "YES":
                nullable.add((f"{database}.{table}", column))
        for table, index, column in ask(
            "SELECT table_name, index_name, column_name FROM information_schema.statistics WHERE table_schema = %s "
            "AND non_unique = 0 ORDER BY table_name, index_name <> 'PRIMARY', index_name, seq_in_index",
            database,
        ):
            keys[f"{database}.{table}"].setdefault(index, []).append(column)
    for table in tables:
        table.columns = columns[table.name]
        whole = (k for k in keys[table.name].values() if not any((table.name, c) in nullable for c in k))
        table.key = tuple(next(whole, ()))


def check_tables(ask: Ask, spec: MysqlSpec, tables: Sequence[FoundTable]) -> None:
    """Check that rows can be read and told apart.

    Raises:
        SourceError: a table lacks a key or a declared column, has a type that stops the connector, or may not be read.
    """
    import pymysql

    for table in tables:
        declared = table.declared
        if bad := [c for c, kind in table.columns.items() if kind in _UNREADABLE_TYPES]:
            raise SourceError(
                f"{spec.where}: Debezium's connector cannot read {table.name}.{bad[0]} of type "
                f"{table.columns[bad[0]].upper()}. Keep such values as text or BINARY, or leave the table out: "
                "`exclude`"
            )
        unknown = [c for key in declared.keys for c in key if c.lower() not in {n.lower() for n in table.columns}]
        if unknown and table.columns:
            close = difflib.get_close_matches(unknown[0], list(table.columns), 1, 0.6)
            hint = f": did you mean {close[0]}?" if close else f". It has {', '.join(table.columns)}"
            raise SourceError(f"{spec.where}: the `key` of {table.name} names {unknown[0]}, which it lacks{hint}")
        if not table.key and not declared.keys and not declared.by_row:
            raise SourceError(
                f"{spec.where}: {table.name} has no primary key, and no unique index without nulls. Give it one, or "
                f'declare how its rows are told apart: `{{table: {table.name}, key: [...]}}`, or `key: "*"` for '
                "all columns; or leave it out: `exclude`"
            )
        try:
            ask(f"SELECT 1 FROM {table.sql} LIMIT 0")
        except pymysql.err.MySQLError as e:
            raise SourceError(
                f"{spec.where}: user {spec.user} cannot read {table.name} ({e.args[-1]}). As an administrator: "
                f"GRANT SELECT ON {_on(table.name)} TO '{spec.user}'@'...'"
            ) from e


def cascades(ask: Ask, tables: Sequence[FoundTable]) -> list[str]:
    """Return the tables of which a foreign key changes rows: the log has no such changes."""
    # The views of information_schema show foreign keys only to those who may write.
    return [t.name for t in tables if _CASCADE.search(str(ask(f"SHOW CREATE TABLE {t.sql}")[0][1]))]
