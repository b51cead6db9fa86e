"""The pipelines whose definitions this process has built; each table belongs to one of them.

One backfill may have tables of several.
"""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from lake_assets.errors import BackfillError, TableClaimedError
from lake_assets.lake import LakeConfig
from lake_assets.orchestration.asset_names import PIPELINE_TAG
from lake_assets.pipeline import Pipeline, PipelineGroup, grouped

# By the lake's home and the pipeline's name: a code location may have several lakes.
_loaded: dict[tuple[str, str], Pipeline] = {}


def remember(pipeline: Pipeline, config: LakeConfig) -> None:
    """Remember a pipeline of a lake, or a newer version of it."""
    _loaded[str(config.home), pipeline.name] = pipeline


def loaded(config: LakeConfig) -> list[Pipeline]:
    """Return the pipelines of a lake."""
    return [pipeline for (home, _), pipeline in _loaded.items() if home == str(config.home)]


def named(config: LakeConfig, names: Iterable[str]) -> Pipeline | PipelineGroup:
    """Return a pipeline of a lake, or several as a group.

    Raises:
        BackfillError: the definitions have no such pipeline.
    """
    found = {p.name: p for p in loaded(config)}
    wanted = list(names)
    if missing := [name for name in wanted if name not in found]:
        raise BackfillError(f"no pipeline {', '.join(missing)} in this code location, which has: {', '.join(found)}")
    return grouped(found[name] for name in wanted)


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
