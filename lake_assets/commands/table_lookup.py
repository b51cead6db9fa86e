"""The options that commands share, and the lookup of pipelines and tables by what a user has named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lake_assets.commands.printing import check_folder_of, local
from lake_assets.errors import LakeError, PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import nearest
from lake_assets.lake.project_root import find_project
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipelines_of_lake import noted_files
from lake_assets.pipeline.project_folder import misnamed_files, own_files, project_files
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec, Spec

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
# Of commands that take one pipeline, or several.
PipelineArgument = Annotated[
    str | None,
    typer.Argument(
        help="YAML file, folder with a defs.yaml, or name; default: those of the project in the current folder, "
        "and of LAKE_PIPELINES",
        show_default=False,
    ),
]
ShowSensitive = Annotated[
    bool, typer.Option("--show-sensitive", help="show values of columns that are declared `sensitive`, instead of ***")
]
Html = Annotated[
    Path | None, typer.Option("--html", help="write a page of HTML that needs no other file", metavar="FILE")
]
PipelineOption = Annotated[
    str | None,
    typer.Option("--pipeline", "-p", help="YAML file, folder or name; default: all that are known here"),
]


def page_file(html: Path | None) -> Path | None:
    """Return the file of `--html`.

    Raises:
        ConfigError: it cannot be written, which is said before anything is computed for it.
    """
    if html is None:
        return None
    file = local(html, "--html")
    check_folder_of(file, "--html")
    return file


def find_pipeline(name: str) -> Pipeline:
    """Load the pipeline of a YAML file or of a folder with a defs.yaml, or one of the project or a shipped one by name.

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
    own = {name_of(file): file for file in default_files()}
    known = {**shipped, **own}
    if name in known:
        return known[name]
    here = (
        sorted(p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml")) if path.parent.is_dir() else []
    )
    problem = f"{path} is a folder without a defs.yaml" if path.is_dir() else f"no pipeline {name}"
    mine = f"a pipeline of the project ({', '.join(own)}), " if own else ""
    # Whoever mistypes a file's name is not led to a shipped example, which would run in their lake.
    near = [*own, *here] if path.suffix in (".yaml", ".yml") else [*known, *here]
    raise PipelineError(
        f"{problem}{nearest(path.name, near, key=lambda n: Path(n).stem.lower())}: name a YAML file, a folder with a "
        f"defs.yaml, {mine}or a shipped pipeline ({', '.join(shipped)})"
    )


def name_of(file: Path) -> str:
    """Return the name by which commands know a pipeline of the project: that of its folder, or of another file."""
    return file.parent.name if file.name == "defs.yaml" else file.stem


def default_files() -> list[Path]:
    """Return the files of a user's own pipelines: those of the project in or above the current folder, and those in
    LAKE_PIPELINES."""
    shipped = {file.resolve() for file in shipped_pipelines()}
    by_place = {file.resolve(): file for file in (*project_files(), *own_files())}
    return [file for place, file in by_place.items() if place not in shipped]


def named_files(name: str | None) -> list[Path]:
    """Return the file of the named pipeline; without a name, those of all of a user's own.

    Raises:
        PipelineError: there is none; says where pipelines are looked for.
    """
    if name is not None:
        return [find_file(name)]
    if found := default_files():
        return found
    project = find_project()
    if project is None:
        raise PipelineError(
            "no pipeline is named, and there is no project here: name a YAML file, a folder with a defs.yaml, or a "
            f"shipped pipeline ({', '.join(p.parent.name for p in shipped_pipelines())}); or go to a project "
            "(`lake-assets init NAME` writes one), or set LAKE_PIPELINES to a folder with pipelines"
        )
    if misnamed := misnamed_files():
        raise PipelineError(misnamed_text(misnamed))
    raise PipelineError(
        f"no pipeline is named, and the project {project.root} has none among its definitions "
        f"({project.defs or 'it has no folder for them'}): `dg scaffold defs lake_assets.LakePipeline NAME` adds one"
    )


def named_file(name: str | None) -> Path:
    """Return the file of the named pipeline; without a name, that of a user's only one.

    Raises:
        PipelineError: there is none, or there are several.
    """
    first, *more = named_files(name)
    if more:
        names = ", ".join(name_of(file) for file in (first, *more))
        raise PipelineError(
            f"there are {len(more) + 1} pipelines here, and this command takes one: name one of {names}"
        )
    return first


def command(words: str, pipeline: str | None) -> str:
    """Return a command about the pipeline that a user has named, or about those of the project."""
    return words if pipeline is None else f"{words} {pipeline}"


def misnamed_text(files: Iterable[Path]) -> str:
    """Return that files are not read, and what to do."""
    listed = ", ".join(map(str, files))
    return f"Dagster reads no pipeline but `defs.yaml`, so these are ignored: {listed}. Move each to NAME/defs.yaml"


def all_pipelines(lake: Lake) -> list[Pipeline]:
    """Load a user's own pipelines, those that have run over the lake, and the shipped ones.

    Raises:
        PipelineError: one of a user's own is wrong.
    """
    return _with_others(lake, [Pipeline.load(file) for file in default_files()])[0]


def known_pipelines(lake: Lake) -> tuple[list[Pipeline], list[str]]:
    """Return the pipelines of `all_pipelines` that can be read, and why others cannot."""
    try:
        files, misnamed = default_files(), misnamed_files()
    except LakeError as e:
        return [], [str(e)]
    own: list[Pipeline] = []
    errors: list[str] = [misnamed_text(misnamed)] if misnamed else []
    for file in files:
        try:
            own.append(Pipeline.load(file))
        except LakeError as e:
            errors.append(str(e))
    known, unread = _with_others(lake, own)
    return known, [*errors, *unread]


def _with_others(lake: Lake, own: Sequence[Pipeline]) -> tuple[list[Pipeline], list[str]]:
    """Return some pipelines, and those of other names that have run over the lake or are shipped; and the errors of
    the former."""
    known, errors, noted = list(own), list[str](), noted_files(lake)
    names = {p.name for p in own}
    for name, file in noted.items():
        if name in names:
            continue
        try:
            known.append(Pipeline.load(file))
        except LakeError as e:
            errors.append(f"pipeline {name} was last run from {file}: {e}")
    # A shipped pipeline does not declare the tables of another one of its name.
    names |= set(noted)
    return [*known, *(Pipeline.load(f) for f in shipped_pipelines() if f.parent.name not in names)], errors


def declared_specs(lake: Lake) -> dict[str, Spec]:
    """Return the declarations of all tables, by name; without those of pipelines that cannot be read."""
    found: dict[str, Spec] = {}
    for pipeline in known_pipelines(lake)[0]:  # `status` and `check` say what is wrong
        with contextlib.suppress(LakeError):
            found |= {str(s.table): s for s in pipeline.specs(lake, alone=False)}
    return found


def sensitive_of(lake: Lake, table: TableId | str) -> SensitiveColumns:
    """Return the sensitive columns of a table, as known pipelines declare them now, and as its last step had them."""
    name = TableId.parse(table)
    declared = SensitiveTables.of_specs(lake, list(declared_specs(lake).values()))
    return declared.of(name) | SensitiveColumns.stored(lake.find(name))


def pipeline_of(lake: Lake, table: TableId, named: str | None) -> Pipeline:
    """Return the pipeline that declares a table: the named one, or one of all.

    Raises:
        PipelineError: no pipeline does.
    """
    searched = [find_pipeline(named)] if named else all_pipelines(lake)
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
            f"{table} belongs to pipeline {owner!r}, whose file is not known here: name it with --pipeline, or work in "
            "its project's folder"
        )
    shipped = set(shipped_pipelines())
    names = ", ".join(c.name for c in searched if named or c.path not in shipped) or "of this folder"
    has = f"; it has {', '.join(declared) or 'none'}"
    where = has if named else ". Name its pipeline with --pipeline, or work in its project's folder"
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
