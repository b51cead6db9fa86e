"""Column lineage for Dagster: the source columns of each column of a table."""

from __future__ import annotations

import dagster as dg

from lake_assets.lake import LakeBase
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.pipeline.column_sources import column_sources
from lake_assets.pipeline.table_graph import Spec


def column_lineage(lake: LakeBase, spec: Spec) -> dg.TableColumnLineage | None:
    """Return the lineage of the columns of a final table or model; None if unknown."""
    sources = column_sources(lake, spec)
    if sources is None:
        return None
    return dg.TableColumnLineage(
        {c: [dg.TableColumnDep(asset_key(table), column) for table, column in deps] for c, deps in sources.items()}
    )
