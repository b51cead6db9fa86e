"""Inputs of the peers, and the results that they must have: both by DuckDB, in which no peer runs."""

from __future__ import annotations

from pathlib import Path

import duckdb

FILES = 16
# Numbers of changes, and of rows, in a range of their own per batch.
SPAN = 1_000_000
DAY, FIRST_DAY = 86_400, 1_772_323_200  # 2026-03-01
COLUMNS = "id, code, a, b, name, amount, ts, seq"
COMPARED = {
    "final": "id, code, a, b, name, CAST(amount AS VARCHAR) AS amount, CAST(epoch(ts) AS BIGINT) AS ts, seq",
}


class Inputs:
    """A folder with Parquet files: `base` for the first load, and batches of changes."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows, self.batches = folder, rows, 0
        self.base = folder / "base"
        self.base.mkdir(parents=True)
        self.db = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")

    def write(self, query: str, to: Path) -> Path:
        """Write a query's rows."""
        self.db.execute(f"COPY ({query}) TO '{to}' (FORMAT parquet, COMPRESSION zstd)")
        return to


class UpsertInputs(Inputs):
    """Rows with a number as key, and batches with one row per changed key, spread over all of them."""

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        for file in range(FILES):
            which = f"SELECT range AS n FROM range({rows}) WHERE hash(range) % {FILES} = {file} ORDER BY hash(range)"
            self.write(f"SELECT {_row('n')}, 0::BIGINT AS seq FROM ({which})", self.base / f"{file:02}.parquet")
        self.write(f"SELECT {_row('n')}, 0::BIGINT AS seq, 'I' AS op FROM (SELECT 0 AS n)", folder / "first.parquet")

    def batch(self, changes: int) -> Path:
        """Write the next batch: 60 % updates, 20 % inserts, 20 % deletes."""
        self.batches += 1
        first = self.batches * SPAN
        step = self.rows // changes
        key = f"CASE WHEN i % 5 = 0 THEN {self.rows + first} + i ELSE i * {step} + hash(i + {first}) % {step} END"
        numbered = f"SELECT range AS i, CAST({key} AS BIGINT) AS n FROM range({changes})"
        operation = "CASE i % 5 WHEN 0 THEN 'I' WHEN 1 THEN 'D' ELSE 'U' END"
        rows = (
            f"SELECT * REPLACE ('new ' || seq AS name) FROM (SELECT {_row('n')}, {first} + i AS seq, {operation} AS op "
        )
        return self.write(f"{rows} FROM ({numbered}))", self.folder / f"batch-{self.batches:04}.parquet")

    def expected(self) -> dict[str, str]:
        """Return the queries of the tables after all batches: of each key its last row, unless that is a delete."""
        changes = f"SELECT * FROM read_parquet('{self.folder}/batch-*.parquet')"
        last = f"SELECT * FROM ({changes}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY seq DESC) = 1"
        base = (
            f"SELECT {COLUMNS} FROM read_parquet('{self.base}/*.parquet') WHERE id NOT IN (SELECT id FROM ({changes}))"
        )
        rows = f"{base} UNION ALL SELECT {COLUMNS} FROM ({last}) WHERE op <> 'D'"
        return {"final": f"SELECT {COMPARED['final']} FROM ({rows})"}


class EventInputs(Inputs):
    """Playback events: 14 days at first, then a day a batch, with 5 % of the events up to 14 days late."""

    def __init__(self, folder: Path, rows: int, accounts: int) -> None:
        super().__init__(folder, rows)
        self.accounts = accounts
        self.write(f"{self._events(0, rows, first_day=0, days=14)} ORDER BY started_at", self.base / "events.parquet")

    def batch(self, changes: int) -> Path:
        """Write the events of the next day, late ones among them."""
        self.batches += 1
        query = self._events(self.batches * SPAN + self.rows, changes, first_day=13 + self.batches, days=1, late=True)
        return self.write(query, self.folder / f"batch-{self.batches:04}.parquet")

    def expected(self) -> dict[str, str]:
        """Return the queries of both tables over all events."""
        files = f"['{self.base}/*.parquet', '{self.folder}/batch-*.parquet']"
        daily = (
            "SELECT account, strftime(started_at, '%Y-%m-%d') AS day, CAST(sum(seconds) AS BIGINT) AS seconds, "
            f"count(*) AS plays FROM read_parquet({files}) GROUP BY ALL"
        )
        up_to = "CAST(sum(seconds) OVER (PARTITION BY account ORDER BY day) AS BIGINT)"
        return {"daily": daily, "running": f"SELECT account, day, {up_to} AS seconds FROM ({daily})"}

    def _events(self, start: int, count: int, *, first_day: int, days: int, late: bool = False) -> str:
        second = f"hash(range, 1) % {days * DAY} + {first_day * DAY}"
        behind = f"CASE WHEN hash(range, 2) % 20 = 0 THEN CAST(hash(range, 3) % {14 * DAY} AS BIGINT) ELSE 0 END"
        at = f"{FIRST_DAY} + CAST({second} AS BIGINT) - {behind if late else 0}"
        return (
            f"SELECT range AS id, CAST(hash(range, 4) % {self.accounts} AS INT) AS account, "
            f"CAST(hash(range, 5) % 1000 AS INT) AS title, to_timestamp({at}) AS started_at, "
            f"CAST(hash(range, 6) % 7200 AS INT) AS seconds FROM range({start}, {start + count})"
        )


def differences(inputs: Inputs, expected: dict[str, str], exported: Path) -> list[str]:
    """Return how exported tables differ from the expected ones."""
    found: list[str] = []
    for table, query in expected.items():
        export = f"SELECT * FROM read_parquet('{exported}/{table}/*.parquet')"
        want, have = (_fingerprint(inputs, q) for q in (query, export))
        if want != have:
            missing, more = (
                inputs.db.execute(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchall()[0][0]
                for a, b in ((query, export), (export, query))
            )
            found.append(f"{table}: {missing:,} of {want[0]:,} rows are not as expected, {more:,} others")
    return found


def _fingerprint(inputs: Inputs, query: str) -> tuple[int, int]:
    return inputs.db.execute(f"SELECT count(*), sum(hash(q)::HUGEINT) FROM ({query}) q").fetchall()[0]


def _row(of: str) -> str:
    """Return SQL of a row's columns, computed from its number."""
    return (
        f"CAST({of} AS BIGINT) AS id, 'k-' || lpad(CAST({of} AS VARCHAR), 12, '0') AS code, "
        f"CAST({of} // 1000 AS BIGINT) AS a, CAST({of} % 1000 AS BIGINT) AS b, 'name ' || ({of} % 9973) AS name, "
        f"CAST({of} % 100000 AS DECIMAL(12,2)) AS amount, to_timestamp(1700000000 + {of} % 10000000) AS ts"
    )
