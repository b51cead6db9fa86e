"""Events that name each value: arrays of column names, types and values, and of the old key's (or old row's).

wal2json and the simplified change events are made like this. A record holds one event or more; each is normalised, in
SQL, to `x`: schema, name, kind, names, types, values, old_names, old_types, old_values, pk, sequence, time, place (in
the record, from 0). An update
that changes the key becomes two events, the delete of the old key and the insert of the new one, as Debezium sends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lake_assets.errors import KeyChangedError
from lake_assets.formats.event_model import (
    DELETE,
    INSERT,
    NO_OLD_ROW,
    NO_OP,
    TRUNCATE,
    UPDATE,
    EventColumn,
    EventPlan,
    Hints,
    SourceTable,
)
from lake_assets.formats.format_base import lake_names
from lake_assets.formats.types.text_types import Reading, normal, read_text, widest
from lake_assets.lake.names import literal

# Every number outside of a string as a string: functions that read JSON go through a double where a number has a
# fraction, and 38 digits are the most that a variant keeps. `\\G` goes on where the number before ended, so that
# strings are always skipped whole; all repetitions are possessive, so that no text makes the matching slow.
_NUMBERS = r'\G((?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+")*+)(-?[0-9][0-9.eE+-]*+)'


def numbers_as_text(json_text: str) -> str:
    """SQL of a JSON text whose numbers have become strings, digit by digit."""
    return f"regexp_replace({json_text}, {literal('(?s)' + _NUMBERS)}, '$1\"$2\"')"


def shape(parsed: str, events: str) -> str:
    """The aggregate that collects what the events of a batch look like, each form once.

    Args:
        parsed: SQL over `record` giving `e`.
        events: SQL over `e` giving the array of `x`.
    """
    form = ", ".join(f"'{part}', x.{part}" for part in _FORM)
    all_events = f"flatten(transform(array({parsed}), e -> {events}))"
    distinct = f"array_distinct(transform({all_events}, x -> named_struct({form})))"
    return f"to_json(array_distinct(flatten(collect_set({distinct}))))"


_FORM = ("schema", "name", "kind", "names", "types", "old_names", "old_types", "pk")


@dataclass(frozen=True)
class Form:
    """Names and types of the values of some events, and the key they say."""

    columns: tuple[tuple[str, str | None], ...]
    old: tuple[tuple[str, str | None], ...]
    pk: tuple[str, ...]


def forms(text: str | None, table: SourceTable | None) -> tuple[Form, ...]:
    """What `shape` collected for a table."""
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
    """SQL of a boolean: event `x` is about this table, or does not say which one it is about."""
    if table is None:
        return "true"
    parts = (("schema", table.schema), ("name", table.name))
    return " AND ".join(f"coalesce(x.{part} = {literal(value)}, true)" for part, value in parts)


def key_of(found: Sequence[Form], hints: Hints) -> tuple[str, ...]:
    """The key, in source names: what the owner declared, else what the events say, else what earlier ones said.

    Raises:
        KeyChangedError: the events of one batch say different ones.
    """
    names = dict.fromkeys(n for f in found for n, _ in (*f.columns, *f.old))
    if hints.key:
        return _in_source(hints.key, names, hints)
    keys = {f.pk for f in found if f.pk}
    in_lake = {tuple(sorted(hints.rename.get(k, k).lower() for k in key)) for key in keys}
    if len(in_lake) > 1:
        raise KeyChangedError(f"events of {hints.table} say different keys: {' and '.join(map(str, sorted(keys)))}")
    # Inserts may say nothing of the key: old keys come with updates and deletes.
    return min(keys) if keys else _in_source(hints.known_key, names, hints)


def _in_source(key: tuple[str, ...], names: Iterable[str], hints: Hints) -> tuple[str, ...]:
    return tuple(next((n for n in names if hints.rename.get(n, n) == k), k) for k in key)


def plans(
    parsed: str, events: str, found: Sequence[Form], hints: Hints, read: Callable[[str | None], Reading]
) -> tuple[EventPlan, ...]:
    """One plan, or several where a column's types have none in common: each then takes the events with its types.

    Args:
        parsed: SQL over `record` giving `e`.
        events: SQL over `e` giving the array of `x`, those of the hinted table only.
        found: all forms of the batch.
        hints: what is known beside the records.
        read: how a value of a type, as the events name it, is read; None where they name none.
    """
    keys = tuple(dict.fromkeys(chain([key_of(found, hints)], (f.pk for f in found if f.pk))))
    if hints.by_row:
        keys = ((),)
    sources = _sources(found, hints)
    groups = _groups(found, sources, read, hints)
    spelled = {source: name for name, all_sources in sources.items() for source in all_sources}
    key = tuple(spelled.get(k, hints.rename.get(k, k)) for k in keys[0])
    # A column may have had another name before: the key is the same.
    keys = tuple(tuple(s for k in ks for s in sources.get(spelled.get(k, k), [k])) for ks in keys)
    made: list[EventPlan] = []
    for i, types in enumerate(groups):
        chosen = _rows_apart(events, len(sources)) if hints.by_row else _halves(events, keys)
        columns = [
            _column(name, sources[name], _reading(types[name], name, hints, read), name in key or hints.by_row)
            for name in sources
            if types.get(name)
        ]
        listed = {c.name for c in columns}
        columns += [
            _column(name, [name], Reading(kind, (f"CAST(NULL AS {kind})",)), name in key or hints.by_row)
            for name, kind in hints.known.items()
            if name not in listed
        ]
        made.append(
            EventPlan(
                parsed=parsed,
                op="e.op",
                sequence="e.x.sequence",
                event_time="e.x.time",
                columns=tuple(columns),
                key=key,
                split=chosen,
                where=_where(groups, sources, i) if len(groups) > 1 else None,
                index="e.x.place * 2 + e.half",
                no_op=NO_OLD_ROW if hints.by_row else NO_OP,
                forms=tuple(frozenset(spelled[n] for n, _ in f.columns) for f in found if f.columns),
            )
        )
    return tuple(made)


def _sources(found: Sequence[Form], hints: Hints) -> dict[str, list[str]]:
    """The source names of each column of the lake: it has two where a rename was declared, or changed its case only."""
    sources: dict[str, list[str]] = {}
    spelled: dict[str, str] = {}
    for form in sorted(found, key=lambda f: -len(f.columns)):
        lake_names(dict.fromkeys(n for n, _ in (*form.columns, *form.old)), hints.rename)
        for source in dict.fromkeys(n for n, _ in (*form.columns, *form.old)):
            name = hints.rename.get(source, source)
            name = spelled.setdefault(name.lower(), name)
            if source not in sources.setdefault(name, []):
                sources[name].append(source)
    return sources


Types = dict[str, list[str | None]]


def _groups(
    found: Sequence[Form], sources: Mapping[str, list[str]], read: Callable[[str | None], Reading], hints: Hints
) -> list[Types]:
    """Forms that can be read together: the types that each column has in them."""
    name_of = {source: name for name, all_sources in sources.items() for source in all_sources}
    groups: list[Types] = []
    for form in sorted(found, key=lambda f: -len(f.columns)):
        said: Types = {}
        for source, kind in (*form.columns, *form.old):
            said.setdefault(name_of[source], []).append(kind)
        for group in groups:
            if all(n in hints.types or _united([*group.get(n, []), *kinds], read) for n, kinds in said.items()):
                break
        else:
            group = {}
            groups.append(group)
        for name, kinds in said.items():
            group[name] = list(dict.fromkeys([*group.get(name, []), *kinds]))
    return groups or [{}]


def _united(kinds: Sequence[str | None], read: Callable[[str | None], Reading]) -> Reading | None:
    """How values of all these types are read: text of a narrow type is text of a wider one."""
    found: Reading | None = None
    # A value that comes without a type has the one that the others say.
    for kind in [k for k in kinds if k is not None] or kinds:
        reading = read(kind)
        if found is None or found.type == reading.type:
            found = found or reading
            continue
        wide = widest(found.type, reading.type)
        if wide is None:
            return None
        found = reading if wide == reading.type else found if wide == found.type else _cast(wide)
    return found


def _cast(kind: str) -> Reading:
    return Reading(kind, (f"try_cast({{t}} AS {kind})",))


def _reading(kinds: Sequence[str | None], name: str, hints: Hints, read: Callable[[str | None], Reading]) -> Reading:
    if name in hints.types:
        declared = normal(hints.types[name])
        # The text of a type that the events name may be one that only this type explains: bytes in hex, `infinity`.
        said = _united(kinds, read) if declared != "string" else None
        return said if said and said.type == declared else read_text(declared)
    if name in hints.known and not any(kinds):
        return read_text(hints.known[name])
    return _united(kinds, read) or Reading("string")


def _where(groups: Sequence[Types], sources: Mapping[str, list[str]], i: int) -> str:
    """SQL of a boolean: event `e` belongs to group `i`, the first one with a type of its own that the event has.

    A record that cannot be read gives a NULL, which belongs to the first group.
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


def _halves(events: str, keys: Sequence[tuple[str, ...]]) -> str:
    """SQL of the array of `struct(op, half, x)`: an update that changes the key is a delete and an insert."""
    moved = [
        f"({_has('x.names', k)} AND {_has('x.old_names', k)} AND "
        f"NOT ({_at('x.names', 'x.values', k)} <=> {_at('x.old_names', 'x.old_values', k)}))"
        for k in dict.fromkeys(chain.from_iterable(keys))
    ]
    one = "named_struct('op', x.kind, 'half', 0, 'x', x)"
    if not moved:
        return f"transform({events}, x -> {one})"
    one = f"array({one})"
    halves = (f"named_struct('op', {literal(op)}, 'half', {i}, 'x', x)" for i, op in enumerate((DELETE, INSERT)))
    two = f"array({', '.join(halves)})"
    return (
        f"flatten(transform({events}, x -> "
        f"CASE WHEN x.kind = {literal(UPDATE)} AND ({' OR '.join(moved)}) THEN {two} ELSE {one} END))"
    )


def _rows_apart(events: str, columns: int) -> str:
    """As `_halves`, where rows are told apart by all of their values; without the old row there is no op."""
    old, pk = "size(coalesce(x.old_names, array()))", "size(coalesce(x.pk, array()))"
    # With a key, only the whole old row is longer than it.
    known = f"({old} > 0 AND ({old} > {pk} OR {old} >= {columns}))"
    halves = (f"named_struct('op', {literal(op)}, 'half', {i}, 'x', x)" for i, op in enumerate((DELETE, INSERT)))
    update, delete = f"x.kind = {literal(UPDATE)}", f"x.kind = {literal(DELETE)}"
    kind = f"CASE WHEN {update} OR ({delete} AND NOT {known}) THEN NULL ELSE x.kind END"
    return (
        f"flatten(transform({events}, x -> CASE WHEN {update} AND {known} "
        f"THEN array({', '.join(halves)}) ELSE array(named_struct('op', {kind}, 'half', 0, 'x', x)) END))"
    )


def _column(name: str, sources: Sequence[str], reading: Reading, is_always_said: bool) -> EventColumn:
    new, old = (", ".join(_at(f"e.x.{p}names", f"e.x.{p}values", s) for s in sources) for p in ("", "old_"))
    is_in_new = " OR ".join(_has("e.x.names", s) for s in sources)
    # Every look at a name goes through all of them: only where there is no value does it matter whether its name is.
    text = (
        f"CASE WHEN e.op = {literal(DELETE)} THEN coalesce({old}) "
        f"ELSE coalesce({new}, CASE WHEN NOT ({is_in_new}) THEN coalesce({old}) END) END"
    )
    if is_always_said:
        return EventColumn(name, reading.type, text, reading.steps)
    # A missing column is not a NULL: its value did not change (and is stored out of line), or it was dropped. With the
    # whole old row (replica identity full), an unchanged value is there.
    there = " OR ".join(_has(f"e.x.{part}", s) for s in sources for part in ("names", "old_names"))
    left_out = f"e.x.kind = {literal(UPDATE)} AND e.op <> {literal(DELETE)} AND NOT ({there})"
    return EventColumn(name, reading.type, text, reading.steps, left_out=left_out)


def op_of(value: str, words: Mapping[str, str]) -> str:
    """SQL of the op that a record's word for it means; NULL for any other word."""
    cases = " ".join(f"WHEN {literal(word)} THEN {literal(op)}" for word, op in words.items())
    return f"CASE {value} {cases} END"


OPS = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "truncate": TRUNCATE}
