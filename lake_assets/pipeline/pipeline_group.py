"""Several pipelines as one, for a backfill of tables of several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lake_assets.lake import LakeBase
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec, ordered

# Between names in the name of a group.
_AND = " + "


class PipelineGroup:
    """Several pipelines, with the part of `Pipeline` that backfills use."""

    def __init__(self, pipelines: Iterable[Pipeline]) -> None:
        """Group pipelines; their order makes no difference."""
        self._pipelines = sorted(pipelines, key=lambda p: p.name)

    @property
    def name(self) -> str:
        """The names of all."""
        return _AND.join(p.name for p in self._pipelines)

    @property
    def files(self) -> tuple[Path, ...]:
        """The YAML files of all; empty if one has none."""
        files = tuple(file for p in self._pipelines for file in p.files)
        return files if len(files) == len(self._pipelines) else ()

    def specs(self, lake: LakeBase, *, alone: bool = True) -> list[Spec]:
        """Return the tables of all, upstream first; see `Pipeline.specs`."""
        return ordered([s for p in self._pipelines for s in p.specs(lake, alone=alone)], self.name)


def grouped(pipelines: Iterable[Pipeline]) -> Pipeline | PipelineGroup:
    """Return one pipeline itself, or several as a group."""
    one, *more = pipelines
    return PipelineGroup([one, *more]) if more else one


def names_of(name: str) -> list[str]:
    """Return the names of the pipelines in the name of a pipeline or a group."""
    return name.split(_AND)
