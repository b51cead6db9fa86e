"""From the records of a raw table to typed change events, in Spark: every record gives events, or says why not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import (
    UnsupportedEventError,
)
from lake_assets.formats import EventPlan, event_format
from lake_assets.formats.event_model import OP, TECHNICAL, TRANSACTION, TRUNCATE, Hints, Planned
from lake_assets.formats.format_base import LakeNames
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.batch_schemas import BySource, find_schemas, schemas_of
from lake_assets.ingest.records.event_rows import events_of, rows_of
from lake_assets.ingest.records.record_plans import check_key, is_unread, keyed_plans, of_schemas, refused_records
from lake_assets.ingest.records.type_conflicts import resolve_conflicts
from lake_assets.lake.names import is_reserved
from lake_assets.tables.schema_changes import routed_name, unite


@dataclass(frozen=True)
class Parsed:
    """The events of a batch.

    Attributes:
        rows: columns of the table, the technical ones, and what is wrong with an event in `BAD`; None: no event.
        key: names of the key's columns.
        refused: `position` and `BAD` of records that give no event though they are about the table; None: none.
        key_set: which of several declared keys is taken; empty: none fits, or one alone is declared.
        defaults: columns that the source has added and filled in the rows that were there.
        renames: old and new name of columns of which one went when the other came, and that no rename is declared for.
    """

    rows: DataFrame | None
    key: tuple[str, ...]
    refused: DataFrame | None
    key_set: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()


def parse(
    records: DataFrame,
    spec: StagingSpec,
    known: Mapping[str, str],
    key: tuple[str, ...] = (),
    key_set: tuple[str, ...] = (),
    found: BySource | None = None,
) -> Parsed:
    """Read records as the events of one source table.

    Args:
        records: rows of the raw table that are about it (alone or with others).
        spec: the table.
        known: columns that the staging table has, with their types.
        key: the key that it has.
        key_set: which of several declared keys it has; empty: that is still to be found.
        found: the schemas in the batch, where they are known already.

    Raises:
        SchemaConflictError: a column's type cannot become what the records say now, and no policy says what then.
        DefinitionChangedError: the records say different keys, and none is declared.
        UnsupportedEventError: the batch cannot be read as a whole.
    """
    reader = event_format(spec.format)
    bases = _bases(known)
    own = {name: kind for name, kind in known.items() if name not in bases}
    names = LakeNames(spec.rename, [*spec.types, *known, *spec.rename.values()])
    hints = Hints(spec.source_table, names, spec.types, spec.key, own, key, spec.by_row)
    schemas = schemas_of(found if found is not None else find_schemas(records, reader), spec.source_table)
    if not schemas:
        return Parsed(None, (), None)
    planned, unread, key_set = keyed_plans(records, reader, [s.seen for s in schemas], hints, spec.keys, key_set)
    refused = [refused_records(records, unread)] if unread else []
    if not planned:
        return Parsed(None, (), _together(refused))
    last = {s.seen.schema: s.last for s in schemas}
    short = last.keys() - {s.seen.schema for s in schemas if not s.is_short}
    planned = sorted(planned, key=lambda p: max(last.get(s, -1) for s in p.schemas))
    planned = _spelled_alike(planned)
    check_key(records, planned, spec, key)
    planned = [_judged(p, spec) for p in resolve_conflicts(planned, spec, known)]
    columns = unite(str(spec.table), [{c.name: c.type for c in p.plan.columns} for p in planned])
    if clash := [c for c in columns if c.lower() in TECHNICAL or (is_reserved(c) and c not in known)]:
        raise UnsupportedEventError(
            f"{spec.table}: the source has columns called {', '.join(clash)}, which staging, captures or Iceberg use "
            "themselves: declare other names for them (`rename`)"
        )
    every = dict.fromkeys((*known, *columns))
    bases = _bases({**known, **columns})
    taken = _with_transactions(records if not unread else records.where(~is_unread(unread)))
    parts: list[DataFrame] = []
    for p in planned:
        part = taken if len(last) == 1 else taken.where(of_schemas(p.schemas))
        # Most of a record with a schema is the schema: without it, a fifth has to be read.
        if short.issuperset(p.schemas):
            part = part.withColumn("record", F.col("payload"))
        unsaid = [] if reader.whole else [c for c in every if c not in {k.name for k in p.plan.columns}]
        events = events_of(part, p.plan)
        unavailable = _unsaid(unsaid, p.plan, bases)
        parts.append(rows_of(events, p.plan, columns, *unavailable, spec.keys, spec.order_by))
    keys = [p.plan.key for p in planned]
    rows, gone = _together(parts), _together(refused)
    return Parsed(rows, _key(keys, parts), gone, key_set, *unreported(planned, known, spec.rename))


# --- what no event reports --------------------------------------------------------------------------------------


def unreported(
    planned: Sequence[Planned], known: Mapping[str, str], rename: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return columns that were added with a default, and what may be renames that nobody has declared.

    Args:
        planned: the plans of a batch, in the order of their records.
        known: columns that the table had, with their types.
        rename: the declared renames.
    """
    had, defaults, renames = dict(known), list[str](), list[tuple[str, str]]()
    for p in planned:
        types = {c.name: c.type for c in p.plan.columns}
        added = [c for c in p.plan.columns if had and c.name not in had]
        defaults += [c.name for c in added if c.has_default]
        forms = p.plan.forms or (frozenset(types),)
        for new in (c.name for c in added):
            renames += [
                (old, new)
                for old, kind in had.items()
                if kind == types[new] and old not in rename and all(old not in f for f in forms if new in f)
            ]
        had |= types
    # Where several went or came, nothing says which became which.
    alone = [(o, n) for o, n in renames if sum(o in r or n in r for r in renames) == 1]
    return tuple(defaults), tuple(alone)


# --- names that differ in case only -----------------------------------------------------------------------------


def _spelled_alike(planned: Sequence[Planned]) -> list[Planned]:
    """Plans with one spelling of each column's name: case does not matter in the lake."""
    spelled: dict[str, str] = {}

    def name_of(name: str) -> str:
        return spelled.setdefault(name.lower(), name)

    found: list[Planned] = []
    for p in planned:
        columns = tuple(replace(c, name=name_of(c.name)) for c in p.plan.columns)
        found.append(replace(p, plan=replace(p.plan, columns=columns, key=tuple(map(name_of, p.plan.key)))))
    return found


# --- types that do not go together ------------------------------------------------------------------------------


def _judged(planned: Planned, spec: StagingSpec) -> Planned:
    """The plan with what its owner declared of values that do not fit, and of the order of changes."""
    plan = planned.plan
    needed = {*plan.key, *spec.order_by}
    columns = tuple(
        replace(c, may_be_null=spec.on_misfit == "null" and not c.is_conflict and c.name not in needed)
        for c in plan.columns
    )
    return replace(planned, plan=replace(plan, columns=columns, no_place=None if spec.order_by else plan.no_place))


def _bases(columns: Mapping[str, str]) -> dict[str, str]:
    """By column that takes values which another one cannot hold, that other one."""
    return {
        name: base
        for name, kind in columns.items()
        for base in columns
        if name.startswith(base) and name == routed_name(base, kind)
    }


def _unsaid(names: Sequence[str], plan: EventPlan, bases: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """Columns of which the plan's events say nothing; and those whose value is in another column of the plan, by that
    one's place: they are null, or as unavailable as it is."""
    said = {bases.get(c.name, c.name): i for i, c in enumerate(plan.columns)}
    elsewhere = {c: said[bases.get(c, c)] for c in names if bases.get(c, c) in said}
    return [c for c in names if c not in elsewhere], elsewhere


def _with_transactions(records: DataFrame) -> DataFrame:
    """The records with the transaction that lines around them say."""
    # Raw tables that nothing has landed in since this is followed do not have the column.
    if "transaction" not in records.columns:
        return records
    said = f"concat('{{{json.dumps(TRANSACTION)}:\"', transaction, '\",', substr(ltrim(record), 2))"
    return records.withColumn("record", F.expr(f"CASE WHEN transaction IS NULL THEN record ELSE {said} END"))


# --- from records to rows ---------------------------------------------------------------------------------------


def _together(parts: Sequence[DataFrame]) -> DataFrame | None:
    if not parts:
        return None
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    return rows


def _key(keys: Sequence[tuple[str, ...]], parts: Sequence[DataFrame]) -> tuple[str, ...]:
    """The key of a batch's last schema; a truncate says none, whatever the table has."""
    for key, part in zip(reversed(keys), reversed(parts), strict=True):
        if key or not any(keys) or part.where(F.col(OP) != TRUNCATE).limit(1).count():
            return key
    return ()
