"""The JSON of a table's metadata file, with fields that PyIceberg's model leaves out."""

from __future__ import annotations

import gzip
import json
from typing import Any

_GZIP = b"\x1f\x8b"


def decode(content: bytes) -> dict[str, Any]:
    """Parse a metadata file, which may be compressed (`write.metadata.compression-codec`).

    Raises:
        ValueError, OSError, EOFError: it is not a metadata file, or is truncated.
    """
    return json.loads(gzip.decompress(content) if content[:2] == _GZIP else content)
