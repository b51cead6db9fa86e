"""Lines of a pipeline's settings in its YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lake_assets.pipeline.config.sql_positions import child

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
        try:
            documents = yaml.compose_all(self.path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
            return next((d for d in documents if child(d, "attributes")), None)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return None


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
