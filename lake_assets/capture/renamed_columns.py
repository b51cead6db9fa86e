"""Columns of a table that were renamed or dropped since a snapshot: no snapshot tells of that, and no row changes."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table


def renamed_since(table: Table, snapshot: int | None) -> list[str]:
    """Return each column that lost its name since a snapshot: `city is now town`, `city was dropped`.

    Reads metadata only.

    Args:
        snapshot: the snapshot; None, or an expired one: nothing is known.
    """
    found = table.snapshot_by_id(snapshot) if snapshot is not None else None
    if found is None or found.schema_id is None or found.schema_id == table.metadata.current_schema_id:
        return []
    then, now = table.schemas().get(found.schema_id), table.schema()
    if then is None:
        return []
    changes: list[str] = []
    for field in then.fields:
        name = now.find_column_name(field.field_id)
        if name is None:
            changes.append(f"{field.name} was dropped")
        elif name != field.name:
            changes.append(f"{field.name} is now {name}")
    return changes


def renamed_text(sources: Mapping[str, tuple[Table, int | None]]) -> str:
    """Return which columns of which sources lost their names since the snapshot that was absorbed; empty if none did.

    Args:
        sources: by name, the table and the absorbed snapshot.
    """
    found = {name: renamed_since(table, snapshot) for name, (table, snapshot) in sources.items()}
    return "; ".join(f"columns of {name} were renamed or dropped: {', '.join(c)}" for name, c in found.items() if c)
