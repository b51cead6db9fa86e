"""A model whose SQL cannot be used is an asset whose step fails."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from tests.support.dagster_harness import Harness, selected
from tests.support.refused_model import create_users, rows, yaml


def test_in_dagster_its_step_fails_and_all_others_succeed(
    tmp_path: Path, lake: Lake, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    create_users(lake)
    file = yaml(tmp_path, "SELEC 1")
    harness = Harness(Pipeline.load(file), lake, instance)
    assert "the step of agg.bad will fail: " in caplog.text
    request = harness.request()
    assert selected(request) == {"agg.bad", "agg.above", "agg.other"}
    result = harness.run(request)
    failed = [e for e in result.all_events if e.is_step_failure]
    assert [e.step_key for e in failed] == ["agg__bad"]
    assert f"{file}, line 6: model agg.bad: " in str(failed[0].event_specific_data)
    assert rows(lake, "agg.other") == [(1,)]
    # Its retry waits; meanwhile changes of other tables are absorbed without it.
    lake.spark().sql("INSERT INTO lake.final.users VALUES (2, 'b')")
    assert selected(harness.request()) == {"agg.other"}
