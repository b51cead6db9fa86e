"""Postgres that is read live, by Debezium in a service of its own: final tables are the database's, whoever is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Generator

import pytest

from lake_assets import Lake
from tests.support.live_postgres import DECLARED, Database, Live, Workload, live_database
from tests.support.seeds import long_seeds

pytestmark = [pytest.mark.system]


@pytest.fixture
def database() -> Generator[Database]:
    with live_database() as found:
        yield found


@pytest.fixture
def live(lake: Lake, database: Database) -> Generator[Live]:
    service = Live(lake, database)
    try:
        yield service
        service.end()
    finally:
        if service.process is not None and service.process.poll() is None:
            service.kill()


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 20)])
def test_final_tables_are_the_databases_whenever_the_service_is_killed(live: Live, seed: int) -> None:
    choose, work = random.Random(seed), Workload(live.database, seed)
    work.run(5)
    live.start()
    for _ in range(1 if seed == 0 else 6):
        work.run(10)
        time.sleep(choose.uniform(0, 2 if seed == 0 else 8))
        live.kill()
        work.run(3)
        live.start()
        if seed and choose.random() < 0.5:
            work.run(3)
            time.sleep(choose.uniform(0, 8))
            live.database.crash()
    work.run(10)
    live.settle()
    live.assert_equal()
    live.end()


@pytest.mark.long
def test_what_goes_wrong_is_said_and_gets_right_again_by_itself(live: Live) -> None:
    database = live.database
    database("INSERT INTO users (id, name) VALUES (1, 'a')")
    live.start()
    live.wait("first row", lambda: live.events("public.users"))
    # Another service of the same stream is refused.
    first, before = live.process, live.log
    live.start()
    second, live.process = live.process, first
    assert second is not None
    assert second.wait(60) == 1
    assert f"another service (process {first.pid if first else 0}) reads its source already" in live.log[len(before) :]
    # The lake cannot be written to: reading pauses, and nothing is lost.
    folder = live.home / "warehouse" / "raw" / "live" / "metadata"
    folder.rename(folder.with_name("away"))
    database("INSERT INTO users (id, name) VALUES (2, 'b')")
    live.wait("pause", lambda: live.state is not None and live.state.state == "paused")
    assert live.state is not None
    assert not live.state.is_well
    database("INSERT INTO users (id, name) VALUES (3, 'c')")
    folder.with_name("away").rename(folder)
    live.wait("rows 2 and 3", lambda: [e["id"] for e in live.events("public.users")] == [1, 2, 3])
    # The server crashes, and recovers.
    database.crash()
    live.wait("failure", lambda: "cannot be read any more" in live.log)
    database("INSERT INTO users (id, name) VALUES (4, 'd')")
    live.wait("row 4", lambda: [e["id"] for e in live.events("public.users")] == [1, 2, 3, 4])
    live.end()
    # The slot is dropped, with a change that nobody has read.
    database("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    database("UPDATE users SET name = 'e' WHERE id = 1")
    live.start()
    live.wait("error", lambda: live.state and "is gone" in live.state.error)
    live.end()
    live.declare(DECLARED, on_gap="snapshot")
    live.start()
    live.wait("row 1", lambda: [e["name"] for e in live.events("public.users") if e["id"] == 1] == ["a", "e"])


@pytest.mark.long
def test_tables_that_are_declared_later_are_read_in_whole_beside_the_changes(live: Live) -> None:
    database = live.database
    database("INSERT INTO visits (who) SELECT i FROM generate_series(1, 5) i")
    database("INSERT INTO users (id) SELECT i FROM generate_series(1, 3000) i")
    # Without an incremental snapshot: a name that Debezium's has no notation for, and rows without a key.
    database('INSERT INTO "Odd Items" SELECT 1, i::text, i FROM generate_series(1, 100) i')
    database("INSERT INTO bare SELECT i, 'w' FROM generate_series(1, 100) i")
    live.declare([DECLARED[2]])
    live.start()
    live.wait("visits", lambda: len(live.events("public.visits")) == 5)
    assert live.events("public.users") == []
    live.end()
    live.declare(DECLARED)
    database("UPDATE users SET name = 'x' WHERE id <= 10")
    live.start()
    live.wait("some rows", lambda: len({e["id"] for e in live.events("public.users")}) >= 1000)
    live.kill()
    live.start()
    database("UPDATE users SET name = 'y' WHERE id > 2990")
    live.wait("users", lambda: len({e["id"] for e in live.events("public.users")}) == 3000)
    live.wait("bare rows", lambda: len(live.events("public.bare")) >= 100)
    live.wait("items", lambda: len({e["sku"] for e in live.events("public.Odd Items")}) == 100)
    live.settle()
    last = {e["id"]: e["name"] for e in live.events("public.users")}
    assert {i: n for i, n in last.items() if n} == dict.fromkeys(range(1, 11), "x") | dict.fromkeys(
        range(2991, 3001), "y"
    )
    # Nothing else was read again, nor are these at the next start.
    assert len(live.events("public.visits")) == 6
    live.end()
    counts = [len(live.events(str(t["table"]))) for t in DECLARED]
    live.start()
    live.settle()
    assert [len(live.events(str(t["table"]))) for t in DECLARED] == [counts[0], counts[1], counts[2] + 1, counts[3]]
