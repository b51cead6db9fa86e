"""What commits of models say of the snapshots that they represent, in the form of Iceberg's draft."""

from __future__ import annotations

import json
from typing import Any

from lake_assets import Lake
from lake_assets.lake.metadata.refresh_state import PROPERTY
from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.lake.signal_settings import SignalSettings
from tests.support.signalled_shop import newest


def with_refresh_states(lake: Lake) -> None:
    """Let commits say that."""
    lake.config = lake.config.model_copy(update={"signals": SignalSettings(refresh_state=True)})


def state_of(lake: Lake, table: str) -> dict[str, Any]:
    """Return what the newest commit of a table says."""
    return json.loads(summary_of(newest(lake, table))[PROPERTY])


def represents(lake: Lake, model: str, source: str) -> bool:
    """Whether the newest commit of a model represents the newest snapshot of a source, and of no other one."""
    loaded, (*namespace, name) = lake.table(source), source.split(".")
    head = newest(lake, source).snapshot_id
    uuid = str(loaded.metadata.table_uuid)
    of_head = {"type": "table", "namespace": namespace, "name": name, "uuid": uuid, "snapshot-id": head}
    return state_of(lake, model)["source-states"] == [of_head]
