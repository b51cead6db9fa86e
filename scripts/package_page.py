"""The page of the package in an index: the README without its relative links and images, which lead nowhere there.

Hatchling executes this hook when it builds a wheel or a source distribution, and in an editable install.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)")
_END = """
The pages that are named here are in the folder `docs` of the source distribution, with what `make demo` and `make ui`
need; tests and benchmarks are in the repository.
"""


def page(readme: str) -> str:
    """Return the README with the texts of its relative links, and without its images."""
    return _LINK.sub(r"\1", _IMAGE.sub("", readme)) + _END


class PackagePage(MetadataHookInterface):
    """Sets the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the page to the metadata."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(readme)}
