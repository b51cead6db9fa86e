"""Histories of batches and kills on a real Dagster: whatever dies, and whenever, all tables equal the oracle at the end.

Daemon, web server and code server are processes of their own. Batches land while runs go on; one of them makes a table
fail until a later one corrects it. Daemon, code server, run workers and Spark's JVMs are killed (SIGKILL) at random
points; what a supervisor starts again is started again. One history a seed: a failure says what was done and names the
seed, and `-k 'history and 17]'` does it once more. Which commits a kill falls between is a matter of the machine's moments;
what is killed after how many steps is not.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.orchestration.runs.run_history import ACTIVE
from tests.support.dagster_services import Service, Services, services
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table, to_lines, write_lines
from tests.support.oracle import Rows, bag, final_rows
from tests.support.pipeline_files import write_pipeline
from tests.support.processes import SMALL_SPARK
from tests.support.seeds import seeds

pytestmark = [pytest.mark.system, pytest.mark.long]

BATCHES = 3
VICTIMS = ("daemon", "code server", "code server and its runs", "run worker", "Spark")
# Far more than it takes: a table whose run was killed waits half a minute and then two for its next attempt.
SETTLED_SECONDS, MOVING_SECONDS = 1200.0, 300.0

USERS = Table({"id": BIGINT, "n": INT, "name": TEXT}, name="public.users")
NOTES = Table({"id": BIGINT, "text": TEXT}, name="public.notes")
CLICKS = Table({"user_id": BIGINT, "url": TEXT}, key=(), name="public.clicks")
QUERY = "SELECT u.n, count(*) AS clicks FROM final.users u JOIN final.clicks c ON c.user_id = u.id GROUP BY u.n"
DECLARED: dict[str, Any] = {
    "name": "made_up",
    "interval": "1s",
    "streams": [
        {
            "name": "events",
            "tables": ["public.users", {"table": "public.notes", "audits": [{"not_null": "text"}]}, "public.clicks"],
        }
    ],
    "models": [{"name": "agg.clicks", "sql": QUERY}],
}
DEFINITIONS = """\
import dagster as dg

from lake_assets import Pipeline
from lake_assets.orchestration import build_definitions

defs = build_definitions(Pipeline.load({path!r}), sensor_status=dg.DefaultSensorStatus.RUNNING)
"""


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        steps: after so many steps that were started since the batch landed.
        delay: and so many seconds.
        pause: seconds until the supervisor starts it again.
    """

    victim: str
    steps: int
    delay: float
    pause: float


@dataclass(frozen=True)
class Plan:
    """What happens in a history: batches, and what is killed after each of them.

    Attributes:
        pauses: seconds between the last kill after a batch and the next batch.
        fails_alone: whether the batch that follows the wrong one waits until the table has failed.
    """

    batches: tuple[tuple[Event, ...], ...]
    kills: tuple[tuple[Kill, ...], ...]
    pauses: tuple[float, ...]
    fails_alone: bool


def plan_of(seed: int) -> Plan:
    """The history of a seed."""
    rng = random.Random(seed)
    kills: list[list[Kill]] = [[] for _ in range(BATCHES)]
    for _ in range(rng.randint(2, 4)):
        kill = Kill(rng.choice(VICTIMS), rng.randint(0, 7), rng.uniform(0, 3), rng.uniform(0, 3))
        rng.choice(kills).append(kill)
    return Plan(
        tuple(_batches(rng)),
        tuple(tuple(sorted(k, key=lambda kill: kill.steps)) for k in kills),
        tuple(rng.uniform(0, 12) for _ in range(BATCHES)),
        rng.random() < 0.5,
    )


def _batches(rng: random.Random) -> Iterator[tuple[Event, ...]]:
    """Batches of changes that a source could have made; the last one corrects what is wrong in the one before it."""
    there: dict[str, set[int]] = {USERS.name: set(), NOTES.name: set()}
    at = 0
    for n in range(BATCHES):
        batch: list[Event] = []
        for table in rng.choices((USERS, USERS, NOTES, CLICKS, CLICKS), k=24):
            key = rng.randint(0, 9)
            if table is CLICKS:
                op, row = "c", {"user_id": key, "url": f"/{rng.randint(0, 2)}"}
            elif key not in there[table.name]:
                op, row = "c", _row(rng, table, key)
                there[table.name].add(key)
            else:
                op, row = ("d", {"id": key}) if rng.random() < 0.3 else ("u", _row(rng, table, key))
                there[table.name] -= {key} if op == "d" else set()
            at += 10
            batch.append(Event(table, op, (at, at), row))  # type: ignore[arg-type]
        if n == BATCHES - 2:
            batch.append(Event(NOTES, "c", (at + 1, at + 1), {"id": 99, "text": None}))
        if n == BATCHES - 1:
            batch.append(Event(NOTES, "u", (at + 1, at + 1), {"id": 99, "text": "corrected"}))
        yield tuple(batch)


def _row(rng: random.Random, table: Table, key: int) -> dict[str, Any]:
    if table is NOTES:
        return {"id": key, "text": f"note {rng.randint(0, 99)}"}
    return {"id": key, "n": rng.randint(0, 3), "name": rng.choice(("a", "b", None))}


@dataclass
class History:
    """A history under way.

    Attributes:
        diary: what was done and when, for who looks at a failure.
    """

    seed: int
    running: Services
    instance: dg.DagsterInstance
    landing: Path
    began: float = field(default_factory=time.monotonic)
    diary: list[str] = field(default_factory=list)
    kills: int = 0

    def say(self, text: str) -> None:
        self.diary.append(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def go(self, plan: Plan) -> None:
        """Do what is planned; afterwards everything that has to be is up."""
        for n, batch in enumerate(plan.batches):
            before, runs = self.steps(), self.instance.get_runs_count()
            write_lines(self.landing / f"{n:04}.jsonl", to_lines(batch))
            self.say(f"batch {n} lands")
            for kill in plan.kills[n]:
                # A run that did not get that far is over: then what is left is killed at rest.
                self.wait(
                    lambda k=kill, b=before, r=runs: (
                        (self.steps() - b >= k.steps and self.is_there(k.victim)) or self.is_over(r)
                    ),
                    MOVING_SECONDS,
                )
                time.sleep(kill.delay)
                self.kill(kill)
            if plan.fails_alone and n == BATCHES - 2:
                self.wait(self.has_failed, MOVING_SECONDS)
            time.sleep(plan.pauses[n])

    def kill(self, kill: Kill) -> None:
        """Kill what is there of the victim, and start it again if it does not come back by itself."""
        services: dict[str, Service] = {"daemon": self.running.daemon, "code server": self.running.code}
        if kill.victim == "code server and its runs":
            runs = len(self.running.workers())
            self.running.kill_code_and_runs()
            self.say(f"killed the code server and {runs} runs")
            service: Service | None = self.running.code
        elif service := services.get(kill.victim):
            service.kill()
            self.say(f"killed the {kill.victim}")
        else:
            there = self.running.workers() if kill.victim == "run worker" else self.running.sparks()
            for process in there:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.say(f"killed {len(there)} x {kill.victim}")
            self.kills += len(there)
        if service:
            self.kills += 1
            time.sleep(kill.pause)
            service.start()

    def is_there(self, victim: str) -> bool:
        """Whether there is something to kill; services always are."""
        there = {"run worker": self.running.workers, "Spark": self.running.sparks}
        return victim not in there or bool(there[victim]())

    def is_over(self, before: int) -> bool:
        """Whether there were more runs than so many, and none is under way."""
        return not self.at_work() and self.instance.get_runs_count() > before

    def steps(self) -> int:
        """How many steps have been started so far."""
        return sum(len(self.events(dg.DagsterEventType.STEP_START, run)) for run in self.instance.get_runs())

    def has_failed(self) -> bool:
        """Whether the wrong batch has made its table fail."""
        events = [e for r in self.instance.get_runs() for e in self.events(dg.DagsterEventType.STEP_FAILURE, r)]
        return any("AuditFailedError" in str(e.dagster_event) for e in events)

    def events(self, kind: dg.DagsterEventType, run: dg.DagsterRun) -> Sequence[dg.EventLogEntry]:
        return self.instance.all_logs(run.run_id, of_type=kind)

    def at_work(self) -> list[dg.DagsterRun]:
        """Runs that are not over."""
        return list(self.instance.get_runs(dg.RunsFilter(statuses=ACTIVE)))

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Whether it is done within so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if done():
                return True
            time.sleep(0.4)
        return False

    def settle(self) -> None:
        """Wait until a tick that began after everything else found nothing to do, and no run is under way."""
        since = time.time()

        def done() -> bool:
            tick = last_tick(self.running)
            return not self.at_work() and tick["timestamp"] > since and "nothing new" in (tick["skipReason"] or "")

        assert self.wait(done, SETTLED_SECONDS), self.told("nothing new was never said")
        self.say("settled")

    def told(self, what: str) -> str:
        """What was found, with all that led there."""
        runs = [
            f"run {r.run_id[:8]} {r.status.value}, tried {r.tags.get('lake_assets/attempt')}: "
            f"{r.tags.get('lake_assets/tables')}"
            for r in reversed(self.instance.get_runs())
        ]
        logs = [f"{s.name}: {line}" for s in self.running.all for line in s.log.read_text().splitlines()[-15:]]
        last = str(last_tick(self.running))
        return "\n".join([f"seed {self.seed}: {what}", *self.diary, *runs, last, *logs])


def last_tick(running: Services) -> dict[str, Any]:
    """The sensor's last tick, as the web server tells it; it may not know the sensor while its code server is away."""
    ticks: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        reply = running.dagster.ask(
            """{sensorOrError(sensorSelector:{repositoryLocationName:"lake_assets", repositoryName:"__repository__",
            sensorName:"made_up_capture_sensor"}){... on Sensor{sensorState{ticks(limit:1){
            timestamp status skipReason error{message}}}}}}"""
        )
        ticks = reply["sensorOrError"].get("sensorState", {}).get("ticks", [])
    return ticks[0] if ticks else {"timestamp": 0.0, "status": "", "skipReason": ""}


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_a_history_of_kills_ends_in_the_tables_that_its_events_lead_to(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    plan, home = plan_of(seed), tmp_path / "lake"
    home.mkdir()
    declaration, definitions = write_pipeline(tmp_path / "defs.yaml", DECLARED), tmp_path / "definitions.py"
    definitions.write_text(DEFINITIONS.format(path=str(declaration)))
    settings = {"LAKE_HOME": str(home), **SMALL_SPARK}
    with (
        services(tmp_path / "dagster", definitions, **settings) as running,
        dg.DagsterInstance.from_config(str(running.home)) as instance,
    ):
        history = History(seed, running, instance, home / "landing" / "events")
        history.go(plan)
        history.settle()
        lake, pipeline = Lake(LakeConfig(home=home)), Pipeline.load(declaration)
        for what in (*differences(lake, plan), *repeated(lake, plan)):
            raise AssertionError(history.told(what))
        assert pipeline.pending(lake) == [], history.told("something is pending that the sensor does not see")
        lake.catalog.close()
        assert history.wait(lambda: not held(instance), 90), history.told(f"pools are held: {held(instance)}")
        assert history.wait(lambda: not running.sparks(), 60), history.told("a JVM that nobody uses stays")
        ended = Counter(r.status.value for r in instance.get_runs())
        record_property("summary", f"{history.kills} kills, runs: {dict(ended)}, {history.diary[-1].strip()}")


def held(instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """By pool, the runs that hold it or wait for it."""
    storage = instance.event_log_storage
    found = {key: storage.get_concurrency_info(key) for key in storage.get_concurrency_keys()}
    return {
        k: sorted(i.active_run_ids | i.pending_run_ids) for k, i in found.items() if i.claimed_slots or i.pending_steps
    }


def differences(lake: Lake, plan: Plan) -> Iterator[str]:
    """Tables that are not what plain Python makes of the events."""
    events = [e for batch in plan.batches for e in batch]
    users, notes, clicks = ([e for e in events if e.table is t] for t in (USERS, NOTES, CLICKS))
    expected: dict[str, tuple[Sequence[str], Rows]] = {
        "final.users": (list(USERS.columns), final_rows(users, list(USERS.columns))),
        "final.notes": (list(NOTES.columns), final_rows(notes, list(NOTES.columns))),
        "final.clicks": (list(CLICKS.columns), Counter((e.row["user_id"], e.row["url"]) for e in clicks)),
    }
    group = {row[0]: row[1] for row in expected["final.users"][1]}
    counted = Counter(group[e.row["user_id"]] for e in clicks if e.row["user_id"] in group)
    expected["agg.clicks"] = ["n", "clicks"], Counter(counted.items())
    for table, (columns, rows) in expected.items():
        found = rows_of(lake, table, columns)
        if found != rows:
            yield f"{table}: missing {dict(rows - found)}, more than there should be {dict(found - rows)}"


def repeated(lake: Lake, plan: Plan) -> Iterator[str]:
    """What was taken in twice, or not at all."""
    lines = {(f"{n:04}.jsonl", i) for n, batch in enumerate(plan.batches) for i in range(1, len(to_lines(batch)) + 1)}
    if rows_of(lake, "raw.events", ["source_file", "source_line"]) != Counter(lines):
        yield "raw.events does not hold each line once"
    for table in (USERS, NOTES, CLICKS):
        name = f"staging.{table.name.removeprefix('public.')}"
        positions = rows_of(lake, name, ["_position"])
        count = sum(e.table is table for batch in plan.batches for e in batch)
        if positions.total() != count or set(positions.values()) != {1}:
            yield f"{name} holds {positions.total()} events, {len(positions)} different ones, instead of {count}"
    for table in ("final.users", "final.notes", "final.clicks", "agg.clicks"):
        if not read_marks(lake.table(table)):
            yield f"{table} has no watermark"


def rows_of(lake: Lake, table: str, columns: Sequence[str]) -> Rows:
    """The rows of a table, read without Spark."""
    found = lake.table(table).scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
    return bag([row[c] for c in columns] for row in found)
