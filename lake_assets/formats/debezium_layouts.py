"""Layouts: where each form of Debezium's records holds the op, the row images, the key and the order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.event_model import DELETE, INSERT, READ, TRUNCATE, UPDATE
from lake_assets.formats.log_positions import FIELDS, position
from lake_assets.formats.sequences import version
from lake_assets.formats.types.text_types import Reading
from lake_assets.lake.column_spelling import clashes
from lake_assets.lake.names import literal, quote

META = ("__source_", "__")  # prefixes of the fields that ExtractNewRecordState adds
_OPS = {"c": INSERT, "r": READ, "u": UPDATE, "d": DELETE, "t": TRUNCATE}
# Op of the insert that an update of a declared key is split into, after a delete.
MOVED = ">"
_ADDED_FIELDS = {
    *FIELDS, "op", "deleted", "table", "schema", "db", "txId", "ts_ms", "ts_us", "ts_ns", "snapshot", "name", "version",
    "xmin", "origin", "origin_lsn", "row", "gtid", "server_id", "thread", "query",
}  # fmt: skip


@dataclass(frozen=True)
class SourceColumn:
    """A column of the source; `spellings` are its other names, which differ only in case."""

    name: str
    reading: Reading
    marks: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    has_default: bool = False
    default: str | None = None
    is_required: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the column in the records."""
        return (self.name, *self.spellings)


@dataclass(frozen=True)
class Texts:
    """How an object's values are parsed as text: as a struct, or as a map if names differ only in case.

    A struct cannot tell such names apart. It is read by position, while each value of a map is found by searching all
    names.
    """

    is_struct: bool

    @classmethod
    def of(cls, *objects: Collection[str]) -> Texts:
        """Choose the form for objects with these fields."""
        return cls(all(names and not clashes(names) for names in objects))

    def type(self, names: Collection[str]) -> str:
        """Return the Spark SQL type of an object with these fields."""
        if not self.is_struct:
            return "MAP<STRING, STRING>"
        return f"STRUCT<{', '.join(f'{quote(n)}: STRING' for n in names)}>"

    def envelope(self, names: Collection[str], of_source: Collection[str]) -> str:
        """Return the type of an envelope around rows with these fields, and the order's fields of its `source`."""
        row, order = self.type(names), "".join(f"{f}: STRING, " for f in of_source)
        source = f"STRUCT<{order}ts_ns: BIGINT, ts_us: BIGINT, ts_ms: BIGINT>"
        return f"STRUCT<op: STRING, before: {row}, after: {row}, source: {source}>"

    def value(self, at: str, name: str, *others: str) -> str:
        """Return SQL of the value called `name`, or called one of `others`."""
        if others:
            return f"coalesce({', '.join(self.value(at, n) for n in (name, *others))})"
        return f"{at}.{quote(name)}" if self.is_struct else f"{at}[{literal(name)}]"


@dataclass(frozen=True)
class ParsedRecord:
    """Where a parsed record holds its parts, as SQL.

    Attributes:
        texts: how objects are parsed.
        parsed: SQL over `record` that returns `e`, over which all other expressions are written.
        at: the envelope, or the flattened row.
        key: the key; None if the records have none.
        key_names: fields of the key.
    """

    texts: Texts
    parsed: str
    at: str
    key: str | None
    key_names: frozenset[str]


@dataclass(frozen=True)
class Layout(ParsedRecord):
    """SQL of the parts of an event.

    Attributes:
        op: the op.
        sequence: the order of changes; None: nothing orders them.
        event_time: the time of the change.
        before, after: the old and the new row.
        deleted: whether the values come from the old row; None if old and new row are in one place.
        envelope: the struct of op, before, after and source; None if there is no envelope.
        names: an array of the new row's column names, if a row may lack columns that others have; None if all rows have
            the same columns.
        is_by_time: whether a time is all that orders the changes.
    """

    op: str
    sequence: str | None
    event_time: str
    before: str
    after: str
    deleted: str | None = None
    envelope: str | None = None
    names: str | None = None
    is_by_time: bool = False


def order_fields(source: Collection[str]) -> tuple[str, ...]:
    """Return the fields that may order the events, out of those of a `source`; all if its fields are unknown."""
    return tuple(f for f in FIELDS if f in source) if source else FIELDS


def enveloped_layout(record: ParsedRecord, of_source: Collection[str]) -> Layout:
    """Return the layout of an envelope; `of_source`: fields of its `source` that may order the events."""
    at, source = record.at, f"{record.at}.source"
    ops = {**_OPS, MOVED: INSERT}
    cases = " ".join(f"WHEN {at}.op = {literal(k)} THEN {literal(v)}" for k, v in ops.items())
    return Layout(
        **vars(record),
        # An insert or update without a new row would become a row of nulls.
        op=f"CASE WHEN {at}.op IN ('c', 'r', 'u') AND {at}.after IS NULL THEN NULL {cases} END",
        sequence=position({f: f"{source}.{f}" for f in of_source}, f"{at}.op = 'r'"),
        event_time=(
            f"timestamp_micros(coalesce({source}.ts_us, {source}.ts_ns div 1000, try_multiply({source}.ts_ms, 1000L)))"
        ),
        before=f"{at}.before",
        after=f"{at}.after",
        deleted=f"{at}.op = 'd'",
        envelope=at,
    )


def flattened_layout(record: ParsedRecord, fields: Collection[str]) -> Layout:
    """Return the layout of a row with fields that ExtractNewRecordState added.

    Raises:
        UnsupportedEventError: no added field tells the op.
    """
    at = record.at

    def added(*what: str) -> str | None:
        return next((record.texts.value(at, p + w) for w in what for p in META if p + w in fields), None)

    op, deleted = added("op"), added("deleted")
    cases = [f"WHEN {deleted} = 'true' THEN {literal(DELETE)}"] if deleted else []
    if op:
        cases += [f"WHEN {op} = {literal(k)} THEN {literal(v)}" for k, v in _OPS.items()]
    else:
        cases += [f"WHEN {deleted} = 'false' THEN {literal(UPDATE)}"] if deleted else []
    if not cases:
        raise UnsupportedEventError("flattened rows have neither __op nor __deleted: set add.fields=op,table")
    millis, micros, nanos = added("ts_ms"), added("ts_us"), added("ts_ns")
    stamp = nanos or micros or millis
    values = {f: value for f in FIELDS if (value := added(f))}
    sequence = position(values, f"{op} = 'r'" if op else "false")
    times = [
        *([f"try_cast({micros} AS BIGINT)"] if micros else []),
        *([f"try_cast({nanos} AS BIGINT) div 1000"] if nanos else []),
        # Not timestamp_millis: it fails the whole query if the number is too large.
        *([f"try_multiply(try_cast({millis} AS BIGINT), 1000L)"] if millis else []),
        "CAST(NULL AS BIGINT)",
    ]
    happened = f"timestamp_micros(coalesce({', '.join(times)}))"
    return Layout(
        **vars(record),
        op=f"CASE {' '.join(cases)} END",
        sequence=sequence or (version(stamp) if stamp else None),
        event_time=happened,
        before=at,
        after=at,
        is_by_time=sequence is None,
    )


def is_added(name: str) -> bool:
    """Whether ExtractNewRecordState adds a field of this name to rows."""
    return name.startswith("__source_") or (name.startswith("__") and name[2:] in _ADDED_FIELDS)
