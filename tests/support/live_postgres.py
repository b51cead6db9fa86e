"""A Postgres that is read live: a server, a pipeline over it, its service in a process of its own, and a workload."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any

import psycopg2
from pyiceberg.expressions import EqualTo

from lake_assets import Lake, Pipeline
from lake_assets.lake import thresholds
from lake_assets.service import service_state
from lake_assets.service.service_state import StreamState
from tests.support import postgres
from tests.support.processes import ROOT

RAW = "raw.live"
TABLES = """
CREATE TABLE users (
    id int PRIMARY KEY, name text, amount numeric(12,2), ratio double precision, active boolean, born date,
    at timestamptz, note text, doc jsonb
);
CREATE TABLE "Odd Items" (
    "the shop" int, sku text, n bigint, photo bytea, PRIMARY KEY ("the shop", sku)
);
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, who int, what text);
CREATE TABLE bare (n int, what text);
ALTER TABLE bare REPLICA IDENTITY FULL;
"""
DECLARED: list[dict[str, Any]] = [
    {"table": "public.users"},
    {"table": "public.Odd Items", "name": "items"},
    {"table": "public.visits", "mode": "append", "on_change": "ignore"},
    {"table": "public.bare", "key": "*"},
]


class Database:
    """A connection to a server, whose statements commit at once."""

    def __init__(self, uri: str) -> None:
        self.port = int(uri.rpartition(":")[2].partition("/")[0])
        self.connection: Any = None

    def __call__(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        if self.connection is None or self.connection.closed:
            self.connection = self.connect()
            self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def crash(self) -> None:
        """Let the server crash and recover: it ends all processes if one of them is killed."""
        with contextlib.suppress(psycopg2.Error):
            ((pid,),) = self("SELECT pg_backend_pid()")
            os.kill(pid, signal.SIGKILL)
            self("SELECT 1")
        while True:
            with contextlib.suppress(psycopg2.Error):
                self.connection = None
                self("SELECT 1")
                return
            time.sleep(0.1)

    def connect_and(self, statement: str) -> None:
        """Run a statement in a connection of its own."""
        connection = self.connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()

    def connect(self) -> Any:
        """Return a connection of its own."""
        return psycopg2.connect(host="127.0.0.1", port=self.port, user="lake", dbname="postgres")


@contextlib.contextmanager
def live_database(tables: str = TABLES, **settings: str) -> Generator[Database]:
    """Run a server whose log can be read."""
    with postgres.database(wal_level="logical", **settings) as uri:
        database = Database(uri)
        database(tables)
        yield database
        if database.connection is not None:
            database.connection.close()


class Live:
    """A pipeline over a database, and its service."""

    def __init__(self, lake: Lake, database: Database, tables: Sequence[Any] = DECLARED, **source: Any) -> None:
        self.lake, self.database, self.process = lake, database, None
        self.home = lake.config.home
        self.file = self.home / "live.yaml"
        self.declare(tables, **source)

    def declare(self, tables: Sequence[Any], *, max_rows: int | None = None, **source: Any) -> None:
        """Write the pipeline's declaration."""
        settings = {"port": self.database.port, "database": "postgres", "user": "lake", "heartbeat": 1, **source}
        stream: dict[str, Any] = {"name": "live", "source": {"postgres": settings}, "tables": list(tables)}
        stream |= {"max_rows": max_rows} if max_rows else {}
        text = {"type": "lake_assets.LakePipeline", "attributes": {"name": "shop", "streams": [stream]}}
        self.file.write_text(json.dumps(text), encoding="utf-8")  # JSON is YAML

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as it is declared."""
        return Pipeline.load(self.file)

    process: subprocess.Popen[bytes] | None

    def start(self) -> None:
        """Start the service."""
        with (self.home / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lake_assets.cli", "serve", str(self.file)],
                cwd=ROOT,
                env={**os.environ, "LAKE_HOME": str(self.home), "PYDBZ_JVM_OPTS": "-Xmx512m -XX:TieredStopAtLevel=1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the service."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def abandon(self) -> None:
        """Kill the service if it is there."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def end(self) -> None:
        """Let the service end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60) == 0, self.log

    @property
    def log(self) -> str:
        """What the service has said."""
        return (self.home / "service.log").read_text(encoding="utf-8")

    @property
    def state(self) -> StreamState | None:
        """What the service says of itself."""
        return service_state.read(self.lake, RAW)

    def wait(self, what: str, is_so: Callable[[], Any], seconds: float = thresholds.LIVE_SNAPSHOT_SECONDS + 120) -> Any:
        """Return what is found as soon as something is; the service has to be there."""
        until = time.monotonic() + seconds
        while not (found := is_so()):
            assert time.monotonic() < until, f"no {what}: {self.state}\n{self.log[-3000:]}"
            time.sleep(0.2)
        return found

    def settle(self) -> None:
        """Wait until everything that the database has committed is landed: a last row of `visits` tells."""
        ((mark,),) = self.database("INSERT INTO visits (who, what) VALUES (0, 'mark') RETURNING id")
        self.wait(f"visit {mark}", lambda: any(r.get("id") == mark for r in self.events("public.visits")))

    def events(self, table: str) -> list[dict[str, Any]]:
        """Return the new images of the landed events of a table, in their order."""
        if not self.lake.exists(RAW):
            return []
        of_table = EqualTo("source_table", table)  # pyright: ignore[reportCallIssue]
        rows = self.lake.table(RAW).scan(of_table, selected_fields=("position", "record")).to_arrow().to_pylist()
        values = [json.loads(r["record"])["value"]["payload"] for r in sorted(rows, key=lambda r: r["position"])]
        return [{**(v["after"] or v["before"] or {}), "_op": v["op"]} for v in values]

    def assert_equal(self) -> None:
        """Absorb what has landed, and compare the final tables with the database's."""
        outcomes = self.pipeline.run(self.lake)
        assert [o for o in outcomes if o.status == "failed"] == []
        for table in DECLARED:
            name = str(table["table"]).partition(".")[2]
            there = self._there(name)
            here = self._here(str(table.get("name", name)), [c for c, _ in self._columns(name)])
            assert here == there, (name, here - there, there - here)

    def _columns(self, name: str) -> list[tuple[str, str]]:
        return [
            (c, k)
            for c, k in self.database(
                "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'public' AND "
                "table_name = %s ORDER BY ordinal_position",
                name,
            )
        ]

    def _there(self, name: str) -> Counter[tuple[Any, ...]]:
        if name == "visits":
            return Counter(self.database("SELECT * FROM visits_kept"))
        chosen = ", ".join(f'"{c}"::text' if kind == "jsonb" else f'"{c}"' for c, kind in self._columns(name))
        return Counter(tuple(map(_plain, row)) for row in self.database(f'SELECT {chosen} FROM public."{name}"'))

    def _here(self, name: str, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
        chosen = ", ".join(f"`{c}`" for c in columns)
        rows = self.lake.spark().sql(f"SELECT {chosen} FROM final.{name}").collect()
        times = {i for i, c in enumerate(columns) if c == "at"}
        return Counter(
            tuple(v.astimezone().timestamp() if i in times and v else _plain(v) for i, v in enumerate(row))
            for row in rows
        )


def _plain(value: Any) -> Any:
    """Return a value as both sides have it; of long texts the beginning and the length, which tells them apart."""
    if isinstance(value, str) and len(value) > 50:
        return f"{value[:3]}... {len(value)}"
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.timestamp()
    return value


class Workload:
    """Random transactions on the tables of `TABLES`; what was inserted into `visits` is also in `visits_kept`."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.choose = database, random.Random(seed)
        self.columns = 0
        database(
            "CREATE TABLE visits_kept AS SELECT * FROM visits; CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO visits_kept SELECT NEW.*; RETURN NEW; END $$; "
            "CREATE TRIGGER keep BEFORE INSERT ON visits FOR EACH ROW EXECUTE FUNCTION keep()"
        )

    def run(self, transactions: int) -> None:
        """Run transactions, some of which are rolled back."""
        for _ in range(transactions):
            connection = self.database.connect()
            try:
                with connection.cursor() as cursor:
                    for _ in range(self.choose.randint(1, 6)):
                        self._change(cursor)
                if self.choose.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
            finally:
                connection.close()
        if self.choose.random() < 0.3:
            self._alter()

    def _change(self, cursor: Any) -> None:
        c = self.choose
        some = c.randint(1, 40)
        chosen = c.choices(
            ["insert", "update", "delete", "move", "swap", "toast", "items", "visit", "bare", "many", "truncate"],
            [6, 6, 3, 2, 2, 2, 4, 3, 3, 0.3, 0.15],
        )[0]
        if chosen == "insert":
            cursor.execute(
                "INSERT INTO users (id, name, amount, ratio, active, born, at, note, doc) VALUES (%s, %s, %s, %s, %s, %s, "
                "%s, repeat(%s, %s), %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name, note = excluded.note",
                (
                    some, c.choice(["a", "ü", "it's", None, ""]), c.choice([None, 1, -2.5, 999_999_999.99]),
                    c.choice([None, 0.1, -1e300, 2.0]), c.choice([None, True, False]),
                    c.choice([None, "1969-12-31", "2024-02-29"]), "2024-05-05 12:00:00.123456+02",
                    chr(97 + c.randint(0, 25)), c.choice([0, 3, 9000]), c.choice([None, '{"a": [1, 2.50]}', "[]"]),
                ),
            )  # fmt: skip
        elif chosen == "update":
            cursor.execute("UPDATE users SET amount = amount + 1, name = name || '!' WHERE id %% 7 = %s", (some % 7,))
        elif chosen == "delete":
            cursor.execute("DELETE FROM users WHERE id = %s", (some,))
        elif chosen == "move":
            cursor.execute("DELETE FROM users WHERE id = %s", (some + 1,))
            cursor.execute("UPDATE users SET id = %s WHERE id = %s", (some + 1, some))
        elif chosen == "swap":
            for new, old in ((-1, some), (some, some + 1), (some + 1, -1)):
                cursor.execute("UPDATE users SET id = %s WHERE id = %s", (new, old))
        elif chosen == "toast":
            cursor.execute("UPDATE users SET ratio = %s WHERE length(note) > 100", (c.random(),))
        elif chosen == "items":
            cursor.execute(
                'INSERT INTO "Odd Items" VALUES (%s, %s, %s, %s) ON CONFLICT ("the shop", sku) DO UPDATE SET n = '
                '"Odd Items".n + 1',
                (some % 3, c.choice("xyz"), some, bytes([some, 0, 255])),
            )
            if c.random() < 0.3:
                cursor.execute('DELETE FROM "Odd Items" WHERE sku = %s', (c.choice("xyz"),))
        elif chosen == "visit":
            cursor.execute(
                "INSERT INTO visits (who, what) SELECT %s, 'v' FROM generate_series(1, %s)", (some, some % 4)
            )
        elif chosen == "bare":
            cursor.execute("INSERT INTO bare SELECT %s, 'w' FROM generate_series(1, 2)", (some % 5,))
            if c.random() < 0.3:
                cursor.execute("DELETE FROM bare WHERE n = %s", (c.randint(0, 4),))
        elif chosen == "many":
            cursor.execute(
                "INSERT INTO users (id, name) SELECT i, 'many' FROM generate_series(1000, 4000) i ON CONFLICT DO NOTHING"
            )
            cursor.execute("UPDATE users SET amount = id WHERE id >= 1000 AND id %% 3 = %s", (some % 3,))
        else:
            cursor.execute("TRUNCATE users")

    def _alter(self) -> None:
        """Add or drop a column, and change all rows: of those that only get the default, the log says nothing."""
        if self.columns and self.choose.random() < 0.3:
            self.database(f"ALTER TABLE users DROP COLUMN more{self.columns}")
        self.columns += 1
        kind = self.choose.choice(["int", "text", "numeric(8,3)"])
        self.database(f"ALTER TABLE users ADD COLUMN more{self.columns} {kind} DEFAULT {self.columns}")
        self.database(f"UPDATE users SET more{self.columns} = CASE WHEN id % 2 = 1 THEN more{self.columns} END")
