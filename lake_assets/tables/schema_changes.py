"""Plan how a table's columns follow its stream, from names and Spark SQL types alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import SchemaConflictError
from lake_assets.formats.types.text_types import widest
from lake_assets.lake.column_spelling import spelled

Columns = Mapping[str, str]
"""Spark SQL types by column name, in order."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_PROMOTIONS = {("int", "bigint"), ("float", "double")}
_FORMER = "__was_"
_ROUTED = "__"


@dataclass(frozen=True)
class Change:
    """One change of a table's columns.

    `widen` keeps the column (Iceberg promotes its values); `replace` converts the stored values, since Iceberg cannot
    change the scale of a decimal. `fold` merges the values of the column `was` into the column with its new name, if a
    table has both.
    """

    kind: Literal["add", "widen", "replace", "rename", "fold"]
    column: str
    type: str
    was: str | None = None


def unite(table: str, schemas: Iterable[Columns]) -> dict[str, str]:
    """Return the columns of all `schemas` by name, each with the narrowest type for all of its values.

    Raises:
        SchemaConflictError: two types of one column have no common type.
    """
    united: dict[str, str] = {}
    for columns in schemas:
        for name, kind in columns.items():
            wide = widest(united.get(name, kind), kind)
            if wide is None:
                raise conflict(table, name, united[name], kind)
            united[name] = wide
    return united


def conflict(table: str, column: str, old: str, new: str) -> SchemaConflictError:
    """Return the error for a column whose type cannot become another one, with what loses no value."""
    proposed = common_type(old, new)
    read_again = "(records that are in staging already are read again with it)"
    apart = "`on_conflict: new-column` keeps values of the other type in a column of their own"
    if proposed is None:
        advice = f"Declare what happens to such values: {apart}, `on_conflict: reject` rejects their records"
    else:
        kind = f'"{proposed}"' if "," in proposed else proposed
        advice = (
            f"Declare one type for all of its values: `types: {{{column}: {kind}}}` {read_again}"
            + (f"; texts that are no {proposed} are rejected, `string` keeps all" if old == "string" else "")
            + f". Or choose what happens to such values: {apart}, `on_conflict: reject` rejects their records"
        )
    return SchemaConflictError(
        f"{table}: the source changed the type of column {column} from {old} to {new}, and neither type holds all "
        f"values of the other. Nothing was written. {advice}"
    )


def common_type(old: str, new: str) -> str | None:
    """Return the type to declare for values of two types, as the source has them now; None: there is none.

    Bytes and arrays are written in each format's own notation as text, which could not be told from other texts.
    """
    if any(kind.startswith(("binary", "array", "map", "struct")) for kind in (old, new)):
        return None
    kinds = {old, new}
    if "string" in kinds:
        return new
    if decimal := next((k for k in kinds if k.startswith("decimal")), None):
        digits = {"int": "decimal(10,0)", "bigint": "decimal(19,0)"}.get((kinds - {decimal} or {""}).pop())
        return (digits and widest(decimal, digits)) or "string"
    if kinds == {"date", "timestamp_ntz"}:
        return "timestamp_ntz"
    return "double" if "int" in kinds and kinds <= {"int", "float", "double"} else "string"


def evolve(table: str, existing: Columns, stream: Columns, rename: Mapping[str, str] | None = None) -> list[Change]:
    """Return the changes that let `existing` hold every value of `stream`; columns missing from the stream are kept.

    A column that still has its source name is renamed to the declared name in the lake (`rename`).

    Raises:
        SchemaConflictError: the two types of a column have no common type.
    """
    current, changes = dict(existing), []
    for old, new in (rename or {}).items():
        if old in current and new not in current and old not in stream:
            changes.append(Change("rename", new, current[old], was=old))
            current = {new if name == old else name: kind for name, kind in current.items()}
        elif old in current and new in current and old not in stream:
            changes.append(Change("fold", new, unite(table, [{new: current[new]}, {new: current[old]}])[new], was=old))
            del current[old]
    for name, kind in stream.items():
        if (twin := spelled(name, current)) != name:
            changes.append(Change("rename", name, current[twin], was=twin))
            current = {name if c == twin else c: k for c, k in current.items()}
        if name not in current:
            changes.append(Change("add", name, kind))
            continue
        united = unite(table, [{name: current[name]}, {name: kind}])[name]
        if united != current[name]:
            changes.append(
                Change("widen" if promotes(current[name], united) else "replace", name, united, was=current[name])
            )
    return changes


def whole_chains(rename: Mapping[str, str]) -> dict[str, str]:
    """Return the renames, each to the last name of its chain: `{a: b, b: c}` -> `{a: c, b: c}`.

    Raises:
        ValueError: a chain has no end.
    """
    chains: dict[str, str] = {}
    for old, new in rename.items():
        passed = [old]
        while rename.get(new, new) != new:
            if new in passed:
                raise ValueError(
                    f"`rename` has a circle: {' -> '.join([*passed, new])}. It names columns that the source renamed, "
                    "so the last name of each has to be one that is not renamed again. To exchange names, use "
                    "`columns`: a AS b, b AS a"
                )
            passed.append(new)
            new = rename[new]
        chains[old] = new
    return chains


def promotes(old: str, new: str) -> bool:
    """Whether Iceberg widens the type in place (format specification, schema evolution)."""
    one, two = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return (old, new) in _PROMOTIONS or bool(one and two and one[2] == two[2] and int(one[1]) <= int(two[1]))


def routed_name(column: str, kind: str) -> str:
    """Return the name of the column for values of a type that `column` cannot hold."""
    return column + _ROUTED + re.sub(r"\W+", "_", kind).strip("_")


def routed(column: str, columns: Columns) -> list[str]:
    """Return the columns with values of `column` that its type cannot hold."""
    return [c for c, kind in columns.items() if c.startswith(column + _ROUTED) and c == routed_name(column, kind)]


def former_name(column: str, kind: str) -> str:
    """Return the name of the column that keeps values of an earlier type in a table that is never rewritten."""
    return column + _FORMER + re.sub(r"\W+", "_", kind).strip("_")


def formers(column: str, columns: Iterable[str]) -> list[str]:
    """Return the columns with earlier values of `column`."""
    return [c for c in columns if c.startswith(column + _FORMER)]


def is_former(column: str, columns: Iterable[str]) -> bool:
    """Whether a column holds only earlier values of another column in `columns`."""
    return _FORMER in column and column.rsplit(_FORMER, 1)[0] in set(columns)
