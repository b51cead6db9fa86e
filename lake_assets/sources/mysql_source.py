"""MariaDB and MySQL as live sources: checks of the server, Debezium's settings for it, and its errors in our words."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lake_assets.errors import SourceError, SourceGapError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.sources import binlog_positions, mysql_checks
from lake_assets.sources.debezium_java import require
from lake_assets.sources.live_specs import MysqlSpec
from lake_assets.sources.mariadb_jars import mariadb_jars

log = logging.getLogger(__name__)
# Errors that another try does not cure: access denied, host not allowed, unknown database.
_REFUSALS = (1044, 1045, 1049, 1130, 1251, 1698, 3159)
_LOST = (
    "could not find first log file", "could not find gtid state", "purged required binary logs", "required binary logs",
    "no longer available on", "slave has more gtids",
)  # fmt: skip
# Debezium quotes the statement that it cannot read.
_STATEMENT = re.compile(r"with the statement '(.*?)'\n", re.DOTALL)
_SHOWN = 300
_CONNECTORS = {
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
}
_SSL = {
    "mariadb": {True: "trust", False: "disable"},
    "mysql": {True: "required", False: "disabled"},
}


class MysqlDatabase:
    """See `Database`."""

    def __init__(self, spec: MysqlSpec) -> None:
        self.spec = spec
        self.kind = spec.product
        self._databases: Sequence[str] = ()
        self._is_encrypted = False
        self._starts_over, self._reads_rows = False, True
        self._can_signal = True
        self._measured, self._measures = 0.0, dict[str, object]()
        self._warned = set[str]()

    def wake(self) -> None:
        """See `Database`: these connectors look at requests at any time."""

    def load(self, tables: Sequence[str], name: str, stop: threading.Event) -> AbstractContextManager[None]:
        """See `Database`."""
        return nullcontext()

    def needs_history(self) -> bool:
        """See `Database`: the log has the values of a row without their columns' names and types."""
        return True

    def check(self, offset: Any) -> Sequence[str]:
        """See `Database`."""
        spec = self.spec
        self._starts_over = False
        with self._connected() as ask:
            mysql_checks.check_product(ask, spec)
            mysql_checks.check_settings(ask, spec)
            mysql_checks.check_log_rights(ask, spec, is_snapshot=not offset and spec.snapshot == "initial")
            tables = mysql_checks.find_tables(ask, spec)
            mysql_checks.check_tables(ask, spec, tables)
            self._databases = sorted({t.name.partition(".")[0] for t in tables})
            mysql_checks.check_filters(ask, spec, self._databases)
            self._can_signal = spec.product == "mariadb" or ask("SELECT @@gtid_mode")[0][0] == "ON"
            self._warn_of_cascades(mysql_checks.cascades(ask, tables))
            if text := binlog_positions.missing(ask, offset, is_mariadb=spec.product == "mariadb"):
                if spec.on_gap == "stop":
                    raise SourceGapError(f"{spec.where}: {text}. {self._gap_advice()}")
                log.warning("%s: %s. All rows are read again", spec.where, text)
                self._starts_over = True
            # A first snapshot that was cut short begins again.
            is_cut = any(at.get("snapshot") for _, at in (offset or {}).get("offsets", ()))
            self._reads_rows = spec.snapshot == "initial" or self._starts_over or is_cut
            names = sorted(t.name for t in tables)
            self._check_new(offset, names)
            return names

    def jars(self) -> Sequence[Path]:
        """See `Database`."""
        return mariadb_jars() if self.spec.product == "mariadb" else ()

    def snapshots(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """See `Database`: each table has a key, see `check`."""
        return {"INCREMENTAL": {t: t for t in tables}}

    def counted(self, tables: Sequence[str]) -> set[str]:
        """See `Database`."""
        return set()

    def identities(self) -> Mapping[str, object]:
        """See `Database`: the log has what happened to a table."""
        return {}

    def problem(self) -> str:
        """See `Database`."""
        return ""

    def voids(self) -> Sequence[str]:
        """See `Database`."""
        return ()

    def starts_over(self) -> bool:
        """See `Database`."""
        return self._starts_over

    def properties(self, tables: Sequence[str]) -> Mapping[str, str]:
        """See `Database`."""
        spec = self.spec
        return {
            "connector.class": _CONNECTORS[spec.product],
            "database.hostname": spec.host,
            "database.port": str(spec.port),
            "database.user": spec.user,
            "database.password": spec.password,
            "database.server.id": str(spec.server_id),
            "database.ssl.mode": _SSL[spec.product][self._is_encrypted],
            "database.include.list": ",".join(map(_pattern, self._databases)),
            "table.include.list": ",".join(map(_pattern, tables)),
            "snapshot.mode": "initial" if self._reads_rows else "no_data",
            # Rows of tables are read again without a table for signals in the database.
            "read.only": "true",
            # One part a heartbeat, while the server is quiet.
            "incremental.snapshot.chunk.size": "10000",
            # After a lost connection, the service starts again from the last commit. On a connection that the connector
            # makes anew by itself, it repeats what it has read of a transaction.
            "connect.keep.alive": "false",
            # Beyond 63 bits, numbers would overflow otherwise.
            "bigint.unsigned.handling.mode": "precise",
            # Lines about the schema are kept in the lake, and records of its changes in the stream are not needed.
            "include.schema.changes": "false",
            # Of other databases. Tables of the same database may be declared later.
            "schema.history.internal.store.only.captured.databases.ddl": "true",
            # Another password plugin of MySQL 8 needs the server's public key where the connection is not encrypted.
            **({"driver.allowPublicKeyRetrieval": "true"} if spec.product == "mysql" else {}),
        }

    def measures(self) -> Mapping[str, object]:
        """See `Database`: the size of the log, asked for now and then."""
        if time.monotonic() - self._measured > thresholds.LIVE_MEASURE_SECONDS:
            try:
                with self._connected() as ask:
                    files, size = binlog_positions.names_of_files(ask("SHOW BINARY LOGS"))
                self._measures = {"log_files": files, "log_bytes": size}
            except Exception as e:  # of several kinds: what is measured is for people to look at
                log.debug("%s: %s", self.spec.where, e)
                self._measures = {"log": "not known: the server does not answer"}
            self._measured = time.monotonic()
        return self._measures

    def failure(self, text: str) -> Exception:
        """See `Database`."""
        spec, lower = self.spec, text.lower()
        if any(part in lower for part in _LOST):
            return SourceGapError(f"{spec.where}: {text}. {self._gap_advice()}")
        if "same server_uuid/server_id" in lower or "same server_id" in lower:
            return SourceError(
                f"{spec.where}: another replica, or another `lake-assets serve`, reads under the "
                f"number {spec.server_id}, and the server ended this one. End the other one, or declare another "
                f"`server_id` ({text})"
            )
        if "schema isn't known" in lower or "no schema for table" in lower:
            return SourceError(
                f"{spec.where}: {text}. The table belongs to a database of which no table was read before, and it has "
                "changed since. Declare it in a stream of its own"
            )
        if "couldn't be parsed" in lower:
            statement = _STATEMENT.search(text)
            shown = " ".join(statement[1].split())[:_SHOWN] if statement else text
            return SourceError(
                f"{spec.where}: Debezium cannot read a statement that changes the schema: {shown}. If it is about none "
                'of the declared tables, set `properties: {"schema.history.internal.skip.unparseable.ddl": "true"}` in '
                "the stream's `source`, and remove this after the next start: of a declared table, changes would be "
                "read under the wrong columns"
            )
        return SourceUnavailableError(f"{spec.where} cannot be read any more: {text}")

    # --- checks -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self) -> Generator[binlog_positions.Ask]:
        """Yield a function that runs a statement and returns its rows."""
        require("mysql", "pymysql")
        import pymysql

        connection = self._connect()
        with contextlib.closing(connection):

            def ask(statement: str, *values: object) -> list[tuple[Any, ...]]:
                with connection.cursor() as cursor:
                    cursor.execute(statement, values or None)
                    return list(cursor.fetchall())

            try:
                cipher = ask("SHOW STATUS LIKE 'Ssl_cipher'")
                self._is_encrypted = bool(cipher and cipher[0][1])
                yield ask
            except pymysql.err.OperationalError as e:
                raise SourceUnavailableError(f"{self.spec.where}: {e.args[-1]}") from e
            except pymysql.err.MySQLError as e:
                raise SourceError(f"{self.spec.where}: {e.args[-1]}") from e

    def _connect(self) -> Any:
        import pymysql

        spec = self.spec
        try:
            return pymysql.connect(
                host=spec.host,
                port=spec.port,
                user=spec.user,
                password=spec.password,
                charset="utf8mb4",
                connect_timeout=10,
                read_timeout=60,
                autocommit=True,
                program_name="lake_assets",
                # By default, PyMySQL encrypts if the server can.
                ssl_disabled=spec.sslmode == "disable",
                ssl=_encrypted() if spec.sslmode == "require" else None,
            )
        except RuntimeError as e:  # PyMySQL's, without the package `cryptography`
            raise SourceError(f"{spec.where}: {e}: pip install 'lake-assets[mysql]'") from e
        except pymysql.err.MySQLError as e:
            code, text = (e.args[0], str(e.args[-1])) if e.args else (0, str(e))
            if code in _REFUSALS:
                raise SourceError(
                    f"{spec.where} refuses user {spec.user}: {text}. The password is read from the environment "
                    f"variable {spec.password_from}, which is {'set' if spec.password else 'not set'}"
                ) from e
            if "SSL is required" in text:
                raise SourceError(
                    f"{spec.where} does not encrypt connections, and `sslmode: require` is declared. Give the server a "
                    "certificate, or declare `sslmode: prefer`"
                ) from e
            raise SourceUnavailableError(f"{spec.where} does not answer: {text}") from e

    def _check_new(self, offset: Any, names: Sequence[str]) -> None:
        known = set((offset or {}).get("tables", names))
        if self._can_signal or not (new := [n for n in names if n not in known]):
            return
        raise SourceError(
            f"{self.spec.where}: {', '.join(new)} {'is' if len(new) == 1 else 'are'} new in the "
            "declaration. Reading rows beside their changes needs gtid_mode ON (which can be switched on while the "
            "server runs). Or declare new tables in a stream of their own"
        )

    def _warn_of_cascades(self, tables: Sequence[str]) -> None:
        if new := [t for t in tables if t not in self._warned]:
            self._warned.update(new)
            log.warning(
                "%s: a foreign key of %s changes or deletes rows by itself (ON DELETE or ON UPDATE CASCADE, SET NULL). "
                "The log has no such changes: make them by statements of your own",
                self.spec.where,
                ", ".join(new),
            )

    def _gap_advice(self) -> str:
        return (
            f"{self.spec.gap_text}. Positions in the log of another server do not compare: declare "
            "`order_by: _position` for the stream's tables as well then"
        )


def _encrypted() -> ssl.SSLContext:
    """Return the settings of a connection that must be encrypted, to whatever server answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _pattern(name: str) -> str:
    return re.escape(name).replace(",", r"\x2c")
