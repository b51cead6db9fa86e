"""How the records of a batch can be read, and which of them cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import (
    DefinitionChangedError,
    InputError,
    KeyChangedError,
    LakeError,
    UnsupportedEventError,
)
from lake_assets.formats import EventFormat
from lake_assets.formats.event_model import Hints, Planned, Seen
from lake_assets.formats.format_base import schema_key
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.batch_schemas import find_schemas, schemas_of
from lake_assets.ingest.records.event_rows import BAD

# Ways in which the records of one batch can look, beyond which they are not looked at one by one.
_MOST_SHAPES = 1_000


def of_schemas(schemas: Iterable[str]) -> Column:
    """Whether a record has one of these schemas."""
    return F.col("schema_key").isin(*(schema_key(s) for s in schemas))


@dataclass(frozen=True)
class Unread:
    """Records that no plan can be made for: all of one schema, or those at some positions."""

    reason: str
    schema: str | None = None
    positions: tuple[int, ...] = ()


def keyed_plans(
    records: DataFrame,
    reader: EventFormat,
    seen: Sequence[Seen],
    hints: Hints,
    keys: Sequence[tuple[str, ...]],
    taken: tuple[str, ...],
) -> tuple[list[Planned], list[Unread], tuple[str, ...]]:
    """Return plans by the first declared key whose columns all occur, the records without a plan, and that key."""
    for key in (taken,) if taken else keys:
        planned, unread = _plans(records, reader, seen, replace(hints, key=key))
        there = {*hints.known, *(c.name for p in planned for c in p.plan.columns)}
        if taken or (planned and there.issuperset(key)):
            return planned, unread, key
    return *_plans(records, reader, seen, hints), ()


def _plans(
    records: DataFrame, reader: EventFormat, seen: Sequence[Seen], hints: Hints
) -> tuple[list[Planned], list[Unread]]:
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
    unread = [Unread(why, schema=s.schema) for s in seen if not s.shape and (why := _why_not(reader, [s], hints))]
    rest = [s for s in seen if not s.shape and s.schema not in {u.schema for u in unread}]
    if shaped := [s.schema for s in seen if s.shape]:
        # What the records of one schema look like together may fail for a few of them.
        some = records.where(of_schemas(shaped))
        strange, others = _one_by_one(some, reader, hints)
        unread, rest = [*unread, *strange], [*rest, *others]
    if not rest:
        return [], unread
    try:
        return list(reader.plans(rest, hints)), unread
    except (LakeError, ValueError, KeyError, TypeError) as e:
        raise UnsupportedEventError(f"events of {hints.table}: {e}") from whole


def _one_by_one(records: DataFrame, reader: EventFormat, hints: Hints) -> tuple[list[Unread], list[Seen]]:
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
    unread: list[Unread] = []
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
            unread.append(Unread(reason, positions=tuple(row["positions"])))
        else:
            accepted.append(one)
    for key in {r["schema_key"] for r in each} - {schema_key(s.schema) for s in accepted}:
        of_schema = {p for r in each if r["schema_key"] == key for p in r["positions"]}
        reason = next(u.reason for u in unread if of_schema.issuperset(u.positions))
        unread = [u for u in unread if not of_schema.issuperset(u.positions)] + [Unread(reason, schemas[key])]
    if not accepted:
        return unread, []
    taken = records.where(~is_unread(unread)) if unread else records
    return unread, _seen(taken, reader, hints)


def _seen(records: DataFrame, reader: EventFormat, hints: Hints) -> list[Seen]:
    assert hints.table is not None
    return [s.seen for s in schemas_of(find_schemas(records, reader), hints.table)]


def check_key(records: DataFrame, planned: Sequence[Planned], spec: StagingSpec, key: tuple[str, ...]) -> None:
    """Raise DefinitionChangedError where nobody declares a key, and the records say another one than those before."""
    said = [p.plan.key for p in planned if p.plan.key]
    if not said or spec.key or spec.keys or spec.by_row or (had := key or said[0]) == said[-1]:
        return
    schemas = [s for p in planned if p.plan.key == said[-1] for s in p.schemas]
    first = records.where(of_schemas(schemas)).agg(F.min("position")).collect()[0][0]
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


def _is(unread: Unread) -> Column:
    return of_schemas([unread.schema]) if unread.schema is not None else F.col("position").isin(*unread.positions)


def is_unread(unread: Iterable[Unread]) -> Column:
    """Whether a record is one that no plan can be made for."""
    found = F.lit(False)
    for u in unread:
        found = found | _is(u)
    return found


def refused_records(records: DataFrame, unread: Iterable[Unread]) -> DataFrame:
    """Position and reason (`BAD`) of the records that no plan can be made for."""
    reason = F.lit(None).cast("string")
    for u in unread:
        reason = F.when(_is(u), F.lit(u.reason)).otherwise(reason)
    return records.select("position", reason.alias(BAD)).where(F.col(BAD).isNotNull())
