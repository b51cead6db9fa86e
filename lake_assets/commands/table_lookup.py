"""The options that commands share, and the lookup of pipelines and tables by what a user has named."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from lake_assets.commands.printing import local
from lake_assets.errors import LakeError, PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import nearest
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.pipeline import Pipeline, own_pipelines
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec, Spec

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
ShowSensitive = Annotated[
    bool, typer.Option("--show-sensitive", help="show values of columns that are declared `sensitive`, instead of ***")
]
PipelineOption = Annotated[
    str | None,
    typer.Option("--pipeline", "-p", help="YAML file, folder or name; default: the shipped ones and LAKE_PIPELINES"),
]


def find_pipeline(name: str) -> Pipeline:
    """Load the pipeline of a YAML file or of a folder with a defs.yaml, or a shipped one by its name.

    Raises:
        PipelineError: no such pipeline, or its settings are wrong.
        ConfigError: the name is a URL or not a valid path.
    """
    return Pipeline.load(find_file(name))


def find_file(name: str) -> Path:
    """Return the file of a pipeline; see `find_pipeline`."""
    path, shipped = local(Path(name), "the pipeline"), {p.parent.name: p for p in shipped_pipelines()}
    if path.is_dir() and (path / "defs.yaml").is_file():
        return path / "defs.yaml"
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    here = (
        sorted(p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml")) if path.parent.is_dir() else []
    )
    problem = f"{path} is a folder without a defs.yaml" if path.is_dir() else f"no pipeline {name}"
    raise PipelineError(
        f"{problem}{nearest(path.name, [*shipped, *here])}: name a YAML file, a folder with a defs.yaml, or a shipped "
        f"pipeline ({', '.join(shipped)})"
    )


def all_pipelines() -> list[Pipeline]:
    """Load the pipelines in LAKE_PIPELINES and the shipped ones."""
    return [*own_pipelines(), *map(Pipeline.load, shipped_pipelines())]


def known_pipelines() -> tuple[list[Pipeline], list[str]]:
    """Return the pipelines of `all_pipelines`, or the error of one that cannot be read."""
    try:
        return all_pipelines(), []
    except LakeError as e:
        return [], [str(e)]


def declared_specs(lake: Lake) -> dict[str, Spec]:
    """Return the declarations of all tables, by name; without those of pipelines that cannot be read."""
    found: dict[str, Spec] = {}
    with contextlib.suppress(LakeError):  # `status` and `check` say what is wrong
        for pipeline in all_pipelines():
            with contextlib.suppress(LakeError):
                found |= {str(s.table): s for s in pipeline.specs(lake, alone=False)}
    return found


def sensitive_of(lake: Lake, table: TableId | str) -> SensitiveColumns:
    """Return the sensitive columns of a table, as pipelines in LAKE_PIPELINES declare them now, and as its last step
    had them."""
    name, specs = TableId.parse(table), list[Spec]()
    with contextlib.suppress(LakeError):  # `check` says what is wrong
        for pipeline in own_pipelines():
            specs += pipeline.specs(lake, alone=False)
    return SensitiveTables.of_specs(lake, specs).of(name) | SensitiveColumns.stored(lake.find(name))


def pipeline_of(lake: Lake, table: TableId, named: str | None) -> Pipeline:
    """Return the pipeline that declares a table: the named one, or one of all.

    Raises:
        PipelineError: no pipeline does.
    """
    searched = [find_pipeline(named)] if named else all_pipelines()
    existing = None if named else lake.find(table)
    owner = existing.properties.get(PIPELINE_PROPERTY) if existing is not None else None
    declared: list[str] = []
    for candidate in searched:
        tables = [s.table for s in candidate.specs(lake, alone=False)]
        if table in tables and owner in (None, candidate.name):
            return candidate
        declared += map(str, tables)
    if str(table) in declared:
        raise PipelineError(
            f"{table} belongs to pipeline {owner!r}, which is neither a shipped one nor below LAKE_PIPELINES: name its "
            "file with --pipeline"
        )
    names = ", ".join(c.name for c in searched)
    has = f"; it has {', '.join(declared) or 'none'}"
    where = has if named else ". Name its pipeline with --pipeline, or set LAKE_PIPELINES to its folder"
    raise PipelineError(f"no table {table} in pipeline {names}{nearest(str(table), declared)}{where}")


def computed_spec(lake: Lake, table: TableId, named: str | None) -> ComputedSpec | JobSpec:
    """Return the current declaration of a model, a final table or the table of a job; see `pipeline_of`.

    Raises:
        PipelineError: no pipeline declares the table, or it is a raw or staging table.
    """
    specs = pipeline_of(lake, table, named).specs(lake, alone=False)
    spec = next(s for s in specs if s.table == table)
    if not isinstance(spec, ComputedSpec | JobSpec):
        raise PipelineError(
            f"{table} holds records or events as they arrived, so there is nothing to compare it with: "
            "verify final tables, models and tables of jobs"
        )
    return spec
