"""What happens in the recorded database: everything that an ordinary workload lacks. Deterministic."""

from __future__ import annotations

from typing import Any


def long(n: int) -> str:
    """A text that Postgres stores out of line (its columns are EXTERNAL: not compressed)."""
    return (f"{n}-" + "lorem ipsum 'dolor' ") * 120


TABLES = """
create type mood as enum ('sad', 'ok', 'happy it''s');
create table toast_default(id int primary key, small int, doc text, raw bytea, tags text[], nums int[], meta jsonb);
alter table toast_default alter doc set storage external, alter raw set storage external,
  alter tags set storage external, alter nums set storage external, alter meta set storage external;
create table toast_full(id int primary key, small int, doc text, empty text);
alter table toast_full alter doc set storage external;
alter table toast_full replica identity full;
create table no_key_full(a int, b text, c numeric(8,2));
alter table no_key_full replica identity full;
create table by_index(code text not null unique, v int);
alter table by_index replica identity using index by_index_code_key;
create table all_types(
  id int primary key, b boolean, i2 smallint, i4 integer, i8 bigint, n numeric(12,2), wide numeric(38,10), free numeric,
  f4 real, f8 double precision, t text, vc varchar(20), ch char(3), raw bytea, d date, tm time,
  tm0 time(0), tz timetz, ts timestamp, ts3 timestamp(3), tstz timestamptz, iv interval, u uuid, j json, jb jsonb,
  m mood, ints int[], texts text[], nums numeric(6,2)[], days date[], bools boolean[], address inet, bits bit(3),
  money money);
create table hundreds(id int primary key, v numeric(5,-2));
create table emptied(id int primary key, v text);
create table emptied_too(id int primary key, v text);
create table recreated(id int primary key, was text);
create table "Order Items"("Item Id" int primary key, "select" text, "quo""te" text, "dot.ted" int, "ünï" text,
  "MixedCase" int, "tick`s" text, "back\\slash" text);
create table "select"("from" int primary key, "where" text);
create table "MixedCase"("ID" int primary key, "Value" text);
create table "dot.ted"(id int primary key, v text);
create table "weiß 張"(id int primary key, v text);
create table bulk(id int primary key, v text, n numeric(10,2));
create table saved(id int primary key, v text);
create table positions(id int, pos int, primary key (pos) deferrable initially deferred);
alter table positions replica identity full;
create table computed(id int primary key, a int, twice int generated always as (a * 2) stored);
create table altered(id int primary key, v text);
create table the_end(id int primary key)
"""

FINITE: dict[str, Any] = {
    "b": "true", "i2": "-32768", "i4": "2147483647", "i8": "-9223372036854775808", "n": "-1234567890.12",
    "wide": "1234567890123456789012345678.0123456789", "free": "0.000000000000000000000000000000000000000000001",
    "f4": "3.4028235e38", "f8": "1.7976931348623157e308", "t": "ü 張 🚲 \" \\ ' \n\t end",
    "vc": "null", "ch": "a", "raw": "\\x00ff5c", "d": "2024-02-29", "tm": "23:59:59.999999", "tm0": "24:00:00",
    "tz": "12:34:56+05:30", "ts": "2024-02-29 12:34:56.789012", "ts3": "2024-02-29 12:34:56.789",
    "tstz": "2024-02-29 12:34:56.789012+05:30", "iv": "1 year 2 mons -3 days 04:05:06.789",
    "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "j": '{"a": 1.50, "b" : null}', "jb": '{"a": 1.50, "b": [1, "x"]}',
    "m": "happy it's", "ints": "{1,NULL,-3}", "texts": '{a,"b,c","",NULL,"NULL","q\\"\\\\"}', "nums": "{1.50,NULL}",
    "days": "{2024-02-29}", "bools": "{t,f,NULL}", "address": "10.0.0.0/8", "bits": "101", "money": "12.34",
}  # fmt: skip
INFINITE: dict[str, Any] = {
    "n": "NaN", "free": "NaN", "f4": "NaN", "f8": "-Infinity", "d": "infinity", "ts": "-infinity", "ts3": "infinity",
    "tstz": "infinity",
}  # fmt: skip
NEGATIVE: dict[str, Any] = {
    "f4": "Infinity", "f8": "NaN", "d": "-infinity", "ts": "infinity", "ts3": "-infinity", "tstz": "-infinity",
}  # fmt: skip
EDGES: dict[str, Any] = {
    "b": "false", "i2": "0", "n": "0.00", "wide": "-0.0000000001", "free": "1.500", "f4": "1e-45", "f8": "5e-324", "t": "",
    "raw": "", "d": "0001-01-01", "tm": "00:00:00", "ts": "0001-01-01 00:00:00", "tstz": "9999-12-31 23:59:59.999999+00",
    "iv": "00:00:00", "m": "sad", "ints": "{}", "texts": "{}",
}  # fmt: skip


def run(connection: Any) -> None:
    """Everything, in its order; every statement a transaction of its own unless it says otherwise."""

    def do(sql: str, *args: Any) -> None:
        connection.execute(sql, args or None)

    _toast(do)
    _types(do)
    _tables(connection, do)
    _names(do)
    _transactions(connection, do)
    do("insert into the_end values (1)")


def _toast(do: Any) -> None:
    for i in range(1, 5):
        do(
            "insert into toast_default values (%s, 0, %s, %s, %s, %s, %s)",
            i, long(i), long(i).encode(), [long(i), None, "x"], list(range(1500)), f'{{"k": "{long(i)[:2000]}"}}',
        )  # fmt: skip
        do("insert into toast_full values (%s, 0, %s, null)", i, long(i))
    do("update toast_default set small = small + 1")
    do("update toast_full set small = small + 1")
    do("update toast_default set doc = 'short now' where id = 2")
    do("update toast_default set doc = null where id = 3")
    do("update toast_default set small = 9 where id in (2, 3)")
    do("update toast_full set empty = 'no more' where id = 1")
    do("update toast_full set id = 20 where id = 2")
    do("update toast_default set doc = %s where id = 4", long(44))
    do("delete from toast_default where id = 1")
    do("delete from toast_full where id = 3")
    do("insert into toast_default(id, small) values (1, 100)")
    do("insert into no_key_full values (1, 'a', 1.50), (1, 'a', 1.50), (2, null, null)")
    do("update no_key_full set b = 'changed' where a = 2")
    do("delete from no_key_full where ctid = (select ctid from no_key_full where a = 1 limit 1)")
    do("insert into by_index values ('x', 1), ('y', 2)")
    do("update by_index set v = 3 where code = 'x'")
    do("update by_index set code = 'z' where code = 'y'")


def _types(do: Any) -> None:
    for i, values in enumerate((FINITE, INFINITE, NEGATIVE, EDGES, {}), 1):
        names, marks = ", ".join(("id", *values)), ", ".join(["%s"] * (len(values) + 1))
        do(f"insert into all_types({names}) values ({marks})", i, *values.values())
    do("update all_types set t = 'touched' where id < 3")
    do("delete from all_types where id = 5")
    do("insert into hundreds values (1, 12345)")


def _tables(connection: Any, do: Any) -> None:
    do("insert into emptied select g, 'v' || g from generate_series(1, 5) g")
    do("insert into emptied_too select g, 'v' || g from generate_series(1, 5) g")
    do("truncate emptied")
    do("insert into emptied values (2, 'again')")
    with connection.transaction():
        do("insert into emptied values (3, 'gone with the rest')")
        do("truncate emptied, emptied_too")
        do("insert into emptied_too values (7, 'after')")
    do("insert into recreated values (1, 'first'), (2, 'first')")
    do("drop table recreated")
    do("create table recreated(id int primary key, was text, more numeric(6,2))")
    do("insert into recreated values (2, 'second', 1.25)")
    do("insert into computed(id, a) values (1, 5), (2, 6)")
    do("update computed set a = 7 where id = 1")
    do("insert into altered values (1, 'before'), (2, 'before')")
    do("alter table altered add column n int default 7")
    do("insert into altered values (3, 'after', null)")
    do("update altered set v = 'touched' where id = 1")
    do("alter table altered drop column n")
    do("update altered set v = 'dropped' where id = 3")


def _names(do: Any) -> None:
    do('insert into "Order Items" values (1, %s, %s, 3, %s, 4, %s, %s)', "'; --", 'q"', "ü", "`", "\\")
    do('update "Order Items" set "MixedCase" = 5, "quo""te" = null')
    do('insert into "select" values (1, %s)', "from")
    do('insert into "MixedCase" values (1, %s)', "x")
    do('insert into "dot.ted" values (1, %s)', "x")
    do('insert into "weiß 張" values (1, %s)', "x")
    do('update "weiß 張" set id = 2')


def _transactions(connection: Any, do: Any) -> None:
    do("insert into bulk select g, 'row ' || g, g / 4.0 from generate_series(1, 5000) g")
    do("update bulk set n = n + 1 where mod(id, 50) = 0")
    with connection.transaction():
        do("insert into saved values (1, 'kept')")
        do("savepoint a")
        do("insert into saved values (2, 'rolled back')")
        do("savepoint b")
        do("insert into saved values (3, 'rolled back, too')")
        do("rollback to savepoint a")
        do("insert into saved values (4, 'kept')")
        do("savepoint c")
        do("update saved set v = 'kept, changed' where id = 1")
        do("release savepoint c")
    do("insert into positions select g, g from generate_series(1, 6) g")
    do("update positions set pos = pos + 1")
    with connection.transaction():
        do("update positions set pos = -1 where pos = 2")
        do("update positions set pos = 2 where pos = 3")
        do("update positions set pos = 3 where pos = -1")
