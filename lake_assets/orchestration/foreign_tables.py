"""Tables that a pipeline reads and somebody else writes: nodes of the asset graph, too.

Dagster hides an asset that only occurs as a dependency. It shows one that is declared, but refuses an asset that is
declared twice, and only who has all definitions of a code location knows what else declares it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId
from lake_assets.orchestration import asset_metadata
from lake_assets.orchestration._compat import STUB
from lake_assets.orchestration.asset_names import asset_key, layer_of, valid_name
from lake_assets.pipeline import Outcome, Pipeline
from lake_assets.pipeline.config.external_tables import ExternalTable
from lake_assets.pipeline.table_graph import Spec, lookups_of

_DESCRIPTION = "Read by pipelines of this code location, and written by none of them."


def external_assets(pipeline: Pipeline, lake: Lake) -> list[dg.AssetSpec]:
    """Return the assets of the tables that a pipeline declares as external, with the columns that they have now."""
    try:
        return [_declared(t, lake) for t in pipeline.config.external_tables]
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def _declared(declared: ExternalTable, lake: Lake) -> dg.AssetSpec:
    table = TableId.parse(declared.table)
    try:
        # Of an asset without materializations, Dagster shows the columns of its definition.
        found = asset_metadata.of_table(lake, table, declared.column_descriptions) if lake.is_there else {}
    except LakeError:
        found = {}  # what reads the table says what is wrong
    schema = {name: value for name, value in found.items() if name == "dagster/column_schema"}
    return dg.AssetSpec(
        asset_key(table),
        description=declared.description or _DESCRIPTION,
        metadata={"dagster/table_name": asset_metadata.table_name(lake, table), **schema},
        kinds={layer_of(table), "iceberg", *declared.kinds},
        tags=declared.tags,
        group_name=declared.group or layer_of(table),
        owners=declared.owners or [],
    )


def with_foreign_tables(definitions: dg.Definitions) -> dg.Definitions:
    """Return definitions in which all assets that others depend on are declared, so that Dagster shows them.

    Args:
        definitions: all definitions of a code location, merged.
    """
    stubs = [spec.key for spec in definitions.resolve_all_asset_specs() if spec.metadata.get(STUB)]
    foreign = [
        dg.AssetSpec(key, description=_DESCRIPTION, group_name=valid_name(key.path[0]) if len(key.path) > 1 else None)
        for key in sorted(stubs, key=str)
    ]
    return dg.Definitions.merge(definitions, dg.Definitions(assets=foreign)) if foreign else definitions


def foreign_reads(
    lake: LakeBase, pipeline: Pipeline, spec: Spec, declared: Mapping[TableId, Spec], outcome: Outcome
) -> Iterator[dg.AssetObservation]:
    """Yield how each foreign table is that a step has absorbed: no run of Dagster's materializes it.

    Args:
        lake: the lake.
        pipeline: the pipeline of the step.
        spec: the step's table.
        declared: the tables of the pipeline by name.
        outcome: what the step did.
    """
    if outcome.status != "absorbed":
        return
    texts = {TableId.parse(e.table): e.column_descriptions for e in pipeline.config.external_tables}
    for table in dict.fromkeys((*spec.sources, *lookups_of(spec))):
        if table not in declared and lake.exists(table):
            metadata = asset_metadata.of_table(lake, table, texts.get(table, {}))
            yield dg.AssetObservation(asset_key(table), metadata={**metadata, "read_by": str(spec.table)})
