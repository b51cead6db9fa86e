"""What all formats share: the one-table and one-schema forms of their two questions, names of columns, decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats.event_model import SEQUENCE, Boundary, EventPlan, Hints, Planned, Seen, SourceTable

# Spark's parsers call themselves for each level, on a stack that ends somewhere before a thousand.
DEPTH = 200


class Format(ABC):
    """A wire format; see `EventFormat` for what its members mean."""

    shape: str | None = None
    whole: bool = False
    numbered: str = "false"
    transaction: str = "CAST(NULL AS STRING)"
    identity: str = SEQUENCE
    stored: str = SEQUENCE
    kind: str | None = None

    @property
    def same_again(self) -> str:
        """See `EventFormat.same_again`."""
        return self.numbered

    def schema_of(self, record: Any) -> str:
        """See `EventFormat.schema_of`."""
        return ""

    def without_schema(self, text: str, schema: str) -> str | None:
        """See `EventFormat.without_schema`."""
        return None

    def boundary(self, record: Any) -> Boundary | None:
        """See `EventFormat.boundary`."""
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
        found = self.routes(record)
        if len(found) > 1:
            raise UnsupportedEventError(f"one record about {len(found)} tables: {', '.join(map(str, found))}")
        return found[0] if found else None

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """See `EventFormat.plan`."""
        return self.plans((Seen(schema),), Hints(rename=rename))[0].plan


def schema_key(schema: str) -> str:
    """What stands for a schema beside each record that has it: short, and the same for the same schema alone."""
    return schema if len(schema) <= 32 else blake2b(schema.encode(), digest_size=16).hexdigest()


def decode(line: bytes | str, depth: int = DEPTH) -> Any:
    """One line of a stream as the JSON value it is.

    Args:
        line: the line.
        depth: how deeply it may be nested, at most `DEPTH`.

    Raises:
        MalformedRecordError: it is not JSON, or no UTF-8, or nested too deeply.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as e:
        why = f"nested deeper than {depth} levels" if is_too_deep(e) else f"not JSON ({e})"
        raise MalformedRecordError(why) from e
    opened = line.count(b"{") + line.count(b"[") if isinstance(line, bytes) else line.count("{") + line.count("[")
    # Few records have that many brackets at all.
    if opened > depth and _is_deep(record, depth):
        raise MalformedRecordError(f"nested deeper than {depth} levels")
    return record


def is_too_deep(error: orjson.JSONDecodeError) -> bool:
    """Whether a text may be JSON, but is nested deeper than orjson follows: a thousand levels."""
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


def lake_names(columns: Iterable[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Names in the lake by source name.

    Raises:
        UnsupportedEventError: two columns would have one name (names in the lake ignore case).
    """
    names = {c: rename.get(c, c) for c in columns}
    by_name: dict[str, list[str]] = {}
    for source, name in names.items():
        by_name.setdefault(name.lower(), []).append(source)
    if shared := [sources for sources in by_name.values() if len(sources) > 1]:
        said = "; ".join(" and ".join(sources) for sources in shared)
        raise UnsupportedEventError(
            f"columns {said} share one name in the lake, where case does not matter: declare another name for one of "
            "them (`rename`)"
        )
    return names


class LakeNames(Mapping[str, str]):
    """Names in the lake by source name: as the owner declared, else as the lake spells them already.

    A column that the source calls `Name` and then `name` is one column of the lake, where case does not matter.
    """

    def __init__(self, declared: Mapping[str, str], known: Iterable[str]) -> None:
        """
        Args:
            declared: source names to names in the lake.
            known: names in the lake.
        """
        self.declared = dict(declared)
        self._spelled = {name.lower(): name for name in known}

    def __getitem__(self, name: str) -> str:
        return self.declared[name] if name in self.declared else self._spelled[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)


def named(value: Any, what: str) -> str:
    """`value` where it is a name.

    Raises:
        MalformedRecordError: it is none.
    """
    if not isinstance(value, str) or not value or "\x00" in value:
        raise MalformedRecordError(f"{what} is {value!r}, expected a name")
    return value
