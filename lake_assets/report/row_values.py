"""The only way from a value of a row to a reader: pages, the terminal and Dagster show what is returned here."""

from __future__ import annotations

from typing import Any

from lake_assets.lake.visible_text import visible

NULL = "(null)"


def shown_value(table: str, column: str, value: Any) -> str:
    """Return a value of a row as readers see it.

    Args:
        table, column: where the value is, which decides what may be shown of it; of a partition's key, the column is
            that of the partitions, and of a sum, the column that is added up.
    """
    if value is None:
        return NULL
    return value.hex() if isinstance(value, bytes | bytearray) else visible(str(value))
