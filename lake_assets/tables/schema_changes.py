"""How a table's columns follow its stream: pure planning over names and Spark SQL types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import SchemaConflictError
from lake_assets.formats.types.text_types import widest

Columns = Mapping[str, str]
"""Spark SQL types by column name, in order."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_PROMOTIONS = {("int", "bigint"), ("float", "double")}
_FORMER = "__was_"
_ROUTED = "__"


@dataclass(frozen=True)
class Change:
    """One change of a table's columns.

    `widen` keeps the column (Iceberg promotes the values it has); `replace` needs other values than the stored ones,
    because Iceberg cannot change a decimal's scale. `fold` takes the values of a column `was` into the one that it is
    declared to be called now, where a table has both.
    """

    kind: Literal["add", "widen", "replace", "rename", "fold"]
    column: str
    type: str
    was: str | None = None


def unite(table: str, schemas: Iterable[Columns]) -> dict[str, str]:
    """Columns of all `schemas` by name, each with the type that holds all of its values.

    Raises:
        SchemaConflictError: two types of one column have none in common.
    """
    united: dict[str, str] = {}
    for columns in schemas:
        for name, kind in columns.items():
            wide = widest(united.get(name, kind), kind)
            if wide is None:
                raise SchemaConflictError(
                    f"{table}: column {name} is {united[name]} and becomes {kind}, and no type holds both without a "
                    "loss. Nothing was written. Declare one type for all of its values, for example "
                    f"`types: {{{name}: string}}`"
                )
            united[name] = wide
    return united


def evolve(table: str, existing: Columns, wanted: Columns, rename: Mapping[str, str] | None = None) -> list[Change]:
    """Changes that let `existing` hold every value of `wanted`; columns that the stream lost are kept.

    Args:
        table: name for messages.
        existing: the table's columns.
        wanted: the stream's columns, by the names they have in the lake.
        rename: source names to names in the lake, as the owner declared: a column that is still called as in the
            source takes its values along.

    Raises:
        SchemaConflictError: a column's two types have none in common.
    """
    now, changes = dict(existing), []
    for old, new in (rename or {}).items():
        if old in now and new not in now and old not in wanted:
            changes.append(Change("rename", new, now[old], was=old))
            now = {new if name == old else name: kind for name, kind in now.items()}
        elif old in now and new in now and old not in wanted:
            changes.append(Change("fold", new, unite(table, [{new: now[new]}, {new: now[old]}])[new], was=old))
            del now[old]
    spelled = {c.lower(): c for c in now}
    for name, kind in wanted.items():
        if name not in now and (twin := spelled.get(name.lower())):
            changes.append(Change("rename", name, now[twin], was=twin))
            now = {name if c == twin else c: k for c, k in now.items()}
        if name not in now:
            changes.append(Change("add", name, kind))
            continue
        united = unite(table, [{name: now[name]}, {name: kind}])[name]
        if united != now[name]:
            changes.append(Change("widen" if promotes(now[name], united) else "replace", name, united, was=now[name]))
    return changes


def promotes(old: str, new: str) -> bool:
    """Whether Iceberg widens the type in place (format specification, schema evolution)."""
    one, two = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return (old, new) in _PROMOTIONS or bool(one and two and one[2] == two[2] and int(one[1]) <= int(two[1]))


def routed_name(column: str, kind: str) -> str:
    """The name of the column that takes values of a type that `column` cannot hold."""
    return column + _ROUTED + re.sub(r"\W+", "_", kind).strip("_")


def routed(column: str, columns: Columns) -> list[str]:
    """Columns that hold values of `column` which its type cannot hold."""
    return [c for c, kind in columns.items() if c.startswith(column + _ROUTED) and c == routed_name(column, kind)]


def former_name(column: str, kind: str) -> str:
    """The name under which values of an earlier type stay in a table that is never rewritten."""
    return column + _FORMER + re.sub(r"\W+", "_", kind).strip("_")


def formers(column: str, columns: Iterable[str]) -> list[str]:
    """Columns that hold earlier values of `column`."""
    return [c for c in columns if c.startswith(column + _FORMER)]


def is_former(column: str, columns: Iterable[str]) -> bool:
    """Whether a column only holds earlier values of another one of `columns`."""
    return _FORMER in column and column.rsplit(_FORMER, 1)[0] in set(columns)
