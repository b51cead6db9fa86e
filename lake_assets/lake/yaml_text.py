"""YAML as people write it: what is wrong with a text, and on which line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# Far more than settings are; what aliases repeat counts each time.
MOST_VALUES = 1_000_000


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
        YamlError: it is no YAML, is nested too deeply, refers to itself, stands for too many values, or holds a setting
            twice, of which YAML would keep the last one. Values are not quoted: they may be passwords.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check(node)
        # Values, with their lines in what is wrong with them: the loader of PyYAML raises whatever Python does.
        return yaml.load(text, Loader=_Loader), node
    except yaml.MarkedYAMLError as e:
        problem = ": ".join(filter(None, (e.context, e.problem)))
        raise YamlError((e.problem_mark.line + 1 if e.problem_mark else None, f"no valid YAML: {problem}")) from None
    except (yaml.YAMLError, ValueError) as e:
        raise YamlError((None, f"no valid YAML: {getattr(e, 'reason', type(e).__name__)}")) from None
    except RecursionError:
        raise YamlError((None, "no settings: nested too deeply to be read")) from None


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A node's value (PyYAML's).

        Raises:
            yaml.constructor.ConstructorError: there is none, such as of 2024-13-45 or of a number of 5,000 digits.
        """
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"reads as {kind}, and is none: write it in quotes if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def check_written(text: str) -> None:
    """Look for what only the text shows, where somebody else has read it as YAML.

    Raises:
        YamlError: a setting stands twice in one place, or aliases make the text refer to itself or stand for too many
            values.
    """
    for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
        _check(node)


def _check(node: yaml.Node | None) -> None:
    if node is None:
        return
    if _size(node, {}) > MOST_VALUES:
        raise YamlError(
            (None, f"stands for more than {MOST_VALUES:,} values: an alias (*name) repeats all that its anchor holds")
        )
    if found := list(_twice(node, set())):
        raise YamlError(*((line, f"{name}: set twice in one place") for line, name in found))


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """How many values a node stands for, aliases followed. `known` are the nodes that were begun (None) or counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (key := id(node)) not in known:
        known[key] = None
        known[key] = 1 + sum(_size(inner, known) for inner in _inner(node))
    if (size := known[key]) is None:
        raise YamlError((node.start_mark.line + 1, "refers to itself by an alias (*name)"))
    return size


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    for item in node.value:
        yield from item if isinstance(node, yaml.MappingNode) else (item,)


def _twice(node: yaml.Node, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Settings that one mapping holds twice, with their lines; `seen` are the nodes that were looked at."""
    if isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names and key.value != "<<":
                    yield key.start_mark.line + 1, key.value
                names.add(key.value)
    for inner in _inner(node):
        yield from _twice(inner, seen)
