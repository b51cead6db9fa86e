"""What Debezium says of its snapshots decides which tables the next start reads again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets.sources.debezium_source import _Consumer  # pyright: ignore[reportPrivateUsage]
from lake_assets.sources.live_source import Progress
from lake_assets.sources.schema_history import SchemaHistory

TABLES = ["public.bare", "public.odd", "public.users"]


@pytest.fixture
def consumer(tmp_path: Path) -> Any:
    source: Any = SimpleNamespace(tables=TABLES, settings=SimpleNamespace(name="shop.live"), hear=lambda: None)
    history = SchemaHistory(tmp_path / "history", Progress(None, list), restarts=False)
    return _Consumer(source, {"tables": []}, lambda *_: None, threading.Event(), history)


def said(consumer: Any, aggregate: str, kind: str, **more: str) -> set[str]:
    """Return what counts as read after a notification, as Debezium 3.6 sends it."""
    told = {"id": "1", "type": kind, "aggregate_type": aggregate, "timestamp": 1, "additional_data": more}
    consumer._note(json.dumps({"schema": {}, "payload": told}))
    return consumer.tables


def test_an_incremental_snapshot_goes_on_from_its_start_on(consumer: Any) -> None:
    assert said(consumer, "Incremental Snapshot", "STARTED", data_collections="public.users") == {"public.users"}
    assert consumer.take_new(TABLES) == ["public.bare", "public.odd"]


def test_another_snapshot_counts_when_all_of_its_rows_are_there(consumer: Any) -> None:
    name = "Initial Snapshot"
    assert said(consumer, name, "STARTED") == set()
    for table in ("public.bare", "public.odd"):
        assert said(consumer, name, "IN_PROGRESS", data_collections="public.bare,public.odd") == set()
        assert said(consumer, name, "TABLE_SCAN_COMPLETED", scanned_collection=table, status="SUCCEEDED") == set()
    # Only the tables' own notifications name them.
    assert said(consumer, name, "COMPLETED", connector_name="shop.live") == {"public.bare", "public.odd"}
    assert consumer.begun == {"public.bare", "public.odd"}
    assert consumer.take_new(TABLES) == ["public.users"]
