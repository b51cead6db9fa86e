"""Flat rows with a column that says what happened: flagged change sets and change feeds.

A change set holds the columns of the table, a flag (I, U or D) and the time of the change, which is a column of the
table as well. A change feed holds the columns, `_change_type`, `_commit_version` and `_commit_timestamp` (or Iceberg's
`_change_ordinal` and `_commit_snapshot_id`); its before-images are deletes that stand before all rows of the same
commit, so that an update that changes the key takes the old key away. Rows are whole: a column that a row lacks is
null. Neither says the key or the table: both are declared.

Records are JSON objects, or rows of CSV and Parquet files as `files` makes them:
`{"@text": {...}}` (values are text: those of a column are numbers where all of them look like numbers) and
`{"@types": {...}, "row": {...}}` (types as the file says).

Sources: "Simplifying change data capture with Databricks Delta" (FLAG, CDC_TIMESTAMP); Delta's change data feed
documentation; Iceberg's create_changelog_view.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from lake_assets.formats.format_base import Format, lake_names, named
from lake_assets.formats.named_values import op_of
from lake_assets.formats.sequences import KIND, STORED, not_placed, placed, version
from lake_assets.formats.types.inferred_types import VOID, Inferred, either, exact, parse_schema, read_inferred, united
from lake_assets.formats.types.text_types import MOMENT, Reading, read_text
from lake_assets.lake.names import literal

TEXT, TYPES, ROW = "@text", "@types", "row"

# A JSON string that is a number as JSON writes it: 12 and -0.5, but not 007, +1 or 1e5, which numbers would not keep.
_NUMBER = r':"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"(?=[,}])'
_IS_TEXT = f"startswith(record, {literal('{' + json.dumps(TEXT) + ':')})"
_IS_TYPED = f"startswith(record, {literal('{' + json.dumps(TYPES) + ':')})"
_MAP = "MAP<STRING, STRING>"


@dataclass(frozen=True)
class _Layout:
    """How records of one schema hold their row: SQL of the map, and what is known of the columns' types; whether all of
    them have the same columns."""

    row: str
    readings: Mapping[str, Reading | None]
    is_one_form: bool = False


@dataclass(frozen=True)
class Rows(Format):
    """See the module.

    Attributes:
        op: the column that says what happened; this and the other names are found in any case.
        words: what its values mean, in lower case.
        version: the first of these columns that is there orders the rows; those of one version and key: deletes first.
        time: when it happened; orders the rows where there is no version.
        technical: columns that are not part of the row.
    """

    op: str
    words: Mapping[str, str]
    version: tuple[str, ...] = ()
    time: str | None = None
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
        """See `EventFormat.same_again`: a version is that of one commit, a time may be that of any."""
        return "_sequence RLIKE '/[01]$'" if self.version else "false"

    def schema_of(self, record: Any) -> str:
        """The types of a typed row, as JSON; `@text` for a row of text."""
        if isinstance(record, dict) and set(record) == {TYPES, ROW}:
            return orjson.dumps(record[TYPES]).decode()
        return TEXT if isinstance(record, dict) and set(record) == {TEXT} else ""

    def says_all(self, schema: str) -> bool:
        """See `EventFormat.says_all`."""
        return schema not in ("", TEXT)

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if isinstance(record, dict) and (set(record) == {TEXT} or set(record) == {TYPES, ROW}):
            record = record.get(TEXT, record.get(ROW))
        if not isinstance(record, dict):
            raise MalformedRecordError("expected an object, the columns of a row")
        op = next((v for k, v in record.items() if k.lower() == self.op.lower()), None)
        if not isinstance(op, str) or op.strip().lower() not in self.words:
            raise MalformedRecordError(f"{self.op} is {op!r}, expected one of {', '.join(self.words)}")
        for name in record:
            named(name, "a column's name")
        if table is None:
            raise MalformedRecordError("rows do not name their table: declare which one the stream is about")
        return (table,)

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: one for each schema of typed rows, one for JSON rows, one for text rows."""
        return tuple(Planned((s.schema,), self._plan(_layout(s, hints, self.time), hints)) for s in seen)

    def _plan(self, layout: _Layout, hints: Hints) -> EventPlan:
        def column(name: str | None) -> str | None:
            return next((c for c in layout.readings if name and c.lower() == name.lower()), None)

        op = column(self.op)
        if op is None:
            raise UnsupportedEventError(f"no column {self.op} in {sorted(layout.readings)}")
        happened = f"lower(trim({_value(op)}))"
        commit, time = next(filter(None, map(column, self.version)), None), column(self.time)
        kept = {c: r for c, r in layout.readings.items() if c.lower() not in self.technical}
        called = _called(kept, layout, hints)
        sequence = placed(_value(time)) if time else "''"
        no_place = not_placed(time, _value(time)) if time else literal(NO_PLACE)
        if commit:
            after = f"CASE WHEN {op_of(happened, self.words)} = {literal(DELETE)} THEN '0' ELSE '1' END"
            sequence = f"concat({version(_value(commit))}, '/', {after})"
            no_place = literal(f"{commit} is no whole number of up to 20 digits")
        op = op_of(happened, self.words)
        if hints.by_row:
            # A feed has a row of its own for what an update took away; a change set has none.
            op = f"CASE {op} WHEN {literal(UPDATE)} THEN {literal(INSERT) if self.version else 'NULL'} ELSE {op} END"
        if twice := [sources for sources in called.values() if len(sources) > 1]:
            # Which of two columns is meant, where a row has both?
            listed = (f"array({', '.join(map(literal, sources))})" for sources in twice)
            both = " OR ".join(f"size(array_intersect(map_keys(e), {names})) > 1" for names in listed)
            op = f"CASE WHEN {both} THEN NULL ELSE {op} END"
        return EventPlan(
            parsed=layout.row,
            op=op,
            sequence=sequence,
            event_time=MOMENT.replace("{t}", _value(time)) if time else "CAST(NULL AS TIMESTAMP)",
            columns=tuple(
                EventColumn(name, r.type, _value(*sources), r.steps)
                for name, sources in called.items()
                if (r := kept[sources[0]])
            ),
            key=hints.key,
            no_op=NO_OLD_ROW if hints.by_row else NO_OP,
            no_place=no_place,
        )


def _called(kept: Mapping[str, Reading | None], layout: _Layout, hints: Hints) -> dict[str, list[str]]:
    """The names that each column has in the records: several where its name changed its case only."""
    if layout.is_one_form:
        return {name: [c] for c, name in lake_names(kept, hints.rename).items()}
    found: dict[str, list[str]] = {}
    spelled: dict[str, str] = {}
    for c in kept:
        name = hints.rename.get(c, c)
        found.setdefault(spelled.setdefault(name.lower(), name), []).append(c)
    return found


def _value(name: str, *others: str) -> str:
    values = [f"e[{literal(n)}]" for n in (name, *others)]
    return f"coalesce({', '.join(values)})" if others else values[0]


def _layout(seen: Seen, hints: Hints, time: str | None) -> _Layout:
    if seen.schema not in ("", TEXT):
        types: dict[str, str] = json.loads(seen.schema)
        read = {c: read_text(hints.types.get(hints.rename.get(c, c), t)) for c, t in types.items()}
        return _Layout(f"from_json(record, '{ROW} {_MAP}').{ROW}", read, is_one_form=True)
    inferred = parse_schema(seen.shape)
    if seen.schema == TEXT:
        inferred = inferred.fields.get(TEXT, VOID)
    fields = united(inferred, Inferred("OBJECT")).fields
    alike: dict[str, Inferred] = {}
    for c, i in fields.items():
        called = hints.rename.get(c, c).lower()
        alike[called] = either(alike.get(called, VOID), i)
    names = {c: hints.rename.get(c, c) for c in fields}
    read = {c: read_inferred(name, alike[name.lower()], hints) for c, name in names.items()}
    if seen.schema == TEXT:
        return _Layout(f"from_json(record, {literal(f'`{TEXT}` {_MAP}')})[{literal(TEXT)}]", read)
    # The place in the order of changes is read as text, whatever type its column has.
    texts = {c: Reading("string") if time and c.lower() == time.lower() else r for c, r in read.items()}
    return _Layout(f"try_cast(try_parse_json({exact('record', fields, texts)}) AS {_MAP})", read)


CHANGE_SET = Rows(
    op="FLAG",
    words={"i": INSERT, "u": UPDATE, "d": DELETE, "insert": INSERT, "update": UPDATE, "delete": DELETE},
    time="CDC_TIMESTAMP",
    technical=frozenset({"flag"}),
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
    version=("_commit_version", "_change_ordinal"),
    time="_commit_timestamp",
    technical=frozenset(
        {"_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal", "_commit_snapshot_id"}
    ),
)
