"""The commands of `lake-assets` as tables: arguments, options, defaults and help, from Typer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from reference_text import code, escaped, page, table
from typer.core import TyperArgument, TyperGroup, TyperOption

from lake_assets.cli import application

_INTRO = """
Every command with its arguments and options, as `lake-assets COMMAND --help` prints them. Commands read the lake of
[`LAKE_CONFIG` or `LAKE_HOME`](../lake.md).

Exit codes of all commands: 0 done; 1 an error, or what the command looks for was found; 2 an unknown option; 130
interrupted. Others are named with their command.
"""


def commands_page() -> str:
    """Return the page about all commands."""
    root: Any = typer.main.get_command(application())
    return page("Commands", _INTRO, _sections("lake-assets", root))


def _sections(name: str, command: Any) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for inner in sorted(command.commands):
            yield from _sections(f"{name} {inner}", command.commands[inner])
        if not command.invoke_without_command:
            return
    yield "\n\n".join(_section(name, command))


def _section(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}"
    arguments = [_shown(p) if p.required else f"[{_shown(p)}]" for p in _arguments(command)]
    yield code(" ".join([name, *(["[OPTIONS]"] if _options(command) else []), *arguments]))
    help_text = inspect.cleandoc(command.help or "")
    yield "\n\n".join(escaped(" ".join(part.split())) for part in help_text.split("\n\n"))
    rows = [[code(_shown(p)), escaped(p.help or ""), ""] for p in _arguments(command)]
    rows += [[_names(o), escaped(o.help or ""), _default(o)] for o in _options(command)]
    if rows:
        yield table(["argument or option", "meaning", "default"], rows)


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if isinstance(p, TyperArgument)]


def _shown(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name}..." if argument.nargs == -1 else name


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if isinstance(p, TyperOption) and not p.hidden and p.name != "help"]


def _names(option: Any) -> str:
    names = [*sorted(option.opts, key=len, reverse=True), *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or _value(option)}"
    return ", ".join(code(f"{n}{value}") for n in names)


def _value(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(m.value) for m in kind)
    return {int: "N", float: "X", Path: "PATH"}.get(kind) or str(option.name).upper()


def _default(option: Any) -> str:
    if option.required:
        return "**required**"
    if option.default in (None, (), [], False, "") or callable(option.default) or option.is_flag:
        return ""
    return code(str(option.default))
