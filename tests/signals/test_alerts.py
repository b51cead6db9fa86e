"""A webhook is told once when something begins to be wrong, and once when it ends, whoever looks, and however often."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import (
    AuditFailedError,
    CatalogUnavailableError,
    ConfigError,
    PipelineError,
    StorageFullError,
    WebhookError,
)
from lake_assets.health.lake_status import lake_status
from lake_assets.ingest.records.reject_reasons import RejectCounts, RejectReason
from lake_assets.ingest.staging import exactness
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.durations import in_words
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from lake_assets.service import service_state
from lake_assets.signals.alerts import alert_conditions, alert_memory
from lake_assets.signals.alerts.alert_conditions import Condition, Found
from lake_assets.signals.alerts.alert_evaluation import evaluate, try_evaluate
from lake_assets.signals.alerts.alert_memory import Memory, after
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.upkeep_policy import DAY
from tests.support.cli import Done, caller
from tests.support.executed_page import blocks
from tests.support.http_receiver import Receiver
from tests.support.processes import ROOT
from tests.support.signalled_shop import CITIES, MODEL, ORDERS, Shop, age, signalled

FIELDS = {
    "schema", "text", "event", "id", "kind", "lake", "host", "home", "pipeline", "table", "consumer", "detail", "value",
    "limit", "began_at", "ended_at", "seconds",
}  # fmt: skip
WARNS = {"name": "cities_have_names", "sql": "SELECT * FROM {table} WHERE city IS NULL", "severity": "warn"}


@pytest.fixture
def shop(plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("ALERTS", f"{received.url}/services/T0/hidden-part")
    return Shop(signalled(plain_lake, alerts={"webhook": {"env": "ALERTS"}, "lag": "10m"}), monkeypatch)


def look(shop: Shop, **declared: str) -> int:
    """Evaluate once; `declared` are settings of the model."""
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [MODEL | declared]}))
    return evaluate(shop.lake, [pipeline if declared else shop.pipeline])


def told(received: Receiver) -> list[tuple[str, str, str]]:
    return [(b["event"], b["kind"], b["table"]) for b in received.bodies]


def test_a_failure_is_told_at_the_end_of_a_run_and_its_end_at_the_end_of_another(
    shop: Shop, received: Receiver
) -> None:
    shop.error = ValueError("no such city\nrow: r0w-value")
    for _ in range(2):
        assert [o.status for o in shop.pipeline.run(shop.lake)] == ["failed"]
    (began,) = received.bodies
    assert began.keys() == FIELDS
    assert (began["schema"], began["event"], began["kind"]) == (1, "began", "failed")
    assert (began["table"], began["pipeline"], began["lake"]) == ("agg.cities", "shop", "lake")
    where = f"(pipeline shop; {socket.gethostname()}:{shop.lake.config.home})"
    assert began["text"] == f"agg.cities failed: ValueError: no such city {where}"
    assert (began["host"], began["home"]) == (socket.gethostname(), str(shop.lake.config.home))
    assert (began["detail"], began["ended_at"], began["seconds"]) == ("ValueError: no such city", None, None)
    assert abs(datetime.fromisoformat(began["began_at"]).timestamp() - time.time()) < 60
    shop.error = None
    shop.pipeline.run(shop.lake)
    shop.pipeline.run(shop.lake)
    _, ended = received.bodies
    assert (ended["event"], ended["id"]) == ("ended", began["id"])
    assert ended["seconds"] >= 0
    assert re.fullmatch(rf"over after \d+ s: {re.escape(began['text'])}", ended["text"])
    assert received.paths == ["/services/T0/hidden-part"] * 2
    assert "r0w-value" not in received.text


def test_a_held_batch_is_another_kind_than_a_failure(shop: Shop, received: Receiver) -> None:
    finding = Finding("unique", True, 2, "all rows", ({"city": "r0w-value"},))
    text = f"agg.cities: 1 of 1 audits do not pass, and the batch is not published:\n- {finding}\nCorrect the source"
    shop.fail(AuditFailedError(text, findings=(finding,)))
    assert look(shop) == 1
    assert told(received) == [("began", "held", "agg.cities")]
    assert "audits do not pass, and the batch is not published: unique" in received.text
    # The next try fails otherwise: one ends, another begins.
    shop.fail(ValueError("broken"))
    look(shop)
    assert sorted(told(received)[1:]) == [("began", "failed", "agg.cities"), ("ended", "held", "agg.cities")]
    assert "r0w-value" not in received.text


def test_a_lag_beyond_the_limit_and_beyond_a_tables_own_target(shop: Shop, received: Receiver) -> None:
    shop.step()
    shop.order()
    age(shop.lake.table(ORDERS), 300)
    assert look(shop) == 0
    age(shop.lake.table(ORDERS), 600)
    assert look(shop) == 1
    (late,) = received.bodies
    assert (late["kind"], late["limit"]) == ("lag", 600)
    assert 900 <= late["value"] < 1_000
    assert "changes of the last 15 min are not in it; at most 10 min are wanted" in late["text"]
    look(shop, target_lag="1h")
    look(shop, target_lag="60s")
    shop.step()
    look(shop, target_lag="60s")
    assert [b["event"] for b in received.bodies] == ["began", "ended", "began", "ended"]
    assert {b["kind"] for b in received.bodies} == {"lag"}
    assert received.bodies[2]["limit"] == 60


def test_a_consumer_that_has_stopped_is_told_once_and_that_it_absorbs_again_once(
    shop: Shop, received: Receiver
) -> None:
    shop.step()
    for name in ("dashboard", "exports"):
        shop.lake.consumers.register("agg.cities", name)
    age(shop.lake.table(CITIES), 100 * DAY)
    # Nothing has changed since: nobody waits, however long ago that was.
    assert look(shop) == 0
    shop.order()
    shop.step()
    shop.lake.consumers.advance("agg.cities", "exports")
    age(shop.lake.table(CITIES), 44 * DAY)
    assert look(shop) == 0
    age(shop.lake.table(CITIES), 2 * DAY)
    assert [look(shop), look(shop)] == [1, 0]
    (began,) = received.bodies
    assert (began["kind"], began["table"], began["consumer"]) == ("consumer", "agg.cities", "dashboard")
    assert (began["pipeline"], began["limit"], began["value"] // DAY) == ("shop", 45 * DAY, 46)
    assert "a consumer has stopped: changes have waited for dashboard for 46 d; at most 45 d are exp" in began["text"]
    assert '`lake.consumers.remove("agg.cities", "dashboard")` ends its claim now' in began["text"]
    # Another one of the same table, by a limit that is declared.
    shop.order()
    shop.step()
    age(shop.lake.table(CITIES), 7_200)
    assert look(shop) == 0
    shop.lake = signalled(shop.lake, alerts={"webhook": {"env": "ALERTS"}, "lag": "10m", "consumer": "1h"})
    assert look(shop) == 1
    assert [received.bodies[-1][n] for n in ("event", "consumer", "limit")] == ["began", "exports", 3_600]
    # Status tells the same, before the claim is in danger.
    (cities,) = (t for t in lake_status(shop.lake, [shop.pipeline]).tables if t.table == "agg.cities")
    assert sorted(c.consumer for c in cities.claims) == ["dashboard", "exports"]
    assert any("have waited for exports for 2 h: it keeps the snapshot" in text for _, text in cities.notes)
    shop.lake.consumers.advance("agg.cities", "dashboard")
    shop.lake.consumers.remove("agg.cities", "exports")
    # A look without the declaration of its pipeline does not know.
    assert evaluate(shop.lake, [], of_all=True) == 0
    assert [look(shop), look(shop)] == [2, 0]
    assert {(b["event"], b["consumer"]) for b in received.bodies[2:]} == {("ended", "dashboard"), ("ended", "exports")}


def test_a_table_that_fails_is_no_consumer_that_has_stopped(shop: Shop, received: Receiver) -> None:
    shop.lake = signalled(shop.lake, alerts={"webhook": {"env": "ALERTS"}, "consumer": "1h"})
    shop.step()
    shop.order()
    age(shop.lake.table(ORDERS), 7_200)
    assert look(shop) == 1
    assert told(received) == [("began", "consumer", "final.orders")]
    assert received.bodies[0]["consumer"] == "agg.cities"
    shop.fail(ValueError("broken"))
    look(shop)
    assert sorted(told(received)[1:]) == [("began", "failed", "agg.cities"), ("ended", "consumer", "final.orders")]


def test_a_table_upstream_that_is_late_makes_those_below_late() -> None:
    from lake_assets.health.lake_status import with_upstream
    from lake_assets.health.table_lag import lag_of
    from lake_assets.health.table_status import TableStatus

    def status(table: str, source: str, behind: int, seconds: float) -> TableStatus:
        return TableStatus(table, "p", 0, {source: 1}, {source: behind}, seconds, None)

    tables = {t.table: t for t in with_upstream([status("a", "src", 1, 70.0), status("b", "a", 0, 0.0)])}
    assert [lag_of(t, tables) for t in tables.values()] == [70.0, 70.0]


def test_files_that_nobody_lands_make_their_table_and_those_below_late() -> None:
    from lake_assets.health.lake_status import with_upstream
    from lake_assets.health.table_lag import lag_of
    from lake_assets.health.table_status import TableStatus
    from lake_assets.ingest.raw.landing_backlog import Backlog

    raw = TableStatus("raw.a", "p", 0, {}, {}, 0.0, None, waiting=Backlog(2, 100, since=time.time() - 90))
    below = TableStatus("staging.a", "p", 0, {"raw.a": 1}, {"raw.a": 0}, 0.0, None)
    tables = {t.table: t for t in with_upstream([raw, below])}
    assert [90 <= lag_of(t, tables) < 100 for t in tables.values()] == [True, True]
    landed = {t.table: t for t in with_upstream([replace(raw, waiting=Backlog()), below])}
    assert [lag_of(t, landed) for t in landed.values()] == [0.0, 0.0]


def test_rejects_above_a_share(shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = TableId.parse("raw.events")
    made = shop.lake
    made.ensure_namespace(raw.namespace)
    schema = made.table(ORDERS).schema()
    made.catalog.create_table(raw.parts, schema, properties={"lake-assets.pipeline": "shop"})
    rejects = RejectCounts(15, reasons=(RejectReason("no such changeType: 'r0w-value'", 15, True),))
    monkeypatch.setattr("lake_assets.health.table_status.reject_counts", lambda *_: rejects)

    def note(table: str, **figures: Any) -> None:
        step_journal.note(made, StepRecord("shop", table, "absorbed", time.time(), 1.0, 1.0, **figures))

    window = [{"source": "raw.events", "start_snapshot": None, "end_snapshot": 1, "files": 1, "bytes": 1}]
    note("raw.events", rows_inserted=1_000, records_rejected=2)
    note("staging.items", rows_inserted=900, records_rejected=8, sources=window)
    assert look(shop) == 0  # 10 of 1,000 are 1 %
    note("staging.others", rows_inserted=50, records_rejected=5, sources=window)
    assert look(shop) == 1
    (found,) = received.bodies
    assert (found["kind"], found["value"], found["limit"]) == ("rejected", 0.015, 0.01)
    assert "15 of 1,000 records of the last day are rejected (1.5%; the limit is 1%)" in found["detail"]
    assert "no such changeType: '…' (15)" in found["detail"]
    # Six of them were closed.
    rejects = RejectCounts(9, closed=6)
    look(shop)
    assert received.bodies[-1]["event"] == "ended"


def test_a_table_that_is_not_exact(shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.step()
    monkeypatch.setattr(
        exactness, "reasons_of", lambda lake, table: ["a default", "a rename"] if table == CITIES else []
    )
    look(shop)
    assert told(received) == [("began", "not_exact", "agg.cities")]
    assert received.bodies[0]["detail"] == "a default (and 1 more)"


def test_a_live_source_that_is_not_read(plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS", received.url)
    lake = signalled(plain_lake, alerts={"webhook": {"env": "ALERTS"}})
    streams = [
        {
            "name": "orders",
            "format": "debezium",
            "source": {"kafka": {"servers": "127.0.0.1:9092", "topics": ["orders"]}},
        }
    ]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": streams}))
    evaluate(lake, [pipeline])
    assert received.bodies[0]["detail"].startswith("its source is not read: no service has read it yet")
    state = service_state.of_this_process("raw.orders", "x", None)
    service_state.write(lake, replace(state, state="reading"))
    evaluate(lake, [pipeline])
    service_state.write(lake, replace(state, state="failed", error="no broker answers"))
    evaluate(lake, [pipeline])
    assert [b["event"] for b in received.bodies] == ["began", "ended", "began"]
    assert received.bodies[-1]["detail"] == "its source is not read: failed: no broker answers"
    # From now on, files bring the records: nobody has to run the service that the state is of.
    lake.ensure_namespace(("raw",))
    lake.catalog.create_table(("raw", "orders"), pa.schema([("a", pa.int64())]), properties={PIPELINE_PROPERTY: "shop"})
    service_state.write(lake, replace(state, state="ended"))
    landed = Pipeline(
        PipelineConfig.model_validate(
            {"name": "shop", "streams": [{"name": "orders", "format": "debezium", "landing": "landing"}]}
        )
    )
    evaluate(lake, [landed])
    assert told(received)[3:] == [("ended", "source", "raw.orders")]


def test_a_source_that_is_dropped_and_a_disk_with_little_room(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.step()
    shop.lake.catalog.drop_table(ORDERS.parts)
    look(shop)
    assert told(received) == [("began", "failed", "agg.cities")]
    assert "final.orders, which was read before, no longer exists" in received.text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=1 << 30))
    for _ in range(2):
        look(shop)
    monkeypatch.undo()
    monkeypatch.setenv("ALERTS", received.url)
    look(shop)
    assert {(b["event"], b["kind"]) for b in received.bodies[1:]} == {("began", "disk"), ("ended", "disk")}


@contextlib.contextmanager
def full_disk() -> Generator[None]:
    """Nothing can be written, and little room is left."""
    opened, made = os.open, Path.mkdir

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, flags, *more, **named)

    def mkdir(path: Path, *more: Any, **named: Any) -> None:
        if not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        made(path, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        patch.setattr(Path, "mkdir", mkdir)
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=0))
        yield


def test_a_full_disk_is_told_although_nothing_can_be_remembered(shop: Shop, received: Receiver) -> None:
    with full_disk():
        for _ in range(2):
            look(shop)
        assert told(received) == [("began", "disk", received.bodies[0]["table"])]
        # Another process does not know of that: telling twice is better than never.
        alert_memory.forget_unwritten()
        look(shop)
        assert [b["kind"] for b in received.bodies] == ["disk", "disk"]
    look(shop)
    look(shop)
    assert [(b["event"], b["id"]) for b in received.bodies[1:]] == [
        ("began", received.bodies[1]["id"]),
        ("ended", received.bodies[1]["id"]),
    ]


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_step_that_fails_on_a_full_disk_is_told_although_its_failure_cannot_be_noted(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch, *, is_readable: bool
) -> None:
    def away(*_: Any) -> None:
        raise CatalogUnavailableError("database or disk is full")

    shop.step()
    with full_disk(), monkeypatch.context() as patch:
        shop.fail(StorageFullError("no room for agg.cities"))
        if not is_readable:
            patch.setattr(alert_conditions, "quick_status", away)
        for _ in range(2):
            with contextlib.suppress(CatalogUnavailableError):
                look(shop)
    assert told(received)[0] == ("began", "failed", "agg.cities")
    assert [b["kind"] for b in received.bodies] == ["failed", "disk"]
    shop.order()
    shop.step()
    look(shop)
    assert {(b["event"], b["kind"]) for b in received.bodies[2:]} == {("ended", "failed"), ("ended", "disk")}


def test_a_full_disk_is_told_although_the_tables_cannot_be_read(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise CatalogUnavailableError("database or disk is full")

    shop.fail(ValueError("broken"))
    look(shop)
    with full_disk(), monkeypatch.context() as patch:
        patch.setattr(alert_conditions, "quick_status", away)
        with pytest.raises(CatalogUnavailableError):
            look(shop)
    # What else stands is not taken to have ended.
    assert [(b["event"], b["kind"]) for b in received.bodies] == [("began", "failed"), ("began", "disk")]


def test_a_step_that_hangs_is_late(shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = signalled(shop.lake, alerts={"webhook": {"env": "ALERTS"}})  # without a limit of its own
    monkeypatch.setattr(thresholds, "OVERLONG_SECONDS", 0.0)
    for n in range(3):
        record = StepRecord("shop", str(CITIES), "absorbed", time.time() - 3_600 + n, 0.001, 0.0, rows_inserted=1)
        step_journal.note(lake, record)
    monkeypatch.setattr(shop, "during", lambda: (time.sleep(0.05), evaluate(lake, [shop.pipeline])))
    shop.step()
    evaluate(lake, [shop.pipeline])
    assert told(received) == [("began", "lag", "agg.cities"), ("ended", "lag", "agg.cities")]
    assert received.bodies[0]["text"].startswith("agg.cities is late: its step has run for 0 s (since ")
    assert received.bodies[0]["limit"] == pytest.approx(0.003)


def test_an_audit_that_warns(shop: Shop, received: Receiver) -> None:
    shop.audits = (Finding("cities_have_names", False, 2, "all rows", ({"city": "r0w-value"},)),)
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [{**MODEL, "audits": [WARNS]}]}))
    for audits in (shop.audits, shop.audits, ()):
        shop.audits = audits
        shop.order()
        shop.step()
        evaluate(shop.lake, [pipeline])
    assert told(received) == [("began", "audit", "agg.cities"), ("ended", "audit", "agg.cities")]
    assert received.bodies[0]["text"].startswith(
        "agg.cities: an audit warns: the audit cities_have_names does not pass"
    )
    assert "r0w-value" not in received.text


def test_a_source_that_is_silent(shop: Shop, received: Receiver) -> None:
    shop.step()
    window = {"source": str(ORDERS), "start_snapshot": 1, "end_snapshot": 2, "files": 1, "bytes": 1}
    for n in range(96):
        at = time.time() - 3 * 86_400 + n * 1_800
        step_journal.note(
            shop.lake, StepRecord("shop", str(CITIES), "absorbed", at, 1.0, 1.0, rows_inserted=1, sources=[window])
        )
    step_journal.flush(shop.lake)
    for table in (ORDERS, CITIES):
        age(shop.lake.table(table), 86_400)
    for _ in range(2):
        look(shop)
    (silent,) = received.bodies
    assert (silent["event"], silent["kind"], silent["table"], round(silent["limit"])) == (
        "began",
        "silent",
        "agg.cities",
        5400,
    )
    shop.order()
    shop.step()
    look(shop)
    assert told(received)[1:] == [("ended", "silent", "agg.cities")]


def test_a_receiver_that_is_away_loses_nothing(
    shop: Shop, received: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    received.status = 500
    shop.fail(ValueError("broken"))
    for _ in range(2):
        with pytest.raises(WebhookError, match="answers 500"):
            look(shop)
    # It ended meanwhile: both are told, in order.
    shop.step()
    try_evaluate(shop.lake, [shop.pipeline])
    assert "alerts are sent again at the next look: the receiver answers 500" in caplog.text
    received.status = 200
    assert look(shop) == 2
    assert look(shop) == 0
    assert [b["event"] for b in received.bodies] == ["began", "ended"]
    assert len({b["id"] for b in received.bodies}) == 1


def test_several_processes_that_look_at_once_tell_each_once(shop: Shop, received: Receiver) -> None:
    shop.fail(ValueError("broken"))
    failures: list[Exception] = []

    def work() -> None:
        lake = Lake(shop.lake.config)
        try:
            for _ in range(3):
                evaluate(lake, [shop.pipeline], wait=10.0)
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert told(received) == [("began", "failed", "agg.cities")]


def test_a_kill_after_a_message_repeats_it_with_its_id(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.fail(ValueError("broken"))
    writes: list[Memory] = []
    remember = alert_memory.write

    def killed(lake: LakeBase, memory: Memory) -> None:
        writes.append(memory)
        if len(writes) == 2:  # after the message
            raise SystemExit
        remember(lake, memory)

    with monkeypatch.context() as patch:
        patch.setattr(alert_memory, "write", killed)
        with pytest.raises(SystemExit):
            look(shop)
    look(shop)
    assert [b["event"] for b in received.bodies] == ["began", "began"]
    assert len({b["id"] for b in received.bodies}) == 1


def test_a_look_too_soon_after_the_last_one_does_nothing(shop: Shop, received: Receiver) -> None:
    look(shop)
    shop.fail(ValueError("broken"))
    assert evaluate(shop.lake, [shop.pipeline], every=3_600) == 0
    assert evaluate(shop.lake, [shop.pipeline], every=0.001) == 1


def test_another_address_gets_nothing(shop: Shop, received: Receiver) -> None:
    shop.fail(ValueError("broken"))
    received.status = 307
    with pytest.raises(WebhookError, match="answers 307"):
        look(shop)
    assert received.bodies == []


def test_what_is_looked_at_by_others_stays() -> None:
    def condition(table: str, kind: Any = "failed", pipeline: str = "p") -> Condition:
        return Condition(kind, table, pipeline, "text")

    memory = after(Memory(), Found([condition("a"), condition("b", pipeline="q"), condition("c", "lag")], None), 1.0)
    found = Found([condition("d")], frozenset({"p"}), frozenset({("lag", "c")}))
    alerts = {a.condition.table: (a.began, a.ended) for a in after(memory, found, 2.0).alerts}
    assert alerts == {"a": (1.0, 2.0), "b": (1.0, None), "c": (1.0, None), "d": (2.0, None)}


def test_an_alert_goes_with_its_table_to_another_pipeline() -> None:
    condition = Condition("failed", "a", "former", "text")
    memory = after(Memory(), Found([condition], None), 1.0)
    nobody = Found([], frozenset({"other"}))
    assert after(memory, nobody, 2.0).alerts[0].ended is None
    declares = Found([], frozenset({"other"}), tables=frozenset({"a"}))
    assert after(memory, declares, 2.0).alerts[0].ended == 2.0
    # It stands, and its end is seen by whoever looks at the other pipeline, once the table is not declared any more.
    seen = after(memory, Found([replace(condition, pipeline="other")], frozenset({"other"})), 2.0)
    assert [a.began for a in seen.alerts] == [1.0]
    assert after(seen, nobody, 3.0).alerts[0].ended == 3.0


def test_a_receiver_that_never_comes_back_fills_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "SIGNAL_EVENTS", 3)
    stands, memory = Condition("lag", "b", "p", "text"), Memory()
    for n in range(10):
        memory = after(memory, Found([stands, Condition("failed", "a", "p", str(n))], None), n)
        memory = after(memory, Found([stands], None), n)
    assert [a.condition.text for a in memory.alerts] == ["text", "7", "8", "9"]


class Unreadable(Pipeline):
    def specs(self, *_: Any, **__: Any) -> Any:
        raise PipelineError("two streams declare final.x")


def test_a_pipeline_that_cannot_be_read_silences_no_other_one_and_ends_nothing_of_its_own(
    shop: Shop, received: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    other = Unreadable(PipelineConfig.model_validate({"name": "other"}))
    shop.fail(ValueError("broken"))
    evaluate(shop.lake, [other, shop.pipeline], of_all=True)
    assert told(received) == [("began", "failed", "agg.cities")]
    assert "pipeline other cannot be read: two streams declare final.x" in caplog.text
    shop.step()
    evaluate(shop.lake, [Unreadable(shop.pipeline.config)])
    assert len(received.bodies) == 1
    look(shop)
    assert told(received)[1:] == [("ended", "failed", "agg.cities")]


def test_the_lag_of_a_table_that_is_declared_no_longer_is_over(shop: Shop, received: Receiver) -> None:
    shop.step()
    shop.order()
    age(shop.lake.table(ORDERS), 900)
    look(shop)
    others = Pipeline(PipelineConfig.model_validate({"name": "others"}))
    evaluate(shop.lake, [others], of_all=True)
    assert told(received) == [("began", "lag", "agg.cities")]
    evaluate(shop.lake, [Pipeline(PipelineConfig.model_validate({"name": "shop"}))])
    assert told(received)[1:] == [("ended", "lag", "agg.cities")]


def test_what_the_journal_tells_stands_while_it_cannot_be_read(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("a file of the journal")

    shop.audits = (Finding("cities_have_names", False, 2, "all rows", ()),)
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [{**MODEL, "audits": [WARNS]}]}))
    shop.step()
    evaluate(shop.lake, [pipeline])
    with monkeypatch.context() as patch:
        patch.setattr(step_journal, "read", gone)
        patch.setattr("lake_assets.journal.step_digests._cache", {})
        evaluate(shop.lake, [pipeline])
    assert told(received) == [("began", "audit", "agg.cities")]


def test_a_broken_memory_is_put_aside(shop: Shop, received: Receiver) -> None:
    shop.fail(ValueError("broken"))
    look(shop)
    file = shop.lake.config.home / "alerts" / "alerts.json"
    file.write_text('{"alerts": [')
    look(shop)
    assert len(received.bodies) == 2
    assert file.with_suffix(".broken").exists()


@pytest.mark.parametrize("address", ["", "ftp://127.0.0.1/x", "file:///etc/passwd", "not an address"])
def test_an_address_has_to_be_one_of_http(shop: Shop, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS", address)
    with pytest.raises(ConfigError, match=r"signals\.alerts\.webhook") as error:
        look(shop)
    assert not address or address not in str(error.value)


def test_an_address_with_a_space_is_an_error_that_does_not_quote_it(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALERTS", f"{received.url}/services/T0 hidden-part")
    shop.fail(ValueError("broken"))
    with pytest.raises(WebhookError, match="the receiver is not reached") as error:
        look(shop)
    assert "hidden-part" not in str(error.value)


def test_a_receiver_that_speaks_another_protocol_is_not_reached(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.fail(ValueError("broken"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("ALERTS", f"http://127.0.0.1:{server.getsockname()[1]}/hook")

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.recv(65_536)

        answering = threading.Thread(target=greet)
        answering.start()
        with pytest.raises(WebhookError, match="the receiver is not reached"):
            look(shop)
        answering.join()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return caller(monkeypatch, capsys)


def test_the_command_prints_what_stands_and_sends_it_if_it_is_told_to(
    shop: Shop, received: Receiver, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lake_assets.facade import Lake as LakeOfCommands

    monkeypatch.setattr(LakeOfCommands, "load_existing", classmethod(lambda *_: shop.lake))
    monkeypatch.setattr("lake_assets.commands.alerts.known_pipelines", lambda _: ([shop.pipeline], []))
    assert call("alerts").out.strip() == "nothing is wrong"
    shop.fail(ValueError("broken"))
    done = call("alerts")
    assert (done.code, received.bodies) == (0, [])
    assert "agg.cities" in done.out and "ValueError: broken" in done.out  # noqa: PT018
    done = call("alerts", "--send")
    assert "1 message sent" in done.err
    assert told(received) == [("began", "failed", "agg.cities")]
    assert '"since": null' not in call("alerts", "--json").out


def test_the_page_describes_each_field_of_a_message() -> None:
    page = (ROOT / "docs" / "signals.md").read_text("utf-8")
    table = page[page.index("| field |") : page.index("```json")]
    described = {n for line in table.strip().splitlines()[2:] for n in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert described == FIELDS
    (example,) = (json.loads(b.text) for b in blocks(page) if b.language == "json" and '"schema"' in b.text)
    assert example.keys() == FIELDS


def test_lengths_of_time() -> None:
    lengths = (0.4, 59, 61, 3_599, 3_600, 12_000, 86_400, 187_500)
    assert [in_words(s) for s in lengths] == ["0 s", "59 s", "1 min", "59 min", "1 h", "3 h 20 min", "1 d", "2 d 4 h"]


def test_the_times_of_messages_have_a_zone(shop: Shop, received: Receiver) -> None:
    shop.fail(ValueError("broken"))
    look(shop)
    assert datetime.fromisoformat(received.bodies[0]["began_at"]).tzinfo == UTC
