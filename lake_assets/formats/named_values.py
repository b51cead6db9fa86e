"""Events that name each value: arrays of names, types and values of the columns, and of the old key or old row.

wal2json and the simplified change events have this form. A record holds one or more events. SQL normalizes each to `x`:
schema, name, kind, names, types, values, old_names, old_types, old_values, pk, sequence, time, place (in the record,
from 0). As in Debezium, an update that changes the key becomes two events: the delete of the old key and the insert of
the new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lake_assets.errors import KeyChangedError, MalformedRecordError
from lake_assets.formats.event_model import (
    DELETE,
    INSERT,
    NO_OLD_ROW,
    NO_OP,
    NO_PLACE,
    TRUNCATE,
    UPDATE,
    EventColumn,
    EventPlan,
    Hints,
    Planned,
    Seen,
    SourceTable,
)
from lake_assets.formats.format_base import EventFormat
from lake_assets.formats.types.postgres_types import read_postgres
from lake_assets.formats.types.text_types import Reading, normal, read_text, widest
from lake_assets.lake.column_spelling import by_column, caseless, lake_names
from lake_assets.lake.names import literal

# Matches every number outside of strings, to quote it: Spark's JSON functions read numbers with a fraction as doubles,
# and a variant keeps at most 38 digits. `\\G` continues after the previous number, so strings are always skipped whole.
# All repetitions are possessive, so matching takes linear time for any text.
_NUMBERS = r'\G((?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+")*+)(-?[0-9][0-9.eE+-]*+)'


def numbers_as_text(json_text: str) -> str:
    """Return SQL of a JSON text with all numbers quoted, so that no digit is lost."""
    return f"regexp_replace({json_text}, {literal('(?s)' + _NUMBERS)}, '$1\"$2\"')"


def shape(parsed: str, events: str) -> str:
    """Return the SQL aggregate that collects the distinct forms of the events in a batch.

    Args:
        parsed: SQL over `record` that returns `e`.
        events: SQL over `e` that returns the array of `x`.
    """
    form = ", ".join(f"'{part}', x.{part}" for part in _FORM)
    all_events = f"flatten(transform(array({parsed}), e -> {events}))"
    distinct = f"array_distinct(transform({all_events}, x -> named_struct({form})))"
    return f"to_json(array_distinct(flatten(collect_set({distinct}))))"


_FORM = ("schema", "name", "kind", "names", "types", "old_names", "old_types", "pk")


@dataclass(frozen=True)
class Form:
    """Column names and types of some events, of their old rows, and the key that they name."""

    columns: tuple[tuple[str, str | None], ...]
    old: tuple[tuple[str, str | None], ...]
    pk: tuple[str, ...]


def forms(text: str | None, table: SourceTable | None) -> tuple[Form, ...]:
    """Parse the forms that `shape` collected, for one table."""
    return tuple(
        dict.fromkeys(
            Form(_pairs(form, ""), _pairs(form, "old_"), tuple(form.get("pk") or ()))
            for form in json.loads(text or "[]")
            if form.get("kind") and (table is None or form.get("name") in (None, table.name))
            if table is None or form.get("schema") in (None, table.schema)
        )
    )


def _pairs(form: Mapping[str, Any], prefix: str) -> tuple[tuple[str, str | None], ...]:
    names: list[str] = form.get(f"{prefix}names") or []
    types: list[str | None] = form.get(f"{prefix}types") or []
    return tuple((n, types[i] if i < len(types) else None) for i, n in enumerate(names))


def about(table: SourceTable | None) -> str:
    """Return SQL of a boolean: event `x` belongs to this table, or does not name its table."""
    if table is None:
        return "true"
    parts = (("schema", table.schema), ("name", table.name))
    return " AND ".join(f"coalesce(x.{part} = {literal(value)}, true)" for part, value in parts)


def key_of(batch_forms: Sequence[Form], hints: Hints) -> tuple[str, ...]:
    """Return the key in source names: the declared key, else that of the events, else the existing one.

    Raises:
        KeyChangedError: the events of one batch name different keys.
    """
    names = dict.fromkeys(n for f in batch_forms for n, _ in (*f.columns, *f.old))
    if hints.key:
        return _in_source(hints.key, names, hints)
    keys = {f.pk for f in batch_forms if f.pk}
    in_lake = {tuple(sorted(caseless(hints.rename.get(k, k)) for k in key)) for key in keys}
    if len(in_lake) > 1:
        raise KeyChangedError(f"events of {hints.table} name different keys: {' and '.join(map(str, sorted(keys)))}")
    # Inserts may not name the key: old keys come with updates and deletes.
    return min(keys) if keys else _in_source(hints.existing_key, names, hints)


def _in_source(key: tuple[str, ...], names: Iterable[str], hints: Hints) -> tuple[str, ...]:
    return tuple(next((n for n in names if hints.rename.get(n, n) == k), k) for k in key)


class NamedValues(EventFormat):
    """Base of the formats of this form.

    Attributes:
        parsed: SQL over `record` that returns `e`.
        events: SQL over `e` that returns the array of `x`.
        no_place: see `EventPlan`.
    """

    parsed: str
    events: str
    no_place: str = literal(NO_PLACE)

    def read(self, kind: str | None) -> Reading:
        """Return how a value is read, given its type as named by the events; None if they name no type."""
        return read_postgres(kind) if kind else Reading("string")

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: several if the types of a column have no common type, each for its own types."""
        batch_forms = tuple(dict.fromkeys(f for s in seen for f in forms(s.shape, hints.table)))
        events = f"filter({self.events}, x -> {about(hints.table)})"
        keys = tuple(dict.fromkeys(chain([key_of(batch_forms, hints)], (f.pk for f in batch_forms if f.pk))))
        if hints.by_row:
            keys = ((),)
        sources = _sources(batch_forms, hints)
        groups = _groups(batch_forms, sources, self.read, hints)
        spelled = {source: name for name, all_sources in sources.items() for source in all_sources}
        key = tuple(spelled.get(k, hints.rename.get(k, k)) for k in keys[0])
        # A column may have had another name before: include all names of the key's columns.
        keys = tuple(tuple(s for k in ks for s in sources.get(spelled.get(k, k), [k])) for ks in keys)
        split = _whole_row_events(events, len(sources)) if hints.by_row else _key_change_events(events, keys)
        shapes = tuple(frozenset(spelled[n] for n, _ in f.columns) for f in batch_forms if f.columns)
        event_plans: list[EventPlan] = []
        for i, types in enumerate(groups):
            readings = {name: _reading(types[name], name, hints, self.read) for name in sources if types.get(name)}
            missing = {name: kind for name, kind in hints.existing_columns.items() if name not in readings}
            readings |= {name: Reading(kind, (f"CAST(NULL AS {kind})",)) for name, kind in missing.items()}
            columns = [
                _column(name, [name] if name in missing else sources[name], reading, name in key or hints.by_row)
                for name, reading in readings.items()
            ]
            event_plans.append(
                EventPlan(
                    parsed=self.parsed,
                    op="e.op",
                    sequence="e.x.sequence",
                    event_time="e.x.time",
                    columns=tuple(columns),
                    key=key,
                    split=split,
                    where=_where(groups, sources, i) if len(groups) > 1 else None,
                    index="e.x.place * 2 + e.half",
                    no_op=NO_OLD_ROW if hints.by_row else NO_OP,
                    forms=shapes,
                    no_place=self.no_place,
                )
            )
        schemas = tuple(dict.fromkeys(s.schema for s in seen))
        return tuple(Planned(schemas, plan) for plan in event_plans)


def _sources(batch_forms: Sequence[Form], hints: Hints) -> dict[str, list[str]]:
    """Return the source names of each column in the lake: two if a rename was declared, or changed only the case."""
    names: dict[str, str] = {}
    for form in sorted(batch_forms, key=lambda f: -len(f.columns)):
        names |= lake_names((n for n, _ in (*form.columns, *form.old)), hints.rename)
    return by_column(names, hints.rename)


Types = dict[str, list[str | None]]


def _groups(
    batch_forms: Sequence[Form], sources: Mapping[str, list[str]], read: Callable[[str | None], Reading], hints: Hints
) -> list[Types]:
    """Group the forms that can be read together; each group maps columns to their types."""
    name_of = {source: name for name, all_sources in sources.items() for source in all_sources}
    groups: list[Types] = []
    for form in sorted(batch_forms, key=lambda f: -len(f.columns)):
        types: Types = {}
        for source, kind in (*form.columns, *form.old):
            types.setdefault(name_of[source], []).append(kind)
        for group in groups:
            if all(n in hints.types or _united([*group.get(n, []), *kinds], read) for n, kinds in types.items()):
                break
        else:
            group = {}
            groups.append(group)
        for name, kinds in types.items():
            group[name] = list(dict.fromkeys([*group.get(name, []), *kinds]))
    return groups or [{}]


def _united(kinds: Sequence[str | None], read: Callable[[str | None], Reading]) -> Reading | None:
    """Return how values of all these types are read, as the widest; None without a common type."""
    reading: Reading | None = None
    # A value without a type has the type of the other values.
    for kind in [k for k in kinds if k is not None] or kinds:
        other = read(kind)
        if reading is None or reading.type == other.type:
            reading = reading or other
            continue
        wide = widest(reading.type, other.type)
        if wide is None:
            return None
        reading = other if wide == other.type else reading if wide == reading.type else read_text(wide)
    return reading


def _reading(kinds: Sequence[str | None], name: str, hints: Hints, read: Callable[[str | None], Reading]) -> Reading:
    if name in hints.types:
        declared = normal(hints.types[name])
        # Some texts can only be read with the type that the events name: bytes in hex, `infinity`.
        typed = _united(kinds, read) if declared != "string" else None
        return typed if typed and typed.type == declared else read_text(declared)
    if name in hints.existing_columns and not any(kinds):
        return read_text(hints.existing_columns[name])
    return _united(kinds, read) or Reading("string")


def _where(groups: Sequence[Types], sources: Mapping[str, list[str]], i: int) -> str:
    """Return SQL of a boolean: event `e` belongs to group `i`.

    That is the first group with a type of the event that no later group has.

    An unreadable record gives NULL, which belongs to the first group.
    """
    cases: list[str] = []
    for j, group in enumerate(groups[:-1]):
        later = groups[j + 1 :]
        own = {n: [k for k in kinds if all(k not in g.get(n, []) for g in later)] for n, kinds in group.items()}
        tests = [
            f"{_type_of(source)} IN ({', '.join(literal(k) for k in kinds if k is not None)})"
            for name, kinds in own.items()
            for source in sources[name]
            if any(k is not None for k in kinds) and any(g.get(name) for g in later)
        ]
        if tests:
            cases.append(f"WHEN {' OR '.join(tests)} THEN {j}")
    return f"CASE WHEN e IS NULL THEN 0 {' '.join(cases)} ELSE {len(groups) - 1} END = {i}"


def _type_of(source: str) -> str:
    return f"coalesce({_at('e.x.names', 'e.x.types', source)}, {_at('e.x.old_names', 'e.x.old_types', source)})"


def _at(names: str, values: str, name: str) -> str:
    return f"get({values}, CAST(array_position({names}, {literal(name)}) - 1 AS INT))"


def _has(names: str, name: str) -> str:
    return f"coalesce(array_contains({names}, {literal(name)}), false)"


def _key_change_events(events: str, keys: Sequence[tuple[str, ...]]) -> str:
    """Return SQL of the array of `struct(op, half, x)`: an update that changes the key is a delete and an insert."""
    changes = [
        f"({_has('x.names', k)} AND {_has('x.old_names', k)} AND "
        f"NOT ({_at('x.names', 'x.values', k)} <=> {_at('x.old_names', 'x.old_values', k)}))"
        for k in dict.fromkeys(chain.from_iterable(keys))
    ]
    one = "named_struct('op', x.kind, 'half', 0, 'x', x)"
    if not changes:
        return f"transform({events}, x -> {one})"
    one = f"array({one})"
    halves = (f"named_struct('op', {literal(op)}, 'half', {i}, 'x', x)" for i, op in enumerate((DELETE, INSERT)))
    two = f"array({', '.join(halves)})"
    return (
        f"flatten(transform({events}, x -> "
        f"CASE WHEN x.kind = {literal(UPDATE)} AND ({' OR '.join(changes)}) THEN {two} ELSE {one} END))"
    )


def _whole_row_events(events: str, columns: int) -> str:
    """Like `_key_change_events`, for rows identified by all of their values; the op is NULL without the old row."""
    old, pk = "size(coalesce(x.old_names, array()))", "size(coalesce(x.pk, array()))"
    # If the event names a key, the old row is complete only if it has more columns than the key.
    has_old_row = f"({old} > 0 AND ({old} > {pk} OR {old} >= {columns}))"
    halves = (f"named_struct('op', {literal(op)}, 'half', {i}, 'x', x)" for i, op in enumerate((DELETE, INSERT)))
    update, delete = f"x.kind = {literal(UPDATE)}", f"x.kind = {literal(DELETE)}"
    kind = f"CASE WHEN {update} OR ({delete} AND NOT {has_old_row}) THEN NULL ELSE x.kind END"
    return (
        f"flatten(transform({events}, x -> CASE WHEN {update} AND {has_old_row} "
        f"THEN array({', '.join(halves)}) ELSE array(named_struct('op', {kind}, 'half', 0, 'x', x)) END))"
    )


def _column(name: str, sources: Sequence[str], reading: Reading, is_key: bool) -> EventColumn:
    new, old = (", ".join(_at(f"e.x.{p}names", f"e.x.{p}values", s) for s in sources) for p in ("", "old_"))
    is_in_new = " OR ".join(_has("e.x.names", s) for s in sources)
    # Finding a name scans all names of the event, so that is done only for values that are NULL.
    text = (
        f"CASE WHEN e.op = {literal(DELETE)} THEN coalesce({old}) "
        f"ELSE coalesce({new}, CASE WHEN NOT ({is_in_new}) THEN coalesce({old}) END) END"
    )
    is_listed = " OR ".join(_has(f"e.x.{part}", s) for s in sources for part in ("names", "old_names"))
    if is_key:
        return EventColumn(
            name, reading.type, text, reading.steps, loses_digits=reading.loses_digits, is_named=is_listed
        )
    # A missing column does not mean NULL: its value is unchanged (and stored out of line), or the column was dropped.
    # With the whole old row (replica identity full), an unchanged value is taken from there.
    left_out = f"e.x.kind = {literal(UPDATE)} AND e.op <> {literal(DELETE)} AND NOT ({is_listed})"
    return EventColumn(name, reading.type, text, reading.steps, left_out=left_out)


def check_lists(part: Mapping[str, Any], *fields: str, may_be_empty: bool = False) -> None:
    """Raise MalformedRecordError if names, types and values of columns are not lists of one length.

    Args:
        part: the record, or a part of it.
        fields: its fields with the names, the types, which may be missing, and the values.
        may_be_empty: whether a name may be empty.
    """
    names, types, values = map(part.get, fields)
    if not isinstance(names, list) or not all(is_name(n) and (n or may_be_empty) for n in names):
        raise MalformedRecordError(f'"{fields[0]}" is not a list of names')
    if not isinstance(values, list) or len(values) != len(names):
        raise MalformedRecordError(f'"{fields[0]}" and "{fields[2]}" differ in length')
    if types is not None and (not isinstance(types, list) or len(types) != len(names)):
        raise MalformedRecordError(f'"{fields[0]}" and "{fields[1]}" differ in length')


def is_name(value: Any) -> bool:
    """Whether a value may be a column's name, apart from its length."""
    return isinstance(value, str) and "\x00" not in value


def op_of(value: str, words: Mapping[str, str]) -> str:
    """Return SQL that maps a record's word for the operation to an op; NULL for any other word."""
    cases = " ".join(f"WHEN {literal(word)} THEN {literal(op)}" for word, op in words.items())
    return f"CASE {value} {cases} END"


OPS = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "truncate": TRUNCATE}
