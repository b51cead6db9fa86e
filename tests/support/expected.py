"""What readers should make of the generator's events: images, value by value, as each format carries them."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from lake_assets.examples.event_generator import KEY, Change, Row, Transaction
from lake_assets.examples.stream_writers import connect_value, feed_rows, flagged_rows, postgres_text
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE, Hints, SourceTable
from tests.support.parsing import Parsed, plain

Values = Literal["typed", "connect", "text", "json"]
ITEMS = SourceTable("public", "items")


@dataclass(frozen=True)
class FormatCase:
    """How a generated format is read.

    Attributes:
        reads: the name of its reader.
        values: with their types, as Connect's JSON, as text, or as JSON values.
        images: events with keys alone as old rows, rows of a change set, or rows of a feed.
        omits: whether unchanged values are left out.
        hints: what is declared beside the records.
    """

    reads: str
    values: Values = "typed"
    images: Literal["events", "set", "feed"] = "events"
    omits: bool = True
    hints: Hints = field(default_factory=lambda: Hints(table=ITEMS))


KEYED = Hints(table=ITEMS, key=(KEY,))
FORMATS: Mapping[str, FormatCase] = {
    "debezium": FormatCase("debezium"),
    "debezium-plain": FormatCase("debezium", "connect"),
    "debezium-value": FormatCase("debezium", hints=KEYED),
    "debezium-plain-value": FormatCase("debezium", "connect", hints=KEYED),
    "debezium-flat": FormatCase("debezium"),
    "debezium-flat-plain": FormatCase("debezium", "connect"),
    "debezium-flat-value": FormatCase("debezium", "connect", hints=KEYED),
    "wal2json-v1": FormatCase("wal2json-v1"),
    "wal2json-v2": FormatCase("wal2json-v2"),
    "simplified": FormatCase("simplified", "text"),
    "simplified-typed": FormatCase("simplified"),
    "change-set": FormatCase("change-set", "json", "set", omits=False, hints=KEYED),
    "change-feed": FormatCase("change-feed", "json", "feed", omits=False, hints=KEYED),
}


def as_read(values: Values, kind: str, value: Any) -> Any:
    """A generated value as it comes out of the reader."""
    if value is None or values == "typed":
        return plain(value)
    if values == "text":
        return postgres_text(value)
    if values == "connect":
        return connect_value(kind, value, exact=False)
    match value:
        case Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date():
            return value.isoformat()
        case _:
            return value


Image = tuple[str, dict[str, Any]]


def images(carried: FormatCase, transactions: Iterable[Transaction]) -> list[Image]:
    """Op and row (without nulls) of every event, in the order of the stream."""
    found: list[Image] = []
    for transaction in transactions:
        if carried.images == "events":
            found += [image for change in transaction.changes for image in _events(carried, change)]
            continue
        kinds = {n: k for change in transaction.changes for n, k in change.columns.items()}
        for row in flagged_rows(transaction) if carried.images == "set" else feed_rows(transaction):
            found.append(_row_image(carried, kinds, row))
    return found


_WORDS = {"I": INSERT, "U": UPDATE, "D": DELETE, "update_preimage": DELETE, "update_postimage": UPDATE}


def _row_image(carried: FormatCase, kinds: Mapping[str, str], row: Mapping[str, Any]) -> Image:
    word: str = row.get("FLAG") or row["_change_type"]
    values = {n: v for n, v in row.items() if n != "FLAG" and not n.startswith("_")}
    return _WORDS.get(word, word), shown(carried, {**kinds, "CDC_TIMESTAMP": ""}, values)


def _events(carried: FormatCase, change: Change) -> list[Image]:
    old = shown(carried, change.columns, {KEY: change.before[KEY]}) if change.before is not None else {}
    if change.after is None:
        return [(DELETE, old)]
    new = shown(carried, change.columns, {n: v for n, v in change.after.items() if n not in change.absent})
    if old and old[KEY] != new[KEY]:
        return [(DELETE, old), (INSERT, new)]
    return [(change.op, new)]


def shown(carried: FormatCase, kinds: Mapping[str, str], row: Row) -> dict[str, Any]:
    return {n: as_read(carried.values, kinds[n], v) for n, v in row.items() if v is not None}


def of_reader(carried: FormatCase, event: Parsed) -> Image:
    """The same of an event that was read."""
    row = {n: plain(v) for n, v in event.row.items() if v is not None}
    return event.op or "", row


def final_rows(events: Iterable[Parsed], key: str = KEY) -> dict[Any, dict[str, Any]]:
    """The rows that events lead to, applied in the order that they claim to have."""
    rows: dict[Any, dict[str, Any]] = {}
    for event in sorted(events, key=lambda e: (e.sequence, e.position, e.index)):
        held = rows.pop(event.row[key], {})
        if event.op != DELETE:
            kept = {n: held[n] for n in event.unavailable if n in held}
            rows[event.row[key]] = {**{n: plain(v) for n, v in event.row.items() if v is not None}, **kept}
    return rows
