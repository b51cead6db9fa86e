"""Check that each table belongs to one pipeline, when definitions are loaded."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from lake_assets.errors import TableClaimedError
from lake_assets.orchestration.asset_names import PIPELINE_TAG


def check_claims(definitions: Iterable[dg.Definitions]) -> None:
    """Raise TableClaimedError if two pipelines declare one table; Dagster's own error would not name them.

    Args:
        definitions: definitions of any number of pipelines.
    """
    owners: dict[dg.AssetKey, str | None] = {}
    for part in definitions:
        for asset in part.assets or []:
            if isinstance(asset, dg.AssetsDefinition):
                for spec in asset.specs:
                    pipeline = spec.metadata.get(PIPELINE_TAG)
                    if spec.key in owners:
                        raise TableClaimedError(
                            f"{'.'.join(spec.key.path)} is declared by pipeline {owners[spec.key]!r} and by pipeline "
                            f"{pipeline!r}: give it another `name` in one of them"
                        )
                    owners[spec.key] = pipeline
