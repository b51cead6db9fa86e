"""Delete files that Spark may have written, with the checksum files that Hadoop writes beside local ones."""

from __future__ import annotations

import re
from pathlib import Path

from pyiceberg.io import FileIO

_LOCAL = re.compile(r"(file:)?/+")


def delete_file(io: FileIO, location: str) -> None:
    """Delete a file and, in a local warehouse, its checksum file.

    Raises:
        FileNotFoundError: the file is missing.
    """
    io.delete(location)
    if _LOCAL.match(location):
        delete_checksum(Path(_LOCAL.sub("/", location, count=1)))


def delete_checksum(file: Path) -> None:
    """Delete the checksum file of a local file, if it exists."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
