"""Transactions of Postgres that a snapshot or a kill meets: each of their changes counts once."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId, thresholds
from lake_assets.service import service_state
from tests.support.live_postgres import Database, Live, live_database

pytestmark = [pytest.mark.system, pytest.mark.long]
TABLES = """
CREATE TABLE users (id int PRIMARY KEY, name text);
INSERT INTO users SELECT i, 'a' FROM generate_series(1, 5) i;
CREATE TABLE bare (n int, what text);
ALTER TABLE bare REPLICA IDENTITY FULL;
CREATE TABLE log (id int PRIMARY KEY, what text);
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, who int, what text);
"""
DECLARED: list[dict[str, Any]] = [
    {"table": "public.users"},
    {"table": "public.bare", "key": "*"},
    {"table": "public.log", "mode": "append"},
    {"table": "public.visits"},
]


@pytest.fixture
def database() -> Generator[Database]:
    with live_database(TABLES) as found:
        yield found


@pytest.fixture
def live(lake: Lake, database: Database) -> Generator[Live]:
    service = Live(lake, database, DECLARED)
    try:
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            service.kill()


def absorb(live: Live) -> None:
    assert [(o.table, o.why) for o in live.pipeline.run(live.lake) if o.status == "failed"] == []


def final(live: Live, table: str) -> Counter[tuple[Any, ...]]:
    columns = ", ".join(c for (c,) in live.database("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass "
                                                    "AND attnum > 0 ORDER BY attnum", table))  # fmt: skip
    return Counter(tuple(r) for r in live.lake.spark().sql(f"SELECT {columns} FROM final.{table}").collect())


def there(live: Live, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(live.database(f"SELECT * FROM {table}"))


def test_rows_of_a_copy_arrive_once_if_the_service_is_killed_among_them(live: Live, database: Database) -> None:
    live.declare(DECLARED, max_rows=20)
    live.start()
    live.wait("snapshot", lambda: len(live.events("public.users")) == 5)
    for first in (100, 1000):
        there = len(live.events("public.users"))
        connection = database.connect()
        rows = io.StringIO("".join(f"{i}\tx\n" for i in range(first, first + 300)))
        connection.cursor().copy_expert("COPY users FROM STDIN", rows)
        connection.commit()
        live.wait("some rows", lambda there=there: len(live.events("public.users")) >= there + 40)
        live.kill()
        live.start()
        live.settle()
    counts = Counter(e["id"] for e in live.events("public.users"))
    assert counts == dict.fromkeys([*range(1, 6), *range(100, 400), *range(1000, 1300)], 1)


def test_a_transaction_that_is_open_during_the_snapshot_is_newer_than_it(live: Live, database: Database) -> None:
    def opened(statements: str) -> Any:
        connection = database.connect()
        connection.cursor().execute(statements)
        time.sleep(0.5)
        return connection

    # The slot waits for the first transaction, and then for the second one; the third is open when it is made.
    first = opened("UPDATE users SET name = 'first' WHERE id = 1")
    live.start()
    creates = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND state = 'active'"
    live.wait("slot", lambda: database(creates))
    time.sleep(1)
    second = opened("UPDATE users SET name = 'second' WHERE id = 2")
    first.commit()
    time.sleep(1)
    third = opened("UPDATE users SET name = 'third' WHERE id = 3; DELETE FROM users WHERE id = 4")
    second.commit()
    live.wait("snapshot", lambda: len(live.events("public.users")) == 5)
    live.kill()
    third.commit()
    live.start()
    live.settle()
    absorb(live)
    assert final(live, "users") == {(1, "first"): 1, (2, "second"): 1, (3, "third"): 1, (5, "a"): 1}


def test_a_first_snapshot_that_is_killed_leaves_no_rows(live: Live, database: Database) -> None:
    database(
        "INSERT INTO users SELECT i, 'a' FROM generate_series(6, 400) i; "
        "INSERT INTO bare SELECT i % 150, 'w' FROM generate_series(1, 300) i; "
        "INSERT INTO log SELECT i, 'w' FROM generate_series(1, 50) i"
    )
    # With settings of its own, Debezium reads the rows of the first load, over several commits.
    live.declare(DECLARED, max_rows=20, properties={"snapshot.fetch.size": "50"})
    live.start()
    live.wait("bare rows", lambda: len(live.events("public.bare")) >= 100)
    live.kill()
    database("DELETE FROM bare WHERE n < 10; UPDATE bare SET what = 'x' WHERE n < 20")
    # What is open when a snapshot is taken with a slot that is there already: the snapshot would not have it, nor the
    # changes after it.
    opened = database.connect()
    opened.cursor().execute("UPDATE users SET name = 'o' WHERE id = 390; DELETE FROM bare WHERE n = 30")
    landed = len(live.events("public.bare"))
    live.start()
    live.wait("error", lambda: live.state and "as long as transactions are open" in live.state.error)
    assert live.state is not None
    assert f"process {opened.info.backend_pid}" in live.state.error
    opened.commit()
    live.wait("users", lambda: len(live.events("public.users")) >= 100)
    assert len(live.events("public.bare")) > landed
    live.kill()
    database(
        "DELETE FROM users WHERE id < 50; UPDATE users SET name = 'b' WHERE id < 60; DELETE FROM bare WHERE n = 40"
    )
    live.start()
    live.settle()
    live.end()
    live.declare(DECLARED)
    absorb(live)
    assert {t: final(live, t) for t in ("users", "bare")} == {t: there(live, t) for t in ("users", "bare")}
    # What is only appended came twice, and is reported.
    assert set(final(live, "log")) == set(there(live, "log"))
    reported = [t for t in ("users", "bare", "log") if reasons_of(live.lake, TableId.parse(f"final.{t}"))]
    assert reported == ["log"]


def test_rows_without_a_key_that_are_read_again_count_once(live: Live, database: Database) -> None:
    database("INSERT INTO bare SELECT i, 'w' FROM generate_series(1, 600) i")
    live.declare([DECLARED[0], DECLARED[3]])
    live.start()
    live.settle()
    live.end()
    # Declared later, and killed in the snapshot of this table.
    live.declare(DECLARED, max_rows=50)
    live.start()
    live.wait("some rows", lambda: len(live.events("public.bare")) >= 100)
    live.kill()
    database(
        "DELETE FROM bare WHERE n < 20; UPDATE bare SET what = 'z' WHERE n < 30; INSERT INTO bare VALUES (1000, 'n')"
    )
    landed = len(live.events("public.bare"))
    live.start()
    live.wait("all rows", lambda: len(live.events("public.bare")) >= landed + 580)
    live.settle()
    live.end()
    live.declare(DECLARED)
    absorb(live)
    assert final(live, "bare") == there(live, "bare")
    # Asked for again.
    service_state.request_snapshot(live.lake, "raw.live", ["public.bare", "public.users"])
    live.start()
    folder = service_state.requests_folder(live.lake, "raw.live")
    live.wait("end of the snapshot", lambda: not list(folder.glob("*.json")))
    live.settle()
    live.end()
    absorb(live)
    assert {t: final(live, t) for t in ("users", "bare")} == {t: there(live, t) for t in ("users", "bare")}
    assert reasons_of(live.lake, TableId.parse("final.bare")) == []
    # Another start reads nothing again.
    counts = {t: len(live.events(t)) for t in ("public.users", "public.bare", "public.log")}
    live.start()
    live.settle()
    time.sleep(5)
    assert {t: len(live.events(t)) for t in counts} == counts


@pytest.mark.parametrize("table", ["bare", "users"])
def test_rows_are_read_again_where_nothing_happens(live: Live, table: str) -> None:
    live.database("INSERT INTO bare VALUES (1, 'a')")
    live.declare(DECLARED, max_wait="5s")
    live.start()
    live.settle()
    # It lands with the heartbeats after it, so that Postgres will not send its transaction again.
    live.settle()
    live.end()
    before = len(live.events(f"public.{table}"))
    service_state.request_snapshot(live.lake, "raw.live", [f"public.{table}"])
    live.start()
    rows = lambda: len(live.events(f"public.{table}")) > before  # noqa: E731
    live.wait("rows", rows, thresholds.LIVE_SNAPSHOT_SECONDS / 2)
    live.end()
    absorb(live)
    assert final(live, table) == there(live, table)


def test_a_table_that_is_created_again_is_read_in_whole(live: Live) -> None:
    database = live.database
    live.start()
    live.settle()
    for kills in (False, True):
        if kills:
            live.kill()
        # Changes of the old table that have not landed, or not yet.
        database("INSERT INTO users VALUES (77, 'old'); UPDATE users SET name = 'older'")
        database("DROP TABLE users; CREATE TABLE users (id int PRIMARY KEY, name text, more int DEFAULT 3)")
        mark = 100 + kills
        database("INSERT INTO users VALUES (1, 'new'), (%s, NULL)", mark)
        if kills:
            live.start()
        ids = lambda mark=mark: any(r.get("id") == mark for r in live.events("public.users"))  # noqa: E731
        live.wait("rows of the new table", ids)
        database("UPDATE users SET name = 'changed' WHERE id = 1")
        live.settle()
        absorb(live)
        assert final(live, "users") == Counter(database("SELECT * FROM users"))
    live.end()
