"""When a staging table must be read again from raw: the declaration has changed so that earlier records read
differently, or the raw table's history is lost. After lost history only the records that it lacks are absorbed.

Most declarations only affect later records. Some decide what a record means, so earlier rows would contradict later
ones: the key by which updates are split into a delete and an insert, the type of an existing column, the position that
the table starts at, the columns of a change set (`flag`, `time`), a rename of a column whose new name the table has
already as another column, and `order_by` once it is removed, since it accepted records without a position of their own.
The table's properties store the declaration with which it was read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pyiceberg.table import Table

from lake_assets.formats.event_model import MISFITS
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.column_spelling import caseless
from lake_assets.tables.schema_changes import formers, promotes, routed
from lake_assets.tables.writing.table_ddl import key_set_of, types_in
from lake_assets.tables.writing.table_state import GENERATION_PROPERTY, PARTED_PROPERTY, READ_PROPERTY

# Declared renames of which the table keeps both columns, since its records cannot be read again.
IN_PLACE_PROPERTY = "lake-assets.renamed-in-place"
_EVERY_COLUMN = ["*"]


def reason_to_reread(spec: StagingSpec, table: Table) -> str | None:
    """Return why all records have to be read again; None if new ones can be appended."""
    if starts_elsewhere(spec, table):
        return f"it now starts at record {spec.start}"
    parted = table.properties.get(PARTED_PROPERTY)
    if parted is not None:
        before = {spec.rename.get(k, k) for k in json.loads(parted)}
        now = key_set_of(table, spec.keys, spec.rename) if spec.keys else parted_by(spec, ())
        if set(map(caseless, before)) != set(map(caseless, now)):
            return "another key is declared"
    if changed := retyped(spec, table):
        declared, undeclared = ([c for c in changed if (c in spec.types) is is_in] for is_in in (True, False))
        return "; ".join([
            *([f"another type is declared for {', '.join(declared)}"] if declared else []),
            *([f"no type is declared for {', '.join(undeclared)} any more"] if undeclared else []),
        ])  # fmt: skip
    if spec.layout and _read_as(table).get("layout") != spec.layout.read_as:
        return "another `flag` or `time` is declared"
    if not spec.layout and _read_as(table).get("layout"):
        return "`flag` and `time` are no longer declared"
    if _read_as(table).get("ordered") and not spec.order_by:
        return "`order_by` is no longer declared"
    return reason_to_unite(spec, table)


def reason_to_unite(spec: StagingSpec, table: Table) -> str | None:
    """Return why all records have to be read again because of a declared rename alone; None if they have not.

    Before the rename was declared, events with the new name left the old column out, and the other way round. Whether
    an event left a column out before the table had it is not stored, only the records tell.
    """
    kept = in_place(table)
    pairs = [f"{old} and {new}" for old, new in doubled(spec, table).items() if kept.get(old) != new]
    return f"{', '.join(pairs)} are declared to be one column (`rename`)" if pairs else None


def doubled(spec: StagingSpec, table: Table) -> dict[str, str]:
    """Return the declared renames of columns that are one column with another one of the table."""
    columns = [f.name for f in table.schema().fields]
    shared = Counter(spec.rename.get(c, c) for c in columns)
    return {c: spec.rename[c] for c in columns if c in spec.rename and shared[spec.rename[c]] > 1}


def carries_both(lake: LakeBase, spec: StagingSpec, table: Table) -> bool:
    """Whether some event has a value under both names of a declared rename: it could not be read as one column."""
    columns, united = [f.name for f in table.schema().fields], doubled(spec, table)
    counts = (
        " + ".join(f"int({quote(c)} IS NOT NULL)" for c in columns if spec.rename.get(c, c) == new)
        for new in set(united.values())
    )
    rows = lake.spark().table(lake.sql_name(spec.table))
    return not rows.where(" OR ".join(f"{count} > 1" for count in counts)).limit(1).isEmpty()


def in_place(table: Table) -> dict[str, str]:
    """Return the renames of which the table keeps both columns, since its records cannot be read again."""
    return json.loads(table.properties.get(IN_PLACE_PROPERTY, "{}"))


def starts_elsewhere(spec: StagingSpec, table: Table) -> bool:
    """Whether the declared start differs from the record that the table starts at."""
    return spec.start != _read_as(table).get("start", 0)


def retyped(spec: StagingSpec, table: Table) -> list[str]:
    """Return columns whose stored values cannot simply be widened to the declared type, or that lost theirs."""
    had: Mapping[str, str] = _read_as(table).get("types", {})
    columns = types_in(table)
    # A type that is no longer declared: the values have their own again.
    changed = [n for n in had if n not in spec.types and any(spec.rename.get(c, c) == n for c in columns)]
    for name, kind in spec.types.items():
        names = [n for n in columns if spec.rename.get(n, n) == name]
        if had.get(name) == kind or not names:
            continue
        has = columns[names[0]]
        apart = [c for n in names for c in (*formers(n, columns), *routed(n, columns))]
        # A value that did not fit the narrower type was stored as null and is not among the rejects, so no replay finds
        # it.
        if apart or (has != kind and (MISFITS in columns or not _reads_alike(has, kind))):
            changed.append(name)
    return changed


def _reads_alike(narrow: str, wide: str) -> bool:
    """Whether values read as the narrow type and then widened equal values read as the wide type."""
    # The float nearest to 0.1 is not the double nearest to 0.1.
    return promotes(narrow, wide) and narrow != "float"


def parted_by(spec: StagingSpec, key_set: tuple[str, ...]) -> list[str]:
    """Return the declared key that updates are split by."""
    return _EVERY_COLUMN if spec.by_row else list(key_set if spec.keys else spec.key)


def generation_of(table: Table) -> int:
    """Return how many times all records of the table have been read again."""
    return int(table.properties.get(GENERATION_PROPERTY, "0"))


def properties_of(spec: StagingSpec, key_set: tuple[str, ...]) -> dict[str, str]:
    """Return the properties that store how the table is read."""
    read: dict[str, Any] = {"types": dict(sorted(spec.types.items())), "start": spec.start}
    if spec.order_by:
        read["ordered"] = True
    if spec.layout:
        read["layout"] = spec.layout.read_as
    return {PARTED_PROPERTY: json.dumps(parted_by(spec, key_set)), READ_PROPERTY: json.dumps(read)}


def _read_as(table: Table) -> dict[str, Any]:
    return json.loads(table.properties.get(READ_PROPERTY, "{}"))
