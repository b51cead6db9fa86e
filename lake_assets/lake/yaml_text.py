"""Read YAML; mistakes are reported with their line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

# Far more values than settings have. Values repeated by aliases count each time.
MAX_VALUES = 1_000_000


# By a part of PyYAML's message, what the usual mistake is and what to write.
_ADVICE = {
    "'\\t' that cannot start": "indent with spaces, since YAML allows no tabs there",
    "mapping values are not allowed": "look for a `name:value` without a space after its colon just before, for a "
    "wrong indentation, and for text with `: ` that is not in quotes",
    "expected <block end>": "indent the entries of one list, or the settings of one entry, alike",
    "while scanning an alias": 'put text that begins with `*` in quotes: "*"',
    "while scanning an anchor": "put text that begins with `&` in quotes",
    "but found another document": "keep one document per file, and remove the line `---` between them",
    "that cannot start any token": "put text that begins with this character in quotes",
    "found unexpected end of stream": "a quote or bracket is not closed",
    "could not find expected ':'": "write settings as `name: value`",
    "'<stream end>'": "a quote or bracket is not closed",
}


def _advice(problem: str) -> str:
    return next((f": {advice}" for part, advice in _ADVICE.items() if part in problem), "")


def read_text(file: Path) -> str:
    """Return the text of a YAML file.

    Raises:
        YamlError: it is not in UTF-8.
        OSError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        why = f"no valid YAML: not UTF-8 ({e.reason} at byte {e.start}): save the file in UTF-8"
        raise YamlError((e.object.count(b"\n", 0, e.start) + 1, why)) from None


class YamlError(Exception):
    """Mistakes in a YAML text.

    Attributes:
        mistakes: line (None if unknown) and message of each.
        content: what the text can be read as in spite of them, as `load` returns it; None: as nothing.
    """

    def __init__(self, *mistakes: tuple[int | None, str], content: tuple[Any, yaml.Node | None] | None = None) -> None:
        super().__init__("; ".join(text for _, text in mistakes))
        self.mistakes, self.content = mistakes, content

    def in_file(self, path: Path) -> str:
        """Return one line per mistake, each with its line in the file."""
        return "\n".join(f"{path}{f', line {line}' if line else ''}: {text}" for line, text in self.mistakes)


def load(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the content of a YAML text, and its root node, which knows the lines.

    Raises:
        YamlError: the text is not YAML, is nested too deeply, refers to itself, expands to too many values, or contains
            a setting twice (PyYAML would use the last one). Messages do not quote values, which may be passwords.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_size(node)
        # Our loader reports bad values with their lines; PyYAML's raises Python's own errors.
        content, wrong = _constructed(text)
        if mistakes := sorted([*wrong, *_duplicates_in(node)]):
            raise YamlError(*mistakes, content=(content, node))
        return content, node
    except yaml.MarkedYAMLError as e:
        problem = ": ".join(filter(None, (e.context, e.problem)))
        line = e.problem_mark.line + 1 if e.problem_mark else None
        raise YamlError((line, f"no valid YAML: {problem}{_advice(problem)}")) from None
    except (yaml.YAMLError, ValueError) as e:
        raise YamlError((None, f"no valid YAML: {getattr(e, 'reason', type(e).__name__)}")) from None
    except RecursionError:
        raise YamlError((None, "no settings: nested too deeply to be read")) from None


class _Loader(yaml.SafeLoader):
    """A loader that goes on after a value that is none, such as 2024-13-45 or a number of 5,000 digits.

    Attributes:
        wrong: line and message of each such value, which is read as None.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.wrong: list[tuple[int, str]] = []

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a node's value (a hook of PyYAML)."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"no valid YAML: looks like {kind} but is not valid: put it in quotes if it is text"
            self.wrong.append((node.start_mark.line + 1, problem))
            self.recursive_objects.pop(node, None)  # else an alias of the value would count as recursive
            return None


def _constructed(text: str) -> tuple[Any, list[tuple[int, str]]]:
    """Return the content of a YAML text, and the values that are none."""
    loader = _Loader(text)
    try:
        return loader.get_single_data(), loader.wrong
    finally:
        loader.dispose()


def check_written(text: str) -> None:
    """Check what is visible only in the text, if another component (Dagster) has parsed it.

    Raises:
        YamlError: a setting is written twice in one place, or aliases make the text refer to itself or expand to too
            many values.
    """
    for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
        _check_size(node)
        if duplicates := _duplicates_in(node):
            raise YamlError(*duplicates)


def _check_size(node: yaml.Node | None) -> None:
    if node is not None and _size(node, {}) > MAX_VALUES:
        raise YamlError(
            (None, f"expands to more than {MAX_VALUES:,} values: an alias (*name) repeats everything under its anchor")
        )


def _duplicates_in(node: yaml.Node | None) -> list[tuple[int, str]]:
    """Return line and message of each setting that is written twice in one place."""
    duplicates = _duplicates(node, set()) if node is not None else ()
    return [(line, f"{name}: set twice in one place") for line, name in duplicates]


def _size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Count the values of a node, including aliases. `sizes`: counted nodes; None for a node still being counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (key := id(node)) not in sizes:
        sizes[key] = None
        sizes[key] = 1 + sum(_size(inner, sizes) for inner in _children(node))
    if (size := sizes[key]) is None:
        raise YamlError((node.start_mark.line + 1, "refers to itself by an alias (*name)"))
    return size


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for item in node.value:
        yield from item if isinstance(node, yaml.MappingNode) else (item,)


def _duplicates(node: yaml.Node, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each setting that one mapping contains twice; `seen` are the visited nodes."""
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
    for inner in _children(node):
        yield from _duplicates(inner, seen)


def line_of(node: yaml.Node | None, path: Sequence[Any]) -> int:
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
