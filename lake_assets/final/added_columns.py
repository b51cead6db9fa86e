"""Columns that soft deletes and SCD2 add to a final table."""

from __future__ import annotations

DELETED = "__deleted"
FROM = "effective_from"
TO = "effective_to"
CURRENT = "is_current"
OWN_COLUMNS: dict[str, dict[str, str]] = {
    "soft": {DELETED: "boolean"},
    "scd2": {FROM: "timestamp", TO: "timestamp", CURRENT: "boolean"},
}
