"""Nodes and lines of a pipeline's settings in its YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from lake_assets.lake.yaml_text import line_of

Place = tuple[int | str, ...]


@dataclass(frozen=True)
class SettingLines:
    """The lines of the settings in a pipeline's file; for messages about settings that were read from it."""

    path: Path

    def at(self, *place: int | str) -> str:
        """Return `FILE, line N: ` of a setting below `attributes`; without a line if the file cannot be read."""
        line = f", line {line_of(self._node, ('attributes', *place))}" if self._node is not None else ""
        return f"{self.path}{line}: "

    @cached_property
    def _node(self) -> yaml.Node | None:
        return next((d for d in documents_of(self.path) if child(d, "attributes")), None)


def documents_of(path: Path) -> list[yaml.Node]:
    """Return the documents of a YAML file; none if the file cannot be read."""
    try:
        return list(yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []


def child(node: yaml.Node | None, *names: str) -> yaml.Node | None:
    """Return the value of nested mappings under some names."""
    for name in names:
        entries = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((v for k, v in entries if isinstance(k, yaml.ScalarNode) and k.value == name), None)
    return node
