"""The JSON of a table's metadata file, of which PyIceberg's model leaves things out."""

from __future__ import annotations

import gzip
import json
from typing import Any

_GZIP = b"\x1f\x8b"


def decode(content: bytes) -> dict[str, Any]:
    """What a metadata file says; some are compressed (`write.metadata.compression-codec`).

    Raises:
        ValueError, OSError, EOFError: it is not such a file, or not the whole of it.
    """
    return json.loads(gzip.decompress(content) if content[:2] == _GZIP else content)
