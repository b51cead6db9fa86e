"""When a staging table has to be read again from its raw table: what is declared now reads earlier records differently.

Most declarations only matter for what comes next. Some decide what a record means, so that rows from before would
contradict those that follow: the key by which updates are split into a delete and an insert, the type of a column that
staging already has, the position that the table starts at, and an order that took in records without a place in their
own, once it is no longer declared. What a table was read with is kept in its properties.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.table import Table

from lake_assets.formats import event_format
from lake_assets.formats.event_model import MISFITS
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.tables.schema_changes import formers, promotes, routed
from lake_assets.tables.table_ddl import key_set_of, types_in

# The declared key by which updates are split into a delete and an insert.
PARTED_PROPERTY = "lake-assets.parted-by"
# Declared types and start with which the table's records were read, and whether columns were declared as their order.
READ_PROPERTY = "lake-assets.read-as"
# How many times all records were read again: what is computed of the table is computed again then.
GENERATION_PROPERTY = "lake-assets.generation"
_EVERY_COLUMN = ["*"]


def reason_to_reread(spec: StagingSpec, table: Table) -> str | None:
    """Return why all records have to be read again; None if later ones can be appended to what is there."""
    if starts_elsewhere(spec, table):
        return f"it starts at record {spec.start} now"
    parted = table.properties.get(PARTED_PROPERTY)
    if parted is not None:
        before = {spec.rename.get(k, k) for k in json.loads(parted)}
        now = key_set_of(table, spec.keys, spec.rename) if spec.keys else parted_by(spec, ())
        if before != set(now):
            return "another key is declared"
    if changed := retyped(spec, table):
        return f"another type is declared for {', '.join(changed)}"
    if _read_as(table).get("ordered") and not spec.order_by and event_format(spec.format).kind:
        return "the records' own order counts now"
    return None


def starts_elsewhere(spec: StagingSpec, table: Table) -> bool:
    """Whether the table is declared to start at another record than it does."""
    return spec.start != _read_as(table).get("start", 0)


def retyped(spec: StagingSpec, table: Table) -> list[str]:
    """Columns that are declared to have a type which their stored values cannot simply be widened to."""
    had: Mapping[str, str] = _read_as(table).get("types", {})
    columns = types_in(table)
    found: list[str] = []
    for name, kind in spec.types.items():
        names = [n for n in columns if spec.rename.get(n, n) == name]
        if had.get(name) == kind or not names:
            continue
        has = columns[names[0]]
        apart = [c for n in names for c in (*formers(n, columns), *routed(n, columns))]
        # A value that did not fit the narrower type is null in its event, and nowhere else: no replay brings it.
        if apart or (has != kind and (MISFITS in columns or not _reads_alike(has, kind))):
            found.append(name)
    return found


def _reads_alike(narrow: str, wide: str) -> bool:
    """Whether values that were read as a type are, widened, what the wider type would have made of them."""
    # The float next to 0.1 is another number as a double.
    return promotes(narrow, wide) and narrow != "float"


def parted_by(spec: StagingSpec, key_set: tuple[str, ...]) -> list[str]:
    """Return the declared key that updates are split by."""
    return _EVERY_COLUMN if spec.by_row else list(key_set if spec.keys else spec.key)


def generation_of(table: Table) -> int:
    """Return how many times all records of the table have been read again."""
    return int(table.properties.get(GENERATION_PROPERTY, "0"))


def properties_of(spec: StagingSpec, key_set: tuple[str, ...]) -> dict[str, str]:
    """Return the properties that say what the table is read with."""
    read: dict[str, Any] = {"types": dict(sorted(spec.types.items())), "start": spec.start}
    if spec.order_by:
        read["ordered"] = True
    return {PARTED_PROPERTY: json.dumps(parted_by(spec, key_set)), READ_PROPERTY: json.dumps(read)}


def _read_as(table: Table) -> dict[str, Any]:
    return json.loads(table.properties.get(READ_PROPERTY, "{}"))
