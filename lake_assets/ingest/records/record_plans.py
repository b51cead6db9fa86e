"""Plans for the records of a batch, and the records that no plan can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import (
    DefinitionChangedError,
    InputError,
    KeyChangedError,
    LakeError,
    OrderUnknownError,
    UnsupportedEventError,
)
from lake_assets.formats import EventFormat
from lake_assets.formats.event_model import EventColumn, Hints, Planned, Seen
from lake_assets.formats.format_base import schema_key
from lake_assets.formats.types.text_types import widest
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.batch_schemas import find_schemas, schemas_of, with_payloads
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.lake import thresholds
from lake_assets.tables.schema_changes import conflict, routed_name


def of_schemas(schemas: Iterable[str]) -> Column:
    """Whether a record has one of these schemas."""
    return F.col("schema_key").isin(*(schema_key(s) for s in schemas))


@dataclass(frozen=True)
class Unread:
    """Records that no plan can read: all of one schema, or the ones at some positions."""

    reason: str
    schema: str | None = None
    positions: tuple[int, ...] = ()


def keyed_plans(
    records: DataFrame,
    reader: EventFormat,
    seen: Sequence[Seen],
    hints: Hints,
    keys: Sequence[tuple[str, ...]],
    chosen: tuple[str, ...],
) -> tuple[list[Planned], list[Unread], tuple[str, ...]]:
    """Return plans by the first declared key whose columns all occur, the records without a plan, and that key."""
    for key in (chosen,) if chosen else keys:
        planned, unread = _plans(records, reader, seen, replace(hints, key=key))
        columns = {*hints.existing_columns, *(c.name for p in planned for c in p.plan.columns)}
        if chosen or (planned and columns.issuperset(key)):
            return planned, unread, key
    return *_plans(records, reader, seen, hints), ()


def _plans(
    records: DataFrame, reader: EventFormat, seen: Sequence[Seen], hints: Hints
) -> tuple[list[Planned], list[Unread]]:
    """Return plans for the records, and the records without a plan.

    If there is no plan for the whole batch, schemas and shapes are tried one by one, so that a few unreadable records
    do not stop the others.

    Raises:
        UnsupportedEventError: each record can be read alone, but they cannot be read together.
        OrderUnknownError: nothing orders the events of a table that does not exist yet.
    """
    try:
        return list(reader.plans(seen, hints)), []
    except (LakeError, ValueError, KeyError, TypeError) as error:
        whole = error
    unread = [Unread(why, schema=s.schema) for s in seen if not s.shape and (why := _why_not(reader, [s], hints))]
    rest = [s for s in seen if not s.shape and s.schema not in {u.schema for u in unread}]
    if shaped := [s.schema for s in seen if s.shape]:
        # The combined shape of one schema's records may fail because of a few of them.
        shaped_records = records.where(of_schemas(shaped))
        unreadable, readable = _one_by_one(shaped_records, reader, hints)
        unread, rest = [*unread, *unreadable], [*rest, *readable]
    if not rest and isinstance(whole, OrderUnknownError) and not hints.existing_columns:
        raise OrderUnknownError(f"{hints.table}: {whole}") from whole
    if not rest:
        return [], unread
    try:
        return list(reader.plans(rest, hints)), unread
    except (LakeError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedEventError(f"events of {hints.table}: {error}") from whole


def _one_by_one(records: DataFrame, reader: EventFormat, hints: Hints) -> tuple[list[Unread], list[Seen]]:
    """Return the records that cannot be read, alone or together with earlier ones, and the schemas of the others."""
    assert reader.shape
    schemas = {schema_key(s.schema): s.schema for s in _seen(records, reader, hints)}
    shapes = (
        with_payloads(records)
        .groupBy("schema_key", "position")
        .agg(F.expr(reader.shape).alias("shape"))
        .groupBy("schema_key", "shape")
        .agg(F.sort_array(F.collect_list("position")).alias("positions"))
        .orderBy(F.col("positions")[0])
        .limit(thresholds.RECORD_SHAPES)
        .collect()
    )
    unread: list[Unread] = []
    accepted: list[Seen] = []
    for row in shapes:
        candidate = Seen(schemas[row["schema_key"]], row["shape"])
        # With one schema, the first record that does not combine with the earlier ones is found directly.
        has_one_schema = all(s.schema == candidate.schema for s in accepted)
        try:
            reason = _why_not(reader, [candidate], hints) or (
                has_one_schema and _why_not(reader, [*accepted, candidate], hints)
            )
        except KeyChangedError as e:
            # All later records would be rejected as well: this is another table, not a bad record.
            raise key_changed(str(hints.table), str(e), row["positions"][0]) from e
        if reason:
            unread.append(Unread(reason, positions=tuple(row["positions"])))
        else:
            accepted.append(candidate)
    for key in {r["schema_key"] for r in shapes} - {schema_key(s.schema) for s in accepted}:
        of_schema = {p for r in shapes if r["schema_key"] == key for p in r["positions"]}
        reason = next(u.reason for u in unread if of_schema.issuperset(u.positions))
        unread = [u for u in unread if not of_schema.issuperset(u.positions)] + [Unread(reason, schemas[key])]
    if not accepted:
        return unread, []
    readable = records.where(~is_unread(unread)) if unread else records
    return unread, _seen(readable, reader, hints)


def _seen(records: DataFrame, reader: EventFormat, hints: Hints) -> list[Seen]:
    assert hints.table is not None
    return [s.seen for s in schemas_of(find_schemas(records, reader), hints.table)]


def check_key(records: DataFrame, planned: Sequence[Planned], spec: StagingSpec, key: tuple[str, ...]) -> None:
    """Raise DefinitionChangedError if no key is declared and the key in the records changes."""
    keys = [p.plan.key for p in planned if p.plan.key]
    if not keys or spec.key or spec.keys or spec.by_row or (had := key or keys[0]) == keys[-1]:
        return
    schemas = [s for p in planned if p.plan.key == keys[-1] for s in p.schemas]
    first = records.where(of_schemas(schemas)).agg(F.min("position")).collect()[0][0]
    raise key_changed(str(spec.table), f"the events' key was {', '.join(had)} and is {', '.join(keys[-1])}", int(first))


def key_changed(table: str, what: str, position: int) -> DefinitionChangedError:
    """Return the error for a table whose key changes at a record."""
    return DefinitionChangedError(
        f"{table}: {what}, from record {position} of the raw table on. Nothing was written. If the source table was "
        f"dropped and created again, declare `start_position: {position}`: the tables downstream then hold the events "
        "from there on. If the rows are the same and only the primary key changed, declare `key` with columns that "
        "all events have, earlier ones included"
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


def _is(unread: Unread) -> Column:
    return of_schemas([unread.schema]) if unread.schema is not None else F.col("position").isin(*unread.positions)


def is_unread(unread: Iterable[Unread]) -> Column:
    """Whether no plan can read a record."""
    condition = F.lit(False)
    for u in unread:
        condition = condition | _is(u)
    return condition


def refused_records(records: DataFrame, unread: Iterable[Unread]) -> DataFrame:
    """Return position and reason (`BAD`) of the records that no plan can read."""
    reason = F.lit(None).cast("string")
    for u in unread:
        reason = F.when(_is(u), F.lit(u.reason)).otherwise(reason)
    return records.select("position", reason.alias(BAD)).where(F.col(BAD).isNotNull())


# --- types that do not go together ------------------------------------------------------------------------------


def resolve_conflicts(planned: Sequence[Planned], spec: StagingSpec, existing: Mapping[str, str]) -> list[Planned]:
    """Return plans whose column types are compatible with each other and with existing columns (see `on_conflict`).

    Raises:
        SchemaConflictError: two types of a column have no common type, and `on_conflict` is `stop`.
    """
    types, resolved = dict(existing), []
    for p in planned:
        columns: list[EventColumn] = []
        for c in p.plan.columns:
            column, wide = c, widest(types.get(c.name, c.type), c.type)
            if wide is None and spec.on_conflict == "new-column" and c.name not in p.plan.key:
                column = replace(c, name=routed_name(c.name, c.type))
                wide = widest(types.get(column.name, c.type), c.type)
            if wide is None and spec.on_conflict != "stop":
                # No value of this type fits.
                wide = types[c.name]
                column = replace(c, type=wide, steps=(f"CAST(NULL AS {wide})",), is_conflict=True)
            if wide is None:
                raise conflict(str(spec.table), c.name, types[c.name], c.type)
            types[column.name] = wide
            columns.append(column)
        resolved.append(replace(p, plan=replace(p.plan, columns=tuple(columns))))
    return resolved
