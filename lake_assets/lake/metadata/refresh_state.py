"""The `refresh-state` of Iceberg's draft for materialized views: which snapshots of its sources a table represents.

The draft (apache/iceberg, pull request 11041) may still change; so it is written only where that is declared. It is
beside the watermark, which has the same facts and more, and nothing here reads it.
"""

from __future__ import annotations

import hashlib
import json

from pyiceberg.table import Table

from lake_assets.errors import InvalidNameError
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.metadata.row_counts import is_upkeep, keeps_rows, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
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


def carried(table: Table, marks: Watermarks | None = None) -> dict[str, str]:
    """Return the summary property for a commit that changes no row: that of the commit which wrote the rows.

    There is none if that commit has none, as one of another program, or one in another form of the draft.

    Args:
        marks: the watermarks of the commit, if it moves them over changes of the sources that mean nothing for it.
    """
    for snapshot in ancestors(table):
        if text := summary_of(snapshot).get(PROPERTY):
            try:
                return {PROPERTY: _moved(text, marks) if marks else text}
            except (ValueError, TypeError, LookupError, AttributeError, InvalidNameError):
                break
        if not (keeps_rows(snapshot) or is_upkeep(snapshot)):
            break
    return {}


def _moved(text: str, marks: Watermarks) -> str:
    state = json.loads(text)
    for source in state["source-states"]:
        mark = marks.get(str(TableId(tuple(source["namespace"]), source["name"])))
        if mark is not None and mark.uuid == source["uuid"] and mark.snapshot is not None:
            source["snapshot-id"] = mark.snapshot
    return json.dumps(state, separators=(",", ":"))


def _number(definition: str) -> int:
    """Return a number of a definition, which fits into the 32 bits of a view's version."""
    return int.from_bytes(hashlib.sha256(definition.encode()).digest()[:4], "big") & 0x7FFF_FFFF
