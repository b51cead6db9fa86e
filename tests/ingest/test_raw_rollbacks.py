"""Raw is rolled back, and lands the same records again, or others in their places: staging has what raw has."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.health.table_status import table_status
from lake_assets.lake import TableId
from lake_assets.tables.outcome import Outcome
from tests.support.item_events import TYPED, change
from tests.support.item_stream import Stream
from tests.support.seeds import long_seeds
from tests.support.upkeep import expire

RAW, STAGING = "raw.events", "staging.items"


class Landings(Stream):
    """A stream whose files can be taken away and replaced after they landed."""

    def __init__(self, lake: Lake, **stream: Any) -> None:
        super().__init__(lake, **TYPED, **stream)
        self.at = 0

    def file(self, name: str, records: int = 1) -> None:
        """Put a file of new keys into the landing folder."""
        lines: list[str] = []
        for _ in range(records):
            self.at += 1
            lines.append(change("insert", self.at, id=self.at, n=self.at))
        (self.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def gone(self, name: str) -> None:
        (self.folder / f"{name}.jsonl").unlink()

    def only(self, table: str) -> Outcome:
        (outcome,) = self.pipeline.run(self.lake, [table])
        assert outcome.exception is None
        return outcome

    def roll_back(self, snapshot: int) -> None:
        self.lake.spark().sql(f"CALL lake.system.set_current_snapshot('{RAW}', {snapshot})")

    @property
    def head(self) -> int:
        snapshot = self.lake.table(RAW).current_snapshot()
        assert snapshot
        return snapshot.snapshot_id

    @property
    def landed(self) -> list[tuple[int, int]]:
        """Position and key of the records in raw."""
        return sorted((r["position"], json.loads(r["record"])["columnValues"][0]) for r in self.rows(RAW))

    @property
    def staged(self) -> list[tuple[int, int]]:
        return sorted((r["_position"], r["id"]) for r in self.rows(STAGING))

    @property
    def final(self) -> list[int]:
        return sorted(r["id"] for r in self.rows("final.items"))

    def check(self) -> None:
        assert self.staged == self.landed
        assert self.final == sorted(key for _, key in self.landed)


@pytest.fixture
def landings(lake: Lake) -> Landings:
    """Landed: file a, then file c; raw is rolled back to file a."""
    landings = Landings(lake)
    landings.file("a", 2)
    landings.run()
    first = landings.head
    landings.file("c", 2)
    landings.run()
    landings.roll_back(first)
    return landings


@pytest.mark.long
def test_records_that_land_again_after_a_step_of_staging_are_not_absorbed_twice(landings: Landings) -> None:
    waiting = landings.only(STAGING)
    assert waiting.status == "waiting"
    assert "2 records that staging.items may have absorbed have not landed again" in waiting.why
    status = table_status(landings.lake, TableId.parse(STAGING))
    assert (status.is_behind, status.lost) == (True, [waiting.why])
    assert STAGING not in {p.table for p in landings.pipeline.pending(landings.lake)}
    outcome = landings.run()[STAGING]
    assert (outcome.status, outcome.strategy) == ("absorbed", "append")
    landings.check()
    assert landings.run()[STAGING].status == "nothing"


def test_other_records_in_the_places_of_undone_ones_are_absorbed(landings: Landings) -> None:
    landings.gone("c")
    landings.file("d", 2)
    outcome = landings.run()[STAGING]
    assert outcome.strategy == "rebuild"
    assert outcome.why.startswith("raw.events was rolled back, and 2 records have not landed again in their places")
    landings.check()


@pytest.mark.long  # as the one above
def test_a_file_that_lands_before_the_undone_ones_shifts_them(landings: Landings) -> None:
    landings.file("b")
    landings.run()
    landings.check()
    landings.file("d")
    assert landings.run()[STAGING].strategy == "append"
    landings.check()


def test_fewer_records_than_before_are_waited_for_and_the_advice_helps(landings: Landings) -> None:
    landings.gone("c")
    landings.file("d")
    before = landings.staged
    waiting = landings.run()[STAGING]
    assert waiting.status == "waiting"
    assert landings.staged == before
    landings.lake.spark().sql(f"DROP TABLE {landings.lake.sql_name(STAGING)}")
    landings.pipeline.run(landings.lake)
    landings.pipeline.rebuild(landings.lake, "final.items")
    landings.check()


@pytest.mark.long
@pytest.mark.parametrize("replaced", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_time_of_landing_tells_records_apart_after_the_undone_snapshot_has_expired(
    landings: Landings, *, replaced: bool
) -> None:
    expire(landings.lake, RAW)
    assert landings.only(STAGING).status == "waiting"
    if replaced:
        landings.gone("c")
        landings.file("d", 3)
    landings.run()
    landings.check()
    assert landings.run()[STAGING].status == "nothing"


# --- random histories -------------------------------------------------------------------------------------------


def lands(landings: Landings, choose: random.Random) -> None:
    """A file that sorts anywhere among the others."""
    landings.file(f"{choose.randrange(100):02}-{landings.at}", choose.randint(1, 3))


def replaces(landings: Landings, choose: random.Random) -> None:
    """A file that is not in raw goes, or has another content."""
    raw = {r["source_file"] for r in landings.rows(RAW)}
    undone = sorted(f.stem for f in landings.folder.glob("*.jsonl") if f.name not in raw)
    for name in undone[:1]:
        landings.gone(name)
        if choose.random() < 0.7:
            landings.file(name, choose.randint(1, 4))


def rolls_back(landings: Landings, choose: random.Random) -> None:
    landings.roll_back(choose.choice([s.snapshot_id for s in landings.lake.table(RAW).snapshots()]))


def expires(landings: Landings, choose: random.Random) -> None:
    expire(landings.lake, RAW)


def stages(landings: Landings, choose: random.Random) -> None:
    landings.only(STAGING)


def only_lands(landings: Landings, choose: random.Random) -> None:
    landings.only(RAW)


STEPS: tuple[Callable[[Landings, random.Random], None], ...] = (
    lands, lands, replaces, rolls_back, rolls_back, expires, stages, only_lands,
)  # fmt: skip


@pytest.mark.parametrize("seed", long_seeds(0, 6))
def test_a_random_history_of_rollbacks_ends_with_the_records_of_raw(lake: Lake, seed: int) -> None:
    choose = random.Random(seed)
    landings = Landings(lake, **({"max_files": 1} if seed % 2 else {}))
    lands(landings, choose)
    landings.run()
    for _ in range(12):
        choose.choice(STEPS)(landings, choose)
        if choose.random() < 0.4:
            outcome = landings.run()[STAGING]
            if outcome.status != "waiting":
                landings.check()
    # With more records than ever before, nothing is waited for.
    landings.file("zz", 40)
    landings.run()
    landings.check()
