"""A MariaDB that is read live: a first snapshot, then changes, across kills, changes of schemas and lost logs."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.live_mariadb import Live
from tests.support.mariadb_server import Server, needs_debezium, needs_mariadb, server

pytestmark = [pytest.mark.servers, pytest.mark.system, pytest.mark.long, needs_mariadb, needs_debezium]


@pytest.fixture
def mariadb() -> Generator[Server]:
    with server() as running:
        running.run(
            "USE shop",
            "CREATE TABLE shop.users (id int PRIMARY KEY, name text, amount decimal(10, 2))",
            "CREATE TABLE shop.orders (id bigint unsigned PRIMARY KEY, what text)",
            "CREATE TABLE shop.other (id int PRIMARY KEY)",
            "INSERT INTO shop.users SELECT seq, concat('n', seq), seq FROM seq_1_to_50",
        )
        yield running


@pytest.fixture
def live(tmp_path: Path, mariadb: Server) -> Live:
    made = Live(tmp_path / "home", mariadb)
    made.declare(["shop.users", "shop.orders"])
    return made


def test_a_snapshot_then_changes_each_once_across_kills_and_changes_of_schemas(live: Live, mariadb: Server) -> None:
    with live.serving() as process:
        live.wait(process, live.has("users", r=50))
        mariadb.run(
            "UPDATE shop.users SET amount = amount + 1 WHERE id <= 3",
            "DELETE FROM shop.users WHERE id = 50",
            "INSERT INTO shop.orders VALUES (18446744073709551615, 'most')",
        )
        live.wait(process, live.has("orders", c=1))
    # Killed. Nobody reads while schemas change.
    mariadb.run(
        "ALTER TABLE shop.users ADD COLUMN level int DEFAULT 7",
        "UPDATE shop.users SET level = id WHERE id <= 3",
        "CREATE TABLE shop.later (id int PRIMARY KEY)",
        "ALTER TABLE shop.users RENAME COLUMN name TO full_name, MODIFY amount decimal(12, 3)",
    )
    with live.serving() as process:
        live.wait(process, live.has("users", u=6))
        mariadb.run("UPDATE shop.users SET full_name = 'x' WHERE id = 1", "ALTER TABLE shop.users DROP COLUMN level")
        live.wait(process, live.has("users", u=7))
        # The service notices, and connects again by itself.
        mariadb.stop(kill=True)
        mariadb.start()
        mariadb.run("INSERT INTO shop.users VALUES (51, 'new', 1.125)", "TRUNCATE shop.orders")
        live.wait(process, live.has("orders", t=1), may_fail=True)
    assert live.ops("users") == {"r": 50, "u": 7, "d": 1, "c": 1}
    assert live.ops("orders") == {"c": 1, "t": 1}
    last = [e["after"] for e in live.events() if e["op"] in "uc" and e["source"]["table"] == "users"]
    assert list(last[3]) == ["id", "name", "amount", "level"]
    assert list(last[6]) == ["id", "full_name", "amount", "level"]
    assert list(last[7]) == ["id", "full_name", "amount"]
    # Lines about the schema are records about no row, and none is rejected.
    rows = live.rows()
    assert {r["problem"] for r in rows} == {None}
    lines = [json.loads(r["record"]) for r in rows if r["source_file"] == "schema-history"]
    assert sum("ALTER TABLE" in line["ddl"] for line in lines) >= 3
    assert {r["source_table"] for r in rows if r["source_file"] == "schema-history"} == {None}
    skipped = json.loads(live.raw().current_snapshot().summary.additional_properties["lake-assets.skipped"])
    assert skipped == {"schema changes": len(lines)}


def test_a_table_that_is_declared_later_is_read_beside_its_changes(live: Live, mariadb: Server) -> None:
    mariadb.run("USE shop", "INSERT INTO shop.other SELECT seq FROM seq_1_to_3000")
    with live.serving() as process:
        live.wait(process, live.has("users", r=50))
    mariadb.run("INSERT INTO shop.other VALUES (3001)", "ALTER TABLE shop.other ADD COLUMN extra int DEFAULT 1")
    mariadb.run("INSERT INTO shop.other VALUES (3002, 2)")
    live.declare(["shop.users", "shop.orders", "shop.other"])
    with live.serving() as process:
        live.wait(process, live.has("other", r=1000))
    with live.serving() as process:
        mariadb.run("UPDATE shop.users SET amount = 0 WHERE id = 1")
        live.wait(process, live.has("users", u=1))
        live.wait(process, lambda: live.ops("other")["r"] + live.ops("other")["c"] >= 3002)
    final = {e["after"]["id"]: e["after"].get("extra") for e in live.events() if e["source"]["table"] == "other"}
    assert set(final) == set(range(1, 3003))
    assert (final[1], final[3002]) == (1, 2)


def test_changes_only(live: Live, mariadb: Server) -> None:
    live.declare(["shop.users", "shop.orders"], snapshot="none")
    with live.serving() as process:
        live.wait(process, lambda: live.rows())
        mariadb.run("INSERT INTO shop.users VALUES (99, 'n', 1)")
        live.wait(process, live.has("users", c=1))
    with live.serving() as process:
        mariadb.run("DELETE FROM shop.users WHERE id = 99")
        live.wait(process, live.has("users", d=1))
    assert live.ops("users") == {"c": 1, "d": 1}


def test_a_purged_log_stops_or_all_rows_are_read_again(live: Live, mariadb: Server) -> None:
    with live.serving() as process:
        live.wait(process, live.has("users", r=50))
    mariadb.run("DELETE FROM shop.users WHERE id > 40", "FLUSH BINARY LOGS", "DROP TABLE shop.orders")
    mariadb.run("CREATE TABLE shop.orders (id int PRIMARY KEY)", "INSERT INTO shop.orders VALUES (1)")
    ((last, *_),) = mariadb.run("FLUSH BINARY LOGS", "SHOW MASTER STATUS")
    mariadb.run(f"PURGE BINARY LOGS TO '{last}'")
    with live.serving() as process:
        assert "on_gap: snapshot" in live.failure(process)
    assert live.ops("users") == {"r": 50}
    live.declare(["shop.users", "shop.orders"], on_gap="snapshot")
    with live.serving() as process:
        live.wait(process, live.has("users", r=90))
    mariadb.run("UPDATE shop.orders SET id = 2")
    with live.serving() as process:
        live.wait(process, live.has("orders", r=1, c=1, d=1))
    assert live.ops("users") == {"r": 90}


def test_a_number_that_another_reader_has_is_named(live: Live, mariadb: Server, tmp_path: Path) -> None:
    other = Live(tmp_path / "other", mariadb)
    other.declare(["shop.users"])
    with live.serving() as process:
        live.wait(process, live.has("users", r=50))
        with other.serving() as second:
            text = live.failure(process)
            assert "another replica, or another `lake-assets serve`" in text
            assert second.poll() is None
