"""Checks of the documentation's fenced blocks that need neither Spark nor a server."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from dagster._serdes import ConfigurableClassData
from pydantic import BaseModel, ValidationError
from typer._click.exceptions import ClickException
from typer.core import TyperGroup

from lake_assets import LakeConfig
from lake_assets.cli import application
from lake_assets.launcher import WarmRunLauncher
from lake_assets.orchestration.backfill_job import BackfillOptions
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.kafka_settings import KafkaSecurity
from tests.support.documents import Snippet
from tests.support.processes import ROOT

SHELLS = ("", "sh", "bash")
_COMPONENTS = {"lake_assets.LakePipeline": PipelineConfig, "lake_assets.CapturedJob": CapturedJobConfig}
# Where a fragment of a pipeline belongs, by how far it is indented.
_AROUND = {4: "streams:\n", 6: "streams:\n  - name: s\n", 8: "streams:\n  - name: s\n    tables:\n"}


def is_settings_of_lake(snippet: Snippet) -> bool:
    return snippet.text.startswith(("# lake.yaml\n", "spark:\n"))


def yaml_mistake(snippet: Snippet, folder: Path) -> str | None:
    """Return why the settings of a snippet do not load as what they are: a pipeline, a part of one, the lake's."""
    if is_settings_of_lake(snippet):
        (folder / "lake.yaml").write_text(snippet.text)
        LakeConfig.load(folder / "lake.yaml")
        return None
    mistakes: list[str] = []
    for model, settings in _readings(snippet):
        try:
            model.model_validate(settings)
        except ValidationError as e:
            mistakes.append("; ".join(f"{'.'.join(map(str, m['loc']))}: {m['msg']}" for m in e.errors()))
        else:
            return None
    return f"{snippet.place} fits nothing: {' | '.join(mistakes)}"


def _readings(snippet: Snippet) -> Iterator[tuple[type[BaseModel], Any]]:
    """Yield what a snippet may be a part of, with the least that a whole needs."""
    named = {"name": "x"}
    if around := _AROUND.get(snippet.indent):
        with contextlib.suppress(yaml.YAMLError):  # then it is read without what is around it
            yield PipelineConfig, named | yaml.safe_load(f"{textwrap.indent(around, '  ')}{snippet.indented}")
    found = yaml.safe_load(snippet.text)
    if not isinstance(found, dict):
        yield PipelineConfig, {**named, "models": found}
    elif "type" in found:
        yield _COMPONENTS[found["type"]], found["attributes"]
    elif "ops" in found:
        yield BackfillOptions, found["ops"]["redo_shop"]["config"]
    elif "security" in found:
        yield KafkaSecurity, found["security"]
    else:
        yield PipelineConfig, named | found.get("attributes", found)
        yield PipelineConfig, {**named, "models": [{"name": "agg.x", "sql": "SELECT 1 AS a", **found}]}
        yield CapturedJobConfig, {"table": "agg.x", "inputs": ["final.x"], "command": ["x"], **found}


def launcher_of(snippet: Snippet) -> WarmRunLauncher:
    """Return the run launcher that a `dagster.yaml` declares."""
    declared = yaml.safe_load(snippet.text)["run_launcher"]
    data = ConfigurableClassData(declared["module"], declared["class"], yaml.safe_dump(declared.get("config", {})))
    return data.rehydrate(as_type=WarmRunLauncher)


def commands(snippet: Snippet) -> list[str]:
    """Return the lines of a shell that a snippet consists of, without comments; empty: it shows something else."""
    lines = [re.split(r"\s{2,}#?|\s#\s", line.strip().removeprefix("$ "))[0] for line in snippet.text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    # What a command is for may be continued in a line without one.
    known = [line for line in lines if line.startswith(("lake-assets ", "make ", "pip install "))]
    return known if snippet.language in SHELLS and known and lines[0] == known[0] else []


def command_mistake(command: str) -> str | None:
    """Return why a command cannot be entered so."""
    program, *words = shlex.split(command)
    if program == "make":
        targets = set(re.findall(r"^([\w%-]+):.*?## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        wanted = re.sub(r"^bench-.*", "bench-%", words[0])
        return None if wanted in targets else f"the Makefile has no target {words[0]}"
    if program == "pip":
        return None
    return _unknown_to_cli(words)


def inline_commands(text: str) -> list[str]:
    """Return the commands that a page names within its sentences."""
    return [" ".join(c.split()) for c in re.findall(r"`(lake-assets [a-z][^`;|&]*)", text)]


def unknown_word(command: str) -> str | None:
    """Return which command or option of a sentence does not exist; sentences leave out what is clear or of the reader's."""
    # A quotation mark of the sentence; `--help`, which ends a command.
    with contextlib.suppress(ValueError, typer.Exit):
        mistake = _unknown_to_cli(shlex.split(command)[1:])
        return mistake if mistake and "No such" in mistake else None
    return None


@functools.cache
def _command_line() -> Any:
    return typer.main.get_command(application())


def _unknown_to_cli(words: list[str]) -> str | None:
    try:
        context = _command_line().make_context("lake-assets", list(words))
        while isinstance(context.command, TyperGroup):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            name, command, rest = context.command.resolve_command(context, rest)
            assert command
            context = command.make_context(name or "", rest, parent=context)
    except ClickException as e:
        return f"lake-assets {shlex.join(words)}: {e.message}"
    return None


def python_mistake(snippet: Snippet) -> str | None:
    """Return why a snippet is no Python, or which of the names that it imports does not exist."""
    try:
        tree = ast.parse(snippet.text)
    except SyntaxError as e:
        return f"{snippet.place}: {e}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("lake_assets", "dagster"):
            module = importlib.import_module(node.module or "")
            if missing := [a.name for a in node.names if not hasattr(module, a.name)]:
                return f"{snippet.place}: {node.module} has no {missing}"
    return None


def json_mistake(snippet: Snippet) -> str | None:
    try:
        json.loads(snippet.text)
    except ValueError as e:
        return f"{snippet.place}: {e}"
    return None


CHECKS: dict[str, Callable[[Snippet], str | None]] = {"python": python_mistake, "json": json_mistake}
