"""A run that was killed is told, until a later step has done its work; without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.health.lake_status import lake_status, quick_status
from lake_assets.health.table_status import TableStatus
from lake_assets.lake.signal_settings import ALERT_KINDS
from lake_assets.report.findings import findings
from lake_assets.runtime.processes import owner
from lake_assets.signals.alerts.alert_conditions import Limits, conditions
from tests.support.cli import caller
from tests.support.kills import Killed
from tests.support.signalled_shop import CITIES, Shop

GONE, ELSEWHERE = owner((2**22 + 1, 1.0)), f"{'0' * 8}_1_1"


@pytest.fixture
def shop(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(plain_lake, monkeypatch)
    made.step()
    return made


def killed(shop: Shop, process: str = GONE, ago: float = 0.0) -> Path:
    """Let a step of another process end as by SIGKILL; return its note."""
    shop.fail(Killed())
    (note,) = (n for n in (shop.lake.config.home / "at-work").iterdir() if n.name.startswith(owner()))
    note = note.rename(note.with_name(f"{process}{note.name.removeprefix(owner())}"))
    os.utime(note, (time.time() - ago,) * 2)
    return note


def cities(shop: Shop) -> TableStatus:
    tables: Sequence[TableStatus] = lake_status(shop.lake, [shop.pipeline]).tables
    return next(t for t in tables if t.table == str(CITIES))


def alerts(shop: Shop) -> list[tuple[str, str]]:
    found = conditions(shop.lake, [shop.pipeline], Limits(None, 0.01, ALERT_KINDS))
    return [(c.kind, c.table) for c in found.conditions]


def test_a_killed_run_is_told_until_a_step_has_done_its_work(shop: Shop) -> None:
    shop.order()
    began = datetime.now(UTC)
    note = killed(shop)
    found = cities(shop)
    assert found.running is None
    assert found.killed is not None
    assert found.killed.text.startswith("a run was killed or interrupted during the step that began at ")
    assert f"{began:%Y-%m-%d %H:}" in found.killed.text
    assert "and the next run does its work again" in found.killed.text
    assert ("red", found.killed.text) in found.notes
    assert ("failing", found.killed.text) in [(f.kind, f.what) for f in findings([found])]
    assert ("failed", str(CITIES)) in alerts(shop)
    shop.step()
    assert note.exists()  # its files have to be looked for in a day
    assert cities(shop).killed is None
    assert alerts(shop) == []


def test_a_killed_run_that_had_nothing_to_do_is_told_until_the_next_one(shop: Shop) -> None:
    note = killed(shop, ago=3_600.0)
    at = note.stat().st_mtime
    assert cities(shop).killed is not None
    shop.step()
    assert cities(shop).killed is None
    assert note.stat().st_mtime == pytest.approx(at, abs=1.0)


def test_a_killed_first_step_is_told_although_its_table_does_not_exist(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    killed(shop)
    (found,) = (t for t in quick_status(shop.lake, shop.pipeline.specs(shop.lake)) if t.table == str(CITIES))
    assert found.killed is not None
    # A later failure says more.
    shop.fail(ValueError("no column city"))
    (found,) = (t for t in quick_status(shop.lake, shop.pipeline.specs(shop.lake)) if t.table == str(CITIES))
    assert found.failure is not None
    assert found.killed is None


def test_a_process_elsewhere_is_never_called_killed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.order()
    note = killed(shop, ELSEWHERE)
    found = cities(shop)
    assert found.killed is None
    assert found.running is not None
    assert found.running.process is None
    monkeypatch.setenv("LAKE_HOME", str(shop.lake.config.home))
    assert ", if it is alive" in " ".join(caller(monkeypatch, capsys)("status").out.split())
    os.utime(note, (time.time() - 90_000,) * 2)
    found = cities(shop)
    assert found.killed is not None
    assert not found.killed.is_known
    assert "has not reported since: whether it was killed is not known here" in found.killed.text
    assert ("yellow", found.killed.text) in found.notes
    assert alerts(shop) == []


def test_a_killed_backfill_is_told_until_it_is_continued_or_discarded(shop: Shop) -> None:
    record = BackfillRecord("b0ff1ce", "shop", "agg.cities: everything", (TableRecord(str(CITIES), "everything"),))
    records = Records(shop.lake)
    records.save(record)
    note = killed(shop)
    note.write_text(json.dumps(json.loads(note.read_text()) | {"catalog": f"{shop.lake.config.name}_{record.id}"}))
    shop.step()  # a step of the table itself does not continue its backfill
    found = cities(shop)
    assert found.killed is not None
    assert found.killed.text.startswith("backfill b0ff1ce was killed or interrupted")
    assert "continue it (`lake-assets resume b0ff1ce`) or discard it" in found.killed.text
    assert ("failed", str(CITIES)) in alerts(shop)
    records.save(replace(record, state="discarded"))
    assert cities(shop).killed is None
    assert alerts(shop) == []
