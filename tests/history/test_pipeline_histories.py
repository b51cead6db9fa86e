"""Histories of rows of a pipeline: random batches of events, against the rows that the tables held after each."""

from __future__ import annotations

import json
import random
import re
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import fold
from lake_assets.history.history_document import HistoryRequest, RowHistory
from lake_assets.history.row_history import row_history
from lake_assets.lake import TableId
from tests.support.cli import Done
from tests.support.debezium import Event
from tests.support.erased_users import CITIES, JOINED, Users
from tests.support.pipeline_files import write_pipeline
from tests.support.pipeline_runs import run
from tests.support.seeds import long_seeds
from tests.support.upkeep import compact, forget_history

IDS, CITY_NAMES = range(1, 6), ("Rome", "Bari", "Pisa")
Rows = dict[Any, dict[str, Any]]


class World:
    """A stream of users and orders that arrives in random batches.

    Attributes:
        delivered: the events of each batch, as they were delivered.
        users, orders: the rows of the final tables after each batch.
        cities: the rows of the model after each batch.
    """

    def __init__(self, lake: Lake, folder: Path, seed: int, *, mode: str = "scd1", writes: str = "merge-on-read"):
        self.lake, self.choose = lake, random.Random(seed)
        self.world = Users(lake, folder, mode=mode, models=[CITIES, JOINED] if mode == "scd1" else [])
        properties = {f"write.{w}.mode": writes for w in ("merge", "update", "delete")}
        tables = [
            {"table": "public.users", "mode": mode, "properties": properties, **_APPENDS.get(mode, {})},
            {"table": "public.orders"},
        ]
        streams = [{"name": "events", "tables": tables}]
        models = [CITIES, JOINED] if mode == "scd1" else []
        self.world.file = write_pipeline(folder / "defs.yaml", {"name": "shop", "streams": streams, "models": models})
        self.mode = mode
        self.there: set[int] = set()
        self.delivered: list[list[Event]] = []
        self.users: list[list[dict[str, Any]]] = []
        self.orders: list[list[dict[str, Any]]] = []
        self.cities: list[list[dict[str, Any]]] = []
        self.late: list[Event] = []
        self.nr = 100

    def batch(self) -> None:
        """Deliver a random batch of events, some of which are late, and remember what the tables hold then."""
        events = [e for _ in range(self.choose.randint(2, 5)) for e in self._events()]
        late, self.late = self.late, []
        if events and self.mode != "append" and self.choose.random() < 0.4:
            self.late = [events.pop(self.choose.randrange(len(events)))]
        self.world.deliver(*late, *events, self._order())
        self.delivered.append([*late, *events])
        self.users.append(self._rows("final.users"))
        self.orders.append(self._rows("final.orders"))
        if self.mode == "scd1":
            self.cities.append(self._rows("agg.cities"))

    def _rows(self, table: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.lake.spark().table(self.lake.sql_name(table)).collect()]

    def _order(self) -> Event:
        self.nr += 1
        return self.world.order(self.nr, self.choose.choice(IDS))

    def _events(self) -> list[Event]:
        key, city = self.choose.choice(IDS), self.choose.choice(CITY_NAMES)
        name = self.choose.choice(["Ada", "it's", "ü😀", None])
        if key not in self.there:
            self.there.add(key)
            return [self._user("c", key, name, city)]
        if self.mode == "append":
            return []
        what, free = self.choose.choice(["u", "u", "d", "move"]), [k for k in IDS if k not in self.there]
        if what == "u":
            return [self._user("u", key, name, city)]
        self.there.remove(key)
        if what == "move" and free:
            self.there.add(free[0])
            return self.world.moved(key, free[0])
        return [self._user("d", key, name, city)]

    def _user(self, op: str, key: int, name: str | None, city: str) -> Event:
        event = self.world.user(op, key, "x", city)
        return Event(event.table, event.op, event.sequence, {**event.row, "name": name})

    def of(self, table: str, **key: Any) -> RowHistory:
        """The history of a row."""
        words = [f"{c}={v}" for c, v in key.items()]
        specs = self.world.pipeline.specs(self.lake, alone=False)
        return row_history(self.lake, specs, HistoryRequest(TableId.parse(table), words))


_APPENDS: Mapping[str, Mapping[str, Any]] = {"append": {"on_change": "ignore"}}


def expected(states: list[list[dict[str, Any]]], **key: Any) -> list[tuple[int, str, Any, Any]]:
    """The versions of a row whose key is unique: the number of the batch, what happened, before and after."""
    found: list[tuple[int, str, Any, Any]] = []
    had = None
    for number, rows in enumerate(states):
        (has,) = [r for r in rows if all(r[c] == v for c, v in key.items())] or [None]
        if had != has:
            found.append((number, "inserted" if had is None else "deleted" if has is None else "updated", had, has))
        had = has
    return found


def events_of(batches: list[list[Event]], key: int) -> list[tuple[str, Any]]:
    words = {"c": "insert", "u": "update", "d": "delete"}
    return [(words[e.op], e.sequence[1]) for b in batches for e in b if e.row["id"] == key]


def check_users(world: World, key: int) -> None:
    found, start = world.of("final.users", id=key), 0
    versions = [(c.what, c.before, c.after) for v in found.versions for c in v.changes]
    wanted = expected(world.users, id=key)
    assert versions == [(what, before, after) for _, what, before, after in wanted]
    for (number, *_), version in zip(wanted, found.versions, strict=True):
        absorbed = [(e.op, int((e.sequence or "").rsplit("/", 2)[-2])) for e in version.events]
        assert absorbed == events_of(world.delivered[start : number + 1], key)
        start = number + 1
        for event in version.events:
            assert event.record is not None
            assert (
                f'"lsn": {_lsn(event.sequence)}' in event.record.text
                or f'"lsn":{_lsn(event.sequence)}' in event.record.text
            )
            assert event.record.snapshot is not None
    assert len(found.without_effect) == len(events_of(world.delivered[start:], key))
    assert found.pending == ()
    check_runs(found)


def check_runs(found: RowHistory) -> None:
    """Each version was made by a step that the journal knows."""
    assert all((v.run, v.host) == ("", socket.gethostname()) for v in found.versions)
    assert not [n for n in found.notes if n.startswith("the run")]


def _lsn(sequence: str | None) -> int:
    return int((sequence or "").rsplit("/", 2)[-2])


def check_cities(world: World, city: str) -> None:
    """The sources of a group are the users that it had, and those of them that changed since the last batch."""
    found, wanted = world.of("agg.cities", city=city), expected(world.cities, city=city)
    assert [(c.what, c.before, c.after) for v in found.versions for c in v.changes] == [w[1:] for w in wanted]
    check_runs(found)
    for (number, *_), version in zip(wanted, found.versions, strict=True):
        [source] = version.sources
        now = {r["id"]: r for r in world.users[number] if r["city"] == city}
        before = {r["id"]: r for r in world.users[number - 1] if r["city"] == city} if number else {}
        assert source.rows == len(now)
        changed = {c.key["id"] for c in source.changed}
        # The first commit computed everything.
        assert changed == {i for i in now.keys() | before.keys() if number and now.get(i) != before.get(i)}
        assert {o.key["id"] for o in source.others} == now.keys() - changed


def check_joined(world: World) -> None:
    """A row of a join has the row of either table with its key."""
    last = {r["id"]: r for r in world.users[-1]}
    order = next((o for o in reversed(world.orders[-1]) if o["user_id"] in last), None)
    if order is None:
        return
    found = world.of("agg.joined", nr=order["nr"])
    if not found.versions:
        return  # the key of the join is not derived: each row stands for itself
    sources = {s.table: [r.key for r in (*s.changed, *s.others)] for s in found.versions[-1].sources}
    assert sources == {"final.orders": [{"nr": order["nr"]}], "final.users": [{"id": order["user_id"]}]}


@pytest.mark.parametrize("writes", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 6)])
def test_versions_have_the_events_and_rows_that_made_them(
    lake: Lake, tmp_path: Path, call_on: Callable[[Lake], Callable[..., Done]], seed: int, writes: str
) -> None:
    world = World(lake, tmp_path, seed, writes=writes)
    for number in range(6 if seed else 3):
        world.batch()
        if number == 1:  # what others rewrite changes no row
            for table in ("final.users", "staging.users", "agg.cities"):
                lake.spark().sql(
                    f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
                )
    for key in IDS:
        check_users(world, key)
    for city in CITY_NAMES:
        check_cities(world, city)
    check_joined(world)
    assert not world.of("final.users", id=99).is_known
    check_printed(world, call_on(lake))

    forget_history(lake, "staging.users")
    for key in IDS:  # which commit absorbed which event is not known any more
        found = world.of("final.users", id=key)
        assert [(c.what, c.before, c.after) for v in found.versions for c in v.changes] == [
            v[1:] for v in expected(world.users, id=key)
        ]
        listed = [e for v in found.versions for e in v.events] + list(found.without_effect)
        assert len(listed) == len(events_of(world.delivered, key))
        assert all("has expired" in n for v in found.versions for n in v.notes)
        assert [bool(v.notes) for v in found.versions] == [
            number < len(world.users) - 1 for number, *_ in expected(world.users, id=key)
        ]

    last = world.users[-1]
    forget_history(lake, "final.users")
    for key in IDS:
        found = world.of("final.users", id=key)
        assert [(c.what, c.after) for v in found.versions for c in v.changes] == [
            ("found", r) for r in last if r["id"] == key
        ]
        assert "have expired" in found.begins
        if found.versions:
            assert len(found.versions[0].events) == len(events_of(world.delivered, key))


@pytest.mark.long
@pytest.mark.parametrize("is_compacted_first", [True, False])
def test_where_the_history_ends_after_another_program_compacted_and_expired_it(
    lake: Lake, tmp_path: Path, call_on: Callable[[Lake], Callable[..., Done]], *, is_compacted_first: bool
) -> None:
    world, call = World(lake, tmp_path, 0), call_on(lake)
    for _ in range(3):
        world.batch()
    for table in ("final.users", "agg.cities", "staging.users"):
        for change in (compact, forget_history) if is_compacted_first else (forget_history, compact):
            change(lake, table)
        kept = world.users[-1]
        for key in IDS:
            found = world.of("final.users", id=key)
            assert "older ones have expired" in found.begins
            assert [(c.what, c.before, c.after) for v in found.versions for c in v.changes] == [
                ("found", None, r) for r in kept if r["id"] == key
            ]
            listed = [(e.op, _lsn(e.sequence)) for v in found.versions for e in v.events]
            assert [e for e in listed if e not in events_of(world.delivered, key)] == []
        done = call("history", "final.users", "--key", f"id={kept[0]['id']}", "--pipeline", world.world.file)
        assert done.code == 0, done.err
        assert "older ones have expired, and earlier versions of the row with them" in " ".join(done.out.split())
    for city in {r["city"] for r in world.cities[-1]}:
        found = world.of("agg.cities", city=city)
        assert "older ones have expired" in found.begins
        assert [c.what for v in found.versions for c in v.changes] == ["found"]


def check_printed(world: World, call: Callable[..., Done]) -> None:
    """Each command that the output names works."""
    key = world.users[-1][0]["id"]
    done = call("history", "final.users", "--key", f"id={key}", "--pipeline", world.world.file, "--raw")
    assert done.code == 0, done.err
    assert '"payload"' in done.out
    [command] = re.findall(r"its events: `lake-assets ([^`]+)`", done.out)
    events = call(*shlex.split(command))
    assert events.code == 0, events.err
    assert f"staging.users, id = {key}" in events.out
    model = call("history", "agg.cities", "--key", "city=Rome", "--pipeline", world.world.file, "--json")
    rows = [r for v in json.loads(model.out)["versions"] for s in v["sources"] for r in (*s["changed"], *s["others"])]
    for command in {r["command"] for r in rows}:
        assert call(*shlex.split(command)[1:]).code == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["scd2", "append"])
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 3)])
def test_all_stored_rows_of_a_key_are_followed(lake: Lake, tmp_path: Path, seed: int, mode: str) -> None:
    world = World(lake, tmp_path, seed, mode=mode)
    for _ in range(4):
        world.batch()
    for key in IDS:
        found, rows = world.of("final.users", id=key), list[dict[str, Any]]()
        for version in found.versions:
            for change in version.changes:
                if change.before is not None:
                    rows.remove(dict(change.before))
                if change.after is not None:
                    rows.append(dict(change.after))
        assert sorted(map(_text, rows)) == sorted(_text(r) for r in world.users[-1] if r["id"] == key)
        if rows:
            assert sum(len(v.events) for v in found.versions) + len(found.without_effect) == len(
                events_of(world.delivered, key)
            )


def _text(row: dict[str, Any]) -> str:
    """A row without its times, which Spark gives without a zone."""
    return repr({c: v for c, v in row.items() if not c.startswith("effective_")})


@pytest.mark.long
def test_what_retention_removed_is_told(lake: Lake, tmp_path: Path) -> None:
    world = World(lake, tmp_path, 0)
    for _ in range(3):
        world.batch()
    [final] = [s for s in world.world.pipeline.specs(lake) if s.table.name == "users" and isinstance(s, FinalSpec)]
    fold(lake, final, datetime.fromtimestamp(time.time() + 60, UTC))
    found = world.of("final.users", id=world.users[-1][0]["id"])
    assert any("`keep_events`" in n for n in found.notes)
    # Older snapshots of staging still have the events.
    assert found.versions[0].events


@pytest.mark.long
def test_an_event_that_is_not_absorbed_yet_is_pending(lake: Lake, tmp_path: Path) -> None:
    world = World(lake, tmp_path, 0)
    world.batch()
    world.world.land(world._user("u", 1, "later", "Rome"))
    run(lake, world.world.pipeline, ["raw.events", "staging.users"])
    found = world.of("final.users", id=1)
    assert [e.op for e in found.pending] == ["update"]
