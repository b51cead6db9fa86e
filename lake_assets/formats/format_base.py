"""What all formats share: defaults of `EventFormat`, checks of names, decoding of JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats.event_model import (
    SEQUENCE,
    Boundary,
    EventPlan,
    Hints,
    Keyed,
    Planned,
    Seen,
    SnapshotRow,
    SourceTable,
)
from lake_assets.formats.nested_text import without_nested_text

# Spark's parsers recurse per level, and overflow their stack before level 1,000.
DEPTH = 200


class Format(ABC):
    """Base class of the wire formats; see `EventFormat` for its members."""

    shape: str | None = None
    whole: bool = False
    numbered: str = "false"
    transaction: str = "CAST(NULL AS STRING)"
    identity: str = SEQUENCE
    stored: str = SEQUENCE
    kind: str | None = None
    log: str | None = None
    tombstone: str | None = None

    @property
    def same_again(self) -> str:
        """See `EventFormat.same_again`."""
        return self.numbered

    def upgraded(self, sequence: str) -> str:
        """See `EventFormat.upgraded`."""
        return sequence

    def schema_of(self, record: Any) -> str:
        """See `EventFormat.schema_of`."""
        return ""

    def without_schema(self, text: str, schema: str) -> str | None:
        """See `EventFormat.without_schema`."""
        return None

    def boundary(self, record: Any) -> Boundary | None:
        """See `EventFormat.boundary`."""
        return None

    def control_kind(self, record: Any) -> str | None:
        """See `EventFormat.control_kind`."""
        return None

    def without_nested_text(self, text: str, record: Any) -> str | None:
        """See `EventFormat.without_nested_text`."""
        plain = without_nested_text(text) if isinstance(record, str) else text
        return plain if plain != text else None

    def snapshot_row(self, record: Any) -> SnapshotRow | None:
        """See `EventFormat.snapshot_row`."""
        return None

    def keyed(self, record: Any) -> Keyed | None:
        """See `EventFormat.keyed`."""
        return None

    def database(self, record: Any) -> str | None:
        """See `EventFormat.database`."""
        return None

    def says_all(self, schema: str) -> bool:
        """See `EventFormat.says_all`."""
        return bool(schema)

    @abstractmethod
    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""

    @abstractmethod
    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`."""

    def route(self, record: Any) -> SourceTable | None:
        """See `EventFormat.route`."""
        tables = self.routes(record)
        if len(tables) > 1:
            raise UnsupportedEventError(f"one record about {len(tables)} tables: {', '.join(map(str, tables))}")
        return tables[0] if tables else None

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """See `EventFormat.plan`."""
        return self.plans((Seen(schema),), Hints(rename=rename))[0].plan


def schema_key(schema: str) -> str:
    """Return the short key that is stored with each record instead of its schema: the schema itself, or its hash."""
    return schema if len(schema) <= 32 else blake2b(schema.encode(), digest_size=16).hexdigest()


def decode(line: bytes | str, depth: int = DEPTH) -> Any:
    """Decode one line of a stream as JSON.

    Args:
        line: the line.
        depth: the deepest nesting allowed, at most `DEPTH`.

    Raises:
        MalformedRecordError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as e:
        reason = f"nested deeper than {depth} levels" if is_too_deep(e) else f"not JSON ({e})"
        raise MalformedRecordError(reason) from e
    brackets = line.count(b"{") + line.count(b"[") if isinstance(line, bytes) else line.count("{") + line.count("[")
    # Counting brackets first is cheap, and few records have that many.
    if brackets > depth and _is_deep(record, depth):
        raise MalformedRecordError(f"nested deeper than {depth} levels")
    return record


def is_too_deep(error: orjson.JSONDecodeError) -> bool:
    """Whether a text may be JSON, but is nested deeper than orjson supports: 1,024 levels."""
    return "depth limit" in str(error)


def _is_deep(record: Any, depth: int) -> bool:
    level = [record] if isinstance(record, dict | list) else []
    for _ in range(depth):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def named(value: Any, what: str) -> str:
    """Return `value` if it is a name.

    Raises:
        MalformedRecordError: it is not a name.
    """
    if not isinstance(value, str) or not value or "\x00" in value:
        raise MalformedRecordError(f"{what} is {value!r}, expected a name")
    return value
