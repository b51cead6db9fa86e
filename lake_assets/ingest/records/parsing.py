"""Parse the records of a raw table into typed change events in Spark; a record without events has a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats import EventPlan
from lake_assets.formats.event_model import OP, TECHNICAL, TRANSACTION, TRUNCATE, EventColumn, Hints, Planned
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.batch_schemas import BatchSchema, BySource, find_schemas, schemas_of, with_payloads
from lake_assets.ingest.records.event_rows import EventReader
from lake_assets.ingest.records.record_plans import (
    check_key,
    is_unread,
    keyed_plans,
    of_schemas,
    refused_records,
    resolve_conflicts,
)
from lake_assets.lake.column_spelling import LakeNames, caseless
from lake_assets.lake.names import is_reserved
from lake_assets.tables.schema_changes import routed_name, unite


@dataclass(frozen=True)
class Parsed:
    """The events of a batch.

    Attributes:
        rows: columns of the table, technical columns, and the reason to reject an event in `BAD`; None if there is no
            event.
        key: names of the key columns.
        refused: `position` and `BAD` of records about the table that no plan can read; None if all can be read.
        key_set: the chosen one of several declared keys; empty if none fits or at most one is declared.
        defaults: columns that the source added with a default for existing rows.
        renames: old and new name of columns where one appeared when the other disappeared and no rename is declared.
        is_by_time: whether a time is all that orders some of the events.
        tombstones: keys of deleted rows, by the columns of their keys, with technical columns and `BAD`.
        has_tombstones: whether `rows` has deletes that came as tombstones.
        since: position of the first record whose schema has a column, for the columns of `defaults` and new names.
        filled: the columns of `defaults` as the records describe them.
        left_out: columns that the newest records do not have, while earlier ones or the table do.
        saturating: columns in which the limits of bigint may stand for values beyond them.
        read_completely: returns `rows` with values in rare notations, if `rows` reads the usual ones only.
    """

    rows: DataFrame | None
    key: tuple[str, ...]
    refused: DataFrame | None
    key_set: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    saturating: tuple[str, ...] = ()
    is_by_time: bool = False
    tombstones: tuple[DataFrame, ...] = ()
    has_tombstones: bool = False
    since: Mapping[str, int] = field(default_factory=dict[str, int])
    filled: Mapping[str, EventColumn] = field(default_factory=dict[str, EventColumn])
    read_completely: Callable[[], DataFrame] | None = None

    @property
    def complete(self) -> Parsed:
        """The batch with values in rare notations."""
        return replace(self, rows=self.read_completely(), read_completely=None) if self.read_completely else self


def parse(
    records: DataFrame,
    spec: StagingSpec,
    existing: Mapping[str, str],
    key: tuple[str, ...] = (),
    key_set: tuple[str, ...] = (),
    schemas_by_source: BySource | None = None,
    *,
    is_usual: bool = False,
) -> Parsed:
    """Read records as the events of one source table.

    Args:
        records: rows of the raw table about this source table, alone or with others.
        spec: the staging table.
        existing: its columns, with their types.
        key: its key.
        key_set: the one of several declared keys that it has; empty if that is not decided yet.
        schemas_by_source: the schemas in the batch; None: read them from the records.
        is_usual: whether to read values in the usual notations only (see `EventReader`), unless tombstones delete rows.

    Raises:
        SchemaConflictError: a column's type cannot be widened to the new type, and no `on_conflict` policy is declared.
        DefinitionChangedError: the records have different keys, and none is declared.
        UnsupportedEventError: the batch cannot be read as a whole.
    """
    reader = spec.reader
    bases = _bases(existing)
    own = {name: kind for name, kind in existing.items() if name not in bases}
    declared = [*(c for key in (spec.key, *spec.keys) for c in key), *spec.order_by, *spec.types]
    names = LakeNames(spec.rename, [*declared, *existing, *spec.rename.values()])
    is_ordered = bool(spec.order_by)
    hints = Hints(spec.source_table, names, spec.types, spec.key, own, key, spec.by_row, is_ordered, spec.placeholder)
    schemas = schemas_of(
        schemas_by_source if schemas_by_source is not None else find_schemas(records, reader), spec.source_table
    )
    if not schemas:
        return Parsed(None, (), None)
    planned, unread, key_set = keyed_plans(records, reader, [s.seen for s in schemas], hints, spec.keys, key_set)
    refused = [refused_records(records, unread)] if unread else []
    readable = records if not unread else records.where(~is_unread(unread))
    tombstones = tuple(_tombstones(readable, p) for p in planned if p.plan.is_tombstone)
    planned = [p for p in planned if not p.plan.is_tombstone]
    if not planned:
        return Parsed(None, (), _together(refused), tombstones=tombstones)
    last = {s.seen.schema: s.last for s in schemas}
    short = last.keys() - {s.seen.schema for s in schemas if not s.is_short}
    has_payloads = {s.seen.schema for s in schemas if s.has_payloads}
    planned = sorted(planned, key=lambda p: max(last.get(s, -1) for s in p.schemas))
    planned = _spelled_alike(planned)
    check_key(records, planned, spec, key)
    planned = [_judged(p, spec) for p in resolve_conflicts(planned, spec, existing)]
    columns = unite(str(spec.table), [{c.name: c.type for c in p.plan.columns} for p in planned])
    _check_names(spec, columns, existing)
    every = dict.fromkeys((*existing, *columns))
    bases = _bases({**existing, **columns})
    is_usual = is_usual and not tombstones
    parts: list[tuple[DataFrame, EventReader]] = []
    for p in planned:
        part = readable if len(last) == 1 else readable.where(of_schemas(p.schemas))
        # Most of a record with a schema is the schema; the payload alone is about a fifth.
        if short.issuperset(p.schemas):
            part = part.withColumn("record", F.col("payload"))
        elif has_payloads.intersection(p.schemas):
            part = with_payloads(part)
        absent = [] if reader.whole else [c for c in every if c not in {k.name for k in p.plan.columns}]
        left_out = _absent_columns(absent, p.plan, bases)
        event_reader = EventReader(p.plan, columns, *left_out, spec.keys, spec.order_by, is_usual)
        parts.append((_with_transactions(part), event_reader))
    frames = [event_reader.rows(part) for part, event_reader in parts]
    keys = [p.plan.key for p in planned]
    defaults, renames = unreported(planned, existing, spec.rename)
    return Parsed(
        _together(frames),
        _key(keys, frames),
        _together(refused),
        key_set,
        defaults,
        renames,
        tuple(c for c in parts[-1][1].absent if c not in spec.not_renamed),
        tuple(dict.fromkeys(c.name for p in planned for c in p.plan.columns if c.saturates)),
        is_by_time=any(p.plan.is_by_time for p in planned),
        tombstones=tombstones,
        since=_since(planned, schemas, (*defaults, *(new for _, new in renames))),
        filled={c.name: c for p in reversed(planned) for c in p.plan.columns if c.name in defaults and c.has_default},
        read_completely=partial(_all_rows, parts) if is_usual else None,
    )


def _check_names(spec: StagingSpec, columns: Collection[str], existing: Collection[str]) -> None:
    """Raise UnsupportedEventError if the source has columns with names that staging uses itself."""
    if clash := [c for c in columns if caseless(c) in TECHNICAL or (is_reserved(c) and c not in existing)]:
        raise UnsupportedEventError(
            f"{spec.table}: the source has columns called {', '.join(clash)}, which staging, captures or Iceberg use "
            "themselves: declare other names for them (`rename`)"
        )


def _since(planned: Sequence[Planned], schemas: Sequence[BatchSchema], columns: Sequence[str]) -> dict[str, int]:
    """Return, by column, the position of the first record whose schema has it."""
    first = {s.seen.schema: s.first for s in schemas}
    return {
        name: min(first.get(s, 0) for p in planned if any(c.name == name for c in p.plan.columns) for s in p.schemas)
        for name in columns
    }


def _tombstones(records: DataFrame, planned: Planned) -> DataFrame:
    types = {c.name: c.type for c in planned.plan.columns}
    return EventReader(planned.plan, types).rows(with_payloads(records.where(of_schemas(planned.schemas))))


# --- what no event reports --------------------------------------------------------------------------------------


def unreported(
    planned: Sequence[Planned], existing: Mapping[str, str], rename: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return columns that were added with a default, and (old, new) names of possible undeclared renames.

    The plans are in the order of their records; `existing` are the columns that the table had, with their types.
    """
    had, defaults, renames = dict(existing), list[str](), list[tuple[str, str]]()
    for p in planned:
        types = {c.name: c.type for c in p.plan.columns}
        added = [c for c in p.plan.columns if had and c.name not in had]
        defaults += [c.name for c in added if c.has_default]
        shapes = p.plan.forms or (frozenset(types),)
        for new in (c.name for c in added):
            renames += [
                (old, new)
                for old, kind in had.items()
                if kind == types[new] and old not in rename and all(old not in f for f in shapes if new in f)
            ]
        had |= types
    # If several columns appeared or disappeared, the pairs are ambiguous.
    unambiguous = [(o, n) for o, n in renames if sum(o in r or n in r for r in renames) == 1]
    return tuple(defaults), tuple(unambiguous)


# --- names that differ in case only -----------------------------------------------------------------------------


def _spelled_alike(planned: Sequence[Planned]) -> list[Planned]:
    """Return plans with one spelling per column name: names in the lake are case-insensitive."""
    spelled: dict[str, str] = {}

    def name_of(name: str) -> str:
        return spelled.setdefault(caseless(name), name)

    plans: list[Planned] = []
    for p in planned:
        columns = tuple(replace(c, name=name_of(c.name)) for c in p.plan.columns)
        plans.append(replace(p, plan=replace(p.plan, columns=columns, key=tuple(map(name_of, p.plan.key)))))
    return plans


# --- types that do not go together ------------------------------------------------------------------------------


def _judged(planned: Planned, spec: StagingSpec) -> Planned:
    """Return the plan with the declared `on_misfit` and `order_by` applied."""
    plan = planned.plan
    needed = {*plan.key, *spec.order_by}
    columns = tuple(
        replace(c, may_be_null=spec.on_misfit == "null" and not c.is_conflict and c.name not in needed)
        for c in plan.columns
    )
    keys = {*plan.key, *(name for key in spec.keys for name in key)}
    columns = tuple(_exact_in_key(c) if c.name in keys else c for c in columns)
    return replace(planned, plan=replace(plan, columns=columns, no_place=None if spec.order_by else plan.no_place))


def _exact_in_key(column: EventColumn) -> EventColumn:
    """Return a column of a key, in which two texts never become one value."""
    if column.loses_digits is None or column.is_conflict:
        return column
    first, *others = column.steps
    return replace(column, steps=(f"CASE WHEN NOT ({column.loses_digits}) THEN {first} END", *others))


def _bases(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the base column of each column that takes the values which the base's type cannot hold."""
    return {
        name: base
        for name, kind in columns.items()
        for base in columns
        if name.startswith(base) and name == routed_name(base, kind)
    }


def _absent_columns(
    names: Sequence[str], plan: EventPlan, bases: Mapping[str, str]
) -> tuple[list[str], dict[str, int]]:
    """Return the columns that do not occur in the plan; and the columns whose value is in another column of the plan,
    with the index of that one: they are null, or unavailable if it is."""
    index_of = {bases.get(c.name, c.name): i for i, c in enumerate(plan.columns)}
    elsewhere = {c: index_of[bases.get(c, c)] for c in names if bases.get(c, c) in index_of}
    return [c for c in names if c not in elsewhere], elsewhere


def _with_transactions(records: DataFrame) -> DataFrame:
    """Return the records with the transaction that landing stored beside them."""
    # Raw tables of earlier releases lack the column until the next landing.
    if "transaction" not in records.columns:
        return records
    with_transaction = f"concat('{{{json.dumps(TRANSACTION)}:\"', transaction, '\",', substr(ltrim(record), 2))"
    return records.withColumn(
        "record", F.expr(f"CASE WHEN transaction IS NULL THEN record ELSE {with_transaction} END")
    )


# --- from records to rows ---------------------------------------------------------------------------------------


def _all_rows(parts: Sequence[tuple[DataFrame, EventReader]]) -> DataFrame:
    """Return the rows with values in rare notations."""
    rows = _together([replace(reader, is_usual=False).rows(records) for records, reader in parts])
    assert rows is not None
    return rows


def _together(parts: Sequence[DataFrame]) -> DataFrame | None:
    if not parts:
        return None
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    return rows


def _key(keys: Sequence[tuple[str, ...]], parts: Sequence[DataFrame]) -> tuple[str, ...]:
    """Return the key of a batch's last schema; truncates have no key, so a schema with only truncates is skipped."""
    for key, part in zip(reversed(keys), reversed(parts), strict=True):
        if key or not any(keys) or part.where(F.col(OP) != TRUNCATE).limit(1).count():
            return key
    return ()
