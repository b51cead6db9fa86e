"""What a final table's rows depend on beside the events, and why a table has to be rebuilt."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.table import Table

from lake_assets.final.added_columns import DELETED
from lake_assets.final.column_selection import written
from lake_assets.final.events.declared_order import kind_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.formats import event_format
from lake_assets.formats.event_model import (
    SEQUENCE,
)
from lake_assets.ingest.staging.rereading import generation_of
from lake_assets.ingest.staging.staging_tables import projection
from lake_assets.lake import LakeBase
from lake_assets.tables.pending_windows import Window, rebuild_advice, window_of
from lake_assets.tables.table_ddl import (
    columns_of,
    key_in,
    key_set_of,
)

DECLARATION_PROPERTY = "lake-assets.final"
# In the declaration: how many times all records of staging had been read again when the rows were made.
GENERATION = "generation"


def declaration(spec: FinalSpec, staging: Table) -> dict[str, Any]:
    """What a table's rows depend on beside the events."""
    # Tables whose order was made of texts as they had come are made again, once.
    reader = event_format(spec.format)
    order = {"order": "by value"} if reader.stored != SEQUENCE and not spec.order_by else {}
    return {
        **order,
        "mode": spec.mode,
        "deletes": spec.deletes,
        "key": list(_source_key(spec, staging)),
        "track": sorted(spec.track) if spec.track is not None else None,
        "columns": written(spec.columns),
        "partition_by": [p.sql for p in spec.partition_by],
        # Earlier tables have no number for each copy, or hashes without microseconds: they are rebuilt.
        "by_row": spec.by_row and [ROW, COPY, "microseconds"],
        "order_by": _order_of(spec, staging),
        GENERATION: generation_of(staging),
    }


def _order_of(spec: FinalSpec, staging: Table) -> list[list[str | None]]:
    """The declared order, and what its columns' values sort as: of other values the texts cannot be compared."""
    if not spec.order_by:
        return []
    types = {spec.rename.get(f.name, f.name): str(f.field_type) for f in staging.schema().fields}
    return [[c, kind_of(_IN_SPARK.get(types.get(c, ""), types.get(c, "")))] for c in spec.order_by]


# Types that Iceberg calls otherwise than Spark.
_IN_SPARK = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}


def _source_key(spec: FinalSpec, staging: Table) -> tuple[str, ...]:
    """The key in staging's names: the declared one, or the stream's."""
    if spec.keys:
        return key_set_of(staging, spec.keys, spec.rename)
    return spec.key or tuple(spec.rename.get(k, k) for k in key_in(staging))


def pending_of(lake: LakeBase, spec: FinalSpec, table: Table | None, staging: Table) -> tuple[Window, str | None]:
    """What the table has to absorb, and why it has to be made anew, of all that staging holds; None: it goes on.

    Reads the catalog only.

    Raises:
        TableReplacedError, SnapshotExpiredError: the history between the two is lost, and the table is declared to
            stop then.
    """
    found = window_of(spec.table, table, spec.staging, staging)
    if table is not None and (rebuild_reason := _rebuilds(lake, spec, table, staging)):
        return Window(spec.staging, None, found.head), rebuild_reason
    if found.lost and getattr(spec, found.lost.option) == "stop":
        raise found.lost.error(rebuild_advice(spec.table, spec.staging, option=found.lost.option))
    return found, found.lost.why if found.lost else None


def _rebuilds(lake: LakeBase, spec: FinalSpec, table: Table, staging: Table) -> str | None:
    made, now = _made_by(spec, table, staging), declaration(spec, staging)
    if made | {GENERATION: 0} != now | {GENERATION: 0}:
        return "its declaration, or the key of its source, is another than it was made with"
    if made != now:
        return f"{spec.staging} was rebuilt"
    if spec.by_row:
        wanted, has = projection(lake, spec.staging, spec.rename), columns_of(lake, spec.table)
        if changed := [c for c, t in has.items() if c not in (ROW, COPY, DELETED) and wanted.get(c, ("",))[0] != t]:
            return f"{', '.join(changed)} changed, and so do the hashes that rows are told apart by"
    return None


def _made_by(spec: FinalSpec, table: Table, staging: Table) -> dict[str, Any]:
    """The declaration that a table was made by, as `declaration` gives it."""
    # Made before there was a choice: what was the only one then.
    made = declaration(FinalSpec(spec.table, spec.staging, spec.pipeline), staging)
    made["key"], made[GENERATION] = list(key_in(table)), 0
    made |= json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
    # What tables were made with before staging said how often it was read again.
    made.pop("parted_by", None)
    made["key"] = [spec.rename.get(k, k) for k in made["key"]]
    return made
