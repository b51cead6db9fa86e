"""Recorded events of Debezium's, with keys, values and their schemas."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "recordings"


def recorded(file: str) -> list[tuple[str, Any, Any]]:
    """Return topic, key and value of the records of a recording."""
    with gzip.open(_FOLDER / file, "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [(r.get("topic") or r["destination"], r["key"], r["value"]) for r in found]


def avro_names(*parts: Any) -> bool:
    """Whether the schemas of keys and values have only names that Avro allows."""
    return all(part is None or _is_avro(part["schema"]) for part in parts)


def _is_avro(schema: Any) -> bool:
    names = [*(f["field"] for f in schema.get("fields", ())), *str(schema.get("name", "a")).split(".")]
    inner = [*schema.get("fields", ()), *(schema[n] for n in ("items", "keys", "values") if n in schema)]
    return all(re.fullmatch(r"[A-Za-z_]\w*", n, re.ASCII) for n in names) and all(map(_is_avro, inner))
