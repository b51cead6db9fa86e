"""The first rows of Postgres's tables are read without Debezium: as Debezium reads them, in one commit, once."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import SourceError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.sources.live_source import Stopped
from lake_assets.sources.live_specs import PostgresSpec
from lake_assets.sources.postgres_load import postgres_load
from lake_assets.sources.postgres_source import PostgresDatabase
from tests.support.live_postgres import RAW, Database, Live, live_database

pytestmark = [pytest.mark.system]

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'very glad');
CREATE DOMAIN price AS numeric(9,3) CHECK (VALUE >= 0);
CREATE SCHEMA "Other One";
CREATE TABLE "Other One"."a-b c" (
    id bigint PRIMARY KEY, i2 smallint, i4 int, o oid, b boolean, t text, v varchar(7), c char(5), n name,
    one "char", u uuid, ip inet, net cidr, mac macaddr, r int4range, nr numrange, dr daterange, f real, d double precision,
    j json, jb jsonb, day date, ts timestamp, ts3 timestamp(3), tz timestamptz, tz0 timestamptz(0), tm time, tm3 time(3),
    by bytea, n5 numeric(5,2), n20 numeric(20,0), n38 numeric(38,10), n50 numeric(50,3), m mood, p price,
    ai int[], ab bigint[], a2 smallint[], att text[], av varchar(9)[], abo boolean[], "Odd ""na'me" int, "%s" text
);
INSERT INTO "Other One"."a-b c" (id) VALUES (0);
CREATE TABLE visits (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, who int, what text);
"""
VISITS = "public.visits"
ROW = """
INSERT INTO "Other One"."a-b c" VALUES (%s, -32768, 2147483647, 4294967295, true, %s, %s, 'ä', 'n', 'x',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.1.2.3/8', '10.0.0.0/8', '08:00:2b:01:02:03', '[1,5)', '(,2.50]',
    '[2024-01-01,)', %s, %s, %s, %s, %s, %s, '2024-05-05 12:00:00.123', %s, '2024-05-05 12:00:00+02', '24:00:00',
    '23:59:59.999', %s, %s, 99999999999999999999, -1234567890123456789012345678.0123456789,
    12345678901234567890123456789012345678901234567.125, 'very glad', 0.001, %s, '{9223372036854775807}', '{}', %s,
    '{a,NULL}', '{t,f,NULL}', 1, '%%')
"""
ROWS: list[tuple[Any, ...]] = [
    (1, "", "", "NaN", "-Infinity", "{}", "[]", "2024-02-29", "2024-02-29 23:59:59.999999", "2024-03-31 02:30+01",
     b"", 0, "{}", '{"a,b","c\\"d","\\\\","NULL",NULL,""}'),
    (2, "a\x01b\x02c\x7f\t\r\n\"'\\ü€😀", "\\.", 0.1, 1e300, '{"a" :  1.50, "b": "\u00e9"}', '{"a": 1.50}', "1969-12-31",
     "1969-12-31 23:59:59.5", "1883-01-01 00:00+00", b"\x00\xff\n\\", -999.99, "{1,NULL,-3}", "{}"),
    (3, " ", "NULL", -0.0, 4.9e-324, "null", '"x"', "0001-01-01", "0001-01-01 00:00:00", "0001-01-01 00:00+00",
     b"\x01\x02", 0.01, "[0:1]={1,2}", '{" "}'),
    (4, "__", '"', "Infinity", "NaN", "[1e400]", "1", "infinity", "-infinity", "infinity", b"x" * 9000, 1, None, None),
]  # fmt: skip


@pytest.fixture
def typed() -> Generator[Database]:
    with live_database(TYPES) as database:
        for row in ROWS:
            database(ROW, *row)
        yield database


@pytest.fixture
def declared() -> Generator[Callable[..., Live]]:
    """Declares a pipeline whose service is killed after the test if it is still there."""
    made: list[Live] = []

    def declare(*args: Any, **source: Any) -> Live:
        made.append(Live(*args, **source))
        return made[-1]

    yield declare
    for live in made:
        live.abandon()


def rows_of(live: Live, table: str) -> tuple[list[str], Counter[tuple[str, ...]]]:
    """Return the types and the rows of a final table, as texts."""
    frame = live.lake.spark().table(live.lake.sql_name(table))
    columns = {c: kind for c, kind in frame.dtypes if not c.startswith("_")}
    # As texts: not every time fits Python's.
    texts = [f"base64(`{c}`)" if kind == "binary" else f"CAST(`{c}` AS STRING)" for c, kind in columns.items()]
    return [f"{c} {kind}" for c, kind in columns.items()], Counter(map(tuple, frame.selectExpr(*texts).collect()))


@pytest.mark.long  # `test_live_postgres` loads some types, and is killed, in every run
def test_rows_are_read_as_debezium_reads_them(
    lake: Lake, typed: Database, new_lake: Callable[[str], Lake], declared: Callable[..., Live]
) -> None:
    table = {"table": "Other One.a-b c", "name": "all_types"}
    lives = [
        declared(lake, typed, [table, VISITS], slot="loaded"),
        # A setting of Debezium's own: it reads the rows.
        declared(new_lake("events"), typed, [table, VISITS], slot="events", properties={"snapshot.fetch.size": "100"}),
    ]
    for live in lives:
        live.start()
    for live in lives:
        live.settle()
        assert [o for o in live.pipeline.run(live.lake) if o.status == "failed"] == []
    first, events = (rows_of(live, "final.all_types") for live in lives)
    assert first == events
    assert first[1].total() == 1 + len(ROWS)
    records = [live.lake.table(RAW).scan().to_arrow()["record"].to_pylist() for live in lives]
    assert [any('"version":"lake_assets"' in r for r in some) for some in records] == [True, False]
    # Changes fit the columns that the load has made.
    typed('UPDATE "Other One"."a-b c" SET i2 = 7 WHERE id > 0')
    for live in lives:
        live.settle()
        live.end()
        assert [o for o in live.pipeline.run(live.lake) if o.status == "failed"] == []
    loaded, events = (rows_of(live, "final.all_types") for live in lives)
    assert loaded == events
    assert loaded[0] == first[0]
    assert loaded[1] != first[1]


@pytest.mark.long  # `test_live_postgres` loads some types, and is killed, in every run
def test_changes_follow_and_each_row_of_a_killed_load_is_there_once(
    lake: Lake, typed: Database, declared: Callable[..., Live]
) -> None:
    typed(
        "CREATE TABLE log (what text); ALTER TABLE log REPLICA IDENTITY FULL; "
        "INSERT INTO log SELECT repeat('x', 1000) || i % 1000 FROM generate_series(1, 100000) i; "
        "CREATE TABLE parts (id int, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id); "
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); "
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (1000) PARTITION BY RANGE (id); "
        "CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES FROM (10) TO (20); INSERT INTO parts SELECT i, i FROM "
        "generate_series(1, 19) i; CREATE TABLE rare (id int PRIMARY KEY, span interval); "
        "INSERT INTO rare VALUES (1, '1 day')"
    )
    tables: list[Any] = [
        {"table": "public.log", "mode": "append"}, {"table": "public.parts"}, {"table": "public.rare"}, VISITS
    ]  # fmt: skip
    live = declared(lake, typed, tables)
    live.start()
    live.wait("a load", lambda: typed("SELECT 1 FROM pg_replication_slots"))
    live.kill()
    assert not lake.exists(RAW) or not len(list(ancestors(lake.table(RAW))))
    live.start()
    live.wait("rows", lambda: lake.exists(RAW) and list(ancestors(lake.table(RAW))))
    typed("UPDATE parts SET n = -n WHERE id % 2 = 0; INSERT INTO log VALUES ('later')")
    live.settle()
    live.wait("rows that Debezium reads", lambda: live.events("public.rare"))
    live.end()
    assert [o for o in live.pipeline.run(lake) if o.status == "failed"] == []
    spark = lake.spark()
    there = Counter(tuple(row) for row in typed("SELECT what, count(*) FROM log GROUP BY what"))
    assert Counter(tuple(r) for r in spark.sql("SELECT what, count(*) FROM final.log GROUP BY what").collect()) == there
    assert {tuple(r) for r in spark.sql("SELECT id, n FROM final.parts").collect()} == set(typed("SELECT * FROM parts"))
    assert [tuple(r) for r in spark.sql("SELECT id, span FROM final.rare").collect()] == [(1, 86_400_000_000)]


def spec_of(database: Database) -> PostgresSpec:
    return PostgresSpec(
        host="127.0.0.1", port=database.port, database="postgres", user="lake", password_from="NONE", tables=(),
        slot="loading", publication="none", sslmode="prefer",
    )  # fmt: skip


@pytest.mark.parametrize(
    "made", [pytest.param("DOMAIN moods AS mood", marks=pytest.mark.long), "TYPE moods AS ENUM ()"]
)
def test_a_type_with_which_debezium_reads_no_table_is_named(typed: Database, made: str) -> None:
    typed(f"CREATE {made}")
    with pytest.raises(SourceError, match=r"public\.moods"):
        PostgresDatabase(spec_of(typed)).check(None)


def load_of(database: Database, *tables: str, stop: threading.Event | None = None) -> Any:
    return postgres_load(spec_of(database), [("public", t) for t in tables], "p", stop or threading.Event())


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE log",
        pytest.param("ALTER TABLE log ALTER n TYPE bigint", marks=pytest.mark.long),
        pytest.param("DROP TABLE log", marks=pytest.mark.long),
    ],
)
def test_a_table_that_is_written_anew_meanwhile_is_read_again(
    typed: Database, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LOAD_BLOCKS", 4)
    monkeypatch.setattr(thresholds, "LOAD_BYTES", 1000)
    typed("CREATE TABLE log (n int); INSERT INTO log SELECT generate_series(1, 20000)")
    with load_of(typed, "log") as load:
        rows = load.read()
        assert next(rows).table == "public.log"
        done = threading.Thread(target=typed.connect_and, args=(change,))
        done.start()
        while not typed("SELECT 1 FROM pg_locks WHERE NOT granted"):  # it waits for the readers
            time.sleep(0.01)
        with pytest.raises(SourceUnavailableError, match=r"log was truncated, dropped or rewritten|read again"):
            deque(rows, 0)
        done.join()
    with load_of(typed, *([] if "DROP" in change else ["log"])) as load:
        count = sum(len(r.records) for r in load.read()) if load else 0
    assert count == (20000 if "ALTER" in change else 0)


def test_a_load_ends_when_the_service_does_and_reads_all_again_when_it_is_asked_to(typed: Database) -> None:
    typed("CREATE TABLE log (n int); INSERT INTO log SELECT generate_series(1, 1000)")
    stop = threading.Event()
    with load_of(typed, "log", stop=stop) as load:
        for _ in range(2):
            typed("INSERT INTO log VALUES (0)")  # after the snapshot
            assert sum(len(r.records) for r in load.read()) == 1000
        stop.set()
        with pytest.raises(Stopped):
            list(load.read())
    assert threading.active_count() < 10


def test_transactions_that_keep_a_slot_from_being_made_are_named(
    typed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LIVE_SLOT_SECONDS", 1)
    typed("CREATE TABLE log (n int)")
    other = typed.connect()
    with other.cursor() as cursor:
        cursor.execute("INSERT INTO log VALUES (1)")
        cursor.execute("SELECT pg_backend_pid()")
        ((pid,),) = cursor.fetchall()
    with pytest.raises(SourceUnavailableError, match=f"transactions are open.*process {pid} "), load_of(typed, "log"):
        pass
    other.commit()
    other.close()
    with load_of(typed, "log") as load:
        assert sum(len(r.records) for r in load.read()) == 1
