"""Random work of a shop on a MariaDB: transactions that move and swap keys, large ones, truncates, changed schemas."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.mariadb_server import Server

TABLES = ("accounts", "people", "notes", "marks")
CREATE = (
    "CREATE TABLE accounts (id int PRIMARY KEY, owner varchar(40), amount decimal(12, 2), at datetime(6), n int DEFAULT 0)",
    "CREATE TABLE people (a int, b varchar(20), v int, PRIMARY KEY (a, b))",
    "CREATE TABLE notes (x int, y varchar(20))",
    "CREATE TABLE marks (id int PRIMARY KEY)",
    # Read by nobody, with schemas that change as well.
    "CREATE TABLE unread (id int PRIMARY KEY)",
    "INSERT INTO accounts (id, owner, amount, at) SELECT seq, concat('o', seq), seq, '2026-01-01' FROM seq_1_to_80",
    "INSERT INTO people SELECT seq, concat('b', seq % 5), seq FROM seq_1_to_60",
    "INSERT INTO notes SELECT seq % 7, concat('y', seq % 3) FROM seq_1_to_20",
)


class Workload:
    """The statements of one seed."""

    def __init__(self, server: Server, seed: int) -> None:
        self.random, self.server = random.Random(seed), server
        self.added: list[str] = []
        self.count = 0
        server.run("USE shop", *CREATE)

    def work(self, transactions: int) -> None:
        """Run some transactions, each by a connection of its own or by one that goes on."""
        weights = [
            (self._accounts, 8),
            (self._people, 5),
            (self._notes, 3),
            (self._schema, 2),
            (self._large, 1),
            (self._truncate, 0.5),
        ]
        choices, shares = zip(*weights, strict=True)
        with contextlib.closing(self.server.connect(database="shop")) as connection:
            for _ in range(transactions):
                action: Callable[[], Sequence[str]] = self.random.choices(choices, shares)[0]
                self._do(connection, action())

    def mark(self) -> int:
        """Write a row into `marks`; return its id."""
        self.count += 1
        self.server.run(f"INSERT INTO shop.marks VALUES ({self.count})")
        return self.count

    def rows(self, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns of a table, and its rows as the server has them."""
        columns = [c for (c,) in self.server.run(
            f"SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = '{table}' ORDER BY 1"
        )]  # fmt: skip
        return columns, [tuple(r) for r in self.server.run(f"SELECT {', '.join(columns)} FROM shop.{table}")]

    def _do(self, connection: Any, statements: Sequence[str]) -> None:
        import pymysql

        with connection.cursor() as cursor:
            is_rolled_back = self.random.random() < 0.1
            cursor.execute("BEGIN")
            try:
                for statement in statements:
                    cursor.execute(statement)
            except pymysql.err.IntegrityError:  # a key that is there already
                is_rolled_back = True
            cursor.execute("ROLLBACK" if is_rolled_back else "COMMIT")

    def _id(self) -> int:
        return self.random.randint(1, 100)

    def _accounts(self) -> list[str]:
        one, two, r = self._id(), self._id(), self.random
        return r.choice([
            [f"UPDATE accounts SET amount = amount + {r.randint(-5, 5)} WHERE id = {one}"],
            [f"INSERT INTO accounts (id, owner, amount, at) VALUES ({one}, 'i', 1, now(6)), ({two}, 'j', 2, now(6))"],
            [f"REPLACE INTO accounts (id, owner, amount) VALUES ({one}, 'r', {two})"],
            [f"INSERT INTO accounts (id, owner) VALUES ({one}, 'd') ON DUPLICATE KEY UPDATE owner = 'dd', n = n + 1"],
            [f"DELETE FROM accounts WHERE id BETWEEN {one} AND {one + 3}"],
            # Moved, swapped, shifted.
            [f"UPDATE accounts SET id = id + 1000 WHERE id = {one}", f"UPDATE accounts SET id = id - 1000 WHERE id = {one + 1000}"],
            [f"UPDATE accounts SET id = {two} WHERE id = {one}"],
            [f"UPDATE accounts SET id = -1 WHERE id = {one}", f"UPDATE accounts SET id = {one} WHERE id = {two}", f"UPDATE accounts SET id = {two} WHERE id = -1"],
            [f"UPDATE accounts SET id = id + 1 WHERE id > {one} ORDER BY id DESC"],
            [f"UPDATE accounts SET id = id - 1 WHERE id > {one} ORDER BY id", f"DELETE FROM accounts WHERE id = {two}"],
            # The same row several times in one transaction.
            [f"UPDATE accounts SET n = n + 1 WHERE id = {one}"] * 3 + [f"DELETE FROM accounts WHERE id = {one}", f"INSERT INTO accounts (id, owner) VALUES ({one}, 'again')"],
        ])  # fmt: skip

    def _people(self) -> list[str]:
        a, b, r = self.random.randint(1, 80), f"b{self.random.randint(0, 6)}", self.random
        return r.choice([
            [f"INSERT INTO people VALUES ({a}, '{b}', 0)", f"UPDATE people SET v = v + 1 WHERE a = {a}"],
            [f"UPDATE people SET b = '{b}' WHERE a = {a}"],
            [f"UPDATE people SET a = a + 1 WHERE b = '{b}' ORDER BY a DESC"],
            [f"DELETE FROM people WHERE a % 9 = {a % 9} AND b = '{b}'"],
            [f"UPDATE people SET v = v * 2 + 1 WHERE a < {a}"],
        ])  # fmt: skip

    def _notes(self) -> list[str]:
        x, r = self.random.randint(0, 7), self.random
        return r.choice([
            [f"INSERT INTO notes VALUES ({x}, 'n'), ({x}, 'n')"],
            [f"DELETE FROM notes WHERE x = {x} LIMIT 1"],
            [f"UPDATE notes SET y = 'm' WHERE x = {x} LIMIT 2"],
        ])  # fmt: skip

    def _large(self) -> list[str]:
        start = self.random.randint(2, 9) * 10_000
        return [
            f"DELETE FROM accounts WHERE id BETWEEN {start} AND {start + 500}",
            f"INSERT INTO accounts (id, owner, amount) SELECT {start} + seq, 'large', seq FROM seq_1_to_400",
            f"UPDATE accounts SET amount = amount + 1 WHERE id BETWEEN {start} AND {start + 300}",
            f"DELETE FROM accounts WHERE id BETWEEN {start + 100} AND {start + 400}",
        ]

    def _truncate(self) -> list[str]:
        return ["TRUNCATE people", "INSERT INTO people VALUES (1, 'b1', 1), (2, 'b2', 2)"]

    def _schema(self) -> list[str]:
        """A changed schema, and then every row changed: what a new column holds in old rows is in no event."""
        self.count += 1
        name, kind = (
            f"c{self.count}",
            self.random.choice(["int DEFAULT 7", "varchar(9) DEFAULT 'x'", "bigint NOT NULL DEFAULT 3"]),
        )
        choices = [
            [f"ALTER TABLE accounts ADD COLUMN {name} {kind}"],
            [f"ALTER TABLE accounts ADD COLUMN {name} {kind} FIRST"],
            ["ALTER TABLE accounts MODIFY n bigint DEFAULT 0"],
            ["ALTER TABLE accounts MODIFY owner text"],
            ["ALTER TABLE accounts MODIFY amount decimal(20, 4)"],
            [f"ALTER TABLE unread ADD COLUMN {name} int", f"INSERT INTO unread (id) VALUES ({self.count})"],
            [f"CREATE TABLE t{name} (id int PRIMARY KEY)", f"INSERT INTO t{name} VALUES (1)", f"DROP TABLE t{name}"],
            ["CREATE INDEX IF NOT EXISTS i ON accounts (amount)"],
        ]
        if self.added:
            old = self.random.choice(self.added)
            choices += [
                [f"ALTER TABLE accounts DROP COLUMN {old}"],
                [f"ALTER TABLE accounts RENAME COLUMN {old} TO {name}"],
            ] * 2
        chosen = self.random.choice(choices)
        if "COLUMN" in chosen[0] and "accounts" in chosen[0]:
            if "ADD" not in chosen[0]:
                self.added = [c for c in self.added if c not in chosen[0].split()]
            if "DROP" not in chosen[0]:
                self.added.append(name)
        return [*chosen, "UPDATE accounts SET n = n + 1"]
