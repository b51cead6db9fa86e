"""Columns of a table that were renamed or dropped since a snapshot: no snapshot tells of that, and no row changes.

Fields within structs, lists and maps are named `s.a`, as Iceberg names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.rows.incompatible_columns import reads_as
from lake_assets.lake.column_spelling import caseless

ADDED_AGAIN = "was dropped and added again"


@dataclass(frozen=True)
class ReusedName:
    """A name that belongs to another field than before.

    Attributes:
        column: the column of the name.
        name: the name: of the column, or of a field within it.
        was, now: the fields.
    """

    column: str
    name: str
    was: NestedField
    now: NestedField

    @property
    def text(self) -> str:
        """That the field was dropped and added again."""
        was, now = str(self.was.field_type), str(self.now.field_type)
        return f"{self.name} {ADDED_AGAIN}{f' as {now} (it was {was})' if was != now else ''}"


def schema_at(table: Table, snapshot: int | None) -> Schema:
    """Return the schema of a snapshot; the current one if it is not known."""
    entry = table.snapshot_by_id(snapshot) if snapshot is not None else None
    known = entry.schema_id if entry else None
    return table.schema() if known is None else table.schemas().get(known, table.schema())


def reused_names(then: Schema, now: Schema) -> list[ReusedName]:
    """Return the names that belong to other fields than before: dropped and added again, renamed or swapped. Names that
    differ in case only are one."""
    if then is now:
        return []
    before = {caseless(name): i for f in then.fields for i, name in _names(f)}
    return [
        ReusedName(f.name, name, then.find_field(before[caseless(name)]), now.find_field(i))
        for f in now.fields
        for i, name in _names(f)
        if before.get(caseless(name), i) != i
    ]


def added_again(then: Schema, now: Schema, history: Iterable[Schema] = ()) -> Iterator[ReusedName]:
    """Yield the names of which the field was dropped and added again, with a type that does not hold its former values.

    Args:
        history: all schemas of the table: a field that had another name in one of them was renamed, not added.
    """
    if not (found := reused_names(then, now)):
        return
    names: dict[int, set[str]] = {}
    for schema in (then, now, *history):
        for i, name in index_name_by_id(schema).items():
            names.setdefault(i, set()).add(caseless(name))
    names_now = index_name_by_id(now)
    for reused in found:
        is_added = reused.was.field_id not in names_now and len(names[reused.now.field_id]) == 1
        if is_added and not reads_as(reused.was.field_type, reused.now.field_type):
            yield reused


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
    names_now, names_then = index_name_by_id(now), index_name_by_id(then)
    again = {t.was.field_id: t for t in reused_names(then, now) if t.now.field_id not in names_then}
    changes: dict[str, str] = {}
    for i, name in (named for f in then.fields for named in _names(f)):
        if names_now.get(i) == name:
            continue
        of_column = name.rpartition(".")[0] in changes
        if i in names_now:
            text = f"{name} is now {names_now[i]}"
        else:
            text = again[i].text if i in again else f"{name} was dropped"
        changes[name] = "" if of_column else text
    return [text for text in changes.values() if text]


def _names(column: NestedField) -> list[tuple[int, str]]:
    """Return the ids and names of a column and of the fields within it, outer ones first."""
    return sorted(index_name_by_id(Schema(column)).items(), key=lambda named: named[1])


def renamed_text(sources: Mapping[str, tuple[Table, int | None]]) -> str:
    """Return which columns of which sources lost their names since the snapshot that was absorbed; empty if none did.

    Args:
        sources: by name, the table and the absorbed snapshot.
    """
    found = {name: renamed_since(table, snapshot) for name, (table, snapshot) in sources.items()}
    return "; ".join(f"columns of {name} were renamed or dropped: {', '.join(c)}" for name, c in found.items() if c)
