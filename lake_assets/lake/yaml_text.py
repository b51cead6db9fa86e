"""YAML as people write it: what is wrong with a text, and on which line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


class YamlError(Exception):
    """What is wrong with a YAML text: lines (None: not known) and what is wrong there."""

    def __init__(self, *mistakes: tuple[int | None, str]) -> None:
        super().__init__("; ".join(text for _, text in mistakes))
        self.mistakes = mistakes

    def in_file(self, path: Path) -> str:
        """The mistakes, one a line, each with its place in the file."""
        return "\n".join(f"{path}{f', line {line}' if line else ''}: {text}" for line, text in self.mistakes)


def load(text: str) -> tuple[Any, yaml.Node | None]:
    """The content of a YAML text, and its nodes, which know their lines.

    Raises:
        YamlError: it is no YAML, is nested too deeply, or holds a setting twice, of which YAML would keep the last one.
            Values are not quoted: they may be passwords.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if found := list(_twice(node)):
            raise YamlError(*((line, f"{name}: set twice in one place") for line, name in found))
        return yaml.safe_load(text), node
    except yaml.MarkedYAMLError as e:
        problem = ": ".join(filter(None, (e.context, e.problem)))
        raise YamlError((e.problem_mark.line + 1 if e.problem_mark else None, f"no valid YAML: {problem}")) from None
    except (yaml.YAMLError, ValueError) as e:
        raise YamlError((None, f"no valid YAML: {getattr(e, 'reason', type(e).__name__)}")) from None
    except RecursionError:
        raise YamlError((None, "no settings: nested too deeply to be read")) from None


def check_written_once(text: str) -> None:
    """Look for settings that stand twice in one place of a text that somebody else has read as YAML.

    Raises:
        YamlError: there are some.
    """
    found = [at for node in yaml.compose_all(text, Loader=yaml.SafeLoader) for at in _twice(node)]
    if found:
        raise YamlError(*((line, f"{name}: set twice in one place") for line, name in found))


def _twice(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Settings that one mapping holds twice, with their lines."""
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names and key.value != "<<":
                    yield key.start_mark.line + 1, key.value
                names.add(key.value)
            yield from _twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twice(value)
