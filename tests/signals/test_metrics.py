"""Prometheus reads figures of tables, steps and live sources; each step is counted once; dashboards name what exists."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lake_assets import Lake, Pipeline
from lake_assets.errors import AuditFailedError, ConfigError, PipelineError
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import thresholds
from lake_assets.pipeline import PipelineConfig
from lake_assets.service import service_state
from lake_assets.signals.metrics.exporter import registry_of, serve_metrics
from lake_assets.signals.metrics.step_totals import StepTotals, step_totals
from lake_assets.tables.audits.audit_evaluation import Finding
from tests.support.cli import Done, caller
from tests.support.processes import ROOT, free_port
from tests.support.signalled_shop import CITIES, ORDERS, Shop, age, soon

MONITORING = ROOT / "docs" / "monitoring"
_NAME = re.compile(r"lake_assets_\w+")


@pytest.fixture
def shop(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(thresholds, "METRICS_SECONDS", 0.0)
    return Shop(plain_lake, monkeypatch)


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the values by name and values of labels: the table, its pipeline, the others."""
    order = ("table", "pipeline", "status", "change", "state", "consumer")
    return {
        (s.name.removeprefix("lake_assets_"), *(s.labels[n] for n in order if n in s.labels)): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }


def scrape(shop: Shop) -> dict[tuple[str, ...], float]:
    return samples(generate_latest(registry_of(shop.lake, [shop.pipeline])).decode())


def test_tables_are_measured(shop: Shop) -> None:
    shop.step()
    shop.order()
    age(shop.lake.table(ORDERS), 500)
    found = scrape(shop)
    of = ("agg.cities", "shop")
    assert found[("up",)] == 1
    assert found[("table_rows", *of)] == 2
    assert found[("table_pending_snapshots", *of)] == 1
    assert found[("table_pending_rows", *of)] == 2
    assert 500 <= found[("table_lag_seconds", *of)] < 600
    assert found[("table_failed", *of)] == found[("table_held", *of)] == found[("table_inexact_reasons", *of)] == 0
    assert found[("table_upkeep_due_actions", *of)] == 0
    assert time.time() - found[("table_absorbed_timestamp_seconds", *of)] < 60
    assert ("table_lag_target_seconds", *of) not in found
    shop.fail(ValueError("broken"))
    assert scrape(shop)[("table_failed", *of)] == 1
    shop.fail(AuditFailedError("held", findings=(Finding("unique", True, 1, "all"),)))
    assert (scrape(shop)[("table_held", *of)], scrape(shop)[("table_lag_seconds", *of)]) != (0, 0)


def test_what_waits_for_a_consumer_is_measured(shop: Shop) -> None:
    shop.step()
    for name in ("dashboard", "exports"):
        shop.lake.consumers.register("agg.cities", name)
    shop.order()
    shop.step()
    shop.lake.consumers.advance("agg.cities", "exports")
    age(shop.lake.table(CITIES), 500)
    found = scrape(shop)
    assert 500 <= found["consumer_lag_seconds", "agg.cities", "dashboard"] < 600
    assert found["consumer_lag_seconds", "agg.cities", "exports"] == 0


def test_a_tables_target_is_a_metric(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake_assets.health.lake_status.targets_of", lambda *_: {"agg.cities": 900.0})
    shop.step()
    assert scrape(shop)["table_lag_target_seconds", "agg.cities", "shop"] == 900


def test_steps_are_counted_from_the_first_look_on_and_each_once(shop: Shop) -> None:
    of = ("agg.cities", "shop")
    shop.step()
    assert ("steps_total", *of, "absorbed") not in scrape(shop)
    for _ in range(2):
        shop.order()
        shop.step()
    shop.fail(ValueError("broken"))
    shop.fail(AuditFailedError("held", findings=(Finding("unique", True, 1, "all"),)))
    waiting = scrape(shop)
    assert [waiting["steps_total", *of, s] for s in ("absorbed", "failed", "held")] == [2, 1, 1]
    assert waiting["step_changed_rows_total", *of, "inserted"] == 4
    # They move to the table, and other processes look.
    step_journal.flush(shop.lake)
    again = scrape(shop)
    counters = {k: v for k, v in waiting.items() if k[0].endswith("_total")}
    assert {k: again[k] for k in counters} == counters
    shop.order()
    shop.step()
    step_journal.flush(shop.lake)
    last = scrape(shop)
    assert last["steps_total", *of, "absorbed"] == 3
    for name in ("step_duration_seconds_total", "step_cpu_seconds_total", "step_read_bytes_total"):
        assert last[name, *of] > waiting[name, *of]
    assert last["step_last_duration_seconds", *of] > 0
    assert last["step_last_lag_seconds", *of] >= 0


def test_counting_survives_commits_of_others_and_a_long_pause(shop: Shop) -> None:
    def note(n: int) -> None:
        step_journal.note(shop.lake, StepRecord("shop", f"final.t{n}", "absorbed", time.time(), 1.0, 1.0))
        step_journal.flush(shop.lake)

    note(1)
    step_totals(shop.lake)
    for n in (2, 3, 2):
        note(n)
    # Old days are removed, by a commit of upkeep.
    shop.lake.table(step_journal.TABLE).delete(
        "table = 'final.t1'", snapshot_properties={"lake-assets.upkeep": "retention"}
    )
    note(2)
    assert {t: s.absorbed for t, s in step_totals(shop.lake).items()} == {"final.t2": 3, "final.t3": 1}
    # The table is dropped and created again: what is in it then is new.
    shop.lake.catalog.drop_table(step_journal.TABLE.parts)
    note(2)
    assert step_totals(shop.lake)["final.t2"].absorbed == 4
    (shop.lake.config.home / "metrics" / "steps.json").write_text("{")
    assert step_totals(shop.lake) == {}


def test_a_record_whose_file_outlives_its_commit_is_counted_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    step_totals(shop.lake)
    step_journal.note(shop.lake, StepRecord("shop", "final.t", "absorbed", time.time(), 1.0, 1.0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(SystemExit):
            step_journal.flush(shop.lake)
    assert [step_totals(shop.lake)["final.t"].absorbed for _ in range(3)] == [1, 1, 1]
    step_journal.flush(shop.lake)
    assert step_totals(shop.lake)["final.t"].absorbed == 1
    # What no longer waits is not remembered, whatever has become of it.
    assert json.loads((shop.lake.config.home / "metrics" / "steps.json").read_text("utf-8"))["waiting"] == []


def test_the_last_step_is_the_one_that_ended_last() -> None:
    def step(at: float, lag: float) -> StepRecord:
        return StepRecord("p", "t", "absorbed", at, 1.0, 1.0, lag_seconds=lag)

    totals = StepTotals("p").with_step(step(100.0, 5.0)).with_step(step(50.0, 9.0))
    assert (totals.absorbed, totals.last_lag) == (2, 5.0)


def test_live_sources_are_measured(shop: Shop) -> None:
    state = service_state.of_this_process("raw.orders", "x", None)
    service_state.write(
        shop.lake,
        replace(state, state="reading", records_a_second=12.5, measures={"seconds_behind": 3.0}, committed=9.0),
    )
    found = scrape(shop)
    assert found["source_reading", "raw.orders"] == 1
    assert found["source_state", "raw.orders", "reading"] == 1
    assert found["source_state", "raw.orders", "failed"] == 0
    assert found["source_records_per_second", "raw.orders"] == 12.5
    assert found["source_lag_seconds", "raw.orders"] == 3
    service_state.write(shop.lake, replace(state, state="failed", error="no broker"))
    assert scrape(shop)["source_reading", "raw.orders"] == 0


def test_the_exporter_answers_on_loopback_until_it_is_stopped(shop: Shop) -> None:
    shop.step()
    port, stop = free_port(), threading.Event()
    registry = registry_of(shop.lake, [shop.pipeline])
    server = threading.Thread(target=serve_metrics, args=(registry, "127.0.0.1", port, stop))
    server.start()
    try:
        assert soon(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert ("table_rows", "agg.cities", "shop") in samples(answer.read().decode())
        with pytest.raises(ConfigError, match=f"--port {port}"):
            serve_metrics(registry, "127.0.0.1", port, stop)
    finally:
        stop.set()
        server.join()


def test_scrapes_within_seconds_read_the_lake_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "METRICS_SECONDS", 60.0)
    registry = registry_of(shop.lake, [shop.pipeline])
    first = generate_latest(registry)
    shop.step()
    assert generate_latest(registry) == first


def test_a_lake_that_cannot_be_read_is_down(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("postgresql://me:pl4nted@db refuses")

    monkeypatch.setattr("lake_assets.signals.metrics.exporter.lake_status", fail)
    found = scrape(shop)
    assert found[("up",)] == 0
    assert [k for k in found if k[0].startswith("table_")] == []
    assert "pl4nted" not in caplog.text


def test_a_pipeline_that_cannot_be_read_hides_no_table(shop: Shop) -> None:
    class Unreadable(Pipeline):
        def specs(self, *_: Any, **__: Any) -> Any:
            raise PipelineError("two streams declare final.x")

    shop.step()
    other = Unreadable(PipelineConfig.model_validate({"name": "other"}))
    found = samples(generate_latest(registry_of(shop.lake, [other, shop.pipeline])).decode())
    assert (found[("up",)], found["table_rows", "agg.cities", "shop"]) == (1, 2)


def test_a_source_that_is_declared_no_longer_is_not_measured(shop: Shop) -> None:
    state = service_state.of_this_process("raw.orders", "x", None)
    service_state.write(shop.lake, replace(state, state="ended"))
    assert scrape(shop)["source_reading", "raw.orders"] == 0  # nobody knows who declares it
    streams = [{"name": "orders", "format": "debezium", "landing": "landing"}]
    landed = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": streams}))
    found = samples(generate_latest(registry_of(shop.lake, [landed])).decode())
    assert ("source_reading", "raw.orders") not in found


def test_a_file_is_written_whole(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Done]
) -> None:
    from lake_assets.facade import Lake as LakeOfCommands

    monkeypatch.setattr(LakeOfCommands, "load_existing", classmethod(lambda *_: shop.lake))
    monkeypatch.setattr(
        "lake_assets.commands.metrics.known_pipelines", lambda _: ([shop.pipeline], ["x.yaml is wrong"])
    )
    shop.step()
    file = tmp_path / "lake.prom"
    file.write_text("former")
    done = call("metrics", "--file", file)
    assert done.code == 0, done.err
    assert "without declarations: x.yaml is wrong" in done.err
    assert samples(file.read_text())["table_rows", "agg.cities", "shop"] == 2
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".prom"] == ["lake.prom"]
    assert "not both" in call("metrics", "--file", file, "--port", 1).err
    assert "does not exist" in call("metrics", "--file", tmp_path / "none" / "lake.prom").err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return caller(monkeypatch, capsys)


# --- what is shipped beside it ----------------------------------------------------------------------------------


def known(shop: Shop) -> set[str]:
    """Return the names of all samples that there can be."""
    families = list(registry_of(shop.lake, [shop.pipeline]).collect())
    return {f"{f.name}_total" if f.type == "counter" else f.name for f in families}


def queries(value: Any) -> list[str]:
    """Return all queries in a dashboard or in rules."""
    match value:
        case dict():
            own = [value[k] for k in ("expr", "query") if isinstance(value.get(k), str)]
            return [*own, *(q for v in value.values() for q in queries(v))]
        case list():
            return [q for v in value for q in queries(v)]
        case _:
            return []


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yaml"])
def test_what_is_shipped_names_metrics_that_exist(file: str, shop: Shop) -> None:
    text = (MONITORING / file).read_text("utf-8")
    content = json.loads(text) if file.endswith("json") else yaml.safe_load(text)
    named = {name for q in queries(content) for name in _NAME.findall(q)}
    assert len(named) >= 8
    assert named - known(shop) == set()


def test_the_dashboard_shows_each_metric_of_tables_and_steps(shop: Shop) -> None:
    text = (MONITORING / "grafana-dashboard.json").read_text("utf-8")
    left = {n for n in known(shop) if n not in text}
    assert {n.removeprefix("lake_assets_") for n in left} == {
        "scrape_duration_seconds", "table_pending_rows", "table_unreadable", "table_history_lost", "source_state",
        "source_committed_timestamp_seconds", "table_silent", "table_audit_warnings",
        "table_step_running_seconds", "table_step_overlong", "consumer_lag_seconds",
    }  # fmt: skip


def test_the_page_lists_each_metric(shop: Shop) -> None:
    page = (ROOT / "docs" / "signals.md").read_text("utf-8")
    assert {n for n in known(shop) if n.removeprefix("lake_assets_") not in page} == set()
