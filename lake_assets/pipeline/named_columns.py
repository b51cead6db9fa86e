"""Settings that name columns which no table has: `sensitive`, `not_sensitive` and `column_descriptions`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import nearest
from lake_assets.pipeline.config.declared_tables import DeclaredTables
from lake_assets.pipeline.config.setting_lines import Place
from lake_assets.pipeline.table_graph import Spec

_TEXTS = "column_descriptions"


def misnamed_columns(
    lake: LakeBase,
    declared: DeclaredTables,
    specs: Sequence[Spec],
    places: Mapping[TableId, Place],
    known: Mapping[TableId, Collection[str] | None],
) -> Iterator[str]:
    """Yield names of columns that no table has of those that a setting is about.

    Args:
        places: of each table, its place in the settings.
        known: the columns of each table; None: unknown.
    """
    about: dict[tuple[Place, str, str], list[TableId]] = {}
    for spec in specs:
        sensitive, place = spec.shown.sensitive, places[spec.table]
        named = [("sensitive", sensitive.columns), ("not_sensitive", sensitive.cleared)]
        # Those of a raw table are about the tables of its stream.
        for setting, names in named if not isinstance(spec, RawSpec) else ():
            for name in names:
                about.setdefault((_declaring(declared, place, setting, name), setting, name), []).append(spec.table)
        for name in spec.shown.column_descriptions:
            about.setdefault((place, _TEXTS, name), []).append(spec.table)
    for n, external in enumerate(declared.config.external_tables):
        for name in external.column_descriptions:
            about[("external_tables", n), _TEXTS, name] = [TableId.parse(external.table)]
    for (place, setting, name), tables in about.items():
        columns = [known[t] if t in known else _columns(lake, t) for t in tables]
        existing = {c for of_table in columns for c in of_table or ()}
        if None not in columns and spelled(name, existing) not in existing:
            at = declared.at(*place, setting, *([name] if setting == _TEXTS else []))
            yield (
                f"{at}{', '.join(map(str, tables))}: `{setting}` names {name}{nearest(name, existing)}, and the "
                f"columns are {', '.join(sorted(existing))}"
            )


def _columns(lake: LakeBase, table: TableId) -> list[str] | None:
    found = lake.find(table)
    return [f.name for f in found.schema().fields] if found else None


def _declaring(declared: DeclaredTables, place: Place, setting: str, name: str) -> Place:
    """Return the place that declares a name: a table, or its stream, which names columns of any of its tables."""
    if place[0] != "streams":
        return place
    stream = declared.config.streams[int(place[1])]
    return place[:2] if name in getattr(stream, setting) else place
