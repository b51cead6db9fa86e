"""Micro-batches every few seconds with upkeep always at work beside them: none fails, tables stay exact and small."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.upkeep.table_health import TableHealth
from tests.support.soak import Soak

pytestmark = [pytest.mark.system, pytest.mark.long]

SECONDS = 180.0
# A batch begins this often, in seconds.
EVERY = 5.0
# So little that much is due within the time.
COMMITS = 6
POLICY = {"commits": COMMITS, "small_files": "1%", "budget": "100%", "keep": "0s"}
KEPT, EXPIRED = 3, 2
KINDS = {"combine", "expire"}


def test_micro_batches_with_upkeep_beside_them(
    lake: Lake, record_property: Callable[[str, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "UPKEEP_EXPIRED_SNAPSHOTS", EXPIRED)
    monkeypatch.setattr(thresholds, "SNAPSHOTS_KEPT", KEPT)
    soak, seconds, sizes = Soak(lake, POLICY), list[float](), list[dict[TableId, TableHealth]]()
    soak.land(100)
    soak.run()
    began = time.monotonic()
    with soak.upkeep():
        for n in itertools.count(1):
            soak.land()
            seconds.append(soak.run())
            if n % 10 == 0:
                soak.assert_idle()
                sizes.append(soak.health())
            took = time.monotonic() - began
            # On a slow machine it takes longer until something of each kind is due.
            if took > SECONDS and ({a.done.kind for a in soak.attended if a.done} >= KINDS or took > 3 * SECONDS):
                break
            time.sleep(max(0.0, began + n * EVERY - time.monotonic()))
        soak.assert_idle()
    sizes.append(soak.health())
    soak.check()
    done = [a.done for a in soak.attended if a.done]
    assert {d.kind for d in done} >= KINDS
    for table, last in sizes[-1].items():
        # The newest, those of the consumers' tags, and what came since the last action.
        assert last.snapshots <= KEPT + EXPIRED + len(last.holds) + 10, table
        assert last.files <= 2 * max(COMMITS, sizes[0][table].files) + 10, table
        assert last.delete_files <= last.files, table
    median, slow = statistics.median(seconds), sorted(seconds)[int(len(seconds) * 0.95)]
    record_property("summary", f"{len(seconds)} batches, {median:.2f} s, 95 % within {slow:.2f} s; {len(done)} actions")
