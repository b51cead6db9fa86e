"""Python models of a pipeline: load the files that declare them, check their settings, find their tables."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pydantic import Field, ValidationError
from pyspark.errors import PySparkException

from lake_assets.errors import LakeError, ModelError, PipelineError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.names import nearest_table
from lake_assets.lake.setting_errors import setting_errors
from lake_assets.lake.user_modules import import_file
from lake_assets.models.python.model_inputs import Affected
from lake_assets.models.python.python_model import PythonModel, replaced
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.python.sql_template import SqlTemplate, tables_of
from lake_assets.models.sql.sql_errors import located
from lake_assets.pipeline.config.asset_settings import AssetSettings, combined_settings
from lake_assets.pipeline.config.audit_settings import Audits, read_audits
from lake_assets.pipeline.config.pipeline_config import ModelSettings, SqlModel
from lake_assets.pipeline.config.setting_types import seconds_of
from lake_assets.pipeline.config.sql_positions import ModelText
from lake_assets.pipeline.config.stream_tables import Batches, batch_size

# Used by default if it exists beside the YAML.
DEFAULT_FILE = "models.py"


class PythonModelSettings(ModelSettings):
    """Settings of a Python model in addition to the arguments of its decorator."""

    audits: Audits = Field(default_factory=list, description="conditions that the table must meet before publishing")


def python_files(declared: Sequence[Path], folder: Path | None) -> list[Path]:
    """Return the files with Python models: the declared files, else `models.py` if it exists.

    Args:
        declared: paths, relative to `folder`.
        folder: the folder of the YAML; None: the pipeline has none.
    """
    if declared:
        return [(folder or Path()) / path for path in declared]
    default = folder / DEFAULT_FILE if folder else None
    return [default] if default and default.is_file() else []


def load_models(files: Sequence[Path], without: list[str] | None = None) -> tuple[PythonModel, ...]:
    """Import files and return the models that they declare, in their order.

    Args:
        without: where to add a mistake for each file that declares no model.

    Raises:
        PipelineError: files cannot be imported; says of each where it failed.
    """
    models: dict[int, PythonModel] = {}
    mistakes: list[str] = []
    for file in files:
        try:
            found = {id(m): m for m in vars(_imported(file)).values() if isinstance(m, PythonModel)}
            # A file with the default name may be of another program.
            if not found and without is not None and "lake_assets" in file.read_text(encoding="utf-8"):
                without.append(f"{file} declares no model: put `@model(...)` of lake_assets above each function")
            models |= found
        except LakeError as e:
            mistakes.append(str(e))
    if mistakes:
        raise PipelineError("\n".join(mistakes))
    return tuple(models.values())


def template_model(declared: SqlModel, text: ModelText) -> PythonModel:
    """Return the model of a SELECT over changes.

    Raises:
        PipelineError: its template, its SQL or its declaration is wrong; says where.
    """
    template = SqlTemplate(declared.name, text.sql, text.origin)
    try:
        inputs = tables_of(template)
    except ModelError as e:
        raise located(e, text.origin) from e
    where = text.origin.at(None) if text.origin else "its declaration"
    span, write = declared.range, declared.write
    assert write is not None
    replace = [span.column] if declared.replace is None and span else declared.replace
    settings = declared.model_dump(mode="json", exclude_unset=True, include=set(PythonModelSettings.model_fields))
    try:
        return PythonModel(
            TableId.parse(declared.name),
            template,
            {name: kind for name, (kind, _) in inputs.items()},
            where,
            write,
            tuple(declared.key),
            replaced(write, tuple(declared.key), replace),
            {name: name for name in inputs},
            None,
            hashlib.sha256(text.sql.encode()).hexdigest()[:16],
            bool(span and span.cumulative),
            span.back if span else 0,
            span.forward if span else 0,
            declared.on_lookup_change,
            declared.on_query_change if "on_query_change" in declared.model_fields_set else None,
            settings,
        )
    except ValueError as e:
        raise PipelineError(f"{where}: model {declared.name}: {e}") from e


def python_spec(
    lake: LakeBase,
    pipeline: str,
    model: PythonModel,
    tables: Sequence[TableId],
    outer: Batches,
    assets: AssetSettings,
) -> PythonModelSpec:
    """Return the table of a Python model.

    Args:
        lake: the lake, with tables that the pipeline does not declare.
        outer, assets: settings of the pipeline, as defaults for its models.

    Raises:
        PipelineError: a setting is wrong, or a parameter matches no table or several.
    """
    settings = _settings(model)
    names = {p: _table_of(lake, model, p, tables) for p, kind in model.parameters.items() if kind is not Affected}
    for option in ("on_gap", "on_replaced"):
        if model.past and getattr(settings, option) == "rebuild":
            raise PipelineError(
                f"{model.where}: model {model.table}: `{option}: rebuild` computes all rows again, and that cannot be "
                f"done: {model.past}. Leave it out; or declare `on_query_change: rebuild` if the inputs tell all rows"
            )
    if own := [p for p, t in names.items() if t == model.table]:
        raise PipelineError(f"{model.where}: model {model.table}: the parameter {own[0]!r} names its own table")
    # Only tables that read from outside of the pipeline wait for more changes.
    default = None if set(tables).intersection(names.values()) else outer.max_wait
    wait = default if settings.max_wait is None else settings.max_wait
    back, forward = (_seconds(model, setting) for setting in ("back", "forward"))
    return PythonModelSpec(
        model.table,
        model,
        names,
        pipeline,
        settings.properties,
        back,
        forward,
        batch_size(wait, settings, outer),
        combined_settings([settings, assets]),
        read_audits(model.table, settings.audits),
        settings.partitions.declared if settings.partitions else None,
        settings.on_gap,
        settings.on_replaced,
    )


def _settings(model: PythonModel) -> PythonModelSettings:
    try:
        return PythonModelSettings.model_validate(dict(model.settings))
    except ValidationError as e:
        listed = (f"{model.where}: model {model.table}: {text}" for _, text in setting_errors(PythonModelSettings, e))
        raise PipelineError("\n".join(listed)) from e


def _seconds(model: PythonModel, setting: str) -> float:
    try:
        return seconds_of(getattr(model, setting))
    except ValueError as e:
        raise PipelineError(f"{model.where}: model {model.table}: `{setting}`: {e}") from e


def _table_of(lake: LakeBase, model: PythonModel, parameter: str, declared: Sequence[TableId]) -> TableId:
    """Return the table of a parameter: as declared in `inputs`, else the only table of this name."""
    where = f"{model.where}: model {model.table}"
    if name := model.tables.get(parameter):
        try:
            return TableId.parse(name)
        except LakeError as e:
            raise PipelineError(f"{where}: `inputs`: {e}") from e
    matches = [t for t in dict.fromkeys(declared) if t.name == parameter and t != model.table]
    if not matches:
        # Lists names only; loads no table.
        existing = lake.all_tables()
        matches = [t for t in existing if t.name == parameter and t != model.table]
        if not matches:
            near = nearest_table(parameter, (*declared, *existing))
            raise PipelineError(
                f"{where}: no table is called {parameter!r}{near}: name the table of this parameter: "
                f'inputs={{"{parameter}": "layer.name"}}'
            )
    if len(matches) > 1:
        raise PipelineError(
            f"{where}: {', '.join(map(str, matches))} are called {parameter!r}: name the one to read: "
            f'inputs={{"{parameter}": "{matches[-1]}"}}'
        )
    return matches[0]


def _imported(file: Path) -> ModuleType:
    if not file.is_file():
        raise PipelineError(f"{file}: no such Python file; `python` names the files that declare models")
    try:
        return import_file(file)
    except LakeError:
        raise
    except Exception as e:
        advice = ""
        if isinstance(e, PySparkException) or _is_of_spark(e):
            advice = ". A file is imported before Spark is started: make columns within functions"
        where, what = _at(e, file.resolve()), f"{type(e).__name__}: {e}".removesuffix(": ")
        raise PipelineError(f"{file} cannot be imported: {what}{where}{advice}") from e


def _is_of_spark(error: BaseException) -> bool:
    """Whether PySpark raised an error: it asserts that a session has been started."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith("pyspark.")


def _at(error: BaseException, path: Path) -> str:
    """Return the line of a file at which an error occurred."""
    lines = [n for frame, n in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        lines.append(error.lineno)
    return f" (line {lines[-1]})" if lines else ""
