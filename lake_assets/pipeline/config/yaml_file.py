"""Read a pipeline's YAML file outside Dagster, and report mistakes with line numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lake_assets.errors import PipelineError
from lake_assets.lake.names import nearest
from lake_assets.lake.setting_errors import setting_errors
from lake_assets.lake.yaml_text import YamlError, load, read_text
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.pipeline_config import PipelineConfig, SqlModel, pipeline_of_job
from lake_assets.pipeline.config.setting_lines import line_of
from lake_assets.pipeline.config.sql_positions import model_mistakes

COMPONENT, JOB = "lake_assets.LakePipeline", "lake_assets.CapturedJob"


def read_pipeline(path: Path) -> PipelineConfig:
    """Read the pipeline of a component file (`type: lake_assets.LakePipeline`, settings under `attributes`).

    A file of `type: lake_assets.CapturedJob` is a pipeline of one job. Mistakes in the SQL of models are reported only
    along with others: by themselves they fail the steps of their tables (see `DeclaredTables.specs`).

    Raises:
        PipelineError: the file is missing or not YAML, or settings are wrong; lists all of them with their lines.
    """
    settings = read_settings(path)
    if settings.mistakes or settings.config is None:
        raise PipelineError("\n".join([*settings.mistakes, *settings.sql_mistakes]))
    # A mistake in a model's SQL concerns its table: see `DeclaredTables`.
    return settings.config


@dataclass(frozen=True)
class Settings:
    """The settings of a pipeline's YAML file, and the mistakes in them.

    Attributes:
        config: the settings without the tables, models and jobs that have mistakes; None: nothing can be used.
        mistakes: each with its line.
        sql_mistakes: those in the SQL of models.
        left_out: names, without layer, of the tables that `config` lacks; None: some of them are unknown.
    """

    config: PipelineConfig | None
    mistakes: tuple[str, ...] = ()
    sql_mistakes: tuple[str, ...] = ()
    left_out: frozenset[str] | None = frozenset()


def read_settings(path: Path) -> Settings:
    """Read a pipeline's file as far as it is right, with all mistakes.

    Raises:
        PipelineError: the file is missing, not YAML, or not a pipeline.
    """
    try:
        text = read_text(path)
    except OSError as e:
        raise PipelineError(f"cannot read the pipeline {path}: {e.strerror}") from e
    except YamlError as e:
        raise PipelineError(e.in_file(path)) from e
    wrong: list[tuple[int | None, str]] = []
    try:
        content, node = load(text)
    except YamlError as e:
        if e.content is None:
            raise PipelineError(e.in_file(path)) from e
        wrong += e.mistakes
        content, node = e.content
    if not isinstance(content, dict) or content.get("type") not in (COMPONENT, JOB) or "attributes" not in content:
        raise PipelineError(
            f"{path}: expected `type: {COMPONENT}` (or {JOB}) and its settings under `attributes:`, found "
            f"{_shape(content)}"
        )
    missing_files, sql_mistakes = model_mistakes(path, node)
    model = CapturedJobConfig if content["type"] == JOB else PipelineConfig
    attributes, omissions = content["attributes"], Omissions()
    config: PipelineConfig | None = None
    while config is None:
        try:
            declared = model.model_validate(attributes)
            config = pipeline_of_job(declared) if isinstance(declared, CapturedJobConfig) else declared
        except ValidationError as e:
            lines = {line for line, _ in wrong}
            found = setting_errors(model, e, attributes)
            errors = [(place, line_of(node, ("attributes", *place)), text) for place, text in found]
            # A value that is wrong in YAML is read as none.
            wrong += [(line, text) for _, line, text in errors if line not in lines]
            remaining = omissions.without(attributes, [place for place, _, _ in errors])
            if content["type"] == JOB or remaining in (None, attributes):
                break
            attributes = remaining
    if missing_files and config is not None:
        config = omissions.without_files(config, path.parent)
    texts = [f"{path}{f', line {line}' if line else ''}: {text}" for line, text in dict.fromkeys(wrong)]
    return Settings(config, (*texts, *missing_files), tuple(sql_mistakes), omissions.names)


class Omissions:
    """The tables of a pipeline's settings that are left out because of mistakes.

    Attributes:
        names: their names without layer; None: some are unknown.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = frozenset()

    def without(self, attributes: Any, places: Sequence[Sequence[int | str]]) -> Any:
        """Return settings without those at some places, or the tables that they belong to; None: none remain."""
        wrong = {_entry_of(place) for place in places}
        if not isinstance(attributes, dict) or () in wrong:
            return None
        remaining: dict[Any, Any] = {}
        for name, value in attributes.items():
            if (name,) in wrong:
                self._forget(value if name in ("models", "jobs", "streams") else None, is_unknown=name == "python")
            elif name in ("models", "jobs", "streams") and isinstance(value, list):
                remaining[name] = self._entries(value, (name,), wrong)
            else:
                remaining[name] = value
        # Wrong or missing; it appears in messages only.
        return remaining if "name" in remaining else {"name": "pipeline", **remaining}

    def without_files(self, config: PipelineConfig, folder: Path) -> PipelineConfig:
        """Return the settings without the models whose SQL files cannot be read."""
        models: list[SqlModel] = []
        for model in config.models:
            if model.sql_file is None or (folder / model.sql_file).is_file():
                models.append(model)
            else:
                self._forget(model.name)
        return config.model_copy(update={"models": models})

    def _entries(self, entries: list[Any], at: tuple[Any, ...], wrong: Collection[tuple[Any, ...]]) -> list[Any]:
        remaining: list[Any] = []
        for i, entry in enumerate(entries):
            if (*at, i) in wrong:
                self._forget(entry)
            elif isinstance(entry, dict) and isinstance(tables := entry.get("tables"), list) and len(at) == 1:
                remaining.append({**entry, "tables": self._entries(tables, (*at, i, "tables"), wrong)})
            else:
                remaining.append(entry)
        return remaining

    def _forget(self, entry: Any, *, is_unknown: bool = False) -> None:
        """Add the tables of a declaration, which may be anything."""
        if isinstance(entry, list):
            for one in entry:
                self._forget(one)
            return
        if isinstance(entry, dict) and isinstance(entry.get("tables"), list):
            self._forget(entry["tables"])
            return
        named = entry if isinstance(entry, str) else None
        if isinstance(entry, dict):
            named = entry.get("name") or entry.get("table")
            is_unknown = is_unknown or not isinstance(named, str)
        if is_unknown or (named and any(c in named for c in "*?[")):
            self.names = None
        elif named and self.names is not None:
            self.names |= {named.rpartition(".")[2]}


def _entry_of(place: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the place of the table, model, job or setting of a pipeline that a setting belongs to."""
    if place[:1] == ("streams",) and place[2:3] == ("tables",) and len(place) > 3:
        return tuple(place[:4])
    return tuple(place[:2]) if place[:1] in (("streams",), ("models",), ("jobs",)) else tuple(place[:1])


def _shape(content: Any) -> str:
    """Describe the contents of a file that is not a pipeline."""
    if content is None:
        return "an empty file"
    if not isinstance(content, dict):
        return {"str": "text", "list": "a list"}.get(type(content).__name__, f"a {type(content).__name__}")
    kind = content.get("type")
    if kind not in (None, COMPONENT, JOB):
        return f"`type: {kind}`{nearest(str(kind), (COMPONENT, JOB))}"
    lacking = [name for name in ("type", "attributes") if name not in content]
    listed = (f"{name}{nearest(str(name), lacking)}" for name in content)
    return f"only these settings at the top: {', '.join(listed)}"
