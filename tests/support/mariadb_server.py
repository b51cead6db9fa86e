"""A MariaDB of the tests' own, which can be restarted, also by force."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import free_port

PROGRAM = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")
INSTALL = shutil.which("mariadb-install-db")
PACKAGES = ("pymysql", "pydbzengine")
needs_mariadb = pytest.mark.skipif(
    PROGRAM is None or INSTALL is None, reason="there is no MariaDB: install Debian's mariadb-server, or put it on PATH"
)
needs_debezium = pytest.mark.skipif(
    any(importlib.util.find_spec(p) is None for p in PACKAGES),
    reason="Debezium or PyMySQL is missing: pip install 'lake-assets[mysql]'",
)
USER, PASSWORD = "reader", "it is a 'secret'"
# What a reader needs, and nothing else.
RIGHTS = "REPLICATION SLAVE, REPLICATION CLIENT, RELOAD, SELECT"


class Server:
    """A server with a binary log of rows, on a free port of 127.0.0.1, with an own data folder."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self.folder, self.settings, self.port = folder, settings, free_port()
        # MariaDB refuses to run as root.
        self.user = "mysql" if os.geteuid() == 0 else None
        self.process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """Make the data folder."""
        assert INSTALL is not None
        if self.user:
            shutil.chown(self.folder, self.user)
        options = ["--no-defaults", f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal"]
        command = [INSTALL, *options, "--skip-test-db"]
        subprocess.run(command, check=True, cwd=self.folder, user=self.user, stdout=subprocess.DEVNULL)

    def start(self, **more: object) -> None:
        """Start it, and wait until it answers; `more`: settings that stay for later starts."""
        assert PROGRAM is not None
        self.settings |= more
        chosen = {
            "datadir": self.folder / "data", "port": self.port, "bind-address": "127.0.0.1",
            "socket": self.folder / "socket", "pid-file": self.folder / "pid", "log-bin": "binlog",
            "binlog-format": "ROW", "binlog-row-image": "FULL", "server-id": 7, "character-set-server": "utf8mb4",
            "innodb-flush-log-at-trx-commit": 1, "sync-binlog": 1, "skip-name-resolve": "ON", "ssl": "OFF",
            "innodb-buffer-pool-size": "32M", "performance-schema": "OFF",
            **self.settings,
        }  # fmt: skip
        command = [PROGRAM, "--no-defaults", *(f"--{k}={v}" for k, v in chosen.items() if v is not None)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, user=self.user, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text(errors="replace")[-2000:]
            with contextlib.suppress(OSError, __import__("pymysql").err.OperationalError):
                self.connect().close()
                return
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self, *, kill: bool = False) -> None:
        """End it, or kill it as a failing machine would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def connect(self, user: str = "root", password: str = "", database: str | None = None) -> Any:
        """Return a connection that commits each statement."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=user, password=password, database=database, autocommit=True
        )

    def run(self, *statements: str) -> list[Sequence[Any]]:
        """Run statements as root; return the rows of the last one."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


@contextlib.contextmanager
def server(**settings: object) -> Generator[Server]:
    """Run a server with a user who may read its log, within the context."""
    pytest.importorskip("pymysql")
    folder = Path(tempfile.mkdtemp(prefix="mariadb-"))
    made = Server(folder, settings)
    try:
        made.install()
        made.start()
        made.run(
            f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY \"{PASSWORD}\"",
            f"GRANT {RIGHTS} ON *.* TO {USER}@'127.0.0.1'",
            "CREATE DATABASE shop",
        )
        yield made
    finally:
        made.stop(kill=True)
        shutil.rmtree(folder)
