"""Plans: how Spark reads Debezium's records, with and without schemas."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lake_assets.errors import OrderUnknownError, UnsupportedEventError
from lake_assets.formats.debezium_layouts import (
    MOVED,
    Layout,
    ParsedRecord,
    SourceColumn,
    Texts,
    enveloped_layout,
    flattened_layout,
    is_added,
    order_fields,
)
from lake_assets.formats.debezium_wrapping import is_wrapped
from lake_assets.formats.event_model import NO_OLD_ROW, UPDATE, EventColumn, EventPlan, Hints
from lake_assets.formats.types.connect_types import read_as_text, read_declared, read_value
from lake_assets.formats.types.inferred_types import VOID, Inferred, exact, hides_digits, read_fields, united, unmarked
from lake_assets.formats.types.placeholders import any_placeholder, placeholders
from lake_assets.formats.types.text_types import rare
from lake_assets.lake.column_spelling import by_column, caseless, lake_names
from lake_assets.lake.names import literal

_NO_ORDER = (
    "nothing in the events orders their changes: they have no LSN, no SCN and no position in a binary log. Let the "
    "connector add it (where ExtractNewRecordState flattens events: `add.fields=op,table,source.lsn` for Postgres, "
    "`source.file,source.pos` for MySQL and MariaDB, `source.commit_lsn,source.change_lsn` for SQL Server "
    "and Db2, `source.commit_scn,source.scn` for Oracle), or declare"
)


def plan_with_schema(
    value: Sequence[Mapping[str, Any]],
    key: Sequence[Mapping[str, Any]],
    wrapped: bool,
    hints: Hints,
) -> EventPlan:
    """Return the plan for records with schemas.

    Args:
        value: fields of the value's schema, an envelope or a row.
        key: fields of the key's schema; empty if records have no key.
        wrapped: whether a record has key and value, or is the value alone.
    """
    by_name = {f["field"]: f for f in value}
    enveloped = {"op", "after"} <= set(by_name) and by_name["after"].get("type") == "struct"
    fields: list[Mapping[str, Any]] = by_name["after"]["fields"] if enveloped else list(value)
    names, key_names = [f["field"] for f in fields], [f["field"] for f in key]
    objects = Texts.of(names, *([key_names] if wrapped and key_names else []))
    of_source = order_fields([f["field"] for f in by_name.get("source", {}).get("fields", ())])
    payload = objects.envelope(names, of_source) if enveloped else objects.type(names)
    of_key = f"key STRUCT<payload: {objects.type(key_names)}>, " if wrapped and key_names else ""
    record = f"{of_key}value STRUCT<payload: {payload}>" if wrapped else f"payload {payload}"
    at = "e.value.payload" if wrapped else "e.payload"
    key_at = "e.key.payload" if of_key else None
    parsed = ParsedRecord(objects, f"from_json(record, {literal(record)})", at, key_at, frozenset(key_names))
    if enveloped:
        layout = enveloped_layout(parsed, of_source)
    else:
        layout = flattened_layout(parsed, by_name)
        fields = [f for f in value if not is_added(f["field"])]
    columns = [source_column(f, hints) for f in fields]
    return _plan(layout, columns, key_names, hints)


def source_column(field: Mapping[str, Any], hints: Hints) -> SourceColumn:
    """Return the column of a field of a record's schema."""
    name, reading = field["field"], read_value(dict(field))
    declared = hints.types.get(hints.rename.get(name, name))
    if declared == "string":
        reading = read_as_text(dict(field))
    elif declared:
        reading = read_declared(dict(field), declared)
    default = field.get("default")
    # Values of logical types (decimals, dates) are encoded.
    is_plain = not field.get("name") and isinstance(default, str | int | float)
    return SourceColumn(
        name, reading, placeholders(field, hints.placeholder),
        has_default=default is not None,
        default=(literal(default) if isinstance(default, str) else json.dumps(default)) if is_plain else None,
        is_required=not field.get("optional", True),
    )  # fmt: skip


def plan_inferred(record: Inferred, hints: Hints) -> EventPlan:
    """Return the plan for records of one form without schemas; `record` is their common type."""
    wrapped = is_wrapped(record.fields)
    value = record.fields["value"] if wrapped else record
    fields = value.fields
    enveloped = "op" in fields and fields.get("source", VOID).kind == "OBJECT"
    key = record.fields.get("key", VOID) if wrapped else VOID
    nested_key = set(key.fields) == {"schema", "payload"}
    key = key.fields["payload"] if nested_key else key
    images = united(fields.get("after", VOID), fields.get("before", VOID))
    row = united(images if enveloped else Inferred("OBJECT", fields=fields), key)
    names = list(row.fields)
    objects = Texts.of(names, *([list(key.fields)] if key.fields else []))
    key_type = objects.type(list(key.fields))
    key_type = f"STRUCT<payload: {key_type}>" if nested_key else key_type
    source = fields["source"].fields if enveloped else {}
    of_source = order_fields(source) if source else ()
    payload = objects.envelope(names, of_source) if enveloped else objects.type(names)
    of_key = f"key: {key_type}, " if key.fields else ""
    kind = f"STRUCT<{of_key}value: {payload}>" if wrapped else payload
    key_at = ("e.key.payload" if nested_key else "e.key") if of_key else None
    all_fields = row.fields
    if not enveloped:
        row = Inferred("OBJECT", fields={n: i for n, i in row.fields.items() if not is_added(n)})
    readings = read_fields(row.fields, hints)
    columns: dict[str, SourceColumn] = {}
    for lake_name, (name, *others) in by_column(row.fields, hints.rename).items():
        if reading := readings[name]:
            marks = any_placeholder(row.fields[name].kind, hints.placeholder)
            # Other names of the column, before and after a rename that changes only its case.
            columns[caseless(lake_name)] = SourceColumn(name, reading, marks, tuple(others))
    if hides_digits(all_fields, readings):
        columns = {n: replace(c, reading=unmarked(c.reading)) for n, c in columns.items()}
    inner = "r.value" if wrapped else "r"
    after = f"{inner}.after" if enveloped else inner
    path = ".".join(["$", *(["value"] if wrapped else []), *(["after"] if enveloped else [])])
    lacks_value = {n: f"{objects.value(after, c.name)} IS NULL" for n, c in columns.items()}
    keys = {caseless(hints.rename.get(k, k)) for k in key.fields} | set(map(caseless, hints.key))
    # Names matter only if a value is missing, or may be present under two names.
    needs_names = _lacks_any(lacks_value, keys, f"{inner}.op" if enveloped else "")
    needs_names = "true" if any(c.spellings for c in columns.values()) else needs_names
    names = f"CASE WHEN {needs_names} THEN map_keys(try_variant_get(v, '{path}', 'MAP<STRING, VARIANT>')) END"
    fields_of_e = [*(["'key', r.key"] if of_key else []), f"'value', {inner}", f"'names', {names}"]
    e = f"CASE WHEN r IS NOT NULL THEN named_struct({', '.join(fields_of_e)}) END"
    parsed = ParsedRecord(objects, e, "e.value", key_at, frozenset(key.fields))
    before = (("v", f"try_parse_json({exact('record', all_fields, readings)})"), ("r", f"try_cast(v AS {kind})"))
    if enveloped:
        layout = enveloped_layout(parsed, of_source)
    else:
        layout = flattened_layout(parsed, fields)
    plan = _plan(replace(layout, names="e.names"), list(columns.values()), list(key.fields), hints)
    return replace(plan, before=before)


def _lacks_any(lacks_value: Mapping[str, str], keys: Collection[str], op: str) -> str:
    """Return SQL of a boolean: a value is missing that may be null, unchanged or left out.

    Args:
        lacks_value: SQL of a boolean by column: its value is missing.
        keys: columns of the key. One that is not there is rejected as null, or as missing.
        op: SQL of the op of an envelope; empty: the row is flattened.
    """
    lacks = " OR ".join(lacks_value.values()) or "false"
    lacks = f"{op} = 'u' AND ({lacks})" if op else lacks
    null_keys = " OR ".join(sql for column, sql in lacks_value.items() if column in keys)
    if not null_keys:
        return lacks
    not_deleted = f"{op} <> 'd' AND " if op else ""
    return f"({lacks}) OR {not_deleted}({null_keys})"


def _plan(layout: Layout, columns: Sequence[SourceColumn], key: Sequence[str], hints: Hints) -> EventPlan:
    missing = set(key) - {n for c in columns for n in c.names}
    if missing and not hints.key:
        raise UnsupportedEventError(
            f"the events' key has {', '.join(sorted(missing))}, which the row does not have: declare `key` with "
            "columns of the row"
        )
    key = [k for k in key if k not in missing]
    names = lake_names((c.name for c in columns), hints.rename)
    sequence = _sequence(layout, list(names.values()), hints)
    if ambiguous := [c for c in columns if c.spellings]:
        layout = replace(layout, op=_unambiguous_op(layout, ambiguous))
    if hints.by_row:
        return _by_row(layout, sequence, columns, names)
    spelled = {n: names[c.name] for c in columns for n in c.names}
    keys = tuple(dict.fromkeys(spelled[k] for k in key)) or hints.key
    declared = [c.name for c in columns if names[c.name] in hints.key]
    split = _split(layout, declared) if set(declared) - layout.key_names else None
    return EventPlan(
        parsed=layout.parsed,
        op=layout.op,
        sequence=sequence,
        is_by_time=layout.is_by_time and not hints.is_ordered,
        event_time=layout.event_time,
        columns=tuple(_column(layout, c, names[c.name], names[c.name] in keys) for c in columns),
        key=keys,
        split=split,
        index=f"CASE WHEN {layout.envelope}.op = '{MOVED}' THEN 1 ELSE 0 END" if split else "0",
    )


def _sequence(layout: Layout, names: Sequence[str], hints: Hints) -> str:
    """Return SQL of the order of changes.

    Raises:
        OrderUnknownError: neither the events nor the declaration order them.
    """
    if layout.sequence is None and not hints.is_ordered:
        raise OrderUnknownError(
            f"{_NO_ORDER} `order_by` with columns that do (of {', '.join(names)}), or `order_by: _position` if they "
            "always arrive in the order in which they happened"
        )
    return layout.sequence or "CAST(NULL AS STRING)"


def _unambiguous_op(layout: Layout, columns: Sequence[SourceColumn]) -> str:
    """Return SQL of the op; NULL if a row has two columns whose names differ only in case, which is ambiguous."""
    counts = (f"size(filter({layout.names}, n -> {_is_one_of('n', c.names)})) > 1" for c in columns)
    return f"CASE WHEN {' OR '.join(counts)} THEN NULL ELSE {layout.op} END"


def _by_row(layout: Layout, sequence: str, columns: Sequence[SourceColumn], names: Mapping[str, str]) -> EventPlan:
    """Return the plan for a table whose rows are identified by all values: each update is a delete and an insert."""
    at = layout.envelope
    if at is None:
        op = f"nullif({layout.op}, {literal(UPDATE)})"
    else:
        op = f"CASE WHEN {at}.op = 'u' OR ({at}.op = 'd' AND {at}.before IS NULL) THEN NULL ELSE {layout.op} END"
    return EventPlan(
        parsed=layout.parsed,
        op=op,
        sequence=sequence,
        is_by_time=layout.is_by_time,
        event_time=layout.event_time,
        columns=tuple(_whole_row_column(layout, c, names[c.name]) for c in columns),
        key=(),
        split=_split(layout, ()),
        index=f"CASE WHEN {at}.op = '{MOVED}' THEN 1 ELSE 0 END" if at else "0",
        no_op=NO_OLD_ROW,
    )


def _whole_row_column(layout: Layout, column: SourceColumn, name: str) -> EventColumn:
    """Return a column that takes its value from the old row if the new row leaves it out."""
    column_sql = _column(layout, column, name, is_key=True)
    if not column.marks or layout.envelope is None:
        return column_sql
    old = layout.texts.value(layout.before, *column.names)
    marks = ", ".join(map(literal, column.marks))
    text = f"CASE WHEN {column_sql.text} IN ({marks}) THEN {old} ELSE {column_sql.text} END"
    return replace(column_sql, text=text)


def _split(layout: Layout, key: Sequence[str]) -> str | None:
    """Return SQL of an array of `e`, in which an update of the declared key is split into a delete and an insert.

    Without a declared key, every update is split. Debezium splits updates of the records' own key, but does not know
    the declared one. Splitting needs the old row (replica identity full), since it contains the old key.
    """
    at, value = layout.envelope, layout.texts.value
    if at is None:
        return None

    def event(op: str) -> str:
        struct = f"named_struct('op', {op}, 'before', {at}.before, 'after', {at}.after, 'source', {at}.source)"
        for i, part in reversed(list(enumerate(at.split(".")[1:]))):
            siblings = [f"'{c}', e.{c}, " for c, exists in (("key", layout.key), ("names", layout.names)) if exists]
            struct = f"named_struct({''.join(siblings) if i == 0 else ''}{literal(part)}, {struct})"
        return struct

    pairs = [(value(f"{at}.before", k), value(f"{at}.after", k)) for k in key]
    has_old_key = " AND ".join([f"{at}.before IS NOT NULL", *(f"{before} IS NOT NULL" for before, _ in pairs)])
    differs = " OR ".join(f"{before} <> {after}" for before, after in pairs) or "true"
    delete, insert, unchanged = event(literal("d")), event(literal(MOVED)), event(f"{at}.op")
    return (
        f"CASE WHEN e IS NULL THEN NULL WHEN {at}.op = 'u' AND {has_old_key} AND ({differs}) "
        f"THEN array({delete}, {insert}) ELSE array({unchanged}) END"
    )


def _column(layout: Layout, column: SourceColumn, name: str, is_key: bool) -> EventColumn:
    value = layout.texts.value
    # A declared key may differ from the key of the records.
    in_key = [n for n in column.names if n in layout.key_names]
    before, after = value(layout.before, *column.names), value(layout.after, *column.names)
    if is_key and layout.key and in_key:
        before = f"coalesce({value(layout.key, *in_key)}, {before})"
    of_old = [layout.deleted] if layout.deleted else []
    unknown = ""
    if column.marks and not is_key:
        marks = ", ".join(map(literal, column.marks))
        unknown = is_mark = f"coalesce({after} IN ({marks}), false)"
        if layout.envelope:
            # Replica identity full: the old row has the value. As that is rare, `usual` leaves NULL, and the event is
            # read completely.
            of_old.append(rare(is_mark))
            unknown = f"({is_mark} AND ({before} IS NULL OR {rare(f'{before} IN ({marks})')}))"
    text = f"CASE WHEN {' OR '.join(of_old)} THEN {before} ELSE {after} END" if of_old else after
    if is_key:
        # With a schema, every row has all of its columns.
        named = " OR ".join(f"array_contains({layout.names}, {literal(n)})" for n in column.names)
        return replace(_event_column(column, name, text), is_named=named if layout.names else "true")
    absent: list[str] = []
    if unknown:
        absent.append(unknown)
    if layout.names:
        # A missing column does not mean NULL: it was dropped, or the stream leaves it out.
        is_there = " OR ".join(f"array_contains({layout.names}, {literal(n)})" for n in column.names)
        is_update = f"{layout.envelope}.op = 'u'" if layout.envelope else f"{layout.op} = {literal(UPDATE)}"
        absent.append(f"coalesce({after} IS NULL AND {is_update} AND NOT ({is_there}), false)")
    unavailable = " OR ".join(absent) if absent else None
    return _event_column(column, name, text, unavailable)


def _event_column(column: SourceColumn, name: str, text: str, unavailable: str | None = None) -> EventColumn:
    reading = column.reading
    return EventColumn(
        name, reading.type, text, reading.steps, unavailable,
        has_default=column.has_default, default=column.default, is_required=column.is_required,
        loses_digits=reading.loses_digits, record_names=column.names, is_base64=reading.is_base64,
        saturates=reading.saturates,
    )  # fmt: skip


def _is_one_of(value: str, names: Sequence[str]) -> str:
    return f"{value} IN ({', '.join(map(literal, names))})"
