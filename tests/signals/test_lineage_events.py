"""Each step is told to a receiver of OpenLineage: what it reads, writes and checks, and how it ends; and no step waits."""

from __future__ import annotations

import json
import logging
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.facet_v2 import input_statistics_input_dataset

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.errors import AuditFailedError, CatalogUnavailableError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.journal import step_journal
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.lake.metadata.row_counts import number, summary_of
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.observed_steps import ObservedStep, StepEnd
from lake_assets.signals import observers_of
from lake_assets.signals.lineage.dataset_names import DatasetName, at_location, in_catalog, of_live
from lake_assets.signals.lineage.event_queue import EventQueue
from lake_assets.signals.lineage.lineage_client import _session  # pyright: ignore[reportPrivateUsage]
from lake_assets.signals.lineage.lineage_observer import LineageObserver
from lake_assets.signals.lineage.step_events import StepEvents
from lake_assets.sources.kafka_spec import KafkaSpec
from lake_assets.sources.live_specs import PostgresSpec, SourceTableSpec
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import Absorbed, Outcome
from tests.support.http_receiver import Receiver, receiver
from tests.support.signalled_shop import CITIES, ORDERS, Shop, newest, signalled

RUN = "3f2a1b6c-0d4e-4f5a-8b7c-9d0e1f2a3b4c"


def flushed(lake: Lake) -> bool:
    (observer,) = (o for o in observers_of(lake) if isinstance(o, LineageObserver))
    return observer.flush(10.0)


@pytest.fixture
def shop(plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> Shop:
    lake = signalled(plain_lake, openlineage={"url": received.url, "api_key": {"env": "LINEAGE_KEY"}, "timeout": 5})
    monkeypatch.setenv("LINEAGE_KEY", "k3y-of-lineage")
    return Shop(lake, monkeypatch)


def test_a_step_is_told_with_what_it_read_and_wrote(shop: Shop, received: Receiver) -> None:
    with step_journal.executed_by(f"dagster {RUN}"):
        outcome = shop.step()
    assert flushed(shop.lake)
    start, complete = received.bodies
    assert [e["eventType"] for e in received.bodies] == ["START", "COMPLETE"]
    assert received.paths == ["/api/v1/lineage"] * 2
    assert {h["Authorization"] for h in received.headers} == {"Bearer k3y-of-lineage"}
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["eventTime"] < complete["eventTime"]
    assert complete["job"]["namespace"] == "lake"
    assert complete["job"]["name"] == "shop.agg.cities"
    facets = complete["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == RUN
    assert facets["parent"]["job"] == {"facets": {}, "name": "shop", "namespace": "lake"}
    assert facets["processing_engine"]["name"] == "Spark"
    # The record in the journal is the same run.
    (record,) = step_journal.waiting(shop.lake)
    assert record.id == complete["run"]["runId"].replace("-", "")

    (source,), (target,) = complete["inputs"], complete["outputs"]
    orders = shop.lake.table(ORDERS)
    assert (source["namespace"], source["name"]) == ("file", orders.location().removeprefix("file://"))
    assert source["facets"]["version"]["datasetVersion"] == str(newest(shop.lake, ORDERS).snapshot_id)
    assert target["facets"]["version"]["datasetVersion"] == str(outcome.snapshot)
    warehouse = str(shop.lake.config.warehouse).removeprefix("file://")
    assert target["facets"]["symlinks"]["identifiers"] == [
        {"namespace": f"file:{warehouse}", "name": "agg.cities", "type": "TABLE"}
    ]
    assert [(f["name"], f["type"]) for f in target["facets"]["schema"]["fields"]] == [("city", "string"), ("n", "long")]
    lineage = target["facets"]["columnLineage"]["fields"]
    (column,) = lineage["city"]["inputFields"]
    assert (column["name"], column["field"]) == (source["name"], "city")
    read = number(summary_of(newest(shop.lake, ORDERS)), "added-files-size")
    statistics = source["inputFacets"]["inputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (2, read, 1)
    assert not start["inputs"][0]["inputFacets"]
    size = number(summary_of(newest(shop.lake, CITIES)), "added-files-size")
    statistics = target["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (2, size, 1)
    assert {e["producer"] for e in received.bodies} == {target["facets"]["schema"]["_producer"]}


def test_a_landing_folder_is_told_with_the_records_of_its_new_files(plain_lake: Lake) -> None:
    stream = {"name": "orders", "format": "debezium", "landing": "landing", "tables": ["public.orders"]}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": [stream]}))
    spec = next(s for s in pipeline.specs(plain_lake) if isinstance(s, RawSpec))
    window = Absorbed(str(spec.landing), None, None, 3, 400, records=50)
    end = StepEnd(outcome=Outcome(str(spec.table), "absorbed", (window,)))
    inputs = StepEvents(ObservedStep(plain_lake, spec, ""), "lake").ended(end, 0.0).inputs
    assert inputs
    assert inputs[0].inputFacets
    read = inputs[0].inputFacets["inputStatistics"]
    assert isinstance(read, input_statistics_input_dataset.InputStatisticsInputDatasetFacet)
    assert (read.rowCount, read.size, read.fileCount) == (50, 400, 3)


def test_a_step_with_nothing_to_do_is_not_told(shop: Shop, received: Receiver) -> None:
    shop.step()
    assert shop.step().status == "nothing"
    assert flushed(shop.lake)
    assert [e["eventType"] for e in received.bodies] == ["START", "COMPLETE"]


def test_a_long_step_is_told_while_it_runs(shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "SIGNAL_START_SECONDS", 0.05)
    seen: list[str] = []
    shop.during = lambda: seen.extend(e["eventType"] for e in received.wait_for(1))
    shop.step()
    assert seen == ["START"]
    assert flushed(shop.lake)
    # One that turns out to have nothing to do is completed.
    received.bodies.clear()
    shop.during = lambda: seen.extend(e["eventType"] for e in received.wait_for(1))
    assert shop.step().status == "nothing"
    assert flushed(shop.lake)
    assert [e["eventType"] for e in received.bodies] == ["START", "COMPLETE"]


def test_the_failure_of_a_step_is_told_although_the_catalog_is_away(
    shop: Shop, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise CatalogUnavailableError("the catalog does not answer")

    shop.step()
    with monkeypatch.context() as patch:
        shop.during = lambda: patch.setattr(CachingSqlCatalog, "load_table", away)
        shop.fail(CatalogUnavailableError("the catalog does not answer"))
    assert flushed(shop.lake)
    start, failed = received.bodies[-2:]
    assert [start["eventType"], failed["eventType"]] == ["START", "FAIL"]
    assert start["run"]["runId"] == failed["run"]["runId"]
    assert [d["name"] for d in failed["outputs"]] == [d["name"] for d in start["outputs"]] != []
    assert "the catalog does not answer" in failed["run"]["facets"]["errorMessage"]["message"]


def test_failures_and_interrupts_are_told(shop: Shop, received: Receiver) -> None:
    shop.fail(ValueError("it broke\nand here are the rows: r0w-value"))
    shop.fail(KeyboardInterrupt())
    assert flushed(shop.lake)
    assert [e["eventType"] for e in received.bodies] == ["START", "FAIL", "START", "ABORT"]
    error = received.bodies[1]["run"]["facets"]["errorMessage"]
    assert (error["message"], error["programmingLanguage"]) == ("ValueError: it broke", "PYTHON")
    assert "r0w-value" not in received.text


def test_audits_are_assertions_about_the_table(shop: Shop, received: Receiver) -> None:
    good = Finding("unique", True, 0, "all rows")
    bad = Finding("in range", False, 3, "all rows", ({"city": "r0w-value"},))
    shop.audits = (good, bad)
    shop.step()
    held = AuditFailedError(
        "1 of 2\n- r0w-value", findings=(good, Finding("unique", True, 2, "all", ({"city": "r0w-value"},)))
    )
    shop.fail(held)
    assert flushed(shop.lake)
    audits = [e for e in received.bodies if e["job"]["name"] == "shop.agg.cities.audits"]
    assert [e["eventType"] for e in audits] == ["START", "COMPLETE"] * 2
    (checked,) = audits[1]["inputs"]
    said = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(a["assertion"], a["success"], a["severity"], a["actual"]) for a in said] == [
        ("unique", True, "error", "0 rows"),
        ("in range", False, "warn", "3 rows"),
    ]
    step = next(e for e in received.bodies if e["job"]["name"] == "shop.agg.cities")
    assert audits[0]["run"]["facets"]["parent"]["run"]["runId"] == step["run"]["runId"]
    assert "r0w-value" not in received.text


def test_a_receiver_that_is_slow_or_away_delays_and_fails_nothing(
    shop: Shop, received: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    received.gate.clear()
    assert shop.step().status == "absorbed"
    assert received.bodies == []
    received.gate.set()
    assert flushed(shop.lake)
    assert len(received.bodies) == 2
    received.status = 503
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            shop.order()
            assert shop.step().status == "absorbed"
        assert flushed(shop.lake)
    assert len([r for r in caplog.records if "not received" in r.getMessage()]) == 1
    assert "k3y-of-lineage" not in caplog.text
    # It is there again.
    received.status = 200
    received.bodies.clear()
    shop.order()
    shop.step()
    assert flushed(shop.lake)
    assert len(received.bodies) == 2


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(thresholds, "SIGNAL_EVENTS", 3)
    monkeypatch.setattr(thresholds, "SIGNAL_EXIT_SECONDS", 0.0)
    sent: list[int] = []

    def slow(event: int) -> None:
        time.sleep(0.1)
        sent.append(event)

    queue = EventQueue(slow, str)
    for n in range(10):
        queue.put(str(n), n, wait=60.0)
    assert queue.flush(5.0)
    assert sent == [0, 1, 2]
    assert caplog.text.count("are dropped") == 1


def _child(url: str, home: Path) -> None:
    from lake_assets.signals.alerts.webhook import post

    lake = Lake(LakeConfig(home=home))
    EventQueue[dict[str, Any]](lambda e: post(lake, url, e, 5.0), str).put("a", {"from": "child"}, wait=60.0)


def test_a_forked_process_sends_before_it_ends(received: Receiver, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_child, args=(received.url, tmp_path))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert received.bodies == [{"from": "child"}]


def test_the_clients_own_settings_count_without_a_url(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", received.url)
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "0wn")
    shop = Shop(signalled(plain_lake, openlineage=True), monkeypatch)
    shop.step()
    assert flushed(shop.lake)
    assert [e["eventType"] for e in received.bodies] == ["START", "COMPLETE"]
    assert received.headers[0]["Authorization"] == "Bearer 0wn"


def test_without_a_receiver_a_warning_says_what_is_missing_once(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(plain_lake.config.home.parent)
    shop = Shop(signalled(plain_lake, openlineage={"namespace": "nobody"}), monkeypatch)
    for _ in range(2):
        shop.order()
        shop.step()
    assert caplog.text.count("signals.openlineage names no receiver") == 1


def test_a_transport_of_the_client_may_be_declared(
    plain_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    shop = Shop(signalled(plain_lake, openlineage={"transport": transport, "namespace": "prod"}), monkeypatch)
    shop.step()
    assert flushed(shop.lake)
    assert file.read_text().count('"namespace": "prod"') == 2


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("file:///data/warehouse/final/t", ("file", "/data/warehouse/final/t")),
        ("/data/warehouse/t/", ("file", "/data/warehouse/t")),
        ("s3://bucket/tables/final/t", ("s3://bucket", "tables/final/t")),
        ("s3a://bucket/tables/t/", ("s3://bucket", "tables/t")),
        ("gs://bucket/t", ("gs://bucket", "t")),
        ("abfss://box@account.dfs.core.windows.net/t", ("abfss://box@account.dfs.core.windows.net", "/t")),
    ],
)
def test_tables_are_named_by_their_location_as_sparks_integration_names_them(
    location: str, name: tuple[str, str]
) -> None:
    assert at_location(location) == DatasetName(*name)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (
            {"catalog": {"type": "rest", "uri": "https://me:s3cret@catalog:8181/api"}},
            ("https://me:***@catalog:8181/api", "a.t"),
        ),
        ({"catalog": {"type": "hive", "uri": "thrift://metastore:9083"}}, ("hive://metastore:9083", "a.t")),
        (
            {"catalog": {"type": "glue", "glue.region": "eu-central-1", "glue.id": "123"}, "warehouse": "s3://b/w"},
            ("arn:aws:glue:eu-central-1:123", "table/a/t"),
        ),
        ({"warehouse": "s3://b/w"}, ("s3://b/w", "a.t")),
    ],
)
def test_the_name_in_the_catalog_is_a_symlink(settings: dict[str, Any], name: tuple[str, str], tmp_path: Path) -> None:
    assert in_catalog(LakeConfig(home=tmp_path, **settings), TableId.parse("a.t")) == DatasetName(*name)


def test_live_sources_are_named_as_their_integrations_name_them() -> None:
    tables = (SourceTableSpec("public.users"), SourceTableSpec("public.x*"))
    postgres = PostgresSpec("db", 5432, "shop", "me", "PASSWORD", tables)
    assert of_live(postgres) == [DatasetName("postgres://db:5432", "shop.public.users")]
    assert of_live(KafkaSpec("b1:9092,b2:9092", ("orders", "x*"), "g")) == [DatasetName("kafka://b1:9092", "orders")]


def test_two_receivers_in_one_process_are_told_apart(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as other:
        shop = Shop(signalled(plain_lake, openlineage={"url": received.url}), monkeypatch)
        shop.step()
        shop.lake = signalled(plain_lake, openlineage={"url": other.url})
        shop.order()
        shop.step()
        assert flushed(signalled(plain_lake, openlineage={"url": received.url}))
        assert flushed(shop.lake)
        assert (len(received.bodies), len(other.bodies)) == (2, 2)


def test_requests_that_are_prepared_once_have_their_own_body_headers_and_cookies(received: Receiver) -> None:
    session = _session()
    sent = [({"n": 1}, "a"), ({"number": 22}, "a"), ({"n": 3}, "b"), ({"n": "four"}, "b")]
    for body, token in sent:
        if body == {"n": "four"}:
            session.cookies.set("route", "east")
        session.post(received.url, data=json.dumps(body), headers={"Authorization": token}).raise_for_status()
    assert received.bodies == [body for body, _ in sent]
    assert [h["Authorization"] for h in received.headers] == [token for _, token in sent]
    assert [h.get("Cookie") for h in received.headers] == [None, None, None, "route=east"]
