"""Partitions by sensitive columns, whose values would be shown as names of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lake_assets.lake import LakeBase, TableId
from lake_assets.pipeline.config.declared_tables import DeclaredTables
from lake_assets.pipeline.config.setting_lines import Place
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec


def partitions_by_sensitive(
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
