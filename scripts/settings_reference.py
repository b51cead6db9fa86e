"""The settings of pipelines, jobs and lakes as tables: every key, with type, default and description, from pydantic."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from reference_text import code, escaped, first_paragraph, page, table

from lake_assets.lake.config import LakeConfig
from lake_assets.orchestration.backfill_job import BackfillOptions
from lake_assets.pipeline.config import asset_settings, pipeline_config, stream_tables
from lake_assets.pipeline.config.dump_settings import DumpSettings
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.python_models import PythonModelSettings

_INTRO = """
What a YAML file of the type `lake_assets.LakePipeline` or `lake_assets.CapturedJob` can declare, below `attributes`.
[Pipelines](../pipelines.md) shows it by example. Setting a key that is not listed is an error.

A type such as *text or list* means that a single value may be written without brackets. Durations are a number of
seconds or a text (`30s`, `5m`, `1h`, `7d`), sizes a number of bytes or a text (`64MiB`).
"""
_LAKE_INTRO = """
What `lake.yaml` can declare. [The lake](../lake.md) shows it by example, and says which source of a setting wins.
Each setting has an environment variable as well: `LAKE_` and its name, `__` between the levels; mappings and lists
are written as JSON.
"""
# Settings that several kinds of tables share have a section of their own.
_SHARED: Mapping[str, type[BaseModel]] = {
    m.__name__: m
    for m in (stream_tables.Batches, asset_settings.AssetSettings, asset_settings.TableSettings, DumpSettings)
} | {"ModelSettings": pipeline_config.ModelSettings}
ROOTS: list[type[BaseModel]] = [
    pipeline_config.PipelineConfig, CapturedJobConfig, PythonModelSettings, BackfillOptions, LakeConfig,
]  # fmt: skip
_ARGUMENTS = {"PythonModelSettings": "Further arguments of [`@model`](../own_code.md#python-models)."}


def pipeline_page() -> str:
    """Return the page about pipelines and jobs."""
    return page("Settings of a pipeline", _INTRO, _sections(ROOTS[:-1]))


def lake_page() -> str:
    """Return the page about the lake."""
    return page("Settings of the lake", _LAKE_INTRO, _sections(ROOTS[-1:], environment=True))


def classes(root: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the models that a model's settings consist of, by name: itself first, then those that it names."""
    schema = root.model_json_schema()
    names, found = [root.__name__], iter([schema])
    while (of := next(found, None)) is not None:
        new = dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(of["properties"])))
        new = [n for n in new if n not in names]
        names += new
        found = itertools.chain(found, [schema["$defs"][n] for n in new if "properties" in schema["$defs"][n]])
    known: dict[str, type[BaseModel]] = {}
    pending: list[type[BaseModel]] = [BaseModel]
    while pending:
        of = pending.pop()
        known.setdefault(of.__name__, of)
        pending.extend(of.__subclasses__())
    return {n: known[n] for n in names if n in known}


def _sections(roots: list[type[BaseModel]], *, environment: bool = False) -> Iterator[str]:
    found: dict[str, tuple[type[BaseModel], Mapping[str, Any]]] = {}
    for root in roots:
        schema = root.model_json_schema()
        for name, of in classes(root).items():
            found.setdefault(name, (of, schema if of is root else schema["$defs"][name]))
    used = [n for n, m in _SHARED.items() if any(m in of.__mro__ for of, _ in found.values())]
    places = {"SparkConfig": "SPARK", "CostsConfig": "COSTS"} if environment else {}
    for name, (of, schema) in found.items():
        prefix = "LAKE_" if of is LakeConfig else f"LAKE_{places[name]}__" if name in places else ""
        yield _section(of, schema, found, prefix)
    for name in used:
        if name not in found:
            yield _section(_SHARED[name], _SHARED[name].model_json_schema(), found, "")


def _section(of: type[BaseModel], schema: Mapping[str, Any], known: Mapping[str, Any], environment: str) -> str:
    shared = [m for m in _SHARED.values() if of is not m and issubclass(of, m) and not _is_within(m, of)]
    inherited = {f for m in shared for f in m.model_fields}
    rows = [
        [
            code(name) + (f"<br>{code(environment + name.upper())}" if environment else ""),
            _type(schema["properties"][name], known),
            _default(field),
            escaped(field.description or schema["properties"][name].get("description", "")),
        ]
        for name, field in of.model_fields.items()
        if name not in inherited or of.model_fields[name].description != _of(shared, name).description
    ]
    also = ", ".join(f"[{m.__name__}](#{m.__name__.lower()})" for m in shared)
    text = [f"## {of.__name__}", _ARGUMENTS.get(of.__name__) or escaped(first_paragraph(of.__doc__))]
    if also:
        text.append(f"Also the settings of {also}.")
    return "\n\n".join([*text, table(["key", "type", "default", "meaning"], rows)])


def _is_within(shared: type[BaseModel], of: type[BaseModel]) -> bool:
    """Whether the settings come with those of another shared class."""
    return any(
        m is not shared and m is not of and issubclass(m, shared) and issubclass(of, m) for m in _SHARED.values()
    )


def _of(shared: list[type[BaseModel]], name: str) -> FieldInfo:
    return next(m.model_fields[name] for m in shared if name in m.model_fields)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path):  # of this machine and folder: the description says which
        return ""
    if isinstance(value, BaseModel) or value is None:
        return ""
    return code(json.dumps(value, ensure_ascii=False))


def _type(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return a type in words."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in known else name
    if "if" in schema:
        return _either([schema.get("then", {}), schema["else"]], known)
    if "anyOf" in schema or "oneOf" in schema:
        return _either(schema.get("anyOf") or schema["oneOf"], known)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(dict.fromkeys(code("null" if v is None else str(v)) for v in values))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], known)}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {_type(inner, known)}" if isinstance(inner, dict) else "mapping"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words.get(str(schema.get("type")), "any value")


def _either(schemas: list[Mapping[str, Any]], known: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_type(s, known) for s in schemas if s.get("type") != "null"))
