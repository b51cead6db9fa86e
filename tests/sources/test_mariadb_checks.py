"""What is looked at before anything is read from a MariaDB: each mistake has an error that says what to do."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest

from lake_assets.errors import SourceError, SourceGapError, SourceUnavailableError
from lake_assets.sources.live_specs import MysqlSpec, SourceTableSpec
from lake_assets.sources.mysql_source import MysqlDatabase
from tests.support.mariadb_server import PASSWORD, USER, Server, needs_mariadb, server
from tests.support.processes import free_port

pytest.importorskip("pymysql", reason="PyMySQL is missing: pip install 'lake-assets[mysql]'")
pytestmark = [pytest.mark.servers, pytest.mark.system, needs_mariadb]
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def mariadb() -> Generator[Server]:
    with server() as running:
        running.run(
            "USE shop",
            "CREATE TABLE users (id int PRIMARY KEY, name text)",
            "CREATE TABLE orders (id bigint PRIMARY KEY, user_id int, FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE)",
            "CREATE TABLE keyless (a int, b int)",
            "CREATE TABLE half_unique (a int UNIQUE, b int)",
            "CREATE TABLE uniquely (a int NOT NULL UNIQUE, b int)",
            "CREATE TABLE addresses (id int PRIMARY KEY, ip inet6)",
            "CREATE VIEW names AS SELECT name FROM users",
        )
        yield running


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)


def spec(server: Server, *tables: str | SourceTableSpec, **more: object) -> MysqlSpec:
    specs = tuple(t if isinstance(t, SourceTableSpec) else SourceTableSpec(t) for t in tables or ("shop.users",))
    defaults: dict[str, object] = {"password_from": "MYSQL_PWD", "server_id": 4711, "database": "", "user": USER}
    return MysqlSpec(host=HOST, port=server.port, tables=specs, **{**defaults, **more})


def check(spec: MysqlSpec, offset: object = None) -> list[str]:
    return list(MysqlDatabase(spec).check(offset))


def test_tables_are_found_by_name_and_pattern(mariadb: Server) -> None:
    patterns = spec(mariadb, "shop.u*", "shop.orders", exclude=("shop.uniq*",))
    assert check(patterns) == ["shop.orders", "shop.users"]
    assert check(spec(mariadb, "shop.uniquely")) == ["shop.uniquely"]
    assert check(spec(mariadb, SourceTableSpec("shop.keyless", (("a", "b"),)))) == ["shop.keyless"]
    assert check(spec(mariadb, SourceTableSpec("shop.keyless", (), by_row=True))) == ["shop.keyless"]


def test_a_server_that_is_away_is_tried_again(mariadb: Server) -> None:
    with pytest.raises(SourceUnavailableError, match="does not answer"):
        check(replace(spec(mariadb), port=free_port()))


def test_a_wrong_password_names_the_variable(mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", "wrong")
    with pytest.raises(SourceError, match="refuses user reader.*environment variable MYSQL_PWD, which is set"):
        check(spec(mariadb))
    monkeypatch.delenv("MYSQL_PWD")
    with pytest.raises(SourceError, match="MYSQL_PWD, which is not set") as error:
        check(spec(mariadb))
    assert PASSWORD not in str(error.value)


def test_the_other_product_is_named(mariadb: Server) -> None:
    with pytest.raises(SourceError, match=r"MySQL on .* is 1.*MariaDB.*declare `source: \{mariadb: \.\.\.\}`"):
        check(spec(mariadb, product="mysql"))


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_image", "NOBLOB", "FULL"),
        ("log_bin_compress", "ON", "OFF"),
    ],
)
def test_a_setting_that_loses_changes_is_named_with_its_statement(
    mariadb: Server, name: str, bad: str, good: str
) -> None:
    mariadb.run(f"SET GLOBAL {name} = {bad}")
    try:
        with pytest.raises(SourceError, match=f"has {name} {bad}: .*SET GLOBAL {name} = {good}") as error:
            check(spec(mariadb))
        # What it advises helps.
        advised = str(error.value).partition("As an administrator: ")[2].partition(";")[0]
        mariadb.run(advised)
        assert check(spec(mariadb)) == ["shop.users"]
    finally:
        mariadb.run(f"SET GLOBAL {name} = {good}")


def test_the_servers_own_number_is_refused(mariadb: Server) -> None:
    with pytest.raises(SourceError, match="has the server_id 7 itself"):
        check(spec(mariadb, server_id=7))


def test_a_server_without_a_log_is_refused() -> None:
    with server(**{"log-bin": None, "skip-log-bin": "1"}) as running:
        running.run("CREATE TABLE shop.users (id int PRIMARY KEY)")
        with pytest.raises(SourceError, match="writes no binary log"):
            check(spec(running))


def test_a_database_that_is_kept_out_of_the_log_is_named() -> None:
    with server(**{"binlog-ignore-db": "shop"}) as running:
        running.run("CREATE TABLE shop.users (id int PRIMARY KEY)")
        with pytest.raises(SourceError, match="changes in the database shop are not in the log"):
            check(spec(running))


@pytest.mark.parametrize(
    ("rights", "lacking"),
    [
        ("SELECT, RELOAD, REPLICATION CLIENT", "REPLICATION SLAVE"),
        ("SELECT, RELOAD, REPLICATION SLAVE", "REPLICATION CLIENT"),
        ("SELECT, REPLICATION CLIENT, REPLICATION SLAVE", "RELOAD"),
        ("SELECT", "REPLICATION CLIENT and REPLICATION SLAVE and RELOAD"),
    ],
)
def test_a_missing_right_is_named_with_its_grant(mariadb: Server, rights: str, lacking: str) -> None:
    mariadb.run(
        f"CREATE OR REPLACE USER some@'{HOST}' IDENTIFIED BY \"{PASSWORD}\"", f"GRANT {rights} ON *.* TO some@'{HOST}'"
    )
    with pytest.raises(SourceError, match=f"user some lacks {lacking}") as error:
        check(spec(mariadb, user="some"))
    mariadb.run(str(error.value).partition("As an administrator: ")[2])
    assert check(spec(mariadb, user="some")) == ["shop.users"]


def test_rights_by_a_role_count(mariadb: Server) -> None:
    mariadb.run(
        "CREATE ROLE IF NOT EXISTS readers", "GRANT SELECT, RELOAD, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO readers",
        f"CREATE OR REPLACE USER some@'{HOST}' IDENTIFIED BY \"{PASSWORD}\"", f"GRANT readers TO some@'{HOST}'",
        f"SET DEFAULT ROLE readers FOR some@'{HOST}'",
    )  # fmt: skip
    assert check(spec(mariadb, user="some")) == ["shop.users"]


def test_a_snapshot_needs_no_lock_where_none_is_taken(mariadb: Server) -> None:
    mariadb.run(
        f"CREATE OR REPLACE USER some@'{HOST}' IDENTIFIED BY \"{PASSWORD}\"",
        f"GRANT SELECT, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO some@'{HOST}'",
    )
    assert check(spec(mariadb, user="some", snapshot="none")) == ["shop.users"]


def test_a_table_that_may_not_be_read_is_named(mariadb: Server) -> None:
    mariadb.run(
        f"CREATE OR REPLACE USER some@'{HOST}' IDENTIFIED BY \"{PASSWORD}\"",
        f"GRANT RELOAD, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO some@'{HOST}'",
        f"GRANT SELECT ON shop.orders TO some@'{HOST}'",
        f"GRANT INSERT ON shop.users TO some@'{HOST}'",
    )
    assert check(spec(mariadb, "shop.orders", user="some")) == ["shop.orders"]
    with pytest.raises(SourceError, match="cannot read shop.users.*GRANT SELECT ON `shop`.`users`"):
        check(spec(mariadb, user="some"))
    with pytest.raises(
        SourceError, match="no table shop.keyless.*Or user some may not see it: GRANT SELECT ON `shop`.`keyless`"
    ):
        check(spec(mariadb, "shop.keyless", user="some"))


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("shop.usres", "has no table shop.usres: did you mean shop.users?"),
        ("users", r"write database.table, such as shop.users"),
        ("shop.names", "it is a view, whose changes are not in the log"),
        ("shop.nothing*", "has no table shop.nothing"),
        ("shop.keyless", r"shop.keyless has no primary key.*key: \"\*\"|shop.keyless has no primary key"),
        ("shop.half_unique", "has no primary key, and no unique index without nulls"),
        ("shop.addresses", "cannot read shop.addresses.ip of type INET6"),
        (
            SourceTableSpec("shop.users", (("nmae",),)),
            "the `key` of shop.users names nmae, which it lacks: did you mean name?",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_named(mariadb: Server, table: str, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        check(spec(mariadb, table))


def test_patterns_stay_in_the_declared_database(mariadb: Server) -> None:
    mariadb.run("CREATE DATABASE IF NOT EXISTS crm", "CREATE TABLE IF NOT EXISTS crm.users (id int PRIMARY KEY)")
    assert check(spec(mariadb, "*.users")) == ["crm.users", "shop.users"]
    assert check(spec(mariadb, "*.users", database="shop")) == ["shop.users"]


def test_changes_by_foreign_keys_are_warned_of(mariadb: Server, caplog: pytest.LogCaptureFixture) -> None:
    database = MysqlDatabase(spec(mariadb, "shop.orders"))
    database.check(None)
    database.check(None)
    warned = [r.getMessage() for r in caplog.records if "foreign key of shop.orders" in r.getMessage()]
    assert len(warned) == 1


def offset(server: Server, **other: object) -> dict[str, object]:
    ((file, position, *_),) = server.run("SHOW MASTER STATUS")
    ((gtids,),) = server.run("SELECT @@gtid_binlog_pos")
    at = {"file": file, "pos": position, "gtids": gtids, **other}
    return {"offsets": [[{"server": "s"}, at]], "tables": ["shop.users"]}


def test_an_offset_that_the_log_has_is_gone_on_from() -> None:
    with server() as running:
        running.run("CREATE TABLE shop.users (id int PRIMARY KEY)", "INSERT INTO shop.users VALUES (1)")
        landed = offset(running)
        assert check(spec(running), landed) == ["shop.users"]
        # Another file, and a restart, lose nothing.
        running.run("INSERT INTO shop.users VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO shop.users VALUES (3)")
        running.stop(kill=True)
        running.start()
        assert check(spec(running), landed) == ["shop.users"]
        # Removed, with what was not read.
        ((last, *_),) = running.run("SHOW MASTER STATUS")
        running.run(f"PURGE BINARY LOGS TO '{last}'")
        with pytest.raises(SourceGapError, match="the log now begins after 0-7-.*on_gap: snapshot"):
            check(spec(running), landed)
        database = MysqlDatabase(spec(running, on_gap="snapshot"))
        assert list(database.check(landed)) == ["shop.users"]
        assert database.starts_over()
        # Nothing was removed that was not read.
        landed = offset(running)
        running.run("FLUSH BINARY LOGS")
        ((last, *_),) = running.run("SHOW MASTER STATUS")
        running.run(f"PURGE BINARY LOGS TO '{last}'")
        assert check(spec(running), landed) == ["shop.users"]


def test_another_log_is_not_gone_on_in() -> None:
    with server() as running:
        running.run("CREATE TABLE shop.users (id int PRIMARY KEY)", "INSERT INTO shop.users VALUES (1)")
        landed = offset(running)
        for other, text in (
            ({"file": "other-bin.000001"}, "it is another server, or its log was renamed"),
            ({"file": "binlog.000999"}, "it is another server, or its log began anew"),
            ({"pos": 1 << 30}, "that file has .* bytes"),
            ({"gtids": "0-7-999999"}, "the server's log ends at 0-7-"),
            ({"gtids": "5-7-1"}, r"domain 5"),
        ):
            with pytest.raises(SourceGapError, match=text):
                check(spec(running), offset(running, **other))
        # It began anew, and has grown beyond the old position since.
        running.run("RESET MASTER", *[f"INSERT INTO shop.users VALUES ({n})" for n in range(10, 60)])
        with pytest.raises(SourceGapError, match="it is another server, or its log began anew"):
            check(spec(running), landed)


def test_encryption_that_is_required_and_missing_is_an_error(mariadb: Server) -> None:
    assert check(spec(mariadb, sslmode="disable")) == ["shop.users"]
    with pytest.raises(SourceError, match="does not encrypt connections"):
        check(spec(mariadb, sslmode="require"))
