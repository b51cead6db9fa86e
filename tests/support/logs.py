"""Made-up logs of databases as Debezium's connectors report them, with the rows that they leave as the oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Source = dict[str, Any]


@dataclass
class Log:
    """A log under construction: changes get growing positions, and belong to transactions that commit in some order.

    Attributes:
        connector: the kind of database.
        at: the position of the next entry.
        last_commit: the position of the newest commit.
    """

    connector: str
    at: int = 1000
    last_commit: int = 0
    records: list[tuple[Source, str, int, str | None]] = field(default_factory=list)

    def step(self, choose: random.Random) -> int:
        """Return the position of a new entry."""
        self.at += choose.choice((1, 1, 7, 250, 90_000))
        return self.at


def history(
    connector: str, seed: int, *, table: str = "t", keys: int = 12, transactions: int = 60
) -> tuple[list[Any], dict[int, str]]:
    """Return Debezium's records of random transactions (in the order of the connector), and the rows at the end.

    Transactions overlap: the changes of one that commits later may come first in the log. A key is only in one open
    transaction, as rows are locked. Now and then the connector reads a whole snapshot. Each value occurs once.
    """
    choose, log = random.Random(seed), Log(connector)
    committed: dict[int, str] = {}
    opened: list[tuple[list[tuple[int, int, str, int, str | None]], dict[int, str | None], int]] = []
    records: list[Any] = []
    for n in range(transactions):
        locked = {k for _, changed, _ in opened for k in changed}
        free = [k for k in range(keys) if k not in locked]
        changes: list[tuple[int, int, str, int, str | None]] = []
        state: dict[int, str | None] = {}
        begun = log.step(choose)
        for i in range(choose.randint(1, 5)):
            if not free:
                break
            key = choose.choice(free)
            is_there = state[key] is not None if key in state else key in committed
            op = choose.choice("ud") if is_there else "c"
            value = None if op == "d" else f"v{n}.{i}"
            # Several rows of one statement share a position.
            is_shared = (
                changes and key not in {c[3] for c in changes if c[0] == changes[-1][0]} and choose.random() < 0.5
            )
            is_shared = is_shared and connector in ("mysql", "mariadb")
            at, number = (changes[-1][0], changes[-1][1] + 1) if is_shared else (log.step(choose), 0)
            changes.append((at, number, op, key, value))
            state[key] = value
        opened.append((changes, state, begun))
        while len(opened) > choose.randint(0, 2):
            changes, state, begun = opened.pop(choose.randrange(len(opened)))
            commit = log.step(choose)
            for at, number, op, key, value in changes:
                source = POSITIONS[connector](at, number, commit, log.last_commit, begun)
                records.append(record(connector, source, op, key, value, table))
            committed = {k: v for k, v in {**committed, **state}.items() if v is not None}
            log.last_commit = commit
        if not opened and choose.random() < 0.15:
            source = SNAPSHOTS[connector](log.step(choose), log.last_commit)
            records += [record(connector, source, "r", key, value, table) for key, value in committed.items()]
    for changes, state, begun in opened:
        commit = log.step(choose)
        for at, number, op, key, value in changes:
            source = POSITIONS[connector](at, number, commit, log.last_commit, begun)
            records.append(record(connector, source, op, key, value, table))
        committed = {k: v for k, v in {**committed, **state}.items() if v is not None}
        log.last_commit = commit
    return records, committed


def record(connector: str, source: Source, op: str, key: int, value: str | None, table: str = "t") -> dict[str, Any]:
    """Return an enveloped record about a row of a table of `app`."""
    of_table = {"db": "app", "schema": None if connector in ("mysql", "mariadb") else "app", "table": table}
    after = None if op == "d" else {"id": key, "v": value}
    # A constant time: nothing but the position orders the events.
    source = {"connector": connector, "ts_ms": 1_700_000_000_000, **of_table, **source}
    value_ = {"op": op, "before": {"id": key, "v": None} if op == "d" else None, "after": after, "source": source}
    return {"destination": f"s.app.{table}", "key": {"id": key}, "value": value_}


def flattened(records: list[Any]) -> Iterator[dict[str, Any]]:
    """Return the records as ExtractNewRecordState flattens them, with every field of the position added."""
    for r in records:
        value = r["value"]
        row = value["after"] or value["before"]
        source = {f"__source_{n}": v for n, v in value["source"].items() if n not in ("db", "schema", "table", "ts_ms")}
        added = {"__op": value["op"], "__table": "t", "__db": "app", "__deleted": str(value["op"] == "d").lower()}
        yield {**r, "value": {**row, **added, **source}}


def _binary_log(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    # A transaction is written to the binary log as a whole when it commits.
    place, size = commit * 1_000_000 + at % 1_000_000, 10**12
    return {"file": f"binlog.{999 + place // size:06}", "pos": place % size, "row": number, "gtid": None}


def _hex(n: int, size: int = 8) -> str:
    return f"{n:0{size}x}"


def _sql_server(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    lsn = f"{_hex(at // 256)}:{_hex(at % 256)}:{_hex(number, 4)}"
    return {
        "commit_lsn": f"{_hex(commit // 256)}:{_hex(commit % 256)}:0001",
        "change_lsn": lsn,
        "event_serial_no": 1,
    }


def _db2(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    return {"commit_lsn": f"00000000:{commit:024x}", "change_lsn": f"00000000:{at:024x}"}


def _informix(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    return {"commit_lsn": str(commit), "change_lsn": str(at), "begin_lsn": str(begun)}


def _oracle(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    return {"commit_scn": str(commit), "scn": str(at), "rs_id": f" 0x{at:06x}.{at % 65536:08x}.0010", "ssn": number}


def _postgres(at: int, number: int, commit: int, last: int, begun: int) -> Source:
    return {"lsn": at, "sequence": json.dumps([str(last) if last else None, str(at)], separators=(",", ":"))}


POSITIONS: dict[str, Callable[[int, int, int, int, int], Source]] = {
    "postgresql": _postgres,
    "mysql": _binary_log,
    "mariadb": _binary_log,
    "sqlserver": _sql_server,
    "db2": _db2,
    "informix": _informix,
    "oracle": _oracle,
}
SNAPSHOTS: dict[str, Callable[[int, int], Source]] = {
    "postgresql": lambda at, last: {"lsn": at, "sequence": json.dumps([None, str(at)]), "snapshot": "true"},
    "mysql": lambda at, last: {**_binary_log(0, 0, last + 1, 0, 0), "row": 0, "snapshot": "true"},
    "mariadb": lambda at, last: {**_binary_log(0, 0, last + 1, 0, 0), "row": 0, "snapshot": "true"},
    # The last commit that the snapshot saw.
    "sqlserver": lambda at, last: {"commit_lsn": _sql_server(0, 0, last, 0, 0)["commit_lsn"], "change_lsn": None},
    "db2": lambda at, last: {"commit_lsn": _db2(0, 0, last, 0, 0)["commit_lsn"], "change_lsn": None},
    "informix": lambda at, last: {"commit_lsn": str(last), "change_lsn": None},
    "oracle": lambda at, last: {"scn": str(last), "commit_scn": None, "rs_id": None, "ssn": None},
}
