"""Read a pipeline's YAML file outside Dagster, and report mistakes with line numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lake_assets.errors import PipelineError
from lake_assets.lake.setting_errors import setting_errors
from lake_assets.lake.yaml_text import YamlError, load
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.pipeline_config import PipelineConfig, pipeline_of_job
from lake_assets.pipeline.config.sql_positions import model_mistakes

COMPONENT, JOB = "lake_assets.LakePipeline", "lake_assets.CapturedJob"


def read_pipeline(path: Path) -> PipelineConfig:
    """Read the pipeline of a component file (`type: lake_assets.LakePipeline`, settings under `attributes`).

    A file of `type: lake_assets.CapturedJob` is a pipeline of one job. Mistakes in the SQL of models are reported only
    along with others: by themselves they fail the steps of their tables (see `DeclaredTables.specs`).

    Raises:
        PipelineError: the file is missing or not YAML, or settings are wrong; lists all of them with their lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise PipelineError(f"cannot read the pipeline {path}: {e}") from e
    try:
        content, node = load(text)
    except YamlError as e:
        raise PipelineError(e.in_file(path)) from e
    if not isinstance(content, dict) or content.get("type") not in (COMPONENT, JOB) or "attributes" not in content:
        raise PipelineError(
            f"{path}: expected `type: {COMPONENT}` (or {JOB}) and its settings under `attributes:`, found "
            f"{_shape(content)}"
        )
    missing_files, mistakes = model_mistakes(path, node)
    try:
        if content["type"] == JOB:
            return pipeline_of_job(CapturedJobConfig.model_validate(content["attributes"]))
        config = PipelineConfig.model_validate(content["attributes"])
    except ValidationError as e:
        settings = [
            f"{path}, line {_line(node, ('attributes', *place))}: {text}"
            for place, text in setting_errors(CapturedJobConfig if content["type"] == JOB else PipelineConfig, e)
        ]
        raise PipelineError("\n".join([*settings, *missing_files, *mistakes])) from e
    if missing_files:
        raise PipelineError("\n".join([*missing_files, *mistakes]))
    # A mistake in a model's SQL concerns its table: see `DeclaredTables`.
    return config


def _shape(content: Any) -> str:
    """Describe the contents of a file that is not a pipeline."""
    if content is None:
        return "an empty file"
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    kind = content.get("type")
    listed = ", ".join(map(str, content))
    return f"`type: {kind}`" if kind not in (None, COMPONENT, JOB) else f"only these settings at the top: {listed}"


def _line(node: yaml.Node | None, path: Sequence[Any]) -> int:
    """Return the line of a setting, or of the nearest enclosing one in the file."""
    line = 1
    for step in path:
        if node is None:
            break
        line = node.start_mark.line + 1
        child = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, child = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            child = node.value[step]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line
