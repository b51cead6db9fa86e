"""Find the pipeline that declares a table."""

from __future__ import annotations

from lake_assets.commands.run_and_status import find_pipeline
from lake_assets.errors import PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.pipeline import Pipeline, own_pipelines


def pipeline_of(lake: Lake, table: TableId, named: str | None) -> Pipeline:
    """Find the pipeline that declares a table.

    Raises:
        PipelineError: no pipeline does.
    """
    searched = [find_pipeline(named)] if named else [*own_pipelines(), *map(Pipeline.load, shipped_pipelines())]
    declared: list[str] = []
    for candidate in searched:
        tables = [s.table for s in candidate.specs(lake, alone=False)]
        if table in tables:
            return candidate
        declared += map(str, tables)
    names = ", ".join(c.name for c in searched)
    where = "" if named else ". Name its pipeline with --pipeline, or set LAKE_PIPELINES to its folder"
    raise PipelineError(f"no table {table} in pipeline {names}{nearest(str(table), declared)}{where}")
