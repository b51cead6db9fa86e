"""Values of a type that the column cannot be widened to: stop, add a column, or reject (`on_conflict`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lake_assets.formats.event_model import EventColumn, Planned
from lake_assets.formats.types.text_types import widest
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.tables.schema_changes import conflict, routed_name


def resolve_conflicts(planned: Sequence[Planned], spec: StagingSpec, existing: Mapping[str, str]) -> list[Planned]:
    """Return plans whose column types are compatible with each other and with existing columns.

    Raises:
        SchemaConflictError: two types of a column have no common type, and `on_conflict` is `stop`.
    """
    types, resolved = dict(existing), []
    for p in planned:
        columns: list[EventColumn] = []
        for c in p.plan.columns:
            column, wide = c, widest(types.get(c.name, c.type), c.type)
            if wide is None and spec.on_conflict == "new-column" and c.name not in p.plan.key:
                column = replace(c, name=routed_name(c.name, c.type))
                wide = widest(types.get(column.name, c.type), c.type)
            if wide is None and spec.on_conflict != "stop":
                # No value of this type fits.
                wide = types[c.name]
                column = replace(c, type=wide, steps=(f"CAST(NULL AS {wide})",), is_conflict=True)
            if wide is None:
                raise conflict(str(spec.table), c.name, types[c.name], c.type)
            types[column.name] = wide
            columns.append(column)
        resolved.append(replace(p, plan=replace(p.plan, columns=tuple(columns))))
    return resolved
