"""No secret of settings, errors and addresses leaves the lake, by whatever way."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import AuditFailedError
from lake_assets.signals import observers_of
from lake_assets.signals.alerts.alert_evaluation import evaluate, try_evaluate
from lake_assets.signals.lineage.lineage_observer import LineageObserver
from lake_assets.signals.metrics.exporter import registry_of
from lake_assets.tables.audits.audit_evaluation import Finding
from tests.support.http_receiver import Receiver
from tests.support.signalled_shop import Shop

# Each is planted in another place.
KEY, HOOK, STORE, URI, ROW = "pl4nted-key", "pl4nted-hook", "pl4nted-store", "pl4nted-uri", "pl4nted-row"


def test_nothing_that_leaves_has_a_secret(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LINEAGE_KEY", KEY)
    monkeypatch.setenv("HOOK", f"{received.url}/services/{HOOK}?token={HOOK}")
    config = LakeConfig(
        home=plain_lake.config.home,
        storage={"s3.secret-access-key": STORE},
        signals={
            "openlineage": {"url": received.url, "api_key": {"env": "LINEAGE_KEY"}},
            "alerts": {"webhook": {"env": "HOOK"}},
        },
    )
    said = " ".join((KEY, STORE, f"postgresql://me:{URI}@db/lake", f"/services/{HOOK}?token={HOOK}"))
    row = Finding("unique", True, 1, "all", ({"name": ROW},), error=f"cannot: {ROW}")
    shop = Shop(Lake(config), monkeypatch)
    with caplog.at_level(logging.INFO):
        shop.step()
        shop.fail(ValueError(f"cannot log in with {said}\n{ROW}"))
        evaluate(shop.lake, [shop.pipeline])
        shop.fail(AuditFailedError(f"held:\n- {ROW}", findings=(row,)))
        evaluate(shop.lake, [shop.pipeline])
        # The receivers are away, and refuse.
        for status in (500, 302):
            received.status = status
            shop.fail(ValueError(said))
            try_evaluate(shop.lake, [shop.pipeline])
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:1/services/{HOOK}")
        try_evaluate(shop.lake, [shop.pipeline])
        monkeypatch.setenv("HOOK", f"gopher://{HOOK}")
        try_evaluate(shop.lake, [shop.pipeline])
        (lineage,) = (o for o in observers_of(shop.lake) if isinstance(o, LineageObserver))
        assert lineage.flush(20.0)
    metrics = generate_latest(registry_of(shop.lake, [shop.pipeline])).decode()
    bodies = json.dumps(received.bodies)
    # The client's log names the receiver of its requests; that is no secret, and neither are headers and path.
    assert "cannot log in with ***" in bodies
    assert "agg.cities" in metrics
    for text in (bodies, metrics, caplog.text, *_files(shop.lake.config.home)):
        assert [s for s in (KEY, HOOK, STORE, URI) if s in text] == []
    assert [t for t in (bodies, metrics) if ROW in t] == []
    assert KEY not in repr(config)


def _files(home: Path) -> list[str]:
    folders = ("alerts", "metrics", "journal", "failures")
    return [f.read_text() for n in folders for f in (home / n).glob("*") if f.is_file()]
