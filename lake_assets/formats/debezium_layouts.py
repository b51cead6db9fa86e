"""Layouts: where each form of Debezium's records holds the op, the row images, the key and the order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.event_model import (
    DELETE,
    INSERT,
    READ,
    TRUNCATE,
    UPDATE,
)
from lake_assets.formats.sequences import pair, version
from lake_assets.formats.types.text_types import Reading, let
from lake_assets.lake.names import literal, quote

META = ("__source_", "__")  # prefixes of the fields that ExtractNewRecordState adds
_SOURCE = "STRUCT<sequence: STRING, lsn: BIGINT, ts_us: BIGINT, ts_ms: BIGINT>"
_OPS = {"c": INSERT, "r": READ, "u": UPDATE, "d": DELETE, "t": TRUNCATE}
# Op of the insert that an update of a declared key is split into, after a delete.
MOVED = ">"
_ADDED_FIELDS = {
    "op", "deleted", "table", "schema", "db", "lsn", "sequence", "txId", "ts_ms", "ts_us", "ts_ns", "snapshot",
    "connector", "name", "version", "xmin", "origin", "origin_lsn",
}  # fmt: skip


_TWO_NUMBERS = r'^\["[0-9]{1,20}","[0-9]{1,20}"\]$'


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
        return cls(all(names and len({n.lower() for n in names}) == len(names) for names in objects))

    def type(self, names: Collection[str]) -> str:
        """Return the Spark SQL type of an object with these fields."""
        if not self.is_struct:
            return "MAP<STRING, STRING>"
        return f"STRUCT<{', '.join(f'{quote(n)}: STRING' for n in names)}>"

    def envelope(self, names: Collection[str]) -> str:
        """Return the type of an envelope around rows with these fields."""
        row = self.type(names)
        return f"STRUCT<op: STRING, before: {row}, after: {row}, source: {_SOURCE}>"

    def value(self, at: str, name: str, *others: str) -> str:
        """Return SQL of the value called `name`, or called one of `others`."""
        if others:
            return f"coalesce({', '.join(self.value(at, n) for n in (name, *others))})"
        return f"{at}.{quote(name)}" if self.is_struct else f"{at}[{literal(name)}]"


@dataclass(frozen=True)
class Layout:
    """SQL of the parts of an event.

    Attributes:
        texts: how objects are parsed.
        parsed: SQL over `record` that returns `e`, over which all other expressions are written.
        op: the op.
        sequence: the order of changes.
        event_time: the time of the change.
        before: the old row.
        after: the new row.
        key: the key; None if the records have none.
        key_names: fields of the key.
        deleted: whether the values come from the old row; None if old and new row are in one place.
        envelope: the struct of op, before, after and source; None if there is no envelope.
        names: an array of the new row's column names, if a row may lack columns that others have; None if all rows have
            the same columns.
    """

    texts: Texts
    parsed: str
    op: str
    sequence: str
    event_time: str
    before: str
    after: str
    key: str | None
    key_names: frozenset[str] = frozenset()
    deleted: str | None = None
    envelope: str | None = None
    names: str | None = None


def enveloped_layout(texts: Texts, parsed: str, at: str, key: str | None, key_names: Collection[str]) -> Layout:
    """Return the layout of an envelope with op, before, after and source.

    Args:
        texts: how objects are parsed.
        parsed: SQL over `record` that returns `e`.
        at: SQL of the envelope.
        key: SQL of the key; None if the records have none.
        key_names: fields of the key.
    """
    source = f"{at}.source"
    ops = {**_OPS, MOVED: INSERT}
    cases = " ".join(f"WHEN {at}.op = {literal(k)} THEN {literal(v)}" for k, v in ops.items())
    return Layout(
        texts=texts,
        parsed=parsed,
        # An insert or update without a new row would become a row of nulls.
        op=f"CASE WHEN {at}.op IN ('c', 'r', 'u') AND {at}.after IS NULL THEN NULL {cases} END",
        sequence=_sequence(f"{source}.sequence", f"CAST({source}.lsn AS STRING)"),
        event_time=f"coalesce(timestamp_micros({source}.ts_us), {_millis(f'{source}.ts_ms')})",
        before=f"{at}.before",
        after=f"{at}.after",
        key=key,
        key_names=frozenset(key_names),
        deleted=f"{at}.op = 'd'",
        envelope=at,
    )


def flattened_layout(
    texts: Texts, parsed: str, at: str, key: str | None, key_names: Collection[str], fields: Collection[str]
) -> Layout:
    """Return the layout of a row with fields that ExtractNewRecordState added.

    Args:
        texts: how objects are parsed.
        parsed: SQL over `record` that returns `e`.
        at: SQL of the row.
        key: SQL of the key; None if the records have none.
        key_names: fields of the key.
        fields: fields of the row.

    Raises:
        UnsupportedEventError: no added field tells the op.
    """

    def added(*what: str) -> str | None:
        return next((texts.value(at, p + w) for w in what for p in META if p + w in fields), None)

    op, deleted = added("op"), added("deleted")
    cases = [f"WHEN {deleted} = 'true' THEN {literal(DELETE)}"] if deleted else []
    if op:
        cases += [f"WHEN {op} = {literal(k)} THEN {literal(v)}" for k, v in _OPS.items()]
    else:
        cases += [f"WHEN {deleted} = 'false' THEN {literal(UPDATE)}"] if deleted else []
    if not cases:
        raise UnsupportedEventError("flattened rows have neither __op nor __deleted: set add.fields=op,table")
    millis, micros, nanos = added("ts_ms"), added("ts_us"), added("ts_ns")
    sequence, lsn, stamp = added("sequence"), added("lsn"), nanos or micros or millis
    if sequence or lsn:
        order = _sequence(sequence or "CAST(NULL AS STRING)", lsn or "CAST(NULL AS STRING)")
    else:
        order = version(f"coalesce({stamp}, '0')") if stamp else "''"
    moments = [
        *([f"timestamp_micros(try_cast({micros} AS BIGINT))"] if micros else []),
        *([_millis(f"try_cast({millis} AS BIGINT)")] if millis else []),
        "CAST(NULL AS TIMESTAMP)",
    ]
    happened = f"coalesce({', '.join(moments)})"
    return Layout(texts, parsed, f"CASE {' '.join(cases)} END", order, happened, at, at, key, frozenset(key_names))


def is_added(name: str) -> bool:
    """Whether ExtractNewRecordState adds a field of this name to rows."""
    return name.startswith("__source_") or (name.startswith("__") and name[2:] in _ADDED_FIELDS)


def _millis(t: str) -> str:
    # Not timestamp_millis: it fails the whole query if the number is too large.
    return f"timestamp_micros(try_multiply({t}, 1000L))"


def _sequence(sequence: str, lsn: str) -> str:
    """Return SQL of the order of Debezium's events as sortable text; NULL if the LSNs are not numbers.

    It consists of the last commit's LSN and the LSN of the change. The LSN of the change alone goes backwards between
    interleaved transactions, since events are delivered by commit. For a single row it never does, so it suffices if
    the commit's LSN is missing.
    """
    texts = f"from_json({sequence}, 'ARRAY<STRING>')"
    other = let(texts, "p_", pair("coalesce(get(p_, 0), '0')", f"coalesce(get(p_, 1), {lsn}, '0')"))
    # The form in which Debezium's Postgres connector writes all sequences but the first.
    low, high = (f"lpad(split_part({sequence}, '\"', {i}), 20, '0')" for i in (4, 2))
    return f"CASE WHEN {sequence} RLIKE {literal(_TWO_NUMBERS)} THEN concat({high}, '/', {low}) ELSE {other} END"
