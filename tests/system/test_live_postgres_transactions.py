"""Transactions of Postgres that a snapshot or a kill meets: each of their changes counts once."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from lake_assets import Lake
from tests.support.live_postgres import Database, Live, live_database

pytestmark = [pytest.mark.system, pytest.mark.long]
TABLES = """
CREATE TABLE users (id int PRIMARY KEY, name text);
INSERT INTO users SELECT i, 'a' FROM generate_series(1, 5) i;
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, who int, what text);
"""
DECLARED: list[dict[str, Any]] = [{"table": "public.users"}, {"table": "public.visits"}]


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


def users(live: Live) -> Counter[tuple[Any, ...]]:
    assert [o for o in live.pipeline.run(live.lake) if o.status == "failed"] == []
    return Counter(tuple(r) for r in live.lake.spark().sql("SELECT id, name FROM final.users").collect())


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
    creates = "SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND state = 'active'"
    live.wait("slot", lambda: database(creates))
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
    assert users(live) == {(1, "first"): 1, (2, "second"): 1, (3, "third"): 1, (5, "a"): 1}
