"""Columns of a table that were renamed or dropped since a snapshot: no snapshot tells of that, and no row changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.rows.incompatible_columns import reads_as


def renamed_since(table: Table, snapshot: int | None) -> list[str]:
    """Return each column that lost its name since a snapshot: `city is now town`, `city was dropped`, `city was dropped
    and added again as string (it was int)`.

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
            again = _added_instead(field, then, now)
            changes.append(again_text(field, again) if again else f"{field.name} was dropped")
        elif name != field.name:
            changes.append(f"{field.name} is now {name}")
    return changes


def added_again(then: Schema, now: Schema) -> Iterator[tuple[NestedField, NestedField]]:
    """Yield the columns that were dropped and added again with a type that does not hold their former values, as they
    were and as they are."""
    for field in then.fields:
        if now.find_column_name(field.field_id) is None:
            again = _added_instead(field, then, now)
            if again is not None and not reads_as(field.field_type, again.field_type):
                yield field, again


def _added_instead(dropped: NestedField, then: Schema, now: Schema) -> NestedField | None:
    """Return the new column of the name of a dropped one; a column that was renamed to it is not new."""
    new = (f for f in now.fields if f.name == dropped.name and then.find_column_name(f.field_id) is None)
    return next(new, None)


def again_text(was: NestedField, now: NestedField) -> str:
    """Return that a column was dropped and added again."""
    types = f" as {now.field_type} (it was {was.field_type})" if was.field_type != now.field_type else ""
    return f"{was.name} was dropped and added again{types}"


def renamed_text(sources: Mapping[str, tuple[Table, int | None]]) -> str:
    """Return which columns of which sources lost their names since the snapshot that was absorbed; empty if none did.

    Args:
        sources: by name, the table and the absorbed snapshot.
    """
    found = {name: renamed_since(table, snapshot) for name, (table, snapshot) in sources.items()}
    return "; ".join(f"columns of {name} were renamed or dropped: {', '.join(c)}" for name, c in found.items() if c)
