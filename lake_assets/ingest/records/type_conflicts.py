"""Values of a type that their column cannot become: stop, a column of their own, or reject (`on_conflict`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lake_assets.errors import (
    SchemaConflictError,
)
from lake_assets.formats.event_model import EventColumn, Planned
from lake_assets.formats.types.text_types import widest
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.tables.schema_changes import routed_name


def resolve_conflicts(planned: Sequence[Planned], spec: StagingSpec, known: Mapping[str, str]) -> list[Planned]:
    """Plans whose columns go with each other and with those that are there.

    Raises:
        SchemaConflictError: two types of a column have none in common, and the table is not to have a column for each.
    """
    types, found = dict(known), []
    for p in planned:
        columns: list[EventColumn] = []
        for c in p.plan.columns:
            column, wide = c, widest(types.get(c.name, c.type), c.type)
            if wide is None and spec.on_conflict == "new-column" and c.name not in p.plan.key:
                column = replace(c, name=routed_name(c.name, c.type))
                wide = widest(types.get(column.name, c.type), c.type)
            if wide is None and spec.on_conflict != "stop":
                # Each value of it is one that does not fit.
                wide = types[c.name]
                column = replace(c, type=wide, steps=(f"CAST(NULL AS {wide})",), is_conflict=True)
            if wide is None:
                raise SchemaConflictError(
                    f"{spec.table}: column {c.name} is {types[c.name]} and becomes {c.type}, and no type holds both "
                    f"without a loss. Nothing was written. Declare one type for all of its values, for example "
                    f"`types: {{{c.name}: string}}` (records that are in staging already are read again with it), or "
                    "say what becomes of such values (`on_conflict: new-column` or `reject`)"
                )
            types[column.name] = wide
            columns.append(column)
        found.append(replace(p, plan=replace(p.plan, columns=tuple(columns))))
    return found
