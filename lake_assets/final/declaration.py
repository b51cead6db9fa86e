"""The settings that a final table's rows depend on, besides the events, and the reasons to rebuild a table."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.table import Table

from lake_assets.final.added_columns import DELETED
from lake_assets.final.column_selection import normalized
from lake_assets.final.declared_order import kind_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.formats import event_format
from lake_assets.ingest.staging.due_records import generation_of
from lake_assets.ingest.staging.staging_columns import projection
from lake_assets.lake import LakeBase
from lake_assets.tables.pending_windows import Window, rebuild_advice, window_of
from lake_assets.tables.table_step import ChangedSetting, differing_settings, setting_text
from lake_assets.tables.writing.table_ddl import columns_of, key_in, key_set_of
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY

# In the declaration: how many times all records of staging had been reread when the rows were computed.
GENERATION = "generation"


def declaration(spec: FinalSpec, staging: Table) -> dict[str, Any]:
    """Return the settings that a table's rows depend on, besides the events, as JSON values."""
    # Tables whose order compared the original texts are rebuilt, once.
    reader = event_format(spec.format)
    order = {"order": "by value"} if reader.kind and not spec.order_by else {}
    return {
        **order,
        "mode": spec.mode,
        "deletes": spec.deletes,
        "key": list(_source_key(spec, staging)),
        "track": sorted(spec.track) if spec.track is not None else None,
        "columns": normalized(spec.columns),
        "partition_by": [p.sql for p in spec.partition_by],
        # Older tables lack the copy number, or have hashes without microseconds: they are rebuilt.
        "by_row": spec.by_row and [ROW, COPY, "microseconds"],
        "order_by": _order_of(spec, staging),
        GENERATION: generation_of(staging),
    }


def _order_of(spec: FinalSpec, staging: Table) -> list[list[str | None]]:
    """Return each `order_by` column with its sort kind: values of different kinds cannot be compared."""
    if not spec.order_by:
        return []
    types = {spec.rename.get(f.name, f.name): str(f.field_type) for f in staging.schema().fields}
    return [[c, kind_of(_IN_SPARK.get(types.get(c, ""), types.get(c, "")))] for c in spec.order_by]


# Iceberg types that have another name in Spark.
_IN_SPARK = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}


def _source_key(spec: FinalSpec, staging: Table) -> tuple[str, ...]:
    """Return the key by the names in staging: the declared key, or the key of the stream."""
    if spec.keys:
        return key_set_of(staging, spec.keys, spec.rename)
    return spec.key or tuple(spec.rename.get(k, k) for k in key_in(staging))


def spelled_as(spec: FinalSpec, staging: Table) -> FinalSpec:
    """Return a declaration with its columns spelled as staging spells them: names in the lake ignore case."""
    names = (f.name for f in staging.schema().fields)
    return spec.spelled_as(dict.fromkeys(spec.rename.get(n, n) for n in names))


def pending_of(lake: LakeBase, spec: FinalSpec, table: Table | None, staging: Table) -> tuple[Window, str | None]:
    """Return the window to absorb, and why the table has to be rebuilt from all of staging (None: it has not).

    Reads only the catalog.

    Raises:
        TableReplacedError, SnapshotExpiredError: staging's history since the watermark is lost, and the table is
            declared to stop in this case.
    """
    spec = spelled_as(spec, staging)
    window = window_of(spec.table, table, spec.staging, staging)
    if table is not None and (reason := reason_to_rebuild(lake, spec, table, staging)):
        return Window(spec.staging, None, window.head), reason
    if window.lost and getattr(spec, window.lost.option) == "stop":
        raise window.lost.error(rebuild_advice(spec.table, spec.staging, option=window.lost.option))
    return window, window.lost.why if window.lost else None


def reason_to_rebuild(lake: LakeBase, spec: FinalSpec, table: Table, staging: Table) -> str | None:
    """Return why a table has to be rebuilt from all of staging; None: it has not. Reads only the catalog."""
    spec = spelled_as(spec, staging)
    stored, declared = _stored_declaration(spec, table, staging), declaration(spec, staging)
    if stored | {GENERATION: 0} != declared | {GENERATION: 0}:
        return "its declaration, or the key of its source, has changed since its rows were computed"
    if stored != declared:
        return f"{spec.staging} was rebuilt"
    if spec.by_row:
        expected, existing = projection(lake, spec.staging, spec.rename), columns_of(lake, spec.table)
        if changed := [
            c for c, t in existing.items() if c not in (ROW, COPY, DELETED) and expected.get(c, ("",))[0] != t
        ]:
            return f"{', '.join(changed)} changed, so the hashes that identify rows change as well"
    return None


def changed_settings(spec: FinalSpec, table: Table, staging: Table) -> tuple[ChangedSetting, ...]:
    """Return the settings that a table's rows were not computed by. Reads only the catalog."""
    spec = spelled_as(spec, staging)
    stored, declared = _stored_declaration(spec, table, staging), declaration(spec, staging)
    names = (n for n in dict.fromkeys([*stored, *declared]) if n != GENERATION)
    return differing_settings({n: (setting_text(stored.get(n)), setting_text(declared.get(n))) for n in names})


def _stored_declaration(spec: FinalSpec, table: Table, staging: Table) -> dict[str, Any]:
    """Return the declaration that a table was built with, in the form of `declaration`."""
    # Older tables do not store every setting: missing ones have the value that was the only choice then.
    stored = declaration(FinalSpec(spec.table, spec.staging, spec.pipeline), staging)
    stored["key"], stored[GENERATION] = list(key_in(table)), 0
    stored |= json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
    # A setting of tables from before staging counted its rereads.
    stored.pop("parted_by", None)
    stored["key"] = [spec.rename.get(k, k) for k in stored["key"]]
    return stored
