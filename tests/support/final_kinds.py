"""Kinds of final tables over one source table, histories of that source, and the rows that each kind should hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from lake_assets.final.column_selection import read_columns
from lake_assets.tables.partitioning.partition_fields import PartitionField
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.deferred import Deferred
from tests.support.histories import Batches, Source, redelivered, shuffled, split
from tests.support.oracle import Rows, final_rows, versions

T = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT}, key=("h", "k"))
NAMES = list(T.columns)
START = 1_700_000_000_000

# One column is computed from a column that events may omit, another from two columns.
MADE = ["* EXCEPT (n), k AS id", "upper(name) AS name", "n + length(coalesce(name, '')) AS m", "k % 2 AS odd"]
MADE_NAMES = ["h", "k", "id", "name", "m", "odd"]

OVERWRITE: dict[str, Any] = {"write": "overwrite-partitions"}
SPECS: dict[str, dict[str, Any]] = {
    "hard": {},
    "large": {},
    "soft": {"deletes": "soft"},
    "ignored": {"deletes": "ignore"},
    "versions": {"mode": "scd2"},
    "versions_of_n": {"mode": "scd2", "track": ("n",)},
    "made": {"columns": read_columns(MADE), "partition_by": (PartitionField("m", "truncate", 5),)},
    "made_soft": {"columns": read_columns(MADE), "deletes": "soft"},
    "made_versions": {"columns": read_columns(MADE), "mode": "scd2"},
    "parts": {"partition_by": (PartitionField("n"), PartitionField("h", "bucket", 2)), **OVERWRITE},
    "parts_soft": {"partition_by": (PartitionField("k", "bucket", 2), PartitionField("name")), "deletes": "soft",
                   **OVERWRITE},
    "parts_ignored": {"partition_by": (PartitionField("n", "bucket", 3),), "deletes": "ignore", **OVERWRITE},
    "parts_made": {"columns": read_columns(MADE), "partition_by": (PartitionField("m", "truncate", 5),), **OVERWRITE},
}  # fmt: skip


def value(choose: random.Random, column: str) -> Any:
    return choose.randint(-3, 3) if column == "n" else choose.choice(["", "a", "it's", "\\", "ü😀", "long " * 5])


def computed(row: dict[str, Any]) -> dict[str, Any]:
    n, name = row.get("n"), row.get("name")
    return {
        "h": row["h"], "k": row["k"], "id": row["k"], "name": None if name is None else name.upper(),
        "m": None if n is None else n + len(name or ""), "odd": row["k"] % 2,
    }  # fmt: skip


def expected(kind: str, delivered: list[Event]) -> Rows:
    match kind:
        case "hard" | "large" | "parts":
            return final_rows(delivered, NAMES)
        case "soft" | "parts_soft":
            return final_rows(delivered, [*NAMES, "__deleted"], "soft")
        case "ignored" | "parts_ignored":
            return final_rows(delivered, NAMES, "ignore")
        case "versions":
            return versions(delivered, NAMES)
        case "made" | "parts_made":
            return final_rows(delivered, MADE_NAMES, made=computed)
        case "made_soft":
            return final_rows(delivered, [*MADE_NAMES, "__deleted"], "soft", computed)
        case "made_versions":
            return versions(delivered, MADE_NAMES, made=computed)
        case _:
            return versions(delivered, NAMES, ["n"])


def source(choose: random.Random, **options: Any) -> Source:
    return Source(T, choose, value, frozenset({"name"}), **options)


def keys(h: int) -> list[tuple[Any, ...]]:
    return [(h, k) for k in range(3)]


def unsteady(choose: random.Random) -> Callable[[int], int]:
    """A clock with ties that steps back now and then."""
    return lambda lsn: START + random.Random(lsn).choice([lsn // 40 * 40, lsn // 40 * 40, lsn - 60])


def transactions(choose: random.Random, history: Source, count: int, histories: int = 20) -> list[Event]:
    for _ in range(count):
        history.transaction(keys(choose.randrange(histories)))
    return history.log


def in_order(choose: random.Random) -> Batches:
    return split(choose, transactions(choose, source(choose), 80), 3)


def scattered(choose: random.Random) -> Batches:
    """Late, early and repeated events of a source whose clock steps back."""
    log = transactions(choose, source(choose, clock=unsteady(choose)), 80)
    return redelivered(choose, shuffled(choose, split(choose, log, 3)))


def emptied(choose: random.Random) -> Batches:
    history = source(choose)
    for n in range(1, 40):
        history.transaction(keys(choose.randrange(6)))
        if n % 15 == 0:
            history.truncate()
    return redelivered(choose, shuffled(choose, split(choose, history.log, 3)))


def shifted(choose: random.Random) -> Batches:
    """Keys that rows take over from each other within a transaction; batches cut transactions in two."""
    log: list[Event] = []
    for h in range(12):
        history = Deferred(T, choose, value, {"h": h}, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10)
        for _ in range(8):
            history.transaction()
        log += history.log
    return split(choose, log, 3)


def shifted_and_scattered(choose: random.Random) -> Batches:
    return redelivered(choose, shuffled(choose, shifted(choose)))
