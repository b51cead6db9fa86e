"""Random mixtures of everything that happens to a pipeline in production, with what every table should hold.

Micro-batches, damage, redefined models, runs by an older deployment, changes, new columns, compaction and expiry of a
table that others write, backfills of rows, ranges and whole tables, reviews, publications, discards, undos, rollbacks,
and kills at any point of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.comparison import compare
from lake_assets.backfill.publishing import settle_all
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import BackfillError, StaleBackfillError
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata import watermark
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.verification import verify
from lake_assets.upkeep.attend import attend
from lake_assets.upkeep.upkept_tables import policies
from tests.support.damages import Damages, Row
from tests.support.kills import Killed, Points
from tests.support.people import AGES, CITIES, OLDEST, SPAN, People
from tests.support.streams import heads
from tests.support.upkeep import compact_and_expire, eager

TOTAL = {"name": "agg.total", "sql": "SELECT count(*) AS cities, sum(n) AS n FROM agg.cities"}
PLACES = {
    "name": "agg.places",
    "sql": "SELECT p.id, p.age, s.name FROM final.people p JOIN src.places s ON p.city = s.city",
}
# What nobody can compute again, since rows of people come and go.
LOG = {
    "name": "agg.log",
    "write": "append",
    "sql": "SELECT id, city, age, _change_type FROM {{ feed('final.people', 'id') }}",
}
# What the model of cities is declared to be, at one time or another.
VARIANTS = (CITIES["sql"], "SELECT city, count(*) AS n, max(age) AS oldest FROM final.people GROUP BY city")
STEPS = 12
ACTIONS = (
    "batch", "batch", "damage", "places", "places", "redefine", "old_deployment", "begin", "review", "second", "build",
    "publish", "publish", "discard", "undo", "upkeep", "rollback",
)  # fmt: skip


class History:
    """A pipeline with a final table and models below it, and the backfill that is open, if one is."""

    def __init__(self, lake: Lake, seed: int, points: Points | None = None, **properties: str) -> None:
        self.lake, self.choose, self.points = lake, random.Random(seed), points
        lake.ensure_namespace(("src",))
        lake.spark().sql("CREATE TABLE src.places (city STRING, name STRING) USING iceberg")
        lake.spark().sql("INSERT INTO src.places VALUES ('a', 'A'), ('b', 'B')")
        self.variant, self.columns = 0, 0
        self.properties = properties
        self.people = People(lake, *self._models(0), seed=seed, properties=properties)
        self.damages = Damages(self.people, seed)
        self.open: Backfill | None = None
        # The definition that readers have while another one is reviewed.
        self.reviewed: int | None = None
        self.redone: Mapping[str, Any] = {}
        self.stale, self.may_be_stale = False, False
        # What was wrong before each published backfill, and how far the log was.
        self.published: list[tuple[str, dict[int, Row | None], int]] = []
        self.log: list[str] = []
        self.logged = Counter[tuple[Any, ...]]()

    def _models(self, variant: int) -> list[dict[str, Any]]:
        return [{**CITIES, "sql": VARIANTS[variant]}, OLDEST, AGES, SPAN, TOTAL, PLACES, LOG]

    @property
    def pipeline(self) -> Pipeline:
        return self.people.feed.pipeline

    def run(self) -> None:
        outcomes = self.people.run()
        failed = {t: o.error for t, o in outcomes.items() if o.status == "failed"}
        assert not failed, failed
        self.damages.events_absorbed()

    def step(self, name: str = "") -> None:
        """One step, a random one if it has no name, and what must hold after it."""
        name = name or self.choose.choice(ACTIONS)
        self.log.append(name)
        getattr(self, name)()
        self.run()
        self.check()

    # --- what changes ---

    def batch(self) -> None:
        self.people.land(self.choose.randrange(1, 6))
        if self.choose.random() < 0.3:
            self.people.run("raw.events", "staging.people")

    def damage(self) -> None:
        self.damages.happen()
        self.stale = self.open is not None and any(t.table == "final.people" for t in self.open.record.tables)

    def places(self) -> None:
        """Another program changes its table, and keeps as little of its history as it may."""
        choose = self.choose
        for _ in range(choose.randrange(1, 4)):
            city, name = choose.choice("abc"), choose.choice(["'x'", "'y'", "NULL"])
            names = ", ".join(["city", "name", *(f"c{n}" for n in range(self.columns))])
            values = ", ".join([f"'{city}'", name, *(["1"] * self.columns)])
            self.people.sql(
                choose.choice(
                    [
                        f"INSERT INTO src.places ({names}) VALUES ({values})",
                        f"UPDATE src.places SET name = {name} WHERE city = '{city}'",
                        f"DELETE FROM src.places WHERE city = '{city}' AND name = {name}",
                    ]
                )
            )
        if choose.random() < 0.2:
            self.people.sql(f"ALTER TABLE src.places ADD COLUMN c{self.columns} INT")
            self.columns += 1
        if choose.random() < 0.7:
            compact_and_expire(self.lake, "src.places")

    def redefine(self) -> None:
        """The owner declares the model of cities otherwise; who reviews a definition does not bring a third one."""
        if self.reviewed is None:
            self._declare(1 - self.variant)

    def old_deployment(self) -> None:
        """A process with the other declaration runs once: the table follows whoever ran last, unless one is reviewed."""
        now = self.variant
        self._declare(1 - now)
        self.run()
        self.check()
        self._declare(now)

    def _declare(self, variant: int) -> None:
        self.variant = variant
        self.people.declare(*self._models(variant), properties=self.properties)
        if self.reviewed is None:
            self.may_be_stale = True

    # --- backfills ---

    def begin(self) -> None:
        if self.open:
            return
        table = self.choose.choice(["final.people", "final.people", "agg.cities", "agg.oldest", "agg.spans"])
        selection, self.redone = Selection(), {}
        if table == "final.people" and self.choose.random() < 0.6:
            ids = self.choose.sample(range(10), 4)
            if self.choose.random() < 0.5:
                file = self.lake.config.home / "keys.jsonl"
                file.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
                selection, self.redone = Selection(keys=file), {"ids": ids}
            else:
                selection, self.redone = Selection(low="1", high="2", by="age"), {"ages": range(1, 3)}
        elif table == "agg.spans" and self.choose.random() < 0.7:
            selection = Selection(low="1", high="2", by="age")
        self._begin(table, selection)
        if table != "final.people":
            self.redone = {"ids": []}

    def _begin(self, table: str, selection: Selection) -> None:
        downstream = self.choose.random() < 0.7
        planned = plan(self.lake, self.pipeline, TableId.parse(table), selection, downstream=downstream, max_rows=3)
        self.log.append(f"{planned.request}")
        self.open = Backfill.begin(self.lake, self.pipeline, planned, publish="manual")
        self.stale = self.may_be_stale = False

    def review(self) -> None:
        """The owner brings another definition for review: until it is published, readers keep the one they have."""
        if self.open:
            return
        was = self.variant
        self._declare(1 - was)
        self.redone = {"ids": []}
        self._begin("agg.cities", Selection())
        self.reviewed = was
        self.build()

    def second(self) -> None:
        """Somebody begins another backfill of the same tables, and does what the error advises."""
        if not self.open:
            return
        self.open = self._loaded()
        table = self.open.record.tables[0].table
        with pytest.raises(BackfillError) as caught:
            self._another(table)
        advised = re.findall(rf"`lake-assets (\w+) {self.open.record.id}`", str(caught.value))
        if not advised:
            assert "wait until it has ended" in str(caught.value)
            return
        getattr(self, {"resume": "build"}.get(command := self.choose.choice(advised), command))()

    def _another(self, table: str) -> None:
        planned = plan(self.lake, self.pipeline, TableId.parse(table), Selection())
        Backfill.begin(self.lake, self.pipeline, planned, publish="manual")

    def _loaded(self) -> Backfill:
        assert self.open
        return Backfill.load(self.lake, self.pipeline, self.open.record.id)

    def build(self) -> None:
        if not self.open or self.open.record.state == "ready":
            return
        before = heads(self.lake)
        # Copies are made when it is built: what was wrong by then is redone.
        self.stale = self.may_be_stale = False
        self._insist(lambda made: None if made.record.state == "ready" else made.build())
        assert heads(self.lake) == before

    def publish(self) -> None:
        self.build()
        if not self.open:
            return
        if self.stale:
            with pytest.raises(StaleBackfillError):
                self.open.publish()
            self.discard()
            return
        wrong, at = dict(self.damages.wrong), len(self.people.log)
        for found in compare(self.lake, self.open.record, ()):
            assert found.changed == found.inserted + found.updated + found.deleted
        backfill = self.open.record.id
        try:
            self._insist(lambda made: made.publish(), "published")
        except StaleBackfillError as e:
            if not self.may_be_stale or f"`lake-assets discard {backfill}`" not in str(e):
                raise
            self.discard()
            return
        self.open, self.reviewed = None, None
        self.damages.wrong = self.damages.healed(**self.redone)
        self.published.append((backfill, wrong, at))

    def discard(self) -> None:
        if not self.open:
            return
        before = heads(self.lake)
        self._insist(lambda made: made.discard(), "discarded")
        assert heads(self.lake) == before
        self.open = None
        if self.reviewed is not None:
            was, self.reviewed = self.reviewed, None
            if self.choose.random() < 0.5:
                self._declare(was)

    def undo(self) -> None:
        if self.open or not self.published:
            return
        backfill, wrong, at = self.published[-1]
        changed = {e.row["id"] for e in self.people.log[at:]}
        record = Records(self.lake).get(backfill)
        refusal = "changed no row" if all(t.after is None for t in record.tables) else ""
        if record.redefined:
            refusal = "the declaration of agg.cities changed with it|while agg.cities is declared otherwise"
        if refusal:
            with pytest.raises(BackfillError, match=refusal):
                undo(self.lake, self.pipeline, backfill)
            self.published.pop()
            return
        self.open = undo(self.lake, self.pipeline, backfill)
        try:
            self._insist(lambda made: None if made.record.state == "ready" else made.build())
            self._insist(lambda made: made.publish(), "published")
        except StaleBackfillError:
            self.discard()
            return
        finally:
            self.open = None
        self.published.pop()
        self.damages.wrong = {i: r for i, r in wrong.items() if i not in changed}
        self.log.append(f"undone {backfill}")

    def _insist(self, do: Callable[[Backfill], object], until: str = "") -> None:
        """Do something with the open backfill; if that is killed, micro-batches run, and another process continues."""
        assert self.open
        record, records = self.open.record, Records(self.lake)
        while True:
            try:
                with self._killed_perhaps():
                    do(self.open)
                return
            except Killed as e:
                self.log.append(f"killed at {e}")
            settle_all(self.lake)
            if records.get(record.id).state == until:
                return
            if self.choose.random() < 0.3:
                self.people.run("raw.events", "staging.people")
            self.open = self._loaded()
            if until and self.open.record.state in ("building", "failed") and until != "discarded":
                self.open.build()

    @contextlib.contextmanager
    def _killed_perhaps(self) -> Generator[None]:
        """A context in which the process may end at a random point."""
        points, left = self.points, self.choose.choice([0, 0, 1, 2, 4, 8, 16])
        if points is None or not left:
            yield
            return

        def count(what: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                points.armed = points.ended = True
                raise Killed(what)

        points.hook = count
        try:
            yield
        finally:
            points.hook, points.armed, points.ended = None, False, False

    # --- others ---

    def upkeep(self) -> None:
        """Our own, which may be killed, or that of another program, which knows nothing of us."""
        if self.choose.random() < 0.7:
            wanted = {t: eager(p) for t, p in policies(self.pipeline, self.lake).items()}
            with contextlib.suppress(Killed), self._killed_perhaps():
                attended = attend(self.lake, wanted, is_forced=True)
                assert [a.text for a in attended if a.done and a.done.error] == []
            return
        table = self.choose.choice(["final.people", "agg.cities", "staging.people"])
        if self._keeps_its_watermark(table):
            compact_and_expire(self.lake, table)

    def _keeps_its_watermark(self, table: str) -> bool:
        """Whether main still keeps the snapshot with the watermark after one more commit of somebody else."""
        snapshots = self.lake.table(table).snapshots()[1 - thresholds.SNAPSHOTS_KEPT :]
        return any(watermark.PROPERTY in s.summary.additional_properties for s in snapshots if s.summary)

    def rollback(self) -> None:
        """Somebody takes back the last commit of an aggregate; the next step absorbs again what it had absorbed."""
        name = self.choose.choice(["agg.cities", "agg.oldest"])
        table = self.lake.table(name)
        current = table.current_snapshot()
        if current is None or table.snapshot_by_id(current.parent_snapshot_id or -1) is None:
            return
        self.people.sql(f"CALL lake.system.rollback_to_snapshot('{name}', {current.parent_snapshot_id})")
        # Commits since the working copy was made can be taken back; the one that it was made of cannot.
        copies = self.open.record.tables if self.open else ()
        if any(t.table == name and t.start == current.snapshot_id for t in copies):
            self.stale = True

    def check(self) -> None:
        """The final table has its damage and no other, and each model follows from it by the definition it should have."""
        self.damages.check()
        for spec in self.pipeline.specs(self.lake):
            if isinstance(spec, ModelSpec) and (str(spec.table) != "agg.cities" or self.reviewed is None):
                found = verify(self.lake, spec)
                assert found.equal, found
        self._check_log()
        shown = self.variant if self.reviewed is None else self.reviewed
        expected = Counter(tuple(r) for r in self.lake.spark().sql(VARIANTS[shown]).collect())
        assert self.people.rows("agg.cities") == expected

    def _check_log(self) -> None:
        """What was logged stays, and all changes together give the people that there are."""
        logged, sums = self.people.rows("agg.log"), Counter[tuple[Any, ...]]()
        assert self.logged <= logged
        self.logged = logged
        for (*row, change), times in logged.items():
            sums[tuple(row)] += times if change in ("insert", "update_after") else -times
        assert +sums == self.people.rows("final.people")
        assert -sums == Counter()


def go_through(lake: Lake, seed: int, points: Points | None = None, steps: Sequence[str] = ("",) * STEPS) -> list[str]:
    """Go through a history of random steps, or of steps with names, and check every table after each of them.

    Returns:
        What happened.
    """
    history = History(lake, seed, points, **_layout(seed))
    history.people.land(15)
    history.run()
    try:
        for name in steps:
            history.step(name)
        if history.open:
            history.discard()
        history.run()
        history.check()
    except BaseException:
        print("\n".join(history.log))
        raise
    leave_nothing(lake)
    return history.log


def _layout(seed: int) -> dict[str, str]:
    if seed % 2:
        return {}
    return {f"write.{what}.mode": "copy-on-write" for what in ("merge", "update", "delete")}


def leave_nothing(lake: Lake) -> None:
    """No side catalog, no metadata of working copies and no tag of an open backfill is left."""
    assert not any(r.is_open for r in Records(lake).all())
    warehouse = Path(str(lake.config.warehouse).removeprefix("file://"))
    assert not list(warehouse.rglob("backfill-*/*.metadata.json"))
