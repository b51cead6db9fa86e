"""Random histories of consumers that sleep, die, are dropped and come back, under clocks that go wrong and owners that
expire snapshots: no living consumer loses its claim, none without notice, and the dead ones do."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.tables.upkeep_policy import DAY
from tests.support.claims import SOURCE, Claims
from tests.support.seeds import long_seeds

CONSUMERS = ("final.a", "final.b", "agg.c")
# Upkeep looks once a day.
LOOK = DAY


class History:
    """A random history; what it knows of each consumer comes from what was done, not from metadata.

    Attributes:
        waits: since when a change waits for a consumer; missing: none does.
        gone: since when a consumer does not exist.
        told: since when people know that a consumer loses its claim, as upkeep reported it.
        lost: consumers that have lost their claims.
    """

    def __init__(self, world: Claims, seed: int) -> None:
        self.world, self.choose = world, random.Random(seed)
        self.waits: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self.told: dict[str, float] = {}
        self.lost = set[str]()
        for consumer in CONSUMERS:
            world.absorb(consumer)
        head = world.lake.table(SOURCE).metadata.current_snapshot_id
        assert head is not None
        refs.set_tag(world.lake.table(SOURCE), "mine", head, 36500)

    def change(self) -> None:
        self.world.change()
        for consumer in CONSUMERS:
            self.waits.setdefault(consumer, self.world.now)

    def absorb(self) -> None:
        """A consumer goes on; one that is killed before it moves its tag has gone on as well."""
        consumer = self.choose.choice(CONSUMERS)
        kills = self.choose.random() < 0.2 and consumer not in self.gone
        self.world.absorb(consumer, tags=not kills)
        for known in (self.waits, self.gone, self.told):
            known.pop(consumer, None)
        self.lost.discard(consumer)

    def drop(self) -> None:
        consumer = self.choose.choice(CONSUMERS)
        if consumer not in self.gone:
            self.world.drop(consumer)
            self.gone[consumer] = self.world.now
            self.told.pop(consumer, None)

    def sleep(self) -> None:
        """Days pass, with or without upkeep, and sometimes a month."""
        if self.choose.random() < 0.3:
            self.world.now += 31 * DAY
        for _ in range(self.choose.choice([1, 3, 8])):
            self.world.now += DAY
            self.upkeep()

    def wrong_clock(self) -> None:
        """The clock is wrong for a while, during which upkeep looks and a change may come."""
        by = self.choose.choice([-400, -40, -1]) * DAY
        at = self.world.now
        self.world.now += by
        if self.choose.random() < 0.5:
            if by < 0 and self.choose.random() < 0.5:
                self.world.change()
                for consumer in CONSUMERS:
                    self.waits.setdefault(consumer, at)
            self.upkeep(is_right=False)
        self.world.now = at

    def expire(self) -> None:
        """The owner's engine expires all snapshots that it may."""
        self.world.expire()

    def upkeep(self, *, is_right: bool = True) -> None:
        before, policy = self.world.tags, self.world.policy
        told = {c.consumer for a in self.world.upkeep() for c in a.action.claims}
        removed = before - self.world.tags
        assert removed <= told
        for consumer in removed:
            dead = self.world.now - self.waits.get(consumer, self.world.now) >= policy.dead_after - 1  # type: ignore[operator]
            assert is_right, consumer
            assert dead or consumer in self.gone, f"{consumer} lives, and has lost its claim"
            notice = self.world.now - self.told[consumer]
            assert notice >= thresholds.CLAIM_NOTICE_SECONDS - 1, f"{consumer} had {notice / DAY} days of notice"
        self.lost |= removed
        for consumer in told - removed:
            # A warning of a wrong clock counts as none.
            if is_right:
                self.told.setdefault(consumer, self.world.now)

    def check(self) -> None:
        """After some days of upkeep, those that are dead have lost their claims, and no one else has."""
        for _ in range(12):
            self.world.now += LOOK
            self.upkeep()
        policy, source = self.world.policy, self.world.lake.table(SOURCE)
        assert "mine" in source.metadata.refs
        for consumer in CONSUMERS:
            waited = self.world.now - self.waits.get(consumer, self.world.now)
            is_dead = waited >= policy.dead_after + 12 * DAY  # type: ignore[operator]
            gone_for = self.world.now - self.gone.get(consumer, self.world.now)
            if gone_for >= 12 * DAY or (is_dead and consumer not in self.gone):
                assert consumer not in self.world.tags, f"{consumer} is dead, and has kept its claim"
            elif consumer not in self.lost:
                mark = read_marks(self.world.lake.table(TableId.parse(consumer))).get(str(SOURCE))
                assert mark is not None
                assert source.snapshot_by_id(mark.snapshot or 0) is not None, f"{consumer} lives, and cannot go on"


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 40)])
def test_the_living_keep_their_claims_and_the_dead_lose_them(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    history = History(Claims(plain_lake, monkeypatch), seed)
    acts = [history.change, history.absorb, history.sleep, history.drop, history.wrong_clock, history.expire]
    for _ in range(18 if seed == 0 else 40):
        history.choose.choices(acts, [4, 5, 5, 1, 2, 1])[0]()
    history.check()
