"""What happens in the recorded MariaDB: a small shop, and everything in which MariaDB is not like Postgres.

Deterministic: every choice comes from one seed, every time of day from a counter. `run` is given a `Recording`, which
opens sessions, ends a checkpoint and restarts the connectors.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

SEED = 20241107
Do = Callable[..., int]

TABLES = """
create table users(id bigint primary key, name varchar(40) not null, email varchar(60), balance decimal(12,2) not null,
  born date, prefs json, created datetime(6) not null, seen timestamp(3) null);
create table accounts(account_id uuid primary key, user_id bigint not null, balance decimal(18,2) not null);
create table order_item(order_id bigint, line int, sku varchar(20) not null, qty int, price decimal(10,2),
  primary key(order_id, line));
create table user_city(user_id bigint primary key, city varchar(40), since datetime);
create table tally(day date, what varchar(20), n int);
create table slots(id bigint unsigned, at time(3), v varchar(20), primary key(id, at));
create table all_types(
  id int primary key, b1 bit(1), b13 bit(13), b64 bit(64), i1 tinyint, u1 tinyint unsigned, bool boolean,
  i2 smallint, u2 smallint unsigned, i3 mediumint, u3 mediumint unsigned, i4 int, u4 int unsigned,
  z4 int(8) unsigned zerofill, i8 bigint, u8 bigint unsigned, n decimal(12,2), wide decimal(38,10),
  widest decimal(65,30), whole decimal(20,0), f4 float, f8 double, c char(5), vc varchar(40), bin binary(4),
  vb varbinary(40), t text character set utf8mb4, raw blob, d date, tm time, tm6 time(6), dt datetime, dt3 datetime(3),
  dt6 datetime(6), ts timestamp null, ts6 timestamp(6) null, y year, e enum('small','it''s, big','','ü'),
  s set('a','b','c d','ü'), j json, p point, g geometry, uid uuid,
  twice int as (i4 * 2) virtual, thrice int as (i2 * 3) stored) character set utf8mb4;
create table zeros(id int primary key, d date, d0 date not null, dt datetime, dt0 datetime(6) not null,
  ts timestamp null, ts0 timestamp not null default '2000-01-01 00:00:00', y year, tm time not null);
create table bulk(id int primary key, v varchar(200), n decimal(10,2));
create table positions(pos int primary key, name varchar(20));
create table emptied(id int primary key, v varchar(20));
create table refreshed(id int primary key, v varchar(20));
create table badges(id int primary key, user_id bigint, v varchar(20),
  foreign key(user_id) references users(id) on delete cascade on update cascade);
create table journal(id int primary key, v varchar(20)) engine=myisam;
create table recreated(id int primary key, was varchar(20));
create table checkpoint_marker(id int auto_increment primary key, name varchar(30));
create table signals(id varchar(42) primary key, type varchar(32) not null, data varchar(2048))
"""

NAMES = ["Ann", "Bob", "Çelik", "Dörte", "Fumiko", "Günther", "O'Neil", "张伟", "Zoë 🚲", 'Quote "Q"', "Back\\slash"]
CITIES = ["Oslo", "Köln", "Łódź", "Tōkyō", "New York", "St. John's", "", "東京", None]


class Recording(Protocol):
    """What the workload needs of the recorder."""

    def session(self) -> Any:
        """Open a connection."""

    def checkpoint(self, name: str) -> None:
        """Wait for the streams, store the tables' rows."""

    def store_offsets(self) -> None:
        """Wait until the connectors have stored how far they came."""

    def kill(self) -> None:
        """Let the connectors stream all changes, and kill them before they have stored how far they came."""

    def start(self) -> None:
        """Start them again."""

    def wait_for_reads(self, table: str, signal: str) -> None:
        """Wait until the snapshot of a table that a signal asked for has been streamed."""


class Shop:
    """The workload's state: which rows there are, by their keys."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.choose = random.Random(SEED)
        self.connection = recording.session()
        self.changes = 0
        self.micros = 0
        self.next_user, self.next_order = 1, 1000
        self.users: list[int] = []
        self.cities: set[int] = set()
        self.accounts: list[str] = []
        self.items: list[tuple[int, int]] = []
        self.email, self.has_prefs = "email", True

    def do(self, sql: str, *values: Any, on: Any = None) -> int:
        """Execute a statement; return the number of changed rows."""
        with (on or self.connection).cursor() as cursor:
            count = cursor.execute(sql, values or None)
        self.changes += count
        return count

    @contextmanager
    def transaction(self, on: Any = None) -> Generator[None]:
        """One transaction."""
        connection = on or self.connection
        connection.begin()
        yield
        connection.commit()

    def now(self) -> datetime:
        """The next moment."""
        self.micros += self.choose.randint(1, 900_000_000)
        return datetime(2024, 1, 1) + timedelta(microseconds=self.micros)  # noqa: DTZ001

    def money(self, low: int = -500, high: int = 5000) -> Decimal:
        """Some money."""
        return Decimal(self.choose.randint(low * 100, high * 100)) / 100

    # --- an ordinary day ----------------------------------------------------------------------------------------------

    def new_user(self) -> int:
        """A user, with what users have."""
        i, c = self.next_user, self.choose
        self.next_user += 1
        prefs = {"lang": c.choice(["en", "ü", None]), "n": c.randint(0, 9), "tags": c.sample(["a", 'd"q', "\\"], 2)}
        row = {
            "id": i, "name": c.choice(NAMES), self.email: c.choice([None, "", f"u{i}@ex.org"]),
            "balance": self.money(0), "born": c.choice([None, f"19{c.randint(10, 99)}-02-28"]),
            "prefs": c.choice([None, json.dumps(prefs, ensure_ascii=False)]), "created": self.now(),
            "seen": c.choice([None, self.now()]),
        }  # fmt: skip
        if not self.has_prefs:
            del row["prefs"]
        self.do(f"insert into users({', '.join(row)}) values ({', '.join(['%s'] * len(row))})", *row.values())
        self.users.append(i)
        return i

    def set_city(self, user: int) -> None:
        """A user moves."""
        city, since = self.choose.choice(CITIES), self.now().replace(microsecond=0)
        if user in self.cities and self.choose.random() < 0.3:
            self.do("delete from user_city where user_id = %s", user)
            self.cities.discard(user)
        elif self.choose.random() < 0.5:
            self.do("replace into user_city values (%s, %s, %s)", user, city, since)
            self.cities.add(user)
        else:
            self.do("insert into user_city values (%s, %s, %s) on duplicate key update city = values(city), "
                    "since = values(since)", user, city, since)  # fmt: skip
            self.cities.add(user)

    def new_account(self, user: int) -> None:
        """An account."""
        text = f"{self.choose.getrandbits(128):032x}"
        account = "-".join((text[:8], text[8:12], "4" + text[13:16], "8" + text[17:20], text[20:]))
        self.do("insert into accounts values (%s, %s, %s)", account, user, self.money(0))
        self.accounts.append(account)

    def transfer(self, amount: Decimal, times: int = 1) -> None:
        """Money moved between two accounts in one transaction; to and fro, if several times."""
        a, b = self.choose.sample(self.accounts, 2)
        with self.transaction():
            for n in range(times):
                for account, sign in ((a, -1), (b, 1)):
                    self.do("update accounts set balance = balance + %s where account_id = %s",
                            amount * sign * (1 - n % 2 * 2), account)  # fmt: skip

    def new_order(self) -> None:
        """An order of some lines, in one statement."""
        self.next_order += 1
        lines = [(self.next_order, n) for n in range(1, self.choose.randint(1, 4) + 1)]
        values = [
            (*line, f"SKU-{self.choose.randint(1, 99):04}", self.choose.choice([None, 7]), self.money(1, 900))
            for line in lines
        ]
        self.do(f"insert into order_item(order_id, line, sku, qty, price) values {', '.join(['(%s,%s,%s,%s,%s)'] * len(values))}",
                *(v for row in values for v in row))  # fmt: skip
        self.items += lines

    def change_item(self) -> None:
        """An order line changes or goes."""
        item = self.choose.choice(self.items)
        if self.choose.random() < 0.7:
            self.do("update order_item set qty = coalesce(qty, 0) + 1, price = %s where order_id = %s and line = %s",
                    self.money(1, 900), *item)  # fmt: skip
        else:
            self.do("delete from order_item where order_id = %s and line = %s", *item)
            self.items.remove(item)

    def change_user(self) -> None:
        """Several changes of one row in one transaction."""
        user = self.choose.choice(self.users)
        with self.transaction():
            for _ in range(self.choose.randint(1, 3)):
                self.do("update users set balance = balance + %s, name = %s where id = %s",
                        self.money(-50, 50), self.choose.choice(NAMES), user)  # fmt: skip

    def count(self) -> None:
        """A table without a key: inserts, equal rows, updates and deletes."""
        day, what = f"2024-03-0{self.choose.randint(1, 3)}", self.choose.choice(["visit", "sale", None])
        chance = self.choose.random()
        if chance < 0.6:
            self.do("insert into tally values (%s, %s, 1)", day, what)
        elif chance < 0.85:
            self.do("update tally set n = n + 1 where day = %s and what <=> %s limit 2", day, what)
        else:
            self.do("delete from tally where day = %s and what <=> %s limit 1", day, what)

    def step(self) -> None:
        """One of the above."""
        chance = self.choose.random()
        if chance < 0.15:
            with self.transaction():
                user = self.new_user()
                self.set_city(user)
                self.new_account(user)
        elif chance < 0.3:
            self.set_city(self.choose.choice(self.users))
        elif chance < 0.42:
            self.transfer(self.money(0, 90))
        elif chance < 0.52:
            self.new_order()
        elif chance < 0.64:
            self.change_item()
        elif chance < 0.74:
            self.count()
        elif chance < 0.92:
            self.change_user()
        elif chance < 0.97 and len(self.users) > 30:
            user = self.users.pop(self.choose.randrange(len(self.users)))
            self.do("delete from users where id = %s", user)
        else:
            account = self.accounts.pop(self.choose.randrange(len(self.accounts)))
            self.do("delete from accounts where account_id = %s", account)

    def steps(self, changes: int) -> None:
        """Ordinary steps, at least so many changes."""
        end = self.changes + changes
        while self.changes < end:
            self.step()

    # --- what is hard about any source --------------------------------------------------------------------------------

    def move(self, old: int, new: int) -> None:
        """A user's key changes."""
        self.do("update users set id = %s where id = %s", new, old)
        self.users[self.users.index(old)] = new

    def fresh(self) -> int:
        """A key that no user has had."""
        self.next_user += 1
        return self.next_user - 1

    def keys(self) -> None:
        """A row that is moved twice in a transaction, a chain of three, a swap, a part of a key."""
        a = self.choose.choice(self.users)
        b, c = self.fresh(), self.fresh()
        with self.transaction():
            self.move(a, b)
            self.do("update users set balance = balance + 1 where id = %s", b)
            self.move(b, c)
        x, y, z = self.choose.sample(self.users, 3)
        with self.transaction():
            self.move(z, self.fresh())
            self.move(y, z)
            self.move(x, y)
        a, b = self.choose.sample(self.users, 2)
        with self.transaction():
            self.move(a, -1)
            self.move(b, a)
            self.move(-1, b)
        order, line = item = self.choose.choice(self.items)
        self.do("update order_item set line = line + 100 where order_id = %s and line = %s", *item)
        self.items[self.items.index(item)] = order, line + 100

    def again(self, at_once: bool) -> None:
        """A row that is deleted and inserted again."""
        user = self.choose.choice(self.users)

        def both() -> None:
            self.do("delete from users where id = %s", user)
            self.do(f"insert into users(id, name, {self.email}, balance, created) values (%s, 'Reborn', null, 0, %s)",
                    user, self.now())  # fmt: skip

        if at_once:
            with self.transaction():
                both()
        else:
            both()

    def transactions(self) -> None:
        """A row that is born and gone in one transaction, one that is rolled back, savepoints, two sessions at once."""
        ghost = self.fresh()
        with self.transaction():
            self.do("insert into users(id, name, balance, created) values (%s, 'ghost', 0, %s)", ghost, self.now())
            self.do("update users set name = 'ghost too' where id = %s", ghost)
            self.do("delete from users where id = %s", ghost)
        changes = self.changes
        self.connection.begin()
        self.do("update users set name = 'NEVER'")
        self.connection.rollback()
        self.changes = changes
        a, b = self.choose.sample(self.users, 2)
        with self.transaction():
            self.do("update users set name = 'kept' where id = %s", a)
            self.do("savepoint one")
            self.do("update users set name = 'NEVER' where id = %s", b)
            self.do("rollback to savepoint one")
            self.do("update users set balance = balance + 1 where id = %s", b)
        self.do("update user_city set city = city")  # changes nothing
        other = self.recording.session()
        other.begin()
        self.do("update users set balance = balance + 1 where id = %s", a, on=other)
        with self.transaction():
            self.do("update users set balance = balance + 2 where id = %s", b)
            self.do("update users set name = 'late' where id = %s", a, on=other)
            self.do("update users set name = 'early' where id = %s", b)
        self.do("update users set balance = balance + 4 where id = %s", b, on=other)
        other.commit()
        other.close()

    def hard(self) -> None:
        """All of it."""
        self.transfer(Decimal("12.34"), 20)
        self.again(True)
        self.again(False)
        self.keys()
        self.transactions()

    # --- what is hard about MariaDB -----------------------------------------------------------------------------------

    def types(self) -> None:
        """Rows of every type at its ends."""
        for n, values in enumerate((HIGHEST, LOWEST, ODD, {}), 1):
            names = ", ".join(("id", *values))
            marks = ", ".join(MARKS.get(name, "%s") for name in ("id", *values))
            self.do(f"insert into all_types({names}) values ({marks})", n, *values.values())
        self.do("update all_types set t = 'touched', i4 = 5, i2 = 6 where id in (2, 3)")
        for n, values in enumerate(ZEROS, 1):
            self.do(f"insert into zeros values ({', '.join(['%s'] * 9)})", n, *values)
        self.do("update zeros set d = '0000-00-00', ts = '0000-00-00' where id = 2")

    def slots(self) -> None:
        """Keys beyond a day and beyond 63 bits."""
        times = ["-838:59:59.999", "-00:00:00.001", "00:00:00", "10:00:00", "34:00:00", "58:00:00.5", "838:59:59.999"]
        numbers = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
        for number in numbers:
            for at in times:
                self.do("insert into slots values (%s, %s, %s)", number, at, f"{number % 100} {at}")
        self.do("update slots set v = 'changed' where at = '34:00:00' or id = 18446744073709551615")
        self.do("update slots set at = '35:00:00' where at = '58:00:00.5'")
        self.do("delete from slots where at = '10:00:00' and id < 2")
        self.do("update slots set id = 18446744073709551614 where id = 9223372036854775808")

    def statements(self) -> None:
        """Statements that change many rows: one event of the binlog holds many, and one statement many events."""
        self.do("insert into bulk select seq, repeat(concat('row ', seq, ' '), 1 + mod(seq, 12)), seq / 4 "
                "from seq_1_to_500")  # fmt: skip
        self.do("update bulk set n = n + 1 where mod(id, 3) = 0")
        self.do("delete from bulk where mod(id, 7) = 0")
        self.do("update bulk set id = id + 1000 where id between 20 and 60")
        # A row of a large statement, then the same row in a small one.
        with self.transaction():
            self.do("update bulk set v = 'all' where id < 16")
            self.do("update bulk set v = 'later' where id in (9, 10)")
            self.do("delete from bulk where id between 10 and 15")
            self.do("insert into bulk values (15, 'again', 1.5), (13, 'again', 1.5)")
            self.do("update bulk set id = id - 20 where id < 14 order by id")
            self.do("update bulk set id = 13 where id = -11")
        with self.transaction():
            self.do("insert into tally values ('2024-04-01', 'equal', 1), ('2024-04-01', 'equal', 1)")
            self.do("insert into tally values ('2024-04-01', 'equal', 1)")
            self.do("update tally set n = 2 where what = 'equal' limit 1")
        self.do("insert into positions select seq, concat('p', seq) from seq_1_to_30")
        self.do("update positions set pos = pos + 1 order by pos desc")
        self.do("update positions set pos = pos - 2 order by pos")
        with self.transaction():
            self.do("update positions set pos = -100 where pos = 3")
            self.do("update positions set pos = 3 where pos = 4")
            self.do("update positions set pos = 4 where pos = -100")
        self.do("update positions set pos = 60 - pos, name = concat(name, '!') where pos > 20 order by pos")

    def emptied(self) -> None:
        """TRUNCATE, rows of a table that is not transactional, rows that a foreign key takes along."""
        self.do("insert into emptied select seq, 'v' from seq_1_to_5")
        self.do("truncate emptied")
        self.do("insert into emptied values (2, 'again')")
        self.do("truncate table emptied")
        self.do("insert into emptied values (3, 'after'), (1, 'after')")
        self.connection.begin()
        self.do("insert into journal values (1, 'kept'), (2, 'kept, too')")
        self.do("insert into emptied values (4, 'NEVER')")
        self.connection.rollback()
        self.do("update journal set v = 'changed' where id = 2")
        three = self.choose.sample(self.users, 3)
        for n, user in enumerate(three, 1):
            self.do("insert into badges values (%s, %s, 'gold')", n, user)
        self.users.remove(three[0])
        self.do("delete from users where id = %s", three[0])
        self.move(three[1], self.fresh())

    def rotate(self, times: int = 1) -> None:
        """The next file of the binlog."""
        for _ in range(times):
            self.do("flush binary logs")

    def unlogged(self, sql: str) -> None:
        """A change that no binlog holds."""
        self.do("set sql_log_bin = 0")
        self.do(sql)
        self.do("set sql_log_bin = 1")

    def read_again(self, table: str, kind: str) -> None:
        """A snapshot of a table that a signal asks for."""
        signal = f"{kind}-{table}"
        request = {"type": kind, "data-collections": [f"shop.{table}"]}
        self.do("insert into signals values (%s, 'execute-snapshot', %s)", signal, json.dumps(request))
        self.recording.wait_for_reads(table, signal)


MARKS = {
    "p": "st_geomfromtext(%s, 4326)", "g": "st_geomfromtext(%s)", "b1": "conv(%s, 2, 10) + 0",
    "b13": "conv(%s, 2, 10) + 0", "b64": "%s + 0",
}  # fmt: skip
HIGHEST: dict[str, Any] = {
    "b1": "1", "b13": "1000000000001", "b64": 2**64 - 1, "i1": 127, "u1": 255, "bool": 1, "i2": 32767, "u2": 65535,
    "i3": 8388607, "u3": 16777215, "i4": 1073741823, "u4": 4294967295, "z4": 42, "i8": 2**63 - 1, "u8": 2**64 - 1,
    "n": "9999999999.99", "wide": "9999999999999999999999999999.9999999999", "widest": f"{'9' * 35}.{'9' * 30}",
    "whole": "99999999999999999999", "f4": 3.402823466e38, "f8": 1.7976931348623157e308, "c": "ab", "vc": "null",
    "bin": b"a\0", "vb": b"\xff\x00\\", "t": "ü 張 🚲 \" \\ ' \n\t end ", "raw": b"\x00\xff", "d": "9999-12-31",
    "tm": "838:59:59", "tm6": "838:59:59.999999", "dt": "9999-12-31 23:59:59", "dt3": "9999-12-31 23:59:59.999",
    "dt6": "9999-12-31 23:59:59.999999", "ts": "2038-01-19 03:14:07", "ts6": "2038-01-19 03:14:07.999999", "y": 2155,
    "e": "it's, big", "s": "a,c d,ü", "j": '{"a": 1.50, "b": [1, "x", null], "ü": "\\"🚲"}', "p": "POINT(13.5 -52.25)",
    "g": "LINESTRING(0 0, 1 1.5, -2 3)", "uid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
}  # fmt: skip
LOWEST: dict[str, Any] = {
    "b1": "0", "b13": "0", "b64": 1, "i1": -128, "u1": 0, "bool": 0, "i2": -10922, "u2": 0, "i3": -8388608, "u3": 0,
    "i4": -1073741824, "u4": 0, "z4": 0, "i8": -(2**63), "u8": 0, "n": "-9999999999.99",
    "wide": "-9999999999999999999999999999.9999999999", "widest": f"-{'9' * 35}.{'9' * 30}",
    "whole": "-99999999999999999999", "f4": -3.402823466e38, "f8": -1.7976931348623157e308, "c": "", "vc": "",
    "bin": b"", "vb": b"", "t": "", "raw": b"", "d": "1000-01-01", "tm": "-838:59:59", "tm6": "-838:59:59.999999",
    "dt": "1000-01-01", "dt3": "1000-01-01 00:00:00.001", "dt6": "1000-01-01 00:00:00.000001",
    "ts": "1970-01-01 00:00:01", "ts6": "1970-01-01 00:00:01.000001", "y": 1901, "e": "", "s": "", "j": "null",
    "p": "POINT(0 0)", "g": "POLYGON((0 0, 4 0, 4 4, 0 0))", "uid": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip
ODD: dict[str, Any] = {
    "b64": 2**63, "u8": 2**63, "z4": 123456789, "n": "0.10", "wide": "0.0000000001", "widest": "0." + "0" * 29 + "1",
    "whole": "18446744073709551616", "f4": 0.1, "f8": 5e-324, "vc": "a ", "d": "0001-01-01", "tm": "-00:00:01",
    "tm6": "24:00:00.000001", "dt": "0001-01-01 00:00:00", "dt6": "2024-02-29 12:34:56.7", "ts": "2024-03-31 02:30:00",
    "y": 0, "e": "small", "s": "b", "j": '"text"', "g": "GEOMETRYCOLLECTION(POINT(1 2), POINT(3 4))",

}  # fmt: skip
_ZERO, _DAY = "0000-00-00", "2024-02-29"
ZEROS = (
    (_ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, "0000", "00:00:00"),
    (_DAY, _DAY, f"{_DAY} 01:02:03", f"{_DAY} 01:02:03.5", f"{_DAY} 01:02:03", f"{_DAY} 01:02:03", "2024", "01:02:03"),
    ("2024-00-00", "2024-02-00", "2024-00-00 01:02:03", "2024-02-00 01:02:03", None, _DAY, None, "-01:02:03"),
    (None, "1970-01-01", None, "1970-01-01", None, "1970-01-02", "1970", "00:00:00"),
)


def seed(shop: Shop) -> None:
    """Rows that the connectors read before they stream."""
    shop.do("set sql_mode = ''")
    for _ in range(40):
        user = shop.new_user()
        shop.set_city(user)
        shop.new_account(user)
    for _ in range(15):
        shop.new_order()
    shop.do("insert into refreshed select seq, 'seed' from seq_1_to_25")
    shop.do("insert into all_types(id, tm, u8, j, e) values (100, '100:00:00', 18446744073709551615, '[1]', 'ü')")
    shop.do("insert into zeros values (100, '0000-00-00', '0000-00-00', '0000-00-00', '0000-00-00', '0000-00-00', "
            "'0000-00-00', 1999, '-838:59:59')")  # fmt: skip
    shop.do("insert into slots values (18446744073709551615, '838:59:59.998', 'seed'), (1, '34:00:00.001', 'seed')")
    shop.do("insert into tally values ('2024-03-01', 'visit', 1), ('2024-03-01', 'visit', 1)")
    shop.steps(60)


def run(shop: Shop) -> None:
    """From the seed rows to the last checkpoint."""
    recording = shop.recording
    shop.steps(150)
    shop.hard()
    shop.types()
    shop.slots()
    shop.emptied()
    for _ in range(30):
        shop.count()
    shop.rotate()
    shop.steps(60)
    recording.checkpoint("cp2_ordinary")
    shop.do("alter table users add column phone varchar(20)")
    shop.do("alter table users add column tier int not null default 7, add column score int default 3 after name")
    shop.do("update users set phone = '+49', score = null where mod(id, 4) = 0")
    shop.rotate(2)
    shop.statements()
    shop.hard()
    shop.steps(80)
    recording.checkpoint("cp3_add_column")
    shop.do("alter table users drop column prefs")
    shop.has_prefs = False
    shop.steps(40)
    shop.do("alter table users rename column email to email_address")
    shop.email = "email_address"
    shop.steps(60)
    shop.hard()
    restart(shop)
    recording.checkpoint("cp4_restart")
    shop.do("alter table order_item modify qty bigint, modify sku varchar(200) not null")
    shop.do("update order_item set qty = 9007199254740993 + line where mod(order_id, 4) = 0")
    shop.do("alter table accounts modify balance decimal(24,4) not null")
    shop.do("update accounts set balance = balance + 12345678901234567.1234 order by account_id limit 8")
    shop.do("insert into recreated values (1, 'first'), (2, 'first')")
    shop.do("drop table recreated")
    shop.do("create table recreated(id int primary key, was varchar(20), more decimal(6,2))")
    shop.do("insert into recreated values (2, 'second', 1.25)")
    shop.rotate()
    again(shop)
    shop.steps(60)
    recording.checkpoint("cp5_read_again")
    for _ in range(2):
        shop.transfer(Decimal("12.34"), 30)
    shop.rotate()
    shop.hard()
    shop.steps(200)
    recording.checkpoint("cp6_end")


def restart(shop: Shop) -> None:
    """The connectors are killed, changes go on without them, and they come back: the last events come again."""
    shop.recording.store_offsets()
    shop.hard()
    for _ in range(20):
        shop.count()
    shop.do("insert into emptied values (10, 'repeated')")
    shop.do("truncate emptied")
    shop.do("insert into emptied values (11, 'repeated')")
    shop.do("update emptied set v = 'new' where id = 11")
    shop.rotate()
    shop.steps(40)
    shop.recording.kill()
    shop.steps(40)
    shop.rotate()
    shop.again(True)
    shop.recording.start()
    shop.steps(20)


def again(shop: Shop) -> None:
    """Rows that changed without the binlog, and two snapshots that read them again amid other changes."""
    shop.do("update refreshed set v = 'logged' where id < 15")
    shop.do("delete from refreshed where id = 25")
    shop.unlogged("update refreshed set v = 'unlogged' where id between 5 and 10")
    shop.unlogged("insert into refreshed values (30, 'unlogged')")
    shop.unlogged("delete from refreshed where id = 20")
    shop.read_again("refreshed", "incremental")
    shop.do("update refreshed set v = 'after' where id in (7, 30)")
    shop.do("delete from refreshed where id = 6")
    shop.unlogged("update user_city set city = 'unlogged' where mod(user_id, 5) = 0")
    shop.read_again("user_city", "blocking")
    shop.do("update user_city set city = 'logged again' where mod(user_id, 10) = 0")
