"""Rejects are closed and opened again among everything else that happens to a stream: tables equal a full computation.

Micro-batches, replays, rebuilds and a managed backfill beside which a person decides, compaction and expiry of all
tables, a wider type that reads what was rejected, and decisions of two people at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from pyspark.sql import DataFrame

from lake_assets import Lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection as Rows
from lake_assets.health.lake_status import quick_status
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.staging import staging_step
from lake_assets.ingest.staging.closed_rejects import Selection, close, reopen
from lake_assets.lake import LakeBase, TableId
from tests.support.item_events import change
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import long_seeds
from tests.support.upkeep import compact_and_expire

RAW, STAGING, FINAL = (TableId.parse(t) for t in ("raw.events", "staging.items", "final.items"))
LARGE = 3_000_000_000  # no int
ACTIONS = (
    "land", "land", "close", "close", "twice", "reopen", "replay", "rebuild", "rebuild_final", "maintain", "backfill",
    "widen", "close_beside_a_rebuild", "reopen_beside_a_rebuild",
)  # fmt: skip


class History:
    """A stream of items, some of whose numbers are too large for the declared type.

    Attributes:
        records: id and number of each record, by its position.
        closed: the positions of closed records.
    """

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.choose = lake, random.Random(seed)
        self.kind = "int"
        self.records: list[tuple[int, int]] = []
        self.closed: set[int] = set()
        self.log: list[str] = []
        self.stream = Stream(lake, **self.declared)
        self.land()

    @property
    def declared(self) -> dict[str, object]:
        return {
            "format": "simplified",
            "tables": [{"table": ITEMS, "key": "id", "types": {"id": "int", "n": self.kind}}],
        }

    def step(self, name: str) -> None:
        """Do something, and check what must hold then, and after everything that can be read is read."""
        self.log.append(name)
        getattr(self, name)()
        self.check_told()
        self.stream.replay()
        self.stream.run()
        self.check()

    # --- what happens ---

    def land(self) -> None:
        lines: list[str] = []
        for n in range(4):
            number = LARGE + len(self.records) if n == 1 or self.choose.random() < 0.3 else len(self.records)
            self.records.append((self.choose.randrange(4), number))
            id_, position = self.records[-1][0], len(self.records) - 1
            lines.append(change("insert", position + 1, id=id_, n=number if self.kind != "int" else str(number)))
        self.stream.run(*lines)

    def close(self) -> None:
        chosen = self.some(self.listed("open"))
        assert close(self.lake, RAW, _of(chosen), "me", "not missed") == len(chosen)
        self.closed |= {*chosen}

    def twice(self) -> None:
        """Two people decide on the same records."""
        chosen = self.some(self.listed("open"))
        with ThreadPoolExecutor(2) as pool:
            counts = pool.map(lambda who: close(self.lake, RAW, _of(chosen), who, "not missed"), ("me", "you"))
            assert sorted(counts) == [0, len(chosen)]
        assert close(self.lake, RAW, _of(chosen), "me", "again") == 0
        self.closed |= {*chosen}

    def reopen(self) -> None:
        chosen = self.some(sorted(self.closed))
        assert reopen(self.lake, RAW, _of(chosen)) == len(chosen)
        self.closed -= {*chosen}

    def replay(self) -> None:
        self.stream.replay()

    def rebuild(self) -> None:
        self.stream.pipeline.rebuild(self.lake, STAGING)

    def rebuild_final(self) -> None:
        self.stream.pipeline.rebuild(self.lake, FINAL)

    def maintain(self) -> None:
        tables = [t for t in (RAW, rejects.rejected_of(RAW), STAGING, FINAL) if self.lake.exists(t)]
        compact_and_expire(self.lake, *map(str, tables))

    def widen(self) -> None:
        self.kind = "bigint"
        self.stream.declare(**self.declared)
        self.stream.run()

    def backfill(self) -> None:
        """A person decides while a backfill of the rows is open."""
        planned = plan(self.lake, self.stream.pipeline, FINAL, Rows())
        made = Backfill.begin(self.lake, self.stream.pipeline, planned, publish="manual")
        made.build()
        self.close()
        Backfill.load(self.lake, self.stream.pipeline, made.record.id).publish()

    def close_beside_a_rebuild(self) -> None:
        """The records are decided on after a rebuild has looked which are closed, and before it writes."""
        chosen = self.some(self.listed("open"))
        self._beside_a_rebuild(lambda: close(self.lake, RAW, _of(chosen), "me", "not missed"))
        self.closed = {*self.listed("closed")}

    def reopen_beside_a_rebuild(self) -> None:
        chosen = self.some(sorted(self.closed))
        self._beside_a_rebuild(lambda: reopen(self.lake, RAW, _of(chosen)))
        self.closed -= {*chosen}

    def _beside_a_rebuild(self, decide: Callable[[], int]) -> None:
        decided: list[Future[int]] = []
        known = staging_step.without_closed

        def look(lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed) -> Parsed:
            # A decision that does not wait for the rebuild is made here.
            found = known(lake, spec, records, parsed)
            decided.append(pool.submit(decide))
            wait(decided, 10.0)
            return found

        with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging_step, "without_closed", look)
            self.stream.pipeline.rebuild(self.lake, STAGING)
            for done in decided:
                done.result()

    # --- what must hold ---

    def some(self, of: Sequence[int]) -> list[int]:
        return self.choose.sample(of, self.choose.randint(1, len(of))) if of else []

    def listed(self, state: str) -> list[int]:
        name = rejects.rejected_of(RAW)
        if not self.lake.exists(name):
            return []
        rows = self.stream.rows(str(name))
        return sorted(r["position"] for r in rows if (r.get("closed_at") is None) == (state == "open"))

    def check_told(self) -> None:
        """The tables say how many of their records stand rejected."""
        count = len(self.listed("open"))
        told = {t.table: t.not_exact for t in quick_status(self.lake)}
        for table in (str(STAGING), str(FINAL)):
            texts = [t for t in told[table] if "rejected" in t]
            assert len(texts) == bool(count), (table, texts, count, self.log)
            assert not count or texts[0].startswith(f"{count} record"), (table, texts, count, self.log)

    def check(self) -> None:
        self.check_told()
        readable = {p for p, (_, n) in enumerate(self.records) if self.kind != "int" or n < LARGE}
        assert self.listed("closed") == sorted(self.closed), self.log
        assert self.listed("open") == sorted({*range(len(self.records))} - readable - self.closed), self.log
        counted = [(p, *self.records[p]) for p in sorted(readable - self.closed)]
        found = sorted((r["_position"], r["id"], r["n"]) for r in self.stream.rows(str(STAGING)))
        assert found == counted, self.log
        last = {id_: n for _, id_, n in counted}
        assert {r["id"]: r["n"] for r in self.stream.rows(str(FINAL))} == last, self.log

    def check_full(self) -> None:
        """What was computed step by step equals what is computed from everything."""
        self.rebuild()
        self.stream.run()
        self.rebuild_final()
        self.check()


def _of(positions: Sequence[int]) -> Selection:
    """A selection of these records, of none if there are none."""
    return Selection(positions or (10**6,))


@pytest.mark.long
def test_a_decision_beside_a_rebuild_that_can_read_the_record(lake: Lake) -> None:
    history = History(lake, 0)
    history.close()
    history.widen()
    history.reopen()  # it stands rejected until it is replayed, and could be read
    history.step("close_beside_a_rebuild")


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *long_seeds(2, 6)])
def test_tables_equal_a_full_computation_whatever_happens_around_decisions(lake: Lake, seed: int) -> None:
    history = History(lake, seed)
    actions = [*ACTIONS]
    history.choose.shuffle(actions)
    for action in actions:
        history.step(action)
    history.check_full()
