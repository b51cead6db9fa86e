"""From the records of a raw table to typed change events, in Spark: every record gives events, or says why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import (
    DefinitionChangedError,
    InputError,
    KeyChangedError,
    LakeError,
    SchemaConflictError,
    UnsupportedEventError,
)
from lake_assets.formats import EventFormat, EventPlan, event_format
from lake_assets.formats.event_model import OP, TECHNICAL, TRANSACTION, TRUNCATE, EventColumn, Hints, Planned, Seen
from lake_assets.formats.format_base import LakeNames, schema_key
from lake_assets.formats.text_types import widest
from lake_assets.ingest.batch_schemas import BySource, find_schemas, schemas_of
from lake_assets.ingest.event_rows import BAD, events_of, rows_of
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.lake.names import is_reserved
from lake_assets.tables.schema_changes import routed_name, unite

# Ways in which the records of one batch can look, beyond which they are not looked at one by one.
_MOST_SHAPES = 1_000


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
    planned, unread, key_set = _keyed_plans(records, reader, [s.seen for s in schemas], hints, spec.keys, key_set)
    refused = [_refused(records, unread)] if unread else []
    if not planned:
        return Parsed(None, (), _together(refused))
    last = {s.seen.schema: s.last for s in schemas}
    short = last.keys() - {s.seen.schema for s in schemas if not s.is_short}
    planned = sorted(planned, key=lambda p: max(last.get(s, -1) for s in p.schemas))
    planned = _spelled_alike(planned)
    _check_key(records, planned, spec, key)
    planned = [_judged(p, spec) for p in _routed(planned, spec, known)]
    columns = unite(str(spec.table), [{c.name: c.type for c in p.plan.columns} for p in planned])
    if clash := [c for c in columns if c.lower() in TECHNICAL or (is_reserved(c) and c not in known)]:
        raise UnsupportedEventError(
            f"{spec.table}: the source has columns called {', '.join(clash)}, which staging, captures or Iceberg use "
            "themselves: declare other names for them (`rename`)"
        )
    every = dict.fromkeys((*known, *columns))
    bases = _bases({**known, **columns})
    taken = _with_transactions(records if not unread else records.where(~_is_unread(unread)))
    parts: list[DataFrame] = []
    for p in planned:
        part = taken if len(last) == 1 else taken.where(_of_schemas(p.schemas))
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


# --- how the records can be read --------------------------------------------------------------------------------


def _of_schemas(schemas: Iterable[str]) -> Column:
    return F.col("schema_key").isin(*(schema_key(s) for s in schemas))


@dataclass(frozen=True)
class _Unread:
    """Records that no plan can be made for: all of one schema, or those at some positions."""

    reason: str
    schema: str | None = None
    positions: tuple[int, ...] = ()


def _keyed_plans(
    records: DataFrame,
    reader: EventFormat,
    seen: Sequence[Seen],
    hints: Hints,
    keys: Sequence[tuple[str, ...]],
    taken: tuple[str, ...],
) -> tuple[list[Planned], list[_Unread], tuple[str, ...]]:
    """`_plans` with the first of several declared keys whose columns are all there, and that one."""
    for key in (taken,) if taken else keys:
        planned, unread = _plans(records, reader, seen, replace(hints, key=key))
        there = {*hints.known, *(c.name for p in planned for c in p.plan.columns)}
        if taken or (planned and there.issuperset(key)):
            return planned, unread, key
    return *_plans(records, reader, seen, hints), ()


def _plans(
    records: DataFrame, reader: EventFormat, seen: Sequence[Seen], hints: Hints
) -> tuple[list[Planned], list[_Unread]]:
    """Plans for the records, and those records for which there is none.

    Where the batch as a whole has none, the records are tried by what they look like: a few that nobody can read must
    not stop the others.

    Raises:
        UnsupportedEventError: each can be read, and they cannot be read together.
    """
    try:
        return list(reader.plans(seen, hints)), []
    except (LakeError, ValueError, KeyError, TypeError) as e:
        whole = e
    unread = [_Unread(why, schema=s.schema) for s in seen if not s.shape and (why := _why_not(reader, [s], hints))]
    rest = [s for s in seen if not s.shape and s.schema not in {u.schema for u in unread}]
    if shaped := [s.schema for s in seen if s.shape]:
        # What the records of one schema look like together may fail for a few of them.
        some = records.where(_of_schemas(shaped))
        strange, others = _one_by_one(some, reader, hints)
        unread, rest = [*unread, *strange], [*rest, *others]
    if not rest:
        return [], unread
    try:
        return list(reader.plans(rest, hints)), unread
    except (LakeError, ValueError, KeyError, TypeError) as e:
        raise UnsupportedEventError(f"events of {hints.table}: {e}") from whole


def _one_by_one(records: DataFrame, reader: EventFormat, hints: Hints) -> tuple[list[_Unread], list[Seen]]:
    """Records that cannot be read, alone or beside those before them; and what the others look like together."""
    assert reader.shape
    schemas = {schema_key(s.schema): s.schema for s in _seen(records, reader, hints)}
    each = (
        records.groupBy("schema_key", "position")
        .agg(F.expr(reader.shape).alias("shape"))
        .groupBy("schema_key", "shape")
        .agg(F.sort_array(F.collect_list("position")).alias("positions"))
        .orderBy(F.col("positions")[0])
        .limit(_MOST_SHAPES)
        .collect()
    )
    unread: list[_Unread] = []
    accepted: list[Seen] = []
    for row in each:
        one = Seen(schemas[row["schema_key"]], row["shape"])
        # Formats whose shapes add up say at once which record does not go with those before it.
        alike = all(s.schema == one.schema for s in accepted)
        try:
            reason = _why_not(reader, [one], hints) or (alike and _why_not(reader, [*accepted, one], hints))
        except KeyChangedError as e:
            # All that follow would be rejected as well: that is another table, not a bad record.
            raise key_changed(str(hints.table), str(e), row["positions"][0]) from e
        if reason:
            unread.append(_Unread(reason, positions=tuple(row["positions"])))
        else:
            accepted.append(one)
    for key in {r["schema_key"] for r in each} - {schema_key(s.schema) for s in accepted}:
        of_schema = {p for r in each if r["schema_key"] == key for p in r["positions"]}
        reason = next(u.reason for u in unread if of_schema.issuperset(u.positions))
        unread = [u for u in unread if not of_schema.issuperset(u.positions)] + [_Unread(reason, schemas[key])]
    if not accepted:
        return unread, []
    taken = records.where(~_is_unread(unread)) if unread else records
    return unread, _seen(taken, reader, hints)


def _seen(records: DataFrame, reader: EventFormat, hints: Hints) -> list[Seen]:
    assert hints.table is not None
    return [s.seen for s in schemas_of(find_schemas(records, reader), hints.table)]


def _check_key(records: DataFrame, planned: Sequence[Planned], spec: StagingSpec, key: tuple[str, ...]) -> None:
    """Raise DefinitionChangedError where nobody declares a key, and the records say another one than those before."""
    said = [p.plan.key for p in planned if p.plan.key]
    if not said or spec.key or spec.keys or spec.by_row or (had := key or said[0]) == said[-1]:
        return
    schemas = [s for p in planned if p.plan.key == said[-1] for s in p.schemas]
    first = records.where(_of_schemas(schemas)).agg(F.min("position")).collect()[0][0]
    raise key_changed(str(spec.table), f"the events' key was {', '.join(had)} and is {', '.join(said[-1])}", int(first))


def key_changed(table: str, what: str, position: int) -> DefinitionChangedError:
    """Return the error for a table whose key is another one from a record on."""
    return DefinitionChangedError(
        f"{table}: {what}, from record {position} of the raw table on. Nothing was written. If the source table was "
        f"dropped and made again, declare `start_position: {position}`: the tables made of it then hold the events "
        "from there on. If the rows are the same and only the primary key was changed, declare `key`: columns that "
        "all events say, those from before as well"
    )


def _why_not(reader: EventFormat, seen: Sequence[Seen], hints: Hints) -> str | None:
    try:
        reader.plans(seen, hints)
    except KeyChangedError:
        raise
    except InputError as e:
        return str(e)
    except (LakeError, ValueError, KeyError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    return None


def _is(unread: _Unread) -> Column:
    return _of_schemas([unread.schema]) if unread.schema is not None else F.col("position").isin(*unread.positions)


def _is_unread(unread: Iterable[_Unread]) -> Column:
    found = F.lit(False)
    for u in unread:
        found = found | _is(u)
    return found


def _refused(records: DataFrame, unread: Iterable[_Unread]) -> DataFrame:
    reason = F.lit(None).cast("string")
    for u in unread:
        reason = F.when(_is(u), F.lit(u.reason)).otherwise(reason)
    return records.select("position", reason.alias(BAD)).where(F.col(BAD).isNotNull())


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


def _routed(planned: Sequence[Planned], spec: StagingSpec, known: Mapping[str, str]) -> list[Planned]:
    """Plans whose columns go with each other and with those that are there.

    Raises:
        SchemaConflictError: two types of a column have none in common, and the table is not to have a column for each.
    """
    types, found = dict(known), []
    for p in planned:
        columns: list[EventColumn] = []
        for c in p.plan.columns:
            column, wide = c, widest(types.get(c.name, c.type), c.type)
            if wide is None and spec.on_conflict == "new-column" and c.name not in p.plan.key:
                column = replace(c, name=routed_name(c.name, c.type))
                wide = widest(types.get(column.name, c.type), c.type)
            if wide is None and spec.on_conflict != "stop":
                # Each value of it is one that does not fit.
                wide = types[c.name]
                column = replace(c, type=wide, steps=(f"CAST(NULL AS {wide})",), is_conflict=True)
            if wide is None:
                raise SchemaConflictError(
                    f"{spec.table}: column {c.name} is {types[c.name]} and becomes {c.type}, and no type holds both "
                    f"without a loss. Nothing was written. Declare one type for all of its values, for example "
                    f"`types: {{{c.name}: string}}` (records that are in staging already are read again with it), or "
                    "say what becomes of such values (`on_conflict: new-column` or `reject`)"
                )
            types[column.name] = wide
            columns.append(column)
        found.append(replace(p, plan=replace(p.plan, columns=tuple(columns))))
    return found


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
