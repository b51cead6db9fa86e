"""Random histories of the tables that generated queries read: whatever somebody else's jobs do to an Iceberg table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.snapshot_log import ancestors

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "final.a": {"id": "INT", "b": "INT", "v": "INT", "name": "STRING", "price": "DECIMAL(10,2)", "ok": "BOOLEAN"},
    "final.b": {"id": "INT", "g": "STRING", "w": "BIGINT", "since": "DATE"},
    "final.c": {"k": "INT", "a_id": "INT", "x": "DOUBLE", "moment": "TIMESTAMP_NTZ", "kind": "STRING"},
    "final.d": {"day": "DATE", "g": "STRING", "rate": "DECIMAL(8,3)", "n": "INT"},
}
# As plans of queries read them.
SCHEMAS = {TableId.parse(t): {c: kind.lower() for c, kind in columns.items()} for t, columns in COLUMNS.items()}
PARTITIONS: Mapping[str, Sequence[str]] = {
    "final.a": ["", "b", "bucket(3, id)", "ok"],
    "final.b": ["", "g", "months(since)"],
    "final.c": ["", "kind", "days(moment)", "bucket(2, k)"],
    "final.d": ["", "day", "months(day), g"],
}
KEYS: Mapping[str, str] = {"final.a": "id", "final.b": "id", "final.c": "k", "final.d": "n"}
WIDER: Mapping[str, Sequence[tuple[str, str]]] = {
    "final.a": [("v", "BIGINT"), ("price", "DECIMAL(14,2)")],
    "final.b": [("id", "BIGINT")],
    "final.c": [("a_id", "BIGINT")],
    "final.d": [("rate", "DECIMAL(12,3)"), ("n", "BIGINT")],
}
STRINGS = ["'n'", "'s'", "'x'", "'X'", "''", "'ny'", "'none'"]
DATES = ["2024-01-01", "2024-01-02", "2024-01-31", "2024-02-29", "1999-12-31"]


def create(choose: random.Random) -> list[str]:
    """The statements that make the tables."""
    made: list[str] = []
    for table, columns in COLUMNS.items():
        mode = choose.choice(["merge-on-read", "merge-on-read", "copy-on-write"])
        version = choose.choice(["3", "3", "3", "2"])
        modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        by = choose.choice(PARTITIONS[table])
        body = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        made.append(
            f"CREATE TABLE {table} ({body}) USING iceberg {f'PARTITIONED BY ({by})' if by else ''} "
            f"TBLPROPERTIES ('format-version' = '{version}', 'write.distribution-mode' = 'none', {modes})"
        )
    return made


def fill(choose: random.Random) -> list[str]:
    """The first rows: some, or in few cases none beyond a commit without rows."""
    return [
        insert(choose, table, choose.choice([8, 14, 20])) if choose.random() < 0.9 else nothing(table)
        for table in COLUMNS
    ]


def nothing(table: str) -> str:
    """A commit that adds no rows."""
    return f"INSERT INTO {table} SELECT * FROM {table} WHERE false"


def insert(choose: random.Random, table: str, rows: int, verb: str = "INSERT INTO") -> str:
    """New rows; keys may be there already, and rows may repeat."""
    values = [f"({', '.join(value(choose, c, t) for c, t in COLUMNS[table].items())})" for _ in range(rows)]
    return f"{verb} {table} VALUES {', '.join(values)}"


def value(choose: random.Random, column: str, kind: str) -> str:
    """A literal for a column: of few values, so that rows meet, and often NULL."""
    if choose.random() < 0.12:
        return "NULL"
    match kind:
        case "INT" | "BIGINT":
            low, high = (1, 12) if column in ("id", "k", "a_id") else (-1, 4)
            return str(choose.randint(low, high))
        case "STRING":
            return choose.choice(STRINGS)
        case "BOOLEAN":
            return choose.choice(["true", "false"])
        case "DATE":
            return f"DATE '{choose.choice(DATES)}'"
        case "TIMESTAMP_NTZ":
            return f"TIMESTAMP_NTZ '{choose.choice(DATES)} {choose.choice(['00:00:00', '23:59:59.000001'])}'"
        case "DOUBLE":
            # Sums of them are exact in whatever order.
            return choose.choice([f"CAST({n / 4} AS DOUBLE)" for n in (-6, 0, 1, 2, 32)] + ["CAST('NaN' AS DOUBLE)"])
        case _:
            return choose.choice(["0.00", "1.50", "-2.25", "10.01", "99.99", "1.005"[: 4 if "2)" in kind else 5]])


def change(choose: random.Random, lake: Lake) -> list[str]:
    """What somebody who writes the tables does at once: mostly one statement."""
    table = choose.choice(list(COLUMNS))
    if choose.random() < 0.03:
        column, kind = choose.choice(WIDER[table])
        # A change of the schema alone makes no snapshot: somebody writes afterwards.
        return [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}", nothing(table)]
    columns, key = COLUMNS[table], KEYS[table]
    k = choose.randint(1, 12)
    column = choose.choice(list(columns))
    new = value(choose, column, columns[column])
    where = choose.choice([f"{key} = {k}", f"{key} > {k}", f"{key} <= 3", f"{column} IS NULL", f"{column} <=> {new}"])
    listed = ", ".join(columns)
    made = ", ".join(value(choose, c, t) if c != key else f"s.{key}" for c, t in columns.items())
    statements = {
        insert(choose, table, choose.randint(1, 4)): 4,
        f"INSERT INTO {table} SELECT * FROM {table} WHERE {where}": 1,
        f"DELETE FROM {table} WHERE {where}": 3,
        f"UPDATE {table} SET {column} = {new} WHERE {where}": 3,
        f"UPDATE {table} SET {key} = {key} + 1": 0.5,
        f"UPDATE {table} SET {column} = {column} WHERE true": 0.5,
        f"MERGE INTO {table} t USING (SELECT explode(sequence({k}, {k} + 3)) AS {key}) s ON t.{key} = s.{key} "
        f"WHEN MATCHED AND t.{column} IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET {column} = {new} "
        f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({made})": 3,
        insert(choose, table, choose.randint(1, 6), "INSERT OVERWRITE"): 1,
        f"DELETE FROM {table}": 0.4,
        f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))": 1,
        nothing(table): 0.3,
    }
    past = [s.snapshot_id for s in ancestors(lake.table(table))][1:4]
    if past:
        statements[f"CALL lake.system.rollback_to_snapshot('{table}', {choose.choice(past)})"] = 1
    return choose.choices(list(statements), list(statements.values()))
