"""Random mixtures of micro-batches, damage, backfills, undos and upkeep, with what every table should hold."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.comparison import compare
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import BackfillError, StaleBackfillError
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.verification import verify
from tests.support.damages import Damages, Row
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.streams import heads
from tests.support.upkeep import compact_and_expire

TOTAL = {"name": "agg.total", "sql": "SELECT count(*) AS cities, sum(n) AS n FROM agg.cities"}
STEPS = 12


class History:
    """A pipeline with a final table and models below it, and the backfill that is open, if one is."""

    def __init__(self, lake: Lake, seed: int, **properties: str) -> None:
        self.lake, self.choose = lake, random.Random(seed)
        self.people = People(lake, CITIES, OLDEST, AGES, TOTAL, seed=seed, properties=properties)
        self.damages = Damages(self.people, seed)
        self.open: Backfill | None = None
        self.redone: Mapping[str, Any] = {}
        self.stale = False
        # What was wrong before each published backfill, and how far the log was.
        self.published: list[tuple[str, dict[int, Row | None], int]] = []
        self.log: list[str] = []

    def run(self) -> None:
        outcomes = self.people.run()
        failed = {t: o.error for t, o in outcomes.items() if o.status == "failed"}
        assert not failed, failed
        self.damages.events_absorbed()

    def step(self) -> None:
        """One random step, and what must hold after it."""
        names = [
            "batch",
            "batch",
            "damage",
            "begin",
            "build",
            "publish",
            "publish",
            "discard",
            "undo",
            "upkeep",
            "rollback",
        ]
        name = self.choose.choice(names)
        self.log.append(name)
        getattr(self, name)()
        self.run()
        self.check()

    def batch(self) -> None:
        self.people.land(self.choose.randrange(1, 6))
        if self.choose.random() < 0.3:
            self.people.run("raw.events", "staging.people")

    def damage(self) -> None:
        self.damages.happen()
        self.stale = self.open is not None and any(t.table == "final.people" for t in self.open.record.tables)

    def begin(self) -> None:
        if self.open:
            return
        table = self.choose.choice(["final.people", "final.people", "agg.cities", "agg.oldest"])
        self.redone, selection = {}, Selection()
        if table == "final.people" and self.choose.random() < 0.6:
            ids = self.choose.sample(range(10), 4)
            if self.choose.random() < 0.5:
                file = self.lake.config.home / "keys.jsonl"
                file.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
                selection, self.redone = Selection(keys=file), {"ids": ids}
            else:
                selection, self.redone = Selection(low="1", high="2", by="age"), {"ages": range(1, 3)}
        pipeline, downstream = self.people.feed.pipeline, self.choose.random() < 0.7
        planned = plan(self.lake, pipeline, TableId.parse(table), selection, downstream=downstream, max_rows=3)
        self.log.append(f"{planned.request}")
        self.open, self.stale = Backfill.begin(self.lake, pipeline, planned, publish="manual"), False
        if table != "final.people":
            self.redone = {"ids": []}

    def build(self) -> None:
        if not self.open or self.open.record.state == "ready":
            return
        before = heads(self.lake)
        if self.stale:
            # Copies are made when it is built: what was wrong by then is redone.
            self.stale = False
        self.open.build()
        assert heads(self.lake) == before

    def publish(self) -> None:
        self.build()
        if not self.open:
            return
        made, self.open = self.open, None
        if self.stale:
            with pytest.raises(StaleBackfillError):
                made.publish()
            made.discard()
            return
        wrong, at = dict(self.damages.wrong), len(self.people.log)
        for found in compare(self.lake, made.record, {}):
            assert found.changed == found.inserted + found.updated + found.deleted
        made.publish()
        self.damages.wrong = self.damages.healed(**self.redone)
        self.published.append((made.record.id, wrong, at))

    def discard(self) -> None:
        if not self.open:
            return
        before = heads(self.lake)
        self.open.discard()
        self.open = None
        assert heads(self.lake) == before

    def undo(self) -> None:
        if self.open or not self.published:
            return
        backfill, wrong, at = self.published[-1]
        changed = {e.row["id"] for e in self.people.log[at:]}
        if all(t.after is None for t in Records(self.lake).get(backfill).tables):
            with pytest.raises(BackfillError, match="changed no row"):
                undo(self.lake, self.people.feed.pipeline, backfill)
            self.published.pop()
            return
        made = undo(self.lake, self.people.feed.pipeline, backfill)
        made.build()
        try:
            made.publish()
        except StaleBackfillError:
            made.discard()
            return
        self.published.pop()
        self.damages.wrong = {i: r for i, r in wrong.items() if i not in changed}
        self.log.append(f"undone {backfill}")

    def upkeep(self) -> None:
        compact_and_expire(self.lake, self.choose.choice(["final.people", "agg.cities", "staging.people"]))

    def rollback(self) -> None:
        """Somebody takes back the last commit of an aggregate; the next step absorbs again what it had absorbed."""
        table = self.lake.table("agg.cities")
        current = table.current_snapshot()
        if current is None or table.snapshot_by_id(current.parent_snapshot_id or -1) is None:
            return
        self.people.sql(f"CALL lake.system.rollback_to_snapshot('agg.cities', {current.parent_snapshot_id})")
        # Commits since the working copy was made can be taken back; the one that it was made of cannot.
        copies = self.open.record.tables if self.open else ()
        if any(t.table == "agg.cities" and t.start == current.snapshot_id for t in copies):
            self.stale = True

    def check(self) -> None:
        """The final table has its damage and no other, and the models follow from it."""
        self.damages.check()
        for spec in self.people.feed.pipeline.specs(self.lake):
            if isinstance(spec, ModelSpec):
                found = verify(self.lake, spec)
                assert found.equal, found


def go_through(lake: Lake, seed: int) -> None:
    """Go through a random history, and check every table after each step."""
    history = History(lake, seed, **_layout(seed))
    history.people.land(15)
    history.run()
    try:
        for _ in range(STEPS):
            history.step()
        if history.open:
            history.discard()
    except BaseException:
        print("\n".join(history.log))
        raise
    leave_nothing(lake)


def _layout(seed: int) -> dict[str, str]:
    if seed % 2:
        return {}
    return {f"write.{what}.mode": "copy-on-write" for what in ("merge", "update", "delete")}


def leave_nothing(lake: Lake) -> None:
    """No side catalog and no metadata of working copies is left."""
    assert not any(r.is_open for r in Records(lake).all())
    warehouse = Path(str(lake.config.warehouse).removeprefix("file://"))
    assert not list(warehouse.rglob("backfill-*/*.metadata.json"))
