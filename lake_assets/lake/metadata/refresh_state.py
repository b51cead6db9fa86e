"""The `refresh-state` of Iceberg's draft for materialized views: which snapshots of its sources a table represents.

The draft (apache/iceberg, pull request 11041) may still change; so it is written only where that is declared. It is
beside the watermark, which has the same facts and more, and nothing here reads it.
"""

from __future__ import annotations

import hashlib
import json

from lake_assets.errors import InvalidNameError
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.lake.names import TableId

PROPERTY = "refresh-state"


def refresh_state(lake: LakeBase, marks: Watermarks, definition: str, began: float) -> dict[str, str]:
    """Return the summary property of a commit; none if the lake does not declare it, or a source is empty.

    A source without a snapshot has no place in the draft, and leaving it out would say that it does not matter.

    Args:
        marks: the watermarks of the commit.
        definition: what the rows are computed by; another one has another `view-version-id`.
        began: when the step began, in seconds since 1970.
    """
    if not lake.config.signals.refresh_state or not marks:
        return {}
    states: list[dict[str, object]] = []
    for source, mark in sorted(marks.items()):
        try:
            name = TableId.parse(source)
        except InvalidNameError:
            return {}
        if mark.snapshot is None:
            return {}
        states.append(
            {
                "type": "table",
                "namespace": list(name.namespace),
                "name": name.name,
                "uuid": mark.uuid,
                "snapshot-id": mark.snapshot,
            }
        )
    state = {
        "view-version-id": _number(definition),
        "refresh-start-timestamp-ms": int(began * 1000),
        "source-states": states,
    }
    return {PROPERTY: json.dumps(state, separators=(",", ":"))}


def _number(definition: str) -> int:
    """Return a number of a definition, which fits into the 32 bits of a view's version."""
    return int.from_bytes(hashlib.sha256(definition.encode()).digest()[:4], "big") & 0x7FFF_FFFF
