"""Mistakes in what a pipeline declares about sensitive columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import nearest
from lake_assets.pipeline.config.declared_tables import DeclaredTables
from lake_assets.pipeline.config.setting_lines import Place
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec


def sensitive_mistakes(
    lake: LakeBase,
    declared: DeclaredTables,
    specs: Sequence[Spec],
    places: Mapping[TableId, Place],
    known: Mapping[TableId, Collection[str] | None],
) -> Iterator[str]:
    """Yield names of columns that no table has of those that a setting is about, and `partitions` by sensitive columns.

    Args:
        places: of each table, its place in the settings.
        known: the columns of each table; None: unknown.
    """
    about: dict[tuple[Place, str, str], list[TableId]] = {}
    for spec in specs:
        sensitive, place = spec.shown.sensitive, places[spec.table]
        for setting, names in (("sensitive", sensitive.columns), ("not_sensitive", sensitive.cleared)):
            # Those of a raw table are not declared.
            for name in names if not isinstance(spec, RawSpec) else ():
                about.setdefault((_declaring(declared, place, setting, name), setting, name), []).append(spec.table)
    for (place, setting, name), tables in about.items():
        columns = [known[t] for t in tables]
        existing = {c for of_table in columns for c in of_table or ()}
        if None not in columns and spelled(name, existing) not in existing:
            yield (
                f"{declared.at(*place, setting)}{', '.join(map(str, tables))}: `{setting}` names {name}"
                f"{nearest(name, existing)}, and the columns are {', '.join(sorted(existing))}"
            )
    yield from _partitions(lake, declared, specs, places)


def _declaring(declared: DeclaredTables, place: Place, setting: str, name: str) -> Place:
    """Return the place that declares a name: a table, or its stream, which names columns of any of its tables."""
    if place[0] != "streams":
        return place
    stream = declared.config.streams[int(place[1])]
    return place[:2] if name in getattr(stream, setting) else place


def _partitions(
    lake: LakeBase, declared: DeclaredTables, specs: Sequence[Spec], places: Mapping[TableId, Place]
) -> Iterator[str]:
    """Yield `partitions` by sensitive columns: their values would be the names of partitions in Dagster."""
    sensitive = SensitiveTables.of_specs(lake, specs)
    for spec in specs:
        by = spec.partitions.by if spec.partitions is not None else None
        if by is not None and sensitive.of(spec.table).covers(by):
            at = declared.at(*places[spec.table], "partitions")
            yield (
                f"{at}{spec.table}: `partitions` by {by}, which is sensitive: its values would be the names of "
                f"partitions in Dagster. Choose another column, or `partition_by: bucket(16, {by})`"
            )
