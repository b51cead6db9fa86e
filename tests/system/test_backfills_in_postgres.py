"""Backfills over a catalog in Postgres: the tests of kills, in a process whose lake is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lakes import CATALOG_URI
from tests.support.postgres import database

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]
FILE = Path(__file__).parents[1] / "backfill" / "test_backfills.py"


@pytest.mark.parametrize(
    "test",
    [
        "test_a_backfill_that_is_killed_at_any_point_is_continued_and_published_once",
        "test_an_undo_that_is_killed_at_any_point_is_completed",
        "test_a_discard_that_is_killed_can_only_be_completed",
    ],
)
def test_readers_see_all_of_a_killed_backfill_or_nothing(
    test: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with database() as uri:
        monkeypatch.setenv(CATALOG_URI, uri)
        command = [sys.executable, "-m", "pytest", "-q", f"{FILE}::{test}", f"--basetemp={tmp_path / 'tests'}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert "1 passed" in done.stdout, done.stdout[-5000:]
