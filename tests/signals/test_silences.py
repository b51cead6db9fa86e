"""A source that goes silent is named after the documented time, once begun and once ended: by commands, as cron does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.pipeline.pipelines_of_lake import note_file
from tests.support.cli import Done, caller
from tests.support.http_receiver import Receiver
from tests.support.pipeline_files import write_pipeline
from tests.support.signalled_shop import CITIES, MODEL, ORDERS, Shop, age, signalled

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


@pytest.fixture
def shop(plain_lake: Lake, received: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("ALERTS", received.url)
    made = Shop(signalled(plain_lake, alerts={"webhook": {"env": "ALERTS"}}), monkeypatch)
    made.step()
    note_file(made.lake, "shop", write_pipeline(tmp_path / "shop.yaml", {"name": "shop", "models": [MODEL]}))
    return made


@pytest.fixture
def call(shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.setattr(LakeOfCommands, "load_existing", classmethod(lambda *_: shop.lake))
    return caller(monkeypatch, capsys)


def every(seconds: float, length: float) -> Sequence[float]:
    return [n * seconds for n in range(int(length / seconds) + 1)]


def office_hours(weeks: int) -> Sequence[float]:
    days = [(7 * week + day) * DAY for week in range(weeks) for day in range(5)]
    return [day + at for day in days for at in every(10 * MINUTE, 10 * HOUR)]


# What docs/signals.md says of each rhythm: thrice the usual gap, and at least 15 minutes; on the first day, at least as
# long as the source is known; nights and weekends are usual.
RHYTHMS = {
    "every minute": (every(MINUTE, 2 * DAY), 15 * MINUTE),
    "every half hour": (every(30 * MINUTE, 3 * DAY), 90 * MINUTE),
    "for eight hours": (every(MINUTE, 8 * HOUR), 8 * HOUR),
    "on working days": (office_hours(3), 3 * 62 * HOUR),
}
# Thousands of steps take seconds.
SOME_RHYTHMS = [r if r == "on working days" else pytest.param(r, marks=pytest.mark.long) for r in RHYTHMS]


def has_ended(shop: Shop, moments: Sequence[float], ago: float) -> None:
    """Let the orders have come at some moments, the last of them so many seconds ago."""
    window = {"source": str(ORDERS), "start_snapshot": 1, "end_snapshot": 2, "files": 1, "bytes": 10}
    end, values = time.time() - ago, {"strategy": "keys", "rows_inserted": 5, "sources": [window]}
    for at in moments:
        record = StepRecord("shop", str(CITIES), "absorbed", at - moments[-1] + end, 0.0, 0.0, **values)
        step_journal.note(shop.lake, record)
    step_journal.flush(shop.lake)
    for table in (ORDERS, CITIES):
        age(shop.lake.table(table), ago)


def told(received: Receiver) -> list[tuple[Any, ...]]:
    return [(b["event"], b["kind"], b["table"], round(b["limit"])) for b in received.bodies]


@pytest.mark.parametrize("rhythm", SOME_RHYTHMS)
def test_a_source_is_not_silent_until_the_documented_time_is_over(
    shop: Shop, call: Callable[..., Done], received: Receiver, rhythm: str
) -> None:
    moments, limit = RHYTHMS[rhythm]
    has_ended(shop, moments, limit - MINUTE)
    assert "nothing is wrong" in call("alerts", "--send").out
    assert "has not changed" not in call("status").out
    assert received.bodies == []


@pytest.mark.parametrize("rhythm", SOME_RHYTHMS)
def test_a_silent_source_is_told_once_and_that_it_is_back_once(
    shop: Shop, call: Callable[..., Done], received: Receiver, rhythm: str
) -> None:
    moments, limit = RHYTHMS[rhythm]
    has_ended(shop, moments, limit + MINUTE)
    silent = [("began", "silent", "agg.cities", round(limit))]
    for sent in ("1 message sent", "0 messages sent"):
        done = call("alerts", "--send")
        assert sent in done.err
        assert told(received) == silent
    assert f"{timedelta(seconds=limit + MINUTE).days} d" in done.out or limit < DAY
    assert "its source final.orders has not changed for" in " ".join(call("status").out.split())
    shop.order()
    shop.step()
    for _ in range(2):
        assert "nothing is wrong" in call("alerts", "--send").out
        assert told(received) == [*silent, ("ended", *silent[0][1:])]
    assert "has not changed" not in call("status").out
