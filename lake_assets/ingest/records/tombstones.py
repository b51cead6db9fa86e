"""Tell the tombstones that delete a row from those that repeat the delete before them, as records land.

A tombstone is a key without a value. Debezium sends one after each delete, for Kafka's compaction; it says nothing new.
ExtractNewRecordState drops the delete by default (`delete.tombstone.handling.mode=tombstone`), so the tombstone is all
that is left of it. A tombstone also names no table. It is about the table whose records have its topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson
from pyiceberg.table import Table

from lake_assets.errors import Refused
from lake_assets.formats import SourceTable
from lake_assets.formats.debezium_tombstones import REWRITE
from lake_assets.formats.event_model import Keyed
from lake_assets.ingest.raw_tables import routes_of, stored
from lake_assets.lake import thresholds

# Snapshot properties of a raw table: tables by topic, if the topic is not called like its table; the last deletes.
TOPICS_PROPERTY = "lake-assets.topics"
DELETES_PROPERTY = "lake-assets.open-deletes"
_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")


class Tombstones:
    """The tables of a stream's topics, and its deletes whose tombstones may follow."""

    def __init__(self, raw: Table, about: SourceTable | None) -> None:
        topics: dict[str, list[str]] = stored(raw, TOPICS_PROPERTY)
        self._topics = {topic: {SourceTable.parse(t) for t in tables} for topic, tables in topics.items()}
        self._tables = set(routes_of(raw))
        self._about = about
        # Deletes by topic and key, with their number and the number of the record.
        self._deletes: dict[tuple[str, bytes], tuple[int, int]] = {}
        # The same from the landing before.
        self._earlier: dict[str, int] = stored(raw, DELETES_PROPERTY)
        self._had_deletes = bool(self._earlier)
        self._records = 0

    def follow(self, record: Keyed, tables: Sequence[SourceTable]) -> SourceTable | Refused | None:
        """Take the next record of the stream into account, which is about some tables that are new for its topic.

        Returns:
            The table of which a tombstone deletes a row, or a refusal if that is unknown; None for other records and
            for a tombstone that repeats the delete before it.
        """
        self._records += 1
        if self._records == thresholds.TOMBSTONE_RECORDS:
            self._earlier.clear()
        if record.kind == "tombstone":
            return None if self._close((record.topic, _text(record.key))) else self._table_of(record)
        for table in tables:
            if table not in (of_topic := self._topics.setdefault(record.topic, set())):
                of_topic.add(table)
                self._tables.add(table)
        if record.kind == "delete":
            key = (record.topic, _text(record.key))
            # Rows without a key cannot be told apart: as many tombstones repeat deletes as there were deletes.
            count = self._deletes.pop(key, (0, 0))[0] + 1 if record.key is None else 1
            self._deletes[key] = (count, self._records)
            self._forget()
        elif record.key is not None and (self._deletes or self._earlier):
            self._close((record.topic, _text(record.key)))
        return None

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties that the next landing starts from."""
        topics = {t: sorted(map(str, of)) for t, of in self._topics.items() if not of <= self._named_like(t)}
        first = self._records - thresholds.TOMBSTONE_RECORDS // 10
        deletes = {_digest(key): count for key, (count, at) in self._deletes.items() if at > first}
        properties = {TOPICS_PROPERTY: json.dumps(topics, sort_keys=True)} if topics else {}
        # An empty one replaces that of the landing before.
        return properties | ({DELETES_PROPERTY: json.dumps(deletes)} if deletes or self._had_deletes else {})

    def _close(self, key: tuple[str, bytes]) -> bool:
        """Forget a delete; return whether there was one."""
        if key in self._deletes:
            count, at = self._deletes.pop(key)
            if count > 1:
                self._deletes[key] = (count - 1, at)
            return True
        if self._earlier and (digest := _digest(key)) in self._earlier:
            self._earlier[digest] -= 1
            if not self._earlier[digest]:
                del self._earlier[digest]
            return True
        return False

    def _forget(self) -> None:
        """Forget deletes that are too far back to be followed by their own tombstone."""
        first = self._records - thresholds.TOMBSTONE_RECORDS
        while (oldest := next(iter(self._deletes))) and self._deletes[oldest][1] < first:
            del self._deletes[oldest]

    def _table_of(self, record: Keyed) -> SourceTable | Refused | None:
        tables = self._topics.get(record.topic, set()) | self._named_like(record.topic)
        if not tables:
            return None  # no record of the table has arrived, so it has no row here
        where = f" of topic {record.topic}" if record.topic else " without a topic"
        if record.key is None:
            return Refused(f"a tombstone{where} without a key: which row was deleted is unknown ({REWRITE})")
        if len(tables) > 1:
            names = ", ".join(map(str, sorted(tables)))
            why = f"a tombstone{where}, and it may be about {names}: which row was deleted is unknown ({REWRITE})"
            return Refused(why)
        return next(iter(tables))

    def _named_like(self, topic: str) -> set[SourceTable]:
        """Return the tables that a topic is called like: `prefix.schema.table`, with other characters replaced."""
        if not topic:
            return self._tables or ({self._about} if self._about else set())
        names = {t: topic_of(t) for t in self._tables}
        alike = {t: name for t, name in names.items() if topic == name or topic.endswith(f".{name}")}
        longest = max(map(len, alike.values()), default=0)
        return {t for t, name in alike.items() if len(name) == longest}


def topic_of(table: SourceTable | None) -> str:
    """Return the end of the name of a table's topic; empty for none."""
    return _NOT_IN_TOPICS.sub("_", f"{table.schema}.{table.name}") if table else ""


def _text(key: Any) -> bytes:
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS)


def _digest(key: tuple[str, bytes]) -> str:
    return blake2b(key[0].encode() + b"\0" + key[1], digest_size=8).hexdigest()
