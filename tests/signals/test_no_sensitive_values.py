"""No value of a sensitive column leaves the lake: whatever a step returns or raises is told without it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.errors import AuditFailedError, HiddenValuesError, LakeError, ModelError
from lake_assets.journal import step_journal
from lake_assets.orchestration.asset_checks import check_results
from lake_assets.orchestration.asset_metadata import of_outcome
from lake_assets.pipeline import PipelineConfig
from lake_assets.signals import observers_of
from lake_assets.signals.alerts.alert_evaluation import evaluate
from lake_assets.signals.lineage.lineage_observer import LineageObserver
from lake_assets.signals.metrics.exporter import registry_of
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.audits.audit_kinds import NotNull
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.standing_failures import standing
from tests.support.http_receiver import Receiver
from tests.support.signalled_shop import MODEL, Shop

VALUE = "zebra-4711@example.org"
AUDITS = [{"not_null": "city"}, {"sql": "SELECT upper(city) AS other, n FROM {table}", "name": "own"}]
ROWS = Finding("not_null_city", True, 1, "all", ({"city": VALUE, "n": "1"},), error=f"[CAST_INVALID_INPUT] {VALUE}")
OWN = Finding("own", True, 1, "all", ({"other": VALUE, "n": "1"},))


class SensitiveShop(Shop):
    """A shop whose cities are nobody's business."""

    @property
    def pipeline(self) -> Pipeline:
        model = {**MODEL, "sensitive": "City", "audits": AUDITS}
        return Pipeline(PipelineConfig.model_validate({"name": "shop", "models": [model]}))

    def raised(self, error: Exception) -> LakeError:
        """Let a step fail, look for what is wrong, and return what it raises."""
        self.error = error
        with pytest.raises(LakeError) as raised:
            self.step()
        self.error = None
        evaluate(self.lake, [self.pipeline])
        assert str(raised.value) in standing(self.lake)["agg.cities"].error
        return raised.value


def test_what_steps_say_has_no_sensitive_value(
    plain_lake: Lake, received: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK", f"{received.url}/hook")
    signals = {"openlineage": {"url": received.url}, "alerts": {"webhook": {"env": "HOOK"}}}
    shop = SensitiveShop(Lake(LakeConfig(home=plain_lake.config.home, signals=signals)), monkeypatch)
    gate = Gate(shop.lake, shop.spec.table, [NotNull(name="not_null_city", column="city")])
    gate.findings = (ROWS, OWN)
    with caplog.at_level(logging.INFO):
        shop.audits = (ROWS, OWN)
        outcome = shop.step()
        assert outcome.audits[0].rows == ({"city": "***", "n": "1"},)
        assert outcome.audits[0].error == "[CAST_INVALID_INPUT] ***"
        assert outcome.audits[1].rows == ({"other": "***", "n": "1"},)
        hidden = shop.raised(ValueError(f"no city: {VALUE}"))
        assert isinstance(hidden, HiddenValuesError)
        assert "ValueError" in str(hidden)
        quoting = ModelError(f"model.py, line 7: agg.cities: {VALUE}")
        quoting.__cause__ = ValueError(VALUE)
        assert str(shop.raised(quoting)) == "model.py, line 7: agg.cities: ValueError (***)"
        held = shop.raised(gate._error(""))  # pyright: ignore[reportPrivateUsage]
        assert isinstance(held, AuditFailedError)
        assert "2 of 2 audits do not pass" in str(held)
        assert "other=***, n=1" in str(held)
        (lineage,) = (o for o in observers_of(shop.lake) if isinstance(o, LineageObserver))
        assert lineage.flush(20.0)
    for text in (*_told(shop, outcome, held), caplog.text, received.text):
        assert VALUE not in text
    assert {"failed", "held"} <= {b["kind"] for b in received.bodies if "kind" in b}


def _told(shop: Shop, outcome: Outcome, held: AuditFailedError) -> list[str]:
    """Return what Dagster, the metrics, the lake's home and the journal hold."""
    dagster = [str(of_outcome(outcome, shop.spec)), str([*check_results(shop.spec, held.findings)])]
    metrics = generate_latest(registry_of(shop.lake, [shop.pipeline])).decode()
    home: Path = shop.lake.config.home
    files = [f for n in ("alerts", "metrics", "journal", "failures") for f in (home / n).glob("*") if f.is_file()]
    records = [json.dumps(r.to_row(), default=str) for r in step_journal.waiting(shop.lake)]
    assert len(records) == 4
    return [*dagster, metrics, *(f.read_text() for f in files), *records]
