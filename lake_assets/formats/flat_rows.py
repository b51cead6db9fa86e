"""Flat rows with a column for the operation: flagged change sets and change feeds.

A change set has the columns of the table, a flag (I, U or D) and the time of the change, which is also a column of the
table. Other names of these columns, and other values of the flag, are declared (`RowLayout`). A change feed has the
columns, `_change_type`, `_commit_version` and `_commit_timestamp` (or Iceberg's `_change_ordinal` and
`_commit_snapshot_id`). Its before-images are deletes that come before all other rows of their commit, so an update that
changes the key deletes the old key. Rows are complete: a missing column is null. Neither form names the key or the
table, so both are declared.

Records are JSON objects, or rows of CSV and Parquet files as read by the folder `files`:
`{"@text": {...}}` (values are text; a column is numeric if all of its values look like numbers) and
`{"@types": {...}, "row": {...}}` (with the types of the file).

Sources: "Simplifying change data capture with Databricks Delta" (FLAG, CDC_TIMESTAMP); Delta's change data feed
documentation; Iceberg's create_changelog_view.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats.event_model import (
    DELETE,
    INSERT,
    NO_OLD_ROW,
    NO_OP,
    NO_PLACE,
    UPDATE,
    EventColumn,
    EventPlan,
    Hints,
    Planned,
    Seen,
    SourceTable,
)
from lake_assets.formats.format_base import EventFormat, named
from lake_assets.formats.named_values import op_of
from lake_assets.formats.row_layouts import ANY, LOAD, OPS, RowLayout, op_of_word, word_of
from lake_assets.formats.sequences import FIRST, KIND, KIND_OF_FEED, STORED, not_placed, placed, version
from lake_assets.formats.types.inferred_types import (
    VOID,
    Inferred,
    exact,
    hides_digits,
    parse_schema,
    read_fields,
    united,
    unmarked,
)
from lake_assets.formats.types.text_types import MOMENT, Reading, read_text
from lake_assets.lake.column_spelling import by_column, caseless, lake_names
from lake_assets.lake.names import literal, nearest

TEXT, TYPES, ROW = "@text", "@types", "row"

# A JSON string that is a number in JSON's notation: 12 and -0.5, but not 007, +1 or 1e5, whose text would be lost.
_NUMBER = r':"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"(?=[,}])'
_IS_TEXT = f"startswith(record, {literal('{' + json.dumps(TEXT) + ':')})"
_IS_TYPED = f"startswith(record, {literal('{' + json.dumps(TYPES) + ':')})"
_MAP = "MAP<STRING, STRING>"
# An ordinal orders the rows of one query of a changelog: the next one begins with 0 again, at another snapshot.
_ORDINAL, _SNAPSHOT = "_change_ordinal", "_commit_snapshot_id"
# Digits of a number in the order of changes.
_DIGITS = 20


@dataclass(frozen=True)
class _Layout:
    """Where records of one schema hold their row.

    Attributes:
        row: SQL of the row as a map.
        readings: how each column is read; None if all of its values are null.
        is_one_form: whether all records have the same columns.
    """

    row: str
    readings: Mapping[str, Reading | None]
    is_one_form: bool = False


@dataclass(frozen=True)
class Rows(EventFormat):
    """See the module.

    Attributes:
        op: the column of the operation; this and the other names ignore case.
        words: the op for each value of that column, in lower case; `*`: for any other value.
        missing: what rows without a value in that column are; empty: they are rejected.
        version: the first existing one of these columns orders the rows; within a version and key, deletes come first.
        time: columns of the time of the change, which orders the rows if no version column exists; of several, the
            first with a value counts.
        needs_time: whether a change without a time is rejected.
        technical: columns that are not part of the row.
    """

    op: str
    words: Mapping[str, str]
    missing: str = ""
    version: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    needs_time: bool = False
    whole: bool = True
    technical: frozenset[str] = frozenset()
    kind: str | None = KIND
    stored: str = STORED
    shape: str | None = field(
        default=f"schema_of_variant_agg(CASE WHEN {_IS_TYPED} THEN NULL WHEN {_IS_TEXT} THEN "
        f"try_parse_json(regexp_replace(record, {literal(_NUMBER)}, ':$1')) ELSE try_parse_json(record) END)",
        init=False,
    )

    @property
    def same_again(self) -> str:
        """See `EventFormat.same_again`: a version belongs to one commit, while several commits may share a time."""
        return "_sequence RLIKE '/[01](/|$)'" if self.version else "false"

    def alike(self, record: Any) -> tuple[Hashable, Any] | None:
        """See `EventFormat.alike`: the columns, their types if it has them, and the operation."""
        if type(record) is not dict:
            return None
        row, types, is_text = record, None, TEXT in record
        if len(record) == 2 and TYPES in record and ROW in record:
            row, types = record[ROW], record[TYPES]
            if type(types) is not dict:
                return None
            types = tuple(types.items())
        elif is_text and len(record) == 1:
            row = record[TEXT]
        if type(row) is not dict:
            return None
        names = tuple(row)
        op = row.get(_spelled(self.op, names))
        return ((is_text, types, names, op), None) if op is None or type(op) is str else None

    def schema_of(self, record: Any) -> str:
        """Return the types of a typed row as JSON; `@text` for a row of text."""
        if isinstance(record, dict) and set(record) == {TYPES, ROW}:
            return orjson.dumps(record[TYPES]).decode()
        return TEXT if isinstance(record, dict) and set(record) == {TEXT} else ""

    def says_all(self, schema: str) -> bool:
        """See `EventFormat.says_all`."""
        return schema not in ("", TEXT)

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        is_text = isinstance(record, dict) and set(record) == {TEXT}
        if is_text or (isinstance(record, dict) and set(record) == {TYPES, ROW}):
            record = record.get(TEXT, record.get(ROW))
        if not isinstance(record, dict):
            raise MalformedRecordError("expected an object, the columns of a row")
        op = record.get(_spelled(self.op, tuple(record)))
        if isinstance(op, dict | list) or op_of_word(word_of(op), self.words, self.missing) is None:
            advice = "" if self.version else " (`flag` declares other columns and values)"
            if op is None and _spelled(self.op, tuple(record)) not in record:
                header = ": the file may lack its header line" if is_text else ""
                has = f"no column {self.op}{nearest(self.op, record)} among {', '.join(record)}"
                raise MalformedRecordError(f"{has}{header}{advice}")
            raise MalformedRecordError(f"{self.op} is {op!r}, expected one of {', '.join(self.words)}{advice}")
        for name in record:
            named(name, "a column's name")
        if table is None:
            raise MalformedRecordError("rows do not name their table: declare the table of the stream")
        return (table,)

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: one per schema of typed rows, one for JSON rows, one for text rows."""
        return tuple(Planned((s.schema,), self._plan(_layout(s, hints, self.time), hints)) for s in seen)

    def _plan(self, layout: _Layout, hints: Hints) -> EventPlan:
        def column(name: str | None) -> str | None:
            return next((c for c in layout.readings if name and caseless(c) == caseless(name)), None)

        flag = column(self.op)
        if flag is None and not self.missing:
            raise UnsupportedEventError(f"no column {self.op} in {sorted(layout.readings)}")
        word = f"coalesce(lower(trim({_value(flag)})), '')" if flag else "''"
        commit = next(filter(None, map(column, self.version)), None)
        times = [c for c in map(column, self.time) if c]
        readings = {c: r for c, r in layout.readings.items() if caseless(c) not in self.technical}
        if layout.is_one_form:
            lake_names(readings, hints.rename)  # raises if a row has two columns of one name
        sources_of = by_column(readings, hints.rename)
        op = self._op(word)
        sequence, no_place = self._order(word, times)
        if commit:
            after = f"CASE WHEN {op} = {literal(DELETE)} THEN '0' ELSE '1' END"
            sequence = f"concat({version(_value(commit))}, '/', {after})"
            if caseless(commit) == _ORDINAL and (snapshot := column(_SNAPSHOT)):
                sequence = f"concat({sequence}, coalesce(concat('/', {_value(snapshot)}), ''))"
            no_place = literal(f"{commit} is not a whole number of up to 20 digits")
        if hints.by_row:
            # A feed has a separate row for the old values of an update; a change set has none.
            op = f"CASE {op} WHEN {literal(UPDATE)} THEN {literal(INSERT) if self.version else 'NULL'} ELSE {op} END"
        if ambiguous := [sources for sources in sources_of.values() if len(sources) > 1]:
            # If a row has both columns, it is unclear which one to use.
            name_arrays = (f"array({', '.join(map(literal, sources))})" for sources in ambiguous)
            is_ambiguous = " OR ".join(f"size(array_intersect(map_keys(e), {names})) > 1" for names in name_arrays)
            op = f"CASE WHEN {is_ambiguous} THEN NULL ELSE {op} END"
        return EventPlan(
            parsed=layout.row,
            op=op,
            sequence=sequence,
            event_time=MOMENT.replace("{t}", _value(*times)) if times else "CAST(NULL AS TIMESTAMP)",
            columns=tuple(
                EventColumn(
                    name,
                    r.type,
                    _value(*sources),
                    r.steps,
                    loses_digits=r.loses_digits,
                    record_names=tuple(sources),
                    is_named=_is_named(sources),
                )
                for name, sources in sources_of.items()
                if (r := readings[sources[0]])
            ),
            key=hints.key,
            no_op=NO_OLD_ROW if hints.by_row else NO_OP,
            no_place=no_place,
        )

    def _op(self, word: str) -> str:
        """Return SQL of the op; `word`: SQL of the flag's value in lower case, empty if it is missing."""
        ops = {w: op for w, op in self.words.items() if w != ANY}
        without, other = (literal(op) if op else "NULL" for op in (OPS.get(self.missing), self.words.get(ANY)))
        named = f"coalesce({op_of(word, ops)}, {other})" if ops else other
        return f"CASE WHEN {word} = '' THEN {without} ELSE {named} END"

    def _order(self, word: str, times: Sequence[str]) -> tuple[str, str]:
        """Return SQL of the place of a row in the order of changes, and of the reason if it has none."""
        # Without a time the order of the stream counts: changes then share a number, which comes after a load.
        sequence = f"lpad('', {_DIGITS}, '0')" if self.missing == LOAD else "''"
        none = literal(f"no value in {' or '.join(self.time)} says its place in the order of changes")
        no_place = none if self.time else literal(NO_PLACE)
        if times:
            time = _value(*times)
            sequence, no_place = placed(time), f"coalesce({not_placed(' or '.join(times), time)}, {none})"
            if self.needs_time:
                sequence = f"nullif({sequence}, '')"
        elif self.needs_time:
            sequence = "CAST(NULL AS STRING)"
        if self.missing == LOAD:
            sequence = f"CASE WHEN {word} = '' THEN {literal(FIRST)} ELSE {sequence} END"
        return sequence, no_place


@lru_cache(maxsize=1_000)
def _spelled(name: str, names: tuple[str, ...]) -> str | None:
    """Return the first one of some names that is this one in another spelling; None if there is none."""
    return next((n for n in names if caseless(n) == caseless(name)), None)


def _is_named(names: Sequence[str]) -> str:
    return " OR ".join(f"map_contains_key(e, {literal(n)})" for n in names)


def _value(name: str, *others: str) -> str:
    values = [f"e[{literal(n)}]" for n in (name, *others)]
    return f"coalesce({', '.join(values)})" if others else values[0]


def _layout(seen: Seen, hints: Hints, times: Sequence[str]) -> _Layout:
    if seen.schema not in ("", TEXT):
        types: dict[str, str] = json.loads(seen.schema)
        read = {c: read_text(hints.types.get(hints.rename.get(c, c), t)) for c, t in types.items()}
        return _Layout(f"from_json(record, '{ROW} {_MAP}').{ROW}", read, is_one_form=True)
    inferred = parse_schema(seen.shape)
    if seen.schema == TEXT:
        inferred = inferred.fields.get(TEXT, VOID)
    fields = united(inferred, Inferred("OBJECT")).fields
    read = read_fields(fields, hints)
    if seen.schema == TEXT:
        return _Layout(f"from_json(record, {literal(f'`{TEXT}` {_MAP}')})[{literal(TEXT)}]", read)
    # The order of changes is read from the text of its column, whatever the column's type is.
    are_times = set(map(caseless, times))
    texts = {c: Reading("string") if caseless(c) in are_times else r for c, r in read.items()}
    if hides_digits(fields, texts):
        read = {c: r and unmarked(r) for c, r in read.items()}
    return _Layout(f"try_cast(try_parse_json({exact('record', fields, texts)}) AS {_MAP})", read)


CHANGE_SET = Rows(
    op="FLAG",
    words={"i": INSERT, "u": UPDATE, "d": DELETE, "insert": INSERT, "update": UPDATE, "delete": DELETE},
    time=("CDC_TIMESTAMP",),
    technical=frozenset({"flag"}),
)


def change_set(layout: RowLayout) -> Rows:
    """Return the format of change sets with declared columns."""
    return Rows(
        op=layout.column,
        words=dict(layout.words),
        missing=layout.missing,
        time=layout.time,
        needs_time=bool(layout.time),
        technical=frozenset({caseless(layout.column)}),
    )


CHANGE_FEED = Rows(
    op="_change_type",
    words={
        "insert": INSERT,
        "delete": DELETE,
        "update_preimage": DELETE,
        "update_before": DELETE,
        "update_postimage": UPDATE,
        "update_after": UPDATE,
    },
    version=("_commit_version", _ORDINAL),
    time=("_commit_timestamp",),
    technical=frozenset({"_change_type", "_commit_version", "_commit_timestamp", _ORDINAL, _SNAPSHOT}),
    kind=KIND_OF_FEED,
)
