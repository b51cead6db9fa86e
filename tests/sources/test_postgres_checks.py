"""What a Postgres server has to have before it is read live: each lack is named, and its advice helps."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lake_assets.errors import SourceError, SourceGapError, SourceUnavailableError
from lake_assets.sources.live_specs import PostgresSpec, SourceTableSpec
from lake_assets.sources.postgres_connection import connected
from lake_assets.sources.postgres_source import PostgresDatabase
from lake_assets.sources.snapshot_requests import named_tables
from tests.support import postgres
from tests.support.live_postgres import Database, live_database
from tests.support.processes import free_port

pytestmark = [pytest.mark.system]
TABLES = """
CREATE TABLE users (id int PRIMARY KEY, email text UNIQUE NOT NULL);
CREATE TABLE bare (n int);
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE ROLE reader LOGIN;
CREATE ROLE owner LOGIN REPLICATION;
"""


@pytest.fixture(scope="module")
def server() -> Generator[Database]:
    with live_database(TABLES, max_replication_slots="2") as database:
        yield database


@pytest.fixture
def spec(server: Database) -> Iterator[PostgresSpec]:
    yield PostgresSpec(
        host="127.0.0.1",
        port=server.port,
        database="postgres",
        user="lake",
        password_from="NO_SUCH_PASSWORD",
        tables=(SourceTableSpec("public.users"),),
        slot="slot_of_test",
        publication="published",
    )
    server("DROP PUBLICATION IF EXISTS published")
    server("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    server("ALTER TABLE users REPLICA IDENTITY DEFAULT; ALTER TABLE bare REPLICA IDENTITY DEFAULT")


def advised(error: BaseException) -> str:
    """Return the statement that an error's text advises."""
    (statement,) = re.findall(r"(?:ALTER|CREATE) [^:]*;", str(error))
    return statement


def granted(error: BaseException) -> str:
    """Return the grants that an error's text advises."""
    return str(error).partition("As its owner: ")[2]


def check(spec: PostgresSpec, offset: Any = None) -> Any:
    return PostgresDatabase(spec).check(offset)


def test_a_server_as_it_should_be_is_prepared(spec: PostgresSpec, server: Database) -> None:
    tables = (SourceTableSpec("public.users"), SourceTableSpec("public.part*"))
    assert check(replace(spec, tables=tables)) == ["public.parted", "public.users"]
    published = server("SELECT tablename FROM pg_publication_tables WHERE pubname = 'published' ORDER BY 1")
    assert published == [("parted",), ("users",)]
    # Again, with a table more, whose rows the log identifies in whole.
    server("ALTER TABLE bare REPLICA IDENTITY FULL")
    more = replace(spec, tables=(*tables, SourceTableSpec("public.bare", by_row=True)))
    assert check(more) == ["public.bare", "public.parted", "public.users"]
    assert server("SELECT count(*) FROM pg_publication_tables WHERE pubname = 'published'") == [(3,)]
    assert check(replace(more, exclude=("public.parted_1",))) == check(more)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tables": (SourceTableSpec("public.user"),)}, r"has no table public\.user: did you mean public\.users\?"),
        ({"tables": (SourceTableSpec("shop.*"),)}, r"has no table shop\.\*$"),
        ({"tables": (SourceTableSpec("public.parted_1"),)}, r"has no table public\.parted_1"),
        ({"database": "nothing"}, r'database "nothing" does not exist'),
        ({"user": "nobody"}, r'role "nobody" does not exist'),
    ],
)
def test_what_does_not_exist_is_named(spec: PostgresSpec, changed: dict[str, Any], message: str) -> None:
    with pytest.raises((SourceError, SourceUnavailableError), match=message):
        check(replace(spec, **changed))


def test_a_server_that_is_away(spec: PostgresSpec) -> None:
    with pytest.raises(SourceUnavailableError, match=r"Postgres postgres on 127\.0\.0\.1:\d+ does not answer"):
        check(replace(spec, port=free_port()))


def test_a_user_without_rights_is_told_what_to_run(spec: PostgresSpec, server: Database) -> None:
    with pytest.raises(SourceError, match="may not read the log") as error:
        check(replace(spec, user="reader"))
    server(advised(error.value))
    # It may read the log now, and owns nothing.
    with pytest.raises(SourceError, match="there is no publication, and user reader cannot change that") as error:
        check(replace(spec, user="reader"))
    server(advised(error.value))
    with pytest.raises(SourceError, match=r"user reader may not read the rows of public\.users") as error:
        check(replace(spec, user="reader"))
    assert check(replace(spec, user="reader", snapshot="none")) == ["public.users"]
    server(granted(error.value))
    assert check(replace(spec, user="reader")) == ["public.users"]
    server("ALTER TABLE users ENABLE ROW LEVEL SECURITY")
    with pytest.raises(SourceError, match="does not see all rows of public.users") as error:
        check(replace(spec, user="reader"))
    server(advised(error.value))
    assert check(replace(spec, user="reader")) == ["public.users"]
    server("ALTER TABLE users DISABLE ROW LEVEL SECURITY; ALTER ROLE reader NOREPLICATION NOBYPASSRLS")


def test_rows_that_the_log_does_not_identify(spec: PostgresSpec, server: Database) -> None:
    bare = replace(spec, tables=(SourceTableSpec("public.bare"),))
    with pytest.raises(SourceError, match=r"rows of public\.bare \(no replica identity\)") as error:
        check(bare)
    server(advised(error.value))
    assert check(bare) == ["public.bare"]


@pytest.mark.parametrize(
    "declared", [SourceTableSpec("public.users", (("email",),)), SourceTableSpec("public.users", by_row=True)]
)
def test_a_declared_key_that_deletes_do_not_have(
    spec: PostgresSpec, server: Database, declared: SourceTableSpec
) -> None:
    keyed = replace(spec, tables=(declared,))
    with pytest.raises(SourceError, match=r"of a deleted row the log has only id") as error:
        check(keyed)
    server(advised(error.value))
    assert check(keyed) == ["public.users"]


def test_publications_that_leave_something_out(spec: PostgresSpec, server: Database) -> None:
    server("CREATE PUBLICATION published FOR TABLE users, parted WITH (publish = 'insert')")
    with pytest.raises(SourceError, match="leaves out some kinds of changes") as error:
        check(spec)
    server(advised(error.value))
    assert check(spec) == ["public.users"]
    parted = replace(spec, tables=(SourceTableSpec("public.parted"),))
    with pytest.raises(SourceError, match="publishes partitions instead of their tables") as error:
        check(parted)
    server(advised(error.value))
    assert check(parted) == ["public.parted"]


@pytest.mark.parametrize("part", ["(id)", "WHERE (id > 5)"])
def test_a_publication_that_leaves_out_rows_or_columns(spec: PostgresSpec, server: Database, part: str) -> None:
    server(f"CREATE PUBLICATION published FOR TABLE users {part}")
    with pytest.raises(SourceError, match=r"publication published leaves out .* of public\.users") as error:
        check(spec)
    server(advised(error.value))
    assert check(spec) == ["public.users"]


def test_partitions_have_an_identity_of_their_own(spec: PostgresSpec, server: Database) -> None:
    server("ALTER TABLE parted REPLICA IDENTITY FULL")
    rows = replace(spec, tables=(SourceTableSpec("public.parted", by_row=True),))
    with pytest.raises(SourceError, match=r"of a deleted row the log has only id") as error:
        check(rows)
    server(advised(error.value))
    assert check(rows) == ["public.parted"]
    server("ALTER TABLE parted REPLICA IDENTITY DEFAULT; ALTER TABLE parted_1 REPLICA IDENTITY NOTHING")
    with pytest.raises(SourceError, match=r"rows of public\.parted \(no replica identity\)"):
        check(replace(spec, tables=(SourceTableSpec("public.parted"),)))
    server("ALTER TABLE parted_1 REPLICA IDENTITY DEFAULT")


def test_names_that_need_quotes(spec: PostgresSpec, server: Database) -> None:
    server('CREATE SCHEMA "Ü.x"; CREATE TABLE "Ü.x"."a ""b"" c" (id int)')
    odd = replace(spec, tables=(SourceTableSpec('Ü.x.a "b" c'),))
    with pytest.raises(SourceError, match="no replica identity") as error:
        check(odd)
    server(advised(error.value))
    assert check(odd) == ['Ü.x.a "b" c']
    server('DROP SCHEMA "Ü.x" CASCADE')


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("VIEW odd AS SELECT 1", "it is a view"),
        ("UNLOGGED TABLE odd (id int PRIMARY KEY)", "it is unlogged: ALTER TABLE odd SET LOGGED"),
        (
            "TABLE odd (id int PRIMARY KEY); CREATE TABLE odder () INHERITS (odd)",
            "other tables inherit from public.odd",
        ),
    ],
)
def test_tables_that_the_log_does_not_have_as_they_are(
    spec: PostgresSpec, server: Database, made: str, message: str
) -> None:
    server(f"CREATE {made}")
    try:
        with pytest.raises(SourceError, match=message):
            check(replace(spec, tables=(SourceTableSpec("public.odd"),)))
    finally:
        server(f"DROP {'VIEW' if 'VIEW' in made else 'TABLE'} odd CASCADE")


def test_a_check_that_prepares_nothing_says_what_would_be_done(spec: PostgresSpec, server: Database) -> None:
    looking = PostgresDatabase(spec, prepares=False)
    with pytest.raises(SourceError, match="there is no publication. `lake-assets serve` runs this") as error:
        looking.check(None)
    assert server("SELECT count(*) FROM pg_publication") == [(0,)]
    server(advised(error.value))
    assert looking.check(None) == ["public.users"]


def test_slots_that_cannot_be_read(spec: PostgresSpec, server: Database) -> None:
    offset = {"offsets": [[{}, {"lsn": 1}]]}
    with pytest.raises(SourceGapError, match=r"slot slot_of_test is gone.*on_gap: snapshot"):
        check(spec, offset)
    for name in ("one", "two"):
        server("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    with pytest.raises(SourceError, match="all 2 replication slots are in use"):
        check(spec)
    server("SELECT pg_drop_replication_slot('one')")
    server("SELECT pg_create_logical_replication_slot('slot_of_test', 'test_decoding')")
    with pytest.raises(SourceError, match="belongs to something else .plugin test_decoding"):
        check(spec)
    server("SELECT pg_drop_replication_slot('slot_of_test')")
    server("SELECT pg_create_logical_replication_slot('slot_of_test', 'pgoutput')")
    # Something else has read it, further than what has landed.
    with pytest.raises(SourceGapError, match="beyond the last landed change at 1"):
        check(spec, offset)
    ((confirmed,),) = server(
        "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 'slot_of_test'"
    )
    assert check(spec, {"offsets": [[{}, {"lsn": int(confirmed)}]]}) == ["public.users"]


def test_a_gap_is_left_behind_if_that_is_declared(spec: PostgresSpec, server: Database) -> None:
    server("SELECT pg_create_logical_replication_slot('slot_of_test', 'pgoutput')")
    offset = {"offsets": [[{}, {"lsn": 1}]]}
    database = PostgresDatabase(replace(spec, on_gap="snapshot"))
    assert database.check(offset) == ["public.users"]
    assert database.starts_over()
    assert server("SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'slot_of_test'") == []
    assert database.check(None) == ["public.users"]
    assert not database.starts_over()


def test_rows_without_a_key_that_are_read_again_must_not_count_twice(spec: PostgresSpec, server: Database) -> None:
    server("ALTER TABLE bare REPLICA IDENTITY FULL")
    server("SELECT pg_create_logical_replication_slot('slot_of_test', 'pgoutput')")
    ((confirmed,),) = server("SELECT pg_current_wal_lsn() - '0/0'")
    database = PostgresDatabase(replace(spec, tables=(*spec.tables, SourceTableSpec("public.bare", by_row=True))))
    offset = {"offsets": [[{}, {"lsn": int(confirmed)}]], "tables": ["public.users"]}
    database.check(offset)
    assert (database.starts_over(), database.voids()) == (False, [])
    assert database.counted(["public.users", "public.bare"]) == {"public.bare"}
    # The first one was not: it is taken again with another slot, for which all rows count anew.
    unfinished = {"lsn": int(confirmed), "snapshot": "INITIAL", "snapshot_completed": False}
    database.check({"offsets": [[{}, unfinished]], "tables": ["public.bare", "public.users"]})
    assert (database.starts_over(), sorted(database.voids())) == (True, ["public.bare", "public.users"])
    assert server("SELECT slot_name FROM pg_replication_slots") == []


def test_a_server_whose_log_has_no_changes_of_rows(spec: PostgresSpec) -> None:
    with postgres.database() as uri:
        other = Database(uri)
        with pytest.raises(SourceError, match=r"wal_level replica.*ALTER SYSTEM SET wal_level = logical"):
            check(replace(spec, port=other.port))


def test_a_wrong_password(spec: PostgresSpec, server: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    server("ALTER ROLE owner PASSWORD 'right'")
    ((file,),) = server("SHOW hba_file")
    with Path(file).open("r+", encoding="utf-8") as hba:
        before = hba.read()
        hba.seek(0)
        hba.write("host all owner 127.0.0.1/32 scram-sha-256\n" + before)
    server("SELECT pg_reload_conf()")
    owner = replace(spec, user="owner", password_from="OWNERS_PASSWORD")
    with pytest.raises(SourceError, match="OWNERS_PASSWORD, which is not set"):
        check(owner)
    monkeypatch.setenv("OWNERS_PASSWORD", "wrong")
    with pytest.raises(SourceError, match="OWNERS_PASSWORD, which is set") as error:
        check(owner)
    assert "wrong" not in str(error.value)
    assert "wrong" not in repr(owner)
    monkeypatch.setenv("OWNERS_PASSWORD", "right")
    server("GRANT CREATE ON DATABASE postgres TO owner; ALTER TABLE users OWNER TO owner")
    assert check(owner) == ["public.users"]


def test_measures_never_fail(spec: PostgresSpec, server: Database) -> None:
    database = PostgresDatabase(spec)
    assert database.measures() == {"slot": "there is none"}
    server("SELECT pg_create_logical_replication_slot('slot_of_test', 'pgoutput')")
    assert set(database.measures()) == {"slot_lag_bytes"}
    assert "not known" in str(PostgresDatabase(replace(spec, port=free_port())).measures()["slot"])


def test_a_statement_that_fails_is_an_error_of_the_source(spec: PostgresSpec) -> None:
    with pytest.raises(SourceUnavailableError, match="does not answer: division by zero"), connected(spec) as ask:
        ask("SELECT 1 / 0")


def test_a_notification_names_tables_in_whole() -> None:
    tables = ["public.users", "c.users", "public.orders"]
    assert named_tables('shop.public.users, "public"."orders"', tables) == {"public.users", "public.orders"}
    assert named_tables("public.users", tables) == {"public.users"}
    assert named_tables("", tables) == set()
