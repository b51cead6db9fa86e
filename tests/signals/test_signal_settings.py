"""Signals are off by default; mistakes in their settings are named; `doctor` says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import ConfigError, LakeError
from lake_assets.signals import observers_of
from lake_assets.signals.signal_checks import signal_checks
from tests.support.executed_page import blocks
from tests.support.processes import ROOT
from tests.support.signalled_shop import signalled


def loaded(folder: Path, text: str) -> LakeConfig:
    file = folder / "lake.yaml"
    file.write_text(text)
    return LakeConfig.load(file)


def test_without_settings_nothing_is_observed(plain_lake: Lake) -> None:
    assert list(observers_of(plain_lake)) == []
    assert list(signal_checks(plain_lake.config)) == []


def test_optional_packages_are_imported_only_if_they_are_declared() -> None:
    code = (
        "import sys, lake_assets.commands.alerts, lake_assets.commands.metrics, lake_assets.commands.doctor; "
        "print([m for m in sys.modules if m.split('.')[0] in ('openlineage', 'prometheus_client')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ("alerts: {lag: 5m}", "signals.alerts.webhook: missing"),
        ("alerts: {webhook: https://hooks/pl4nted}", "signals.alerts.webhook: a secret does not belong here"),
        ("alerts: {webhook: {}}", "signals.alerts.webhook: name the place of the secret"),
        ("alerts: {webhook: {env: A, file: b}}", "name the place of the secret"),
        ("alerts: {webhook: {env: A}, lag: soon}", "signals.alerts.lag: 'soon' is not a duration"),
        ("alerts: {webhook: {env: A}, lag: 0}", "signals.alerts.lag: 0.0 is no time at all"),
        ("alerts: {webhook: {env: A}, rejected: 120%}", "signals.alerts.rejected: '120%' is not a share"),
        ("alerts: {webhook: {env: A}, kinds: [late]}", "signals.alerts.kinds.0: expected 'failed', 'held'"),
        ("openlineage: {url: 'ftp://x'}", "signals.openlineage: url: write an address such as"),
        ("openlineage: {url: 'http://x', transport: {type: http}}", "not both"),
        ("openlineage: {api_key: {env: A}}", "`api_key` goes with `url`"),
        ("openlineage: {transport: {url: 'http://x'}}", "it needs a `type`"),
        ("openlinage: true", "signals.openlinage: unknown setting; did you mean `openlineage`?"),
    ],
)
def test_mistakes_are_named_without_secrets(settings: str, mistake: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, f"home: here\nsignals:\n  {settings}\n")
    assert mistake in str(error.value)
    assert "pl4nted" not in str(error.value)


def test_settings_come_from_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SIGNALS__ALERTS__WEBHOOK__ENV", "HOOK")
    monkeypatch.setenv("LAKE_SIGNALS__OPENLINEAGE__URL", "http://127.0.0.1:5000")
    config = loaded(tmp_path, "home: here\n")
    assert config.signals.alerts is not None
    assert config.signals.alerts.webhook.env == "HOOK"
    assert config.signals.openlineage is not None
    assert config.signals.openlineage.url == "http://127.0.0.1:5000"


def test_flags_turn_lineage_on_and_off(tmp_path: Path) -> None:
    assert loaded(tmp_path, "home: here\nsignals: {openlineage: true}\n").signals.openlineage is not None
    assert loaded(tmp_path, "home: here\nsignals: {openlineage: false}\n").signals.openlineage is None


def found(lake: Lake, **signals: Any) -> dict[str, str]:
    said: dict[str, str] = {}
    for what, look in signal_checks(signalled(lake, **signals).config):
        try:
            said[what] = look()
        except LakeError as e:
            said[what] = f"{type(e).__name__}: {e}"
    return said


def test_doctor_says_what_is_missing(plain_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (secret := tmp_path / "hook").write_text("https://hooks.example/pl4nted-part\n")
    assert found(plain_lake, alerts={"webhook": {"env": "NOWHERE"}}) == {
        "signal: alerts": "ConfigError: signals.alerts.webhook: the environment variable NOWHERE is not set. Put the "
        "value there, where Dagster and `lake-assets` run"
    }
    said = found(plain_lake, alerts={"webhook": {"file": str(secret)}, "kinds": ["failed"]})
    assert said == {"signal: alerts": f"failed to the webhook in {secret}"}
    assert "names no receiver" in found(plain_lake, openlineage=True)["signal: openlineage"]
    said = found(plain_lake, openlineage={"transport": {"type": "nonsense"}})
    assert "the client refuses its settings" in said["signal: openlineage"]
    monkeypatch.setenv("KEY", "pl4nted")
    said = found(plain_lake, openlineage={"url": "http://me:pl4nted@127.0.0.1:1", "api_key": {"env": "KEY"}})
    assert said == {"signal: openlineage": "transport http to http://me:***@127.0.0.1:1"}
    # The package is not installed.
    for name in [n for n in sys.modules if n.split(".")[0] == "openlineage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openlineage", None)
    said = found(plain_lake, openlineage=True)
    assert "`pip install 'lake-assets[openlineage]'`" in said["signal: openlineage"]
    assert said["signal: openlineage"].startswith("MissingPackageError")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b.text, id=str(b.line))
        for b in blocks((ROOT / "docs" / "signals.md").read_text("utf-8"))
        if b.text.startswith("# lake.yaml\n")
    ],
)
def test_the_settings_of_the_page_load(text: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, text).signals != LakeConfig(home=tmp_path).signals
