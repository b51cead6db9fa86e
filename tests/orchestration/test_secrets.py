"""A run that fails shows no secret of the lake's configuration: in its events, config, tags, metadata or logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig
from lake_assets.orchestration import build_definitions
from lake_assets.orchestration.runs import step_failures
from lake_assets.pipeline import PipelineConfig
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines

SECRET = "pl4nted"
USERS = Table({"id": BIGINT}, name="public.users")
LOGS = {"managed_python_loggers": ["root"], "python_log_level": "DEBUG"}
SETTINGS = {"python_logs": LOGS, "telemetry": {"enabled": False}}
PIPELINE = {"name": "crm", "streams": [{"name": "crm", "tables": ["public.users"]}]}
CONF = {
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.hadoop.javax.jdo.option.ConnectionPassword": SECRET,
    "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": SECRET,
}


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance with files that stores all Python logs."""
    monkeypatch.setattr(step_failures, "SECONDS_BETWEEN", 0)
    (home := tmp_path / "dagster_home").mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(SETTINGS))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def catalogs(home: Path) -> dict[str, dict[str, Any]]:
    keys = {"s3.secret-access-key": SECRET, "s3.access-key-id": SECRET, "token": SECRET}
    return {
        "Postgres is away": {"type": "sql", "uri": f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:1/lake", **keys},
        "no such database": {"type": "sql", "uri": f"nodatabase://me:{SECRET}@h/lake", **keys},
        "REST is away": {"type": "rest", "uri": "http://127.0.0.1:1/api", "credential": f"me:{SECRET}", **keys},
        "no Spark": {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", **keys},
        "no storage": {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": "s3://bucket/x",
                       "s3.endpoint": "http://127.0.0.1:1", "s3.connect-timeout": "1", **keys},
    }  # fmt: skip


@pytest.mark.parametrize(
    "what",
    [w if w in ("no Spark", "Postgres is away") else pytest.param(w, marks=pytest.mark.long) for w in catalogs(Path())],
)
def test_a_run_that_fails_shows_no_secret(
    what: str, tmp_path: Path, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    (home := tmp_path / "lake").mkdir()
    remote = f"http://127.0.0.1:1/;token={SECRET}" if what == "no Spark" else None
    config = LakeConfig(home=home, catalog=catalogs(home)[what], spark=SparkConfig(conf=CONF, remote=remote))
    defs = build_definitions(Pipeline(PipelineConfig.model_validate(PIPELINE)), Lake(config))
    (folder := home / "landing" / "crm").mkdir(parents=True)
    write_lines(folder / "a.jsonl", to_lines([Event(USERS, "c", (1, 1), {"id": 1})]))
    result = defs.resolve_job_def("crm").execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    errors = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    for e in errors:
        assert e.step_failure_data.user_failure_data, e.step_failure_data.error_display_string[-3000:]
    outputs = [json.dumps([run.run_config, run.tags]), repr(run), caplog.text, *capfd.readouterr()]
    records = instance.all_logs(result.run_id)
    assert any("Error" in str(r.dagster_event) for r in records)
    outputs += [dg.serialize_value(r) for r in records] + [r.user_message + r.message for r in records]
    for file in (tmp_path / "dagster_home").rglob("*"):
        outputs += [file.read_bytes().decode(errors="replace")] if file.is_file() else []
    for text in outputs:
        at = text.find(SECRET)
        assert at < 0, text[max(0, at - 300) : at + 100]
