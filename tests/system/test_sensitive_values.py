"""A value of a sensitive column is in no report, event, metric, alert or error, and in no command's output unasked."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.backfill.backfill_record import Records
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.journal import step_journal
from lake_assets.lake.sensitive_values import PROPERTY
from lake_assets.lake.signal_settings import SignalSettings
from lake_assets.signals import observers_of
from lake_assets.signals.lineage.lineage_observer import LineageObserver
from tests.support.cli import Done, caller
from tests.support.dagster_harness import Harness
from tests.support.erased_users import Users, broken
from tests.support.http_receiver import Receiver, receiver
from tests.support.pipeline_files import write_pipeline

MARK = "zebra-4711@example.org"
PARTS = ("zebra-4711", "ZEBRA-4711")
STREAM = {
    "name": "events",
    "tables": [
        {
            "table": "public.users",
            "sensitive": "Name",
            "audits": [{"accepted_values": {"name": ["x"]}, "severity": "warn"}],
        },
        "public.orders",
    ],
}
MAILS = {"name": "agg.mails", "sql": "SELECT id, upper(name) AS mail, city FROM final.users", "key": "id"}
# Both fail, with the value in Spark's and in the function's error.
CASTS = {"name": "agg.casts", "sql": "SELECT mail, CAST(mail AS INT) AS n FROM agg.mails"}
HELD = {
    "name": "agg.held",
    "sql": "SELECT id, mail AS m FROM agg.mails",
    "audits": [{"sql": "SELECT id, concat(m, '!') AS other FROM {table} WHERE m IS NOT NULL", "name": "none"}],
}
FUNCTION = """
from lake_assets import Changes, model


@model("agg.coded", write="overwrite")
def coded(mails: Changes):
    raise ValueError(f"no address: {mails.rows.first()['mail']}")
"""


@pytest.fixture
def call(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls commands, which find the test's lake."""
    for name in ("load", "load_existing"):
        monkeypatch.setattr(LakeOfCommands, name, classmethod(lambda *_: lake))
    return caller(monkeypatch, capsys)


@pytest.fixture
def told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """What receivers of lineage and of alerts are told."""
    with receiver() as found:
        monkeypatch.setenv("HOOK", f"{found.url}/hook")
        signals = {"openlineage": {"url": found.url}, "alerts": {"webhook": {"env": "HOOK"}, "rejected": "0.01%"}}
        lake.config = lake.config.model_copy(update={"signals": SignalSettings.model_validate(signals)})
        yield found


def hidden_in(**texts: str) -> None:
    """Assert that no text has the value."""
    assert [name for name, text in texts.items() if any(p in text for p in PARTS)] == []


@pytest.mark.long
def test_no_surface_shows_a_sensitive_value(
    lake: Lake, tmp_path: Path, call: Callable[..., Done], told: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    users = Users(lake, tmp_path)
    (tmp_path / "models.py").write_text(FUNCTION)
    declared = {"name": "shop", "streams": [STREAM], "models": [MAILS, CASTS, HELD]}
    users.file = write_pipeline(tmp_path / "defs.yaml", declared)
    reject = broken(7).replace("broken", MARK)
    with caplog.at_level(logging.INFO):
        users.land(*(users.user("c", n, MARK) for n in (1, 2)), users.user("c", 3, "other"), lines=[reject])
        outputs = {"run": call("run", users.file)}
        assert outputs["run"].code == 1
        users.land(users.user("u", 1, f"new {MARK}"), users.user("d", 2))
        outputs["run json"] = call("run", users.file, "--json")
        failed = {o["table"]: o["error"] for o in json.loads(outputs["run json"].out) if o["status"] == "failed"}
        assert failed.keys() == {"agg.casts", "agg.held", "agg.coded"}
        assert "CAST_INVALID_INPUT" in failed["agg.casts"]
        assert "1 of 1 audits do not pass" in failed["agg.held"]
        assert "other=***" in failed["agg.held"]
        assert "ValueError" in failed["agg.coded"]
        lake.spark().sql(f"UPDATE {lake.sql_name('agg.mails')} SET city = 'x' WHERE id = 1")
        (tmp_path / "other").mkdir()
        other = write_pipeline(tmp_path / "other" / "defs.yaml", _redeclared(declared))
        outputs |= _commands(call, tmp_path, users.file, other)
        (lineage,) = (o for o in observers_of(lake) if isinstance(o, LineageObserver))
        assert lineage.flush(20.0)
        step_journal.flush(lake)
    hidden_in(**{name: done.out + done.err for name, done in outputs.items()})
    hidden_in(told=told.text, log=caplog.text, report=(tmp_path / "report.html").read_text())
    hidden_in(
        metrics=(tmp_path / "lake.prom").read_text(),
        steps=str(lake.table("lake_assets.steps").scan().to_arrow().to_pylist()),
    )
    folders = ("failures", "alerts", "metrics", "journal", "upkeep", "backfills")
    files = [f for n in folders for f in (lake.config.home / n).rglob("*") if f.is_file()]
    hidden_in(**{str(f): f.read_text(errors="replace") for f in files})
    assert {"failed", "held"} <= {b["kind"] for b in told.bodies if "kind" in b}
    assert json.loads(lake.table("agg.mails").properties[PROPERTY]) == ["mail"]
    assert "problem" in lake.table("raw.events").properties[PROPERTY]
    _check_asked_for(call, users.file)


def _redeclared(declared: dict[str, Any]) -> dict[str, Any]:
    models = [{**MAILS, "sql": "SELECT id, concat(upper(name), '.') AS mail, city, name AS also FROM final.users"}]
    return {**declared, "models": models}


def _commands(call: Callable[..., Done], folder: Path, file: Path, other: Path) -> dict[str, Done]:
    """Call everything that shows rows, or what became of steps."""
    row, of = ("history", "final.users", "--key", "id=1", "-p", file), ("-p", file)
    outputs = {
        "history": call(*row, "--raw", "--all-columns"),
        "history json": call(*row, "--raw", "--json"),
        "history of staging": call("history", "staging.users", "--key", "id=1", "--raw", *of),
        "history of a model": call("history", "agg.mails", "--key", "id=1", *of),
        "rejected": call("rejected"),
        "rejected list": call("rejected", "list"),
        "rejected json": call("rejected", "list", "--json"),
        "explain rejected": call("rejected", "explain", "raw.events", 3),
        "capture": call("capture", "final.users"),
        "capture json": call("capture", "agg.mails", "--json"),
        "changes": call("changes", "final.users"),
        "events": call("changes", "final.users", "--format", "debezium", "--key", "id"),
        "verify": call("verify", "agg.mails", *of),
        "verify json": call("verify", "agg.mails", *of, "--json"),
        "status": call("status", *of),
        "costs": call("costs"),
        "explain": call("explain", "agg.mails", *of),
        "check": call("check", file),
        "report": call("report"),
        "page": call("report", "--html", folder / "report.html"),
        "metrics": call("metrics", "--file", folder / "lake.prom"),
        "alerts": call("alerts", "--send"),
        "plan": call("plan", other, "--aside"),
    }
    (open_,) = Records(LakeOfCommands.load()).all()
    outputs |= {
        "compare": call("compare", open_.id, "-p", other),
        "compare json": call("compare", open_.id, "-p", other, "--json"),
        "discard": call("discard", open_.id, "-p", other),
    }
    for name in ("history", "rejected list", "changes", "verify", "capture", "compare"):
        assert "***" in outputs[name].out, (name, outputs[name].out + outputs[name].err)
    return outputs


def _check_asked_for(call: Callable[..., Done], file: Path) -> None:
    """Whoever asks for sensitive values is shown them."""
    of = ("-p", file, "--show-sensitive")
    for words in (
        ("history", "final.users", "--key", "id=1", "--raw", *of),
        ("verify", "agg.mails", *of),
        ("rejected", "list", "--show-sensitive", "--json"),
        ("changes", "final.users", "--show-sensitive"),
        ("run", file, "--show-sensitive", "--json"),
    ):
        done = call(*words)
        assert any(p in done.out for p in PARTS), (words, done.out + done.err)


@pytest.mark.long
def test_dagster_stores_no_sensitive_value(lake: Lake, tmp_path: Path) -> None:
    users = Users(lake, tmp_path)
    (tmp_path / "models.py").write_text(FUNCTION)
    declared = {"name": "shop", "streams": [STREAM], "models": [MAILS, CASTS, HELD]}
    users.file = write_pipeline(tmp_path / "defs.yaml", declared)
    users.land(users.user("c", 1, MARK), lines=[broken(7).replace("broken", MARK)])
    with dg.DagsterInstance.ephemeral() as instance:
        harness = Harness(Pipeline.load(users.file), lake, instance)
        harness.run(harness.request())
        events = [str(e) for run in instance.get_runs() for e in instance.all_logs(run.run_id)]
    text = "\n".join(events)
    assert "CAST_INVALID_INPUT" in text
    assert "audits do not pass" in text
    hidden_in(events=text)
