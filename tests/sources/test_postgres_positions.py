"""Reading goes on at the record behind the last landed one, wherever commits cut the log."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from lake_assets.sources import postgres_positions
from lake_assets.sources.postgres_positions import LogPositions


@dataclass(frozen=True)
class Event:
    """A record as Debezium hands it over."""

    number: int
    position: dict[str, Any]
    is_change: bool = True


@pytest.fixture(autouse=True)
def events_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_positions, "position_of", lambda event: event.position)
    monkeypatch.setattr(postgres_positions, "_is_change", lambda event: event.is_change)


def log(choose: random.Random) -> list[Event]:
    """Return changes, some of which share a position, and signs of life between them."""
    events: list[Event] = []
    lsn, commit = 100, None
    for _ in range(12):
        for _ in range(choose.randint(1, 3)):
            lsn += 10
            for _ in range(choose.choice([1, 1, 2, 7])):
                events.append(Event(len(events), {"lsn": lsn, "lsn_commit": commit}))
                if choose.random() < 0.1:
                    events.append(Event(len(events), {"lsn": lsn, "lsn_commit": commit}, is_change=False))
        lsn += 10
        commit = lsn
        if choose.random() < 0.5:
            events.append(Event(len(events), {"lsn": lsn, "lsn_commit": commit}, is_change=False))
    return events


def resumed(events: list[Event], position: dict[str, Any]) -> list[Event]:
    """Return what Debezium reads from a position on: what follows all records of this position."""
    return [e for e in events if e.position["lsn"] > position["lsn"]]


@pytest.mark.parametrize("seed", range(40))
def test_each_change_lands_once_wherever_the_service_is_killed(seed: int) -> None:
    choose = random.Random(seed)
    events = log(choose)
    landed: list[int] = []
    committed: Any = {"offsets": [[{}, {"lsn": 100}]]}
    while True:
        positions = LogPositions(json.loads(json.dumps(committed)))
        rest = resumed(events, positions.before)
        cuts = sorted({0, len(rest), *(choose.randint(0, len(rest)) for _ in range(choose.randint(0, 12)))})
        kill = choose.random() < 0.8
        for first, last in pairwise(cuts[: choose.randint(1, len(cuts))] if kill else cuts):
            batch = rest[first:last]
            changes = [e.number for e in batch if not positions.has_landed(e) and e.is_change]
            if not changes and choose.random() < 0.5:
                positions.pass_by(batch[-1])
                continue
            committed = {"offsets": [[{}, positions.follow(batch)]], **positions.committed}
            landed += changes
        if not kill:
            break
    assert landed == [e.number for e in events if e.is_change]


def test_the_first_transaction_after_a_snapshot_is_newer_than_its_rows() -> None:
    def record(op: str, sequence: str, snapshot: str | None = None) -> bytes:
        payload = {"after": {"sequence": "[null,"}, "source": {"sequence": sequence, "snapshot": snapshot}, "op": op}
        return json.dumps({"value": {"payload": payload}}, separators=(",", ":")).encode()

    def sequence(text: bytes) -> str:
        return json.loads(text)["value"]["payload"]["source"]["sequence"]

    read, change = Event(0, {"lsn": 500, "snapshot": "INITIAL"}), Event(1, {"lsn": 430})
    positions = LogPositions(None)
    assert sequence(positions.ordered(record("r", '[null,"500"]', "last"), read, None)) == '[null,"500"]'
    assert sequence(positions.ordered(record("u", '[null,"430"]'), change, read)) == '["500","430"]'
    at = {"offsets": [[{}, positions.follow([read, change])]], **positions.committed}
    assert at["floor"] == 500
    # After the next start, until a commit is known.
    again = LogPositions(at)
    later, known = Event(2, {"lsn": 440}), Event(3, {"lsn": 620, "lsn_commit": 610})
    assert sequence(again.ordered(record("d", '[null,"440"]'), later, None)) == '["500","440"]'
    assert sequence(again.ordered(record("u", '["610","620"]'), known, later)) == '["610","620"]'
    again.follow([later, known])
    again.follow([Event(4, {"lsn": 630, "lsn_commit": 610})])
    assert again.floor is None
